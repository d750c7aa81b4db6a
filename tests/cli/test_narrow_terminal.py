"""A terminal of 80 columns: no command's output cuts a number there."""

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
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from serfer.cli.shared.display import Table
from serfer.registry import open_registry
from tests.cli.terminal_host import END
from tests.e2e.small import split_small
from tests.registry.records import application, network
from tests.sam.builds import build
from tests.study.sim.worlds import TOML

ROOT = Path(__file__).parents[2]
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
LOAD = "diurnal:mean=2,hours=0.2,peak_hour=0.1"
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
DRAWN_OVER = re.compile(r"[^\n]*\r(?=[^\r\n])|\r")


IN_PROCESS = "--plan {plan} --workers inprocess"
CASES = {
    f"classify {{image}} {IN_PROCESS} --compare": {0},
    f"predict {{image}} {IN_PROCESS}": {0},
    f"run {{image}} {IN_PROCESS} --out outputs --compare": {0},
    "explain {plan} --operators": {0},
    "explain {plan} --pareto": {0},
    "describe {plan}": {0},
    "verify {plan} {image} --random 2": {0},
    "cost {plan}": {0},
    "cost {build}": {0},
    "app list": {0},
    "app history faces": {0},
    "doctor": {0, 4},
    f"study simulate {LOAD} --scenario {{scenario}} --policy all --window-s 60": {0},
}
"""Commands with the widest tables and lines, and the exit codes that they may have."""


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
    return {
        "plan": plan,
        "image": ROOT / "examples" / "images" / "rocket.jpg",
        "build": build(folder / "build"),
        "registry": registry,
        "scenario": folder / "scenario.toml",
    }


@pytest.fixture(scope="module")
def terminal(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    host = Terminal(SERFER_CACHE_DIR=str(cache), SERFER_REGISTRY="registry", AWS_EC2_METADATA_DISABLED="true")
    yield host
    host.close()


@pytest.mark.parametrize("command", CASES)
def test_no_number_is_cut(terminal, places, tmp_path, command):
    shutil.copytree(places["registry"], tmp_path / "registry")
    text, code = terminal.run(80, tmp_path, command.format(**places).split())
    assert code in CASES[command], text
    assert text.strip()
    assert ELLIPSIS not in text
    assert cut_numbers(text, 80) == []
    assert not re.search(r"\bTraceback\b", text)


def cut_numbers(text, width):
    """Return the lines that a terminal breaks inside a number; what is to be copied, and messages, are left to it."""
    number = re.compile(r"\d[\d.,]*\d")
    lines = [line for line in text.splitlines() if not line.startswith(("serfer: ", "next: ", "wrote ", "https://"))]
    return [line for line in lines if any(number.match(line, at - 1) for at in range(width, len(line), width))]


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
    rows = [[f"row-{number}", *(cells[number] for _, cells in parts)] for number in range(2)]
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None, soft_wrap=True)
    console.print(Table(["name", *(head for head, _ in parts)], rows))
    text = console.file.getvalue()
    assert ELLIPSIS not in text
    first, second = ([line for line in text.splitlines() if line.startswith(row[0])] for row in rows)
    for lines, row in ((first, rows[0]), (second, rows[1])):
        assert " ".join(" ".join(lines).replace(row[0], "").split()) == " ".join(row[1:])


def test_a_table_that_fits_has_one_line_a_row_and_no_other():
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None, soft_wrap=True)
    console.print(Table(["name", "a long head of a number"], [["x", "1"]]))
    assert console.file.getvalue().split("\n") == ["name  a long head of a number", "x     " + "1".rjust(23), ""]
