"""A terminal of 80 columns: no command's output cuts a number there."""

import re
import shutil
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.spinner import Spinner
from rich.status import Status

from serfer.cli.shared.display import Table, styled
from serfer.cli.shared.options import status_line
from serfer.cli.shared.terminal import err, out
from serfer.registry import open_registry
from tests.e2e.small import split_small
from tests.registry.records import application, network
from tests.sam.builds import build
from tests.study.sim.worlds import TOML

ROOT = Path(__file__).parents[2]
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
LOAD = "diurnal:mean=2,hours=0.2,peak_hour=0.1"

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


@pytest.mark.parametrize("text", ["http://[fd00::1]:1", "[/x]", "[bold]b[/]", ":cat:"])
def test_text_from_outside_is_printed_as_it_is(text, capsys, monkeypatch):
    for console in (out, err):
        console.print(styled(text), text)
    assert [*capsys.readouterr()] == [f"{text} {text}\n"] * 2
    monkeypatch.setattr(Status, "update", lambda _, shown: out.print(Spinner("dots", shown).text))
    with status_line() as progress:
        progress(text)
    assert capsys.readouterr().out == f"{text}\n"


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


@pytest.fixture
def narrow(serfer, places, monkeypatch, tmp_path, tmp_path_factory):
    """Run a command whose output is a terminal of 80 columns: its exit code, and what it printed."""
    shutil.copytree(places["registry"], tmp_path / "registry")
    monkeypatch.chdir(tmp_path)
    cache = tmp_path_factory.getbasetemp() / "narrow-cache"
    for name, value in {"SERFER_CACHE_DIR": cache, "SERFER_REGISTRY": "registry", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(out, "_force_terminal", True)
    monkeypatch.setattr(out, "_width", 80)
    return lambda command: serfer(*command.format(**places).split())


@pytest.mark.parametrize("command", CASES)
def test_no_number_is_cut(narrow, command):
    shown = narrow(command)
    assert shown.code in CASES[command], shown.err
    assert shown.out.strip()
    assert ELLIPSIS not in shown.out
    assert cut_numbers(shown.out, 80) == []


def cut_numbers(text, width):
    """Return the lines that a terminal breaks inside a number; what is to be copied, and messages, are left to it."""
    number = re.compile(r"\d[\d.,]*\d")
    lines = [line for line in text.splitlines() if not line.startswith(("serfer: ", "next: ", "wrote ", "https://"))]
    return [line for line in lines if any(number.match(line, at - 1) for at in range(width, len(line), width))]


def test_a_line_of_text_is_broken_between_words(narrow):
    """Explanations and summaries are longer than a terminal is wide."""
    assert cut_numbers("x" * 79 + "1234", 80)
    assert max(map(len, narrow("explain {plan} --pareto").out.splitlines())) <= 80


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
