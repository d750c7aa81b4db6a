"""The command line itself: its help, its ends, and what it says where a library or a terminal is missing."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from serfer.api.entrypoints import serving
from serfer.api.entrypoints.opening import Address
from serfer.cli import serve
from serfer.cli.main import COMMANDS, PANELS
from serfer.cli.shared import options as cli_options
from serfer.cli.shared.terminal import _Interrupt, uninterrupted
from serfer.core.errors import ModelError
from serfer.extras import pip_command
from serfer.settings import Settings
from tests.core.plans import write_plan


def test_help_lists_every_command_in_panels_in_the_order_of_use(serfer):
    panels = dict(panel.split(":\n", 1) for panel in serfer("--help").out.split("\n\n") if ":\n" in panel)
    lines = {panel: re.sub(r"\n {4,}", " ", panels[panel]).splitlines() for panel in PANELS}  # summaries may wrap
    assert {panel: tuple(line.split()[0] for line in lines[panel]) for panel in PANELS} == PANELS
    assert [name for names in PANELS.values() for name in names] == [*COMMANDS]
    assert all(line.endswith(".") and not line.endswith("..") for panel in PANELS for line in lines[panel])


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS), ["bench", "overhead"], ["keys", "add"], ["deploy", "apply"]]
)
def test_h_is_help(serfer, command):
    short = serfer(*command, "-h")
    assert (short.code, short.out) == (0, serfer(*command, "--help").out)


@pytest.mark.parametrize(
    ("arguments", "variables", "own"),
    [
        (["--help"], {}, set()),
        (["--version"], {}, set()),
        ([], {"_SERFER_COMPLETE": "complete_bash", "COMP_WORDS": "serfer c", "COMP_CWORD": "1"}, {"pydantic"}),
    ],
)
def test_no_command_is_imported_to_list_them(arguments, variables, own):
    """Typer itself imports what is its `own` to complete a command line."""
    code = f"import sys; sys.argv = ['serfer', *{arguments!r}]; from serfer.cli.main import app, run; run(app)"
    look = "import atexit, sys; atexit.register(lambda: print(*sys.modules, sep='\\n', file=sys.stderr))"
    known = {**os.environ, **variables}
    run = subprocess.run(
        [sys.executable, "-c", f"{look}; {code}"], env=known, capture_output=True, text=True, check=True
    )
    loaded = {*run.stderr.split()}
    heavy = {"PIL", "boto3", "botocore", "matplotlib", "numpy", "onnx", "onnxruntime", "pydantic", "torch"}
    assert "typer" in loaded
    ours = {"serfer_bench", "serfer.drivers", "serfer.sam", "serfer.splitter", "serfer.storage"}
    assert not ({*heavy} - own | ours) & loaded


def test_a_shell_completes_commands(serfer, monkeypatch, capsys):
    assert "--install-completion" in serfer("--help").out
    for name, value in {"_SERFER_COMPLETE": "complete_bash", "COMP_WORDS": "serfer cl", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        serfer()
    assert (end.value.code, capsys.readouterr().out) == (0, "classify\n")


def test_a_missing_library_is_named_with_its_pip_command(serfer, monkeypatch, tmp_path):
    import_module("serfer.images")  # which has what is hidden next
    monkeypatch.setitem(sys.modules, "torch", None)  # import raises ModuleNotFoundError
    monkeypatch.setitem(sys.modules, "PIL", None)
    for name in [
        name for name in sys.modules if name.startswith(("serfer.splitter.build", "serfer.splitter.network.source"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("serfer.wiring.local.dependency_bytes", lambda *_: 0)
    (tmp_path / "net.py").write_text("import torch")
    result = serfer("split", f"{tmp_path}/net.py:make", "--size", "8x8", "--out", str(tmp_path / "plan"))
    assert (result.code, result.out) == (4, "")
    assert re.fullmatch(r"serfer: torch is not installed\b.* CPU build first .*: pip install .*\n", result.err)
    assert result.err.endswith(f": {pip_command('torch')}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("splt net.onnx", 2, "No such command 'splt'. Did you mean 'split'"),
        ("keys ad x", 2, "No such command 'ad'. Did you mean 'add'? ... (see serfer keys --help)"),
        ("split net.onnx --grid 2x2 --out x", 2, "No such option ... --grids"),
        ("split folder.onnx --out x", 3, "folder.onnx is a directory, not an .onnx file"),
        ("split plan --out x", 3, "plan is a plan directory, which was split before: give the network, or see serfer"),
        ("split . --out x", 3, ". is a directory: give an .onnx file, module.py:factory, or a name"),
        ("split no.py:make --out x", 3, "no.py does not exist: give the Python file that has make()"),
        ("serve net.jpg", 3, "net.jpg is not a plan directory: it is no .onnx file either"),
        ("serve net.py:make", 3, "net.py:make is a Python file, not a plan directory: write one with serfer split"),
        ("predict code.py x.jpg", 3, "code.py is a Python file, not a plan directory: write one with serfer split"),
        ("deploy apply plan dev", 3, "plan is a plan: serfer deploy package plan --out BUILD, and give BUILD"),
        ("keys add a --scope x", 2, "Invalid value for '--scope': 'x' is not one of 'classify', "),
        ("split timm:none --stages 99 --out x", 2, "--stages must be between 1 and 16, not 99"),
        ("serve timm:none --keys no.json", 2, "the file of API keys /"),
        ("keys list --file no.json", 3, "the file of API keys no.json cannot be read: No such file"),
        ("--config no.toml serve --show-config", 3, "--config or SERFER_CONFIG: 'no.toml' cannot be read: No such"),
        ("explain gone.onnx", 3, "gone.onnx is not a plan directory: it does not exist; make one with serfer split"),
        ("explain plan/plan.json", 3, "plan/plan.json is a file of a plan: give its directory, plan"),
        ("serve restnet50", 3, "restnet50 does not exist, and no network has that name (did you mean resnet50?): "),
        *(
            (f"serve {drivers} net.onnx --set=keep_warm={windows}", 2, "")
            for drivers in ("", "--drivers 2")
            for windows in ("lhst", "lsth:gamma=2", "-5", "serfer.core.errors:UsageError")
        ),
        ("map x.tif --plan plan --out y.tif --no-check", 2, "No such option ... --no-check ... : it is a key, --set"),
        ("classify x.jpg --set min_score=1", 2, "--set: 'min_score' is not a key of the command"),
        ("run x.jpg --set json=true --out x", 2, "--set: 'json' is not a key of the command: did you mean as_json?"),
    ],
)
def test_a_mistake_is_named_in_a_line_that_says_what_to_do(serfer, tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.onnx").mkdir()
    write_plan(tmp_path / "plan")
    (tmp_path / "code.py").touch()
    (tmp_path / "net.jpg").touch()
    monkeypatch.setenv("SERFER_CONFIG", "")  # which --config sets
    result = serfer(*arguments.split())
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1), result.err
    start, *rest = words.split(" ... ")  # between them, versions of typer have words of their own
    assert result.err.startswith(f"serfer: {start}")
    assert all(text in result.err for text in rest)


@pytest.mark.parametrize("command", ["serve", "instance"])
def test_port_that_is_taken_is_said_before_a_plan_is_made(serfer, command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = serfer(command, "--plan", "none", "--port", str(taken.getsockname()[1]))
    assert (result.code, "is taken" in result.err) == (4, True)


@pytest.mark.killed
@pytest.mark.parametrize(
    ("number", "turned_into", "word"),
    [
        (signal.SIGINT, ImportError("initialization failed"), "interrupted"),
        (signal.SIGINT, ModelError("net.py:make failed"), "interrupted"),
        (signal.SIGTERM, ModelError("net.py:make failed"), "terminated"),
    ],
)
def test_a_signal_that_an_import_turned_into_another_error_is_obeyed(serfer, monkeypatch, number, turned_into, word):
    """NumPy's and torch's own initialisation in C does that to a KeyboardInterrupt."""
    interrupt = _Interrupt()
    before = signal.signal(number, interrupt)

    def examine(_settings):
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            raise turned_into from None

    monkeypatch.setattr("serfer.doctor.machine.examine", examine)
    try:
        result = serfer("doctor", interrupt=interrupt)
    finally:
        signal.signal(number, before)
    assert (result.code, result.err) == (128 + number, f"serfer: {word}\n")


STARTED = """
import importlib.abc, os, signal, sys
class Hook(importlib.abc.MetaPathFinder):
    left = int(sys.argv.pop(1))
    def find_spec(self, name, path=None, target=None):
        self.left -= "serfer.__main__" in sys.modules
        if self.left == 0:
            self.left = -1
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Hook())
from serfer.__main__ import main
main()
"""


@pytest.mark.killed
@pytest.mark.parametrize("number", [1, 2, 5, 20, 60, 150, 250, 350, 450, 600])
def test_interrupt_at_any_import_ends_in_one_line(number):
    command = [sys.executable, "-c", STARTED, str(number), "predict", "no.png", "--plan", "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "serfer: interrupted\n") or (number > 350 and done.returncode == 3)


def test_package_imports_nothing_before_the_command_sees_to_interrupts():
    code = "import os, importlib, sys; before = {*sys.modules}; import serfer; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {*done.stdout.split()} <= {"serfer", "__future__"}


def test_uninterrupted_restores_signal_handlers():
    """A command that runs within another program must not make it, or what it starts, deaf to SIGTERM."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with uninterrupted():
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * 2
    assert [signal.getsignal(number) for number in numbers] == before


