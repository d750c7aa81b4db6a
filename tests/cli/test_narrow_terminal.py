"""Terminals of 80 and 120 columns: no command's output cuts a number there, and mistakes end in one line."""

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from serfer.cli.main import COMMANDS, app
from serfer.cli.shared.display import columns
from serfer.registry import open_registry
from serfer_bench.cli import bench_app
from serfer_bench.study.cli import study_app
from tests.cli.terminal_host import END
from tests.e2e.small import LABELS, split_small
from tests.registry.records import application, network
from tests.sam.builds import build
from tests.study.sim.cluster.worlds import TOML as CLUSTER
from tests.study.sim.worlds import TOML

ROOT = Path(__file__).parents[2]
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
LOAD = "diurnal:mean=2,hours=0.2,peak_hour=0.1"
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
DRAWN_OVER = re.compile(r"[^\n]*\r(?=[^\r\n])|\r")


@dataclass(frozen=True)
class Case:
    """Commands that are run one after the other in one folder, and the exit codes that they may have."""

    commands: tuple[str, ...]
    codes: frozenset[int] = frozenset({0})
    mark: str = ""


def case(*commands, codes=(0,), mark=""):
    return Case(commands, frozenset(codes), mark)


def slow(*commands, **options):
    return case(*commands, mark="slow", **options)


def weekly(*commands, **options):
    return case(*commands, mark="weekly", **options)


IN_PROCESS = "--plan {plan} --workers inprocess"
LAMBDA = "--plan {plan} --workers null --rounds 1"
ON_STACKS = ("check", "apply", "smoke", "rollback", "destroy")
CASES = {
    "classify": case(f"classify {{image}} {IN_PROCESS} --compare"),
    "predict": case(f"predict {{image}} {IN_PROCESS}"),
    "run": case(f"run {{image}} {IN_PROCESS} --out outputs --compare"),
    "result show": case("result show " + "0" * 32, codes=(3,)),
    "result get": case("result get " + "0" * 32 + " --out there", codes=(3,)),
    "result delete": case("result delete " + "0" * 32, codes=(0, 3)),
    "split": slow("split {onnx} --out made", "split {onnx} --out tiles --grids 2x2"),
    "explain": case("explain {plan} --operators", "explain {plan} --pareto"),
    "describe": case("describe {plan}"),
    "verify": case("verify {plan} {image} --random 2"),
    "cost": case("cost {plan}", "cost {build}"),
    "map-plan": slow("map-plan {onnx} --out map --size 34x34", codes=(0, 3)),
    "map": slow("map {plan} {image} --out map.npy", codes=(2, 3)),
    "app register": weekly(
        "app register {onnx} --app small --validation {labelled} --registry new --labels {labels} --most 2 "
        "--preprocess {preprocess} --output softmax"
    ),
    "app list": case("app list"),
    "app promote": case("app promote faces net@2"),
    "app canary": case("app canary faces net@2 --share 0.25"),
    "app rollback": case("app promote faces net@2", "app rollback faces"),
    "app retire": case("app promote faces net@2", "app retire faces net@1"),
    "app fetch": case("app fetch faces net-v1-fp32 --out made", codes=(1,)),
    "app gc": case("app gc"),
    "app history": case("app promote faces net@2", "app history faces"),
    "app import": case("app import {registry} copy", codes=(0, 2, 3)),
    "app delete": case("app delete faces --yes"),
    "app restore": case("app restore faces 1", codes=(0, 2, 3)),
    "serve": weekly(
        "serve --plan {plan} --workers inprocess --port 1 --host 192.0.2.1",
        "serve --plan {plan} --port 1 --host 192.0.2.1 --drivers 2",
        codes=(4,),
    ),
    "instance": weekly("instance --plan {plan} --port 1 --host 192.0.2.1", codes=(4,)),
    "keys add": case("keys add a-phone --file keys.json --per-minute 1200"),
    "keys remove": case("keys add a-phone --file keys.json", "keys remove a-phone --file keys.json"),
    "keys list": case("keys add a-phone --file keys.json --per-minute 1200", "keys list --file keys.json"),
    "doctor": case("doctor", codes=(0, 4)),
    "deploy package": weekly("deploy package {plan} --out made"),
    **{f"deploy {name}": case(f"deploy {name} {{build}} none", codes=(3,)) for name in ON_STACKS},
    "deploy warm": case("deploy warm --plan {plan} --store memory://", codes=(2, 4)),
    "deploy sweep": case("deploy sweep --store memory://", codes=(2,)),
    "study profile": weekly("study profile --quick --out profiles.json"),
    "study tune": case("study tune --slo-ms 50 --plan {plan} --most 4 --repeats 1 --usd-per-hour 0.8"),
    "study simulate": case(
        f"study simulate {LOAD} --scenario {{scenario}} --policy all --window-s 60",
        f"study simulate {LOAD} --scenario {{scenario}} --window-s 60 --policy break-even --policy ski-rental "
        "--policy serverless --policy target-tracking --policy mark",
        "study simulate --scenario {cluster} --policy infless --policy batch --policy openfaas-plus --level rates",
    ),
    "study replay": weekly("study replay {plan} --qps 5 --minutes 0.05"),
    "study cluster-profile": case("study cluster-profile {plan} --out mine.toml"),
    "study fetch-traces": case("study fetch-traces"),
    "study policy": case("study policy ski-rental --alone --load poisson:hours=1,row_s=10 --seeds 1"),
    "study train-forecaster": weekly(
        "study train-forecaster diurnal:mean=20,hours=72,peak_hour=3 --out forecast.npz --epochs 1"
    ),
    "bench burst": slow(
        f"bench burst {LAMBDA} --queries 20 --service-ms 1", f"bench burst {LAMBDA} --rps 100 --seconds 0.2"
    ),
    "bench compare": slow(
        f"bench burst {LAMBDA} --rps 100 --seconds 0.2 --rounds 3 --out once", "bench compare once once"
    ),
    "bench stores": slow("bench stores --store memory:// --size 10 --rounds 2"),
    "study paper infaas --table 7": weekly("study paper infaas --table 7"),
    "bench overhead processor": weekly("bench overhead --plan {plan}", codes=(0, 2)),
}


