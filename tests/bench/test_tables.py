"""How results are printed: aligned, in Markdown, as JSON lines."""

import json
import subprocess
import sys

import pytest

from serfer.cli.shared.tables import Results, Table, publish
from serfer.core.errors import SerferError
from serfer_bench.cli import COMMANDS
from serfer_bench.core.results import require_at_most

TABLE = Table(("system", "ms", "plan"), [("a", "1.5", "x" * 300), ("longer [b]", "1,200.0", "-"), ("c", "-", "2x2, 1")])


def test_numbers_are_aligned_to_the_right_and_no_cell_is_wrapped_or_read_as_markup():
    head, *body = TABLE.text().splitlines()
    assert head.split() == ["system", "ms", "plan"]
    assert len(body) == 3
    assert {line.index(end) + len(end) for line, end in zip(body, ("1.5", "1,200.0"), strict=False)} == {
        head.index("ms") + 2
    }
    assert "x" * 300 in body[0]
    assert "longer [b]" in body[1]
    assert all(line == line.rstrip() for line in body)


def test_a_terminal_wraps_long_cells():
    assert max(map(len, TABLE.text(80).splitlines())) <= 80


def test_markdown_has_tables_and_notes_as_a_list():
    text = Results((), [Table(("a", "b"), [("1", "2")])], ["  first", "second"]).markdown()
    assert text == "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n- first\n- second"


@pytest.mark.parametrize(("flags", "start"), [({}, "a"), ({"as_markdown": True}, "| a |"), ({"as_json": True}, "{")])
def test_a_report_is_published_in_one_of_three_forms(capsys, flags, start):
    publish(Results([{"a": 1}], [Table(("a",), [("1",)])]), **{"as_json": False, **flags})
    shown = capsys.readouterr().out
    assert shown.lstrip().startswith(start)
    if "as_json" in flags:
        assert json.loads(shown) == {"a": 1}


def test_only_values_above_their_limit_fail():
    require_at_most(2.0, None, "x")
    require_at_most(2.0, 2.0, "x")
    with pytest.raises(SerferError, match=r"x, more than 1\.9"):
        require_at_most(2.0, 1.9, "x")


def test_the_help_lists_all_commands_in_order_and_imports_no_benchmark():
    heavy = ("torch", "onnx", "onnxruntime", "numpy", "scipy", "serfer_bench.core")
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from serfer.cli.main import app\n"
        "print(CliRunner().invoke(app, ['bench', '--help']).output)\n"
        f"print('imported', *({{*sys.modules}} & {{*{heavy}}}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *lines, imported = done.stdout.splitlines()
    listed = [line.split(maxsplit=1) for line in lines[lines.index("Commands:") + 1 :] if line.strip()]
    assert listed == [[name, summary] for name, (_, summary) in COMMANDS.items()]
    assert imported == "imported"