def test_the_line_of_the_present_step_goes_when_the_service_is_ready(monkeypatch):
    shown = []

    @contextmanager
    def status_line():
        yield shown.append
        shown.append("ended")

    async def serve_models(*_, on_started, progress):
        progress("starting workers")
        on_started("http://127.0.0.1:8000")
        shown.append("answers queries")

    monkeypatch.setattr(serve, "status_line", status_line)
    monkeypatch.setattr(serving, "serve_models", serve_models)
    monkeypatch.setattr(serve, "start_log", lambda *_: None)
    opening = SimpleNamespace(choices=SimpleNamespace(driver="stepfunctions", workers="aws"), applications=None)
    serve._serve_here(Address("127.0.0.1", 8000), {}, opening, Settings(), as_json=True)
    assert shown == ["starting workers", "ended", "answers queries"]


class TestBugs:
    @pytest.fixture
    def broken(self, serfer, monkeypatch):
        monkeypatch.setattr("serfer.doctor.machine.examine", Mock(side_effect=KeyError("no\nsuch column")))
        return serfer

    def test_a_bug_is_one_line_with_its_place_and_how_to_report_it(self, broken):
        result = broken("doctor")
        assert (result.code, result.out, result.err.count("\n")) == (70, "", 1)
        assert re.match(
            r"serfer: a bug in SerFer, serfer/cli/deployed\.py:\d+ in \w+: KeyError: 'no\\nsuch", result.err
        )
        assert "--debug" in result.err
        assert "serfer doctor" in result.err

    @pytest.mark.parametrize(
        ("arguments", "code", "last"),
        [
            (["--debug", "doctor"], 70, "serfer: a bug in SerFer"),
            (["doctor", "--json", "--debug"], 70, "serfer: a bug in SerFer"),
            (["explain", "nowhere", "--debug"], 3, "serfer: nowhere is not"),
        ],
    )
    def test_debug_prints_the_frames_first_of_errors_of_the_users_own_too(self, broken, arguments, code, last):
        result = broken(*arguments)
        assert result.code == code
        assert result.err.startswith("Traceback")
        assert result.err.splitlines()[-1].startswith(last)

    def test_behind_two_dashes_it_is_an_argument(self, serfer):
        assert serfer("explain", "--", "--debug").err.count("\n") == 1

    def test_too_little_memory_is_no_bug(self, serfer, monkeypatch):
        monkeypatch.setattr("serfer.doctor.machine.examine", Mock(side_effect=MemoryError))
        result = serfer("doctor")
        assert (result.code, result.err) == (4, "serfer: there is not enough memory\n")