GROUPS = ("serfer_bench.cli", "serfer_bench.study.cli.papers", "serfer_bench.study.cli.planner")
APPS = {"bench": bench_app.info.cls.places, "study": study_app.info.cls.places}


def benchmarks(places, above):
    """Return the names of benchmarks: of those with parts, of each part."""
    for name, (place, _) in places.items():
        module, _, attribute = place.partition(":")
        group = getattr(import_module(module), attribute) if module in GROUPS else None
        yield from benchmarks(group.info.cls.places, f"{above} {name}") if group else (f"{above} {name}",)


LONG = ("bench ", *(f"study {name}" for name in ("paper", "planner", "networks", "policies", "simulator", "measure")))
AS_OTHERS = {name for above in APPS for name in benchmarks(APPS[above], above) if name.startswith(LONG)} - {*CASES}
"""Benchmarks of minutes: they print by serfer_bench.core.results, as those above, and nothing else may make a table."""


def commands():
    top = typer.main.get_command(app)
    context = top.make_context("serfer", ["--version"], resilient_parsing=True)
    for name in COMMANDS:
        if name in APPS:
            yield from benchmarks(APPS[name], name)
            continue
        group = top.get_command(context, name)
        parts = group.list_commands(context) if hasattr(group, "list_commands") else ()
        yield from (f"{name} {each}" for each in parts) if parts else (name,)


def test_every_command_has_a_case():
    assert {*commands()} == {*CASES} | AS_OTHERS


