"""How results are printed: aligned, in Markdown, as JSON lines."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import InputError, SerferError
from serfer_bench.core.results import require_at_most
from serfer_bench.core.seeds import over_seeds
from serfer_bench.core.tables import Results, Table, publish

TABLE = Table(("system", "ms", "plan"), [("a", "1.5", "x" * 300), ("longer [b]", "1,200.0", "-"), ("c", "-", "2x2, 1")])


def test_numbers_are_aligned_no_cell_is_wrapped_but_on_a_terminal_and_markdown_has_notes_as_a_list():
    head, *body = TABLE.text().splitlines()
    assert head.split() == ["system", "ms", "plan"]
    assert len(body) == 3
    assert {line.index(end) + len(end) for line, end in zip(body, ("1.5", "1,200.0"), strict=False)} == {
        head.index("ms") + 2
    }
    assert "x" * 300 in body[0]
    assert "longer [b]" in body[1]
    assert all(line == line.rstrip() for line in body)
    assert max(map(len, TABLE.text(80).splitlines())) <= 80
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


def test_the_help_imports_no_benchmark():
    heavy = ("torch", "onnx", "onnxruntime", "numpy", "scipy", "serfer_bench.core")
    look = f"import sys, atexit; atexit.register(lambda: print('imported', *({{*sys.modules}} & {{*{heavy}}})))"
    code = f"{look}; sys.argv = ['serfer', 'bench', '--help']; from serfer.cli.main import app, run; run(app)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported"


POLICIES = pytest.mark.parametrize("bench", ["optimum", "halves"])


def run(bench, folder, *loads):
    wanted = [word for load in loads for word in ("--load", load)]
    return CliRunner().invoke(app, ["study", "policies", bench, "--traces", str(folder), *wanted])


@POLICIES
def test_loads_of_a_folder_that_is_not_there_are_skipped_and_unknown_ones_an_error(tmp_path, bench):
    done = run(bench, tmp_path / "traces", "twitter", "nasa")  # a page's command has it, a clean checkout has not
    assert done.exit_code == 0
    assert f": there is no folder {tmp_path / 'traces'}; get them with" in done.stderr
    done = run(bench, tmp_path, "facebook")
    assert isinstance(done.exception, InputError)
    assert "there are no loads" in str(done.exception)


@dataclass(frozen=True)
class Line:
    name: str
    cells: tuple[str, ...]

    @property
    def shown(self):
        return {"name": self.name} | {f"figure {number}": cell for number, cell in enumerate(self.cells)}


def test_cells_that_differ_are_ranges_and_rows_that_no_seed_changes_stand_first_and_once():
    seeds = [
        ("9.5%", "1,200", "1e-06", "none", "1"),
        ("10.0%", "300", "2e-05", "none", ""),
        ("7.0%", "-", "3e-07", "none", "2"),
    ]
    table = over_seeds([[Line("a", cells), Line("b", tuple("12345"))] for cells in seeds])
    assert [*table.body] == [["a", "7.0% to 10.0%", "300 to -", "3e-07 to 2e-05", "none", ""], ["b", *"12345"]]
    table = over_seeds([[Line("a", ("1",))], [Line("a", ("2",))]], [Line("fixed", ("5",))])
    assert [*table.body] == [["fixed", "5"], ["a", "1 to 2"]]
