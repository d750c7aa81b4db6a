"""The way of one query: which functions of ours every warm POST /v1/predict calls, in process, and in how many files.

The bounds are what the way takes now; they are only lowered. Whoever adds a step to a query's way makes room for it.
The aim is 40 functions in 18 files, none of more than 40 lines, and no file that is entered more than three times.
"""

import ast
import os
import sys
import threading
from itertools import groupby
from pathlib import Path

import httpx
import pytest

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.decoding.decoders import Decoders
from serfer.api.observability.logs import configure_logs
from serfer.api.service import Service
from serfer.settings import Settings
from tests.api.logged import logged
from tests.support.served import PATIENCE, Observed, png, running

ROOT = Path(serfer.__file__).parents[1]
OURS = ("serfer", "drivers", "lambdas", "storage")
# Functions and files, by where they are. Two callbacks of a request's end may run within the query or after it.
BOUNDS = {"serfer/api": (64, 13), "serfer/pipeline": (27, 7), "": (235, 52)}
ENTERED = 13  # times that a file is entered at most, by the first calls of its functions
LONGEST = 40  # lines of a function


class Trace:
    """The functions of ours that threads call while it is `on`, in the order of their first calls."""

    def __init__(self):
        self.on = False
        self.calls = {}

    def profile(self, frame, event, _):
        if self.on and event == "call":
            self.calls.setdefault(frame.f_code)

    @property
    def way(self):
        """The files, from the top folder on, and the functions; comprehensions and lambdas are their functions'."""
        named = [code for code in self.calls if not code.co_name.startswith("<")]
        places = [(Path(code.co_filename).resolve(), code) for code in named if code.co_filename.startswith("/")]
        found = [(path.relative_to(ROOT), code) for path, code in places if path.is_relative_to(ROOT)]
        return [(path.as_posix(), code) for path, code in found if path.parts[0] in OURS]


@pytest.fixture(scope="module")
def logs():
    """Logs as a server writes them, whatever other tests of this process left."""
    with logged(), Path(os.devnull).open("w") as stream:
        configure_logs("info", stream, as_json=True, in_background=True)
        yield


@pytest.fixture(scope="module")
def way(logs, small_plan, forks):  # noqa: ARG001 - a server's logs
    trace, ways = Trace(), []
    threading.setprofile(trace.profile)
    try:
        pipeline = serfer.open(small_plan, store="memory://", workers="inprocess")
        service = Service({"small": pipeline.asynchronous}, Admission(4, 8), Observed(), Decoders(forks=forks))
        with running(make_app(service, Settings())) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
            for trace.on in (False, False, *(True,) * 8, False):
                trace.calls = {}
                assert client.post("/v1/predict", files={"image": ("a.png", png())}).status_code == 200
                ways.append(trace.way)
    finally:
        threading.setprofile(sys.getprofile())
    return [call for call in ways[2] if all(call in way for way in ways[3:-1])]


@pytest.mark.parametrize("folder", BOUNDS)
def test_way_of_a_query_has_few_functions_in_few_files(way, folder):
    there = [(path, code) for path, code in way if path.startswith(folder)]
    listing = "\n".join(f"{path}:{code.co_firstlineno} {code.co_qualname}" for path, code in there)
    functions, files = BOUNDS[folder]
    assert len(there) <= functions, listing
    assert len({path for path, _ in there}) <= files, listing
    assert there


def test_no_file_is_left_and_entered_again_many_times(way):
    entered = [path for path, _ in groupby(path for path, _ in way)]
    assert max(map(entered.count, entered)) <= ENTERED


def test_functions_of_a_querys_way_are_short(way):
    too_long = {}
    for path, code in way:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if first == code.co_firstlineno and node.end_lineno - node.lineno >= LONGEST:
                    too_long[f"{path} {code.co_qualname}"] = node.end_lineno - node.lineno + 1
    assert too_long == {}