def test_only_one_module_makes_tables():
    """Others would cut cells at the terminal's width, as rich's tables do."""
    found = [
        path.relative_to(ROOT)
        for package in ("serfer", "bench", "sam", "splitter", "storage", "drivers", "lambdas")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"\brich\.(table|columns)\b", path.read_text(encoding="utf-8"))
    ]
    assert [str(path) for path in found] == ["serfer/cli/shared/display.py"]


class Terminal:
    def __init__(self, **variables):
        self._master, slave = pty.openpty()
        reader, writer = os.pipe()
        arguments = [sys.executable, "-m", "tests.cli.terminal_host", str(reader)]
        unset = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        self._host = subprocess.Popen(
            arguments,
            **dict.fromkeys(("stdin", "stdout", "stderr"), slave),
            env={**unset, "TERM": "xterm-256color", **variables},
            pass_fds=[reader],
            cwd=ROOT,
        )
        os.close(slave)
        os.close(reader)
        self._queue = os.fdopen(writer, "w", encoding="utf-8")

    def run(self, columns_, directory, arguments):
        """Return what is on a terminal of so many columns after a command, and its exit code."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns_, 0, 0))
        self._queue.write(json.dumps([str(directory), *arguments]) + "\n")
        self._queue.flush()
        data = b""
        while not (done := re.search(rf"{END}(-?\d+)\r?\n".encode(), data)):
            data += os.read(self._master, 65536)
        shown = DRAWN_OVER.sub("", ESCAPES.sub("", data[: done.start()].decode()))
        return shown, int(done[1])

    def close(self):
        self._queue.close()
        self._host.wait()
        os.close(self._master)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("narrow")
    plan = split_small(folder)
    registry = folder / "registry"
    record = application("faces", network(), network(version=2), network("other"))
    open_registry(str(registry)).update("faces", lambda _: record)
    (folder / "scenario.toml").write_text(TOML)
    (folder / "cluster.toml").write_text(CLUSTER)
    (folder / "labels.txt").write_text("\n".join(LABELS))
    random = np.random.default_rng(0)
    for label in LABELS:
        (folder / "labelled" / label).mkdir(parents=True)
        for number in range(3):
            pixels = random.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "labelled" / label / f"{number}.png")
    return {
        "plan": plan,
        "onnx": folder / "small.onnx",
        "labels": folder / "labels.txt",
        "labelled": folder / "labelled",
        "preprocess": ROOT / "examples" / "preprocess.toml",
        "image": ROOT / "examples" / "images" / "rocket.jpg",
        "build": build(folder / "build"),
        "registry": registry,
        "scenario": folder / "scenario.toml",
        "cluster": folder / "cluster.toml",
    }


@pytest.fixture(scope="module")
def terminal(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    host = Terminal(SERFER_CACHE_DIR=str(cache), SERFER_REGISTRY="registry", AWS_EC2_METADATA_DISABLED="true")
    yield host
    host.close()


def marked(cases):
    return [
        pytest.param(name, marks=[getattr(pytest.mark, one.mark)] if one.mark else []) for name, one in cases.items()
    ]


WITH_TABLES = ("app list", "cost", "describe", "explain", "verify")
"""Those that `make test` also runs at 120 columns: quick ones, with the widest tables."""


@pytest.mark.parametrize(
    ("name", "width"),
    [
        *(pytest.param(*case.values, 80, marks=case.marks) for case in marked(CASES)),
        *(pytest.param(name, 120, marks=() if name in WITH_TABLES else pytest.mark.weekly) for name in CASES),
    ],
)
def test_no_number_is_cut(terminal, places, tmp_path, name, width):
    shutil.copytree(places["registry"], tmp_path / "registry")
    for command in CASES[name].commands:
        text, code = terminal.run(width, tmp_path, command.format(**places).split())
        assert code in CASES[name].codes, text
        assert text.strip() or name.startswith(("keys", "result"))
        assert ELLIPSIS not in text
        assert cut_numbers(text, width) == []
        assert not re.search(r"\bTraceback\b", text)


def cut_numbers(text, width):
    """Return the lines that a terminal breaks inside a number; what is to be copied, and messages, are left to it."""
    number = re.compile(r"\d[\d.,]*\d")
    lines = [line for line in text.splitlines() if not line.startswith(("serfer: ", "next: ", "wrote ", "https://"))]
    return [line for line in lines if any(number.match(line, at - 1) for at in range(width, len(line), width))]


MISTAKES = {
    "servee {onnx}": (2, "Did you mean 'serve'?"),
    "app regster": (2, "Did you mean 'register'"),
    "split {onnx} --otu plan": (2, "--out"),
    "serve alexnett": (3, "(did you mean alexnet?)"),
    "serve gone.onnx": (3, "gone.onnx does not exist: give an .onnx file"),
    "explain gone.onnx": (3, "it does not exist; make one with serfer split"),
    "explain registry": (3, "it has no plan.json; make one with serfer split"),
    "classify {image}": (2, "which network? Name an .onnx file, a plan directory"),
    "classify {image} --plan {onnx} --size 34": (2, "write HEIGHTxWIDTH such as 224x224"),
    "predict {image} --plan {plan} --workers inprocess --store redis://127.0.0.1:1": (4, "is it running, and are host"),
    "app history nobody": (2, "has no application nobody: it has faces"),
    "deploy check registry none": (3, "write it again with serfer deploy package"),
    "study simulate poisson --scenario asw": (3, "a scenario by name: those are aws, "),
}


@pytest.mark.parametrize("width", [80, 120])
def test_a_mistake_ends_in_one_line_that_says_what_to_do(terminal, places, tmp_path, width):
    shutil.copytree(places["registry"], tmp_path / "registry")
    for mistake, (expected, advice) in MISTAKES.items():
        text, code = terminal.run(width, tmp_path, mistake.format(**places).split())
        last = text.splitlines()[-1]
        assert (code, last.startswith("serfer: "), advice in last) == (expected, True, True), text
        assert text.count("serfer: ") == 1
        assert not re.search(r"\bTraceback\b", text)


def test_a_line_of_text_is_broken_between_words(terminal, places, tmp_path):
    """Explanations and summaries are longer than a terminal is wide."""
    text, _ = terminal.run(80, tmp_path, ["explain", str(places["plan"]), "--pareto"])
    assert cut_numbers("x" * 79 + "1234", 80)
    assert max(map(len, text.splitlines())) <= 80


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "$ a million", "stage", "of the limit (M)", "p99 ms"]),
            st.lists(st.sampled_from(["0.1234", "4,089.1 M", "+0%", "5307 MB", "-", "1,234,567.89"]), min_size=2),
        ),
        min_size=1,
        max_size=14,
    ),
    st.integers(8, 200),
)
def test_a_table_keeps_its_cells_whole_at_any_width(parts, width):
    table = columns("name", *(head for head, _ in parts))
    rows = [[f"row-{number}", *(cells[number] for _, cells in parts)] for number in range(2)]
    for row in rows:
        table.add_row(*row)
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None, soft_wrap=True)
    console.print(table)
    text = console.file.getvalue()
    assert ELLIPSIS not in text
    first, second = ([line for line in text.splitlines() if line.startswith(row[0])] for row in rows)
    for lines, row in ((first, rows[0]), (second, rows[1])):
        assert " ".join(" ".join(lines).replace(row[0], "").split()) == " ".join(row[1:])


def test_a_table_that_fits_has_one_line_a_row_and_no_other():
    table = columns("name", "a long head of a number")
    table.add_row("x", "1")
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None, soft_wrap=True)
    console.print(table)
    assert console.file.getvalue().split("\n") == ["name  a long head of a number", "x     " + "1".rjust(23), ""]