def test_a_first_split_logs_progress_without_a_terminal(monkeypatch, capsys, tmp_path):
    def zoo_plan(name, _settings, progress):
        progress(f"splitting {name}, once")
        return write_plan(tmp_path)

    monkeypatch.setattr("serfer.wiring.local.zoo_plan", zoo_plan)
    assert cli_options.plan_directory(None, "alexnet") == tmp_path
    first, *summary = capsys.readouterr().err.splitlines()
    assert first == "serfer: splitting alexnet, once"
    assert len(summary) == 2


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        (["serve"], [".onnx", "timm:NAME", "of the zoo", "--app NAME", "--demo"]),
        (["serve", "--drivers", "2", "--port", "0"], [".onnx", "--demo"]),
        (["classify", "photo.png"], [".onnx", "torchvision:NAME", "--model NAME", "--demo"]),
        (["predict", "photo.png"], [".onnx", "--model NAME"]),
        (["instance"], ["--plan DIR", "--model NAME", "--registry URL"]),
        (["study", "tune", "--slo-ms", "9"], ["--plan DIR", "--model NAME"]),
    ],
)
def test_without_a_network_the_ways_to_name_one_are_listed(serfer, monkeypatch, words, ways):
    monkeypatch.delenv("SERFER_REGISTRY", raising=False)
    monkeypatch.setattr("serfer.wiring.local.zoo_plan", None)
    refused = serfer(*words)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("serfer: which network? Name ")
    assert all(way in refused.err for way in ways)


@pytest.mark.parametrize("words", [["serve", "net.onnx"], ["classify", "photo.png", "--model", "alexnet"]])
def test_the_demos_network_is_not_one_of_two(serfer, words):
    refused = serfer(*words, "--demo")
    assert (refused.code, "--demo names a network itself" in refused.err) == (2, True)


def test_a_misspelt_setting_is_an_error_with_the_nearest_name(tmp_path):
    names = {"SERFER_API_JOB": "true", "SERFER_REGISTRI": "here", "SERFER_WHATEVER_ELSE": "1"}
    environ = {**os.environ, "SERFER_CACHE_DIR": str(tmp_path), **names}
    program = [sys.executable, "-m", "serfer", "explain", str(tmp_path)]
    done = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "serfer: not a setting: SERFER_API_JOB (did you mean SERFER_API_JOBS?), SERFER_REGISTRI "
        "(did you mean SERFER_REGISTRY?), SERFER_WHATEVER_ELSE: without it, serfer serve --show-config lists all there "
        "are\n"
    )
