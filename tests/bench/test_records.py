"""Tables of pages are written from records, and records by their commands: `serfer bench results`."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import InputError, SerferError
from serfer_bench.records.command import recorded, steps
from serfer_bench.records.record import FOLDER, Figures, Layout, Record, commit_of, differences, digest, read_records
from tests.bench.running import parse
from tests.bench.test_charts import BODY, HEAD, PICTURE

ROOT = Path(__file__).parents[2]
COMMAND = "serfer study policies sharing --seconds 5 --rate 2"
PAGE = "# Page\n\nText.\n\n<!-- record: shared table: 1 -->\nold\n<!-- end -->\n\nMore.\n"
TABLES_WITHOUT_A_RECORD = {
    ("chaos.md", "Chaos tests: scenarios and pass criteria"): "defines scenarios",
    ("infaas.md", "INFaaS: selections, scaling, and figures 5 to 7"): "defines systems",
    ("infless.md", "INFless: its evaluation in simulations, beside the published figures"): "defines profiles",
    ("serfer.md", "What the systems are"): "defines systems",
    ("serfer.md", "Where the paper contradicts itself"): "has published figures",
}
FIGURES = Figures(("system", "load", "ms", "share"), (("a", "low", "1,200", "50.0%"), ("b", "low", "3", "")))


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a record that has no figures yet, its file, and a page that shows it."""
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / "rule.py").write_text("one = 1\n")
    Record(COMMAND, "simulated", "0", "5 s", {"rule.py": ""}).write(tmp_path / FOLDER / "shared.json")
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    return tmp_path


def results(checkout, *options):
    return CliRunner().invoke(app, ["bench", "results", *options, "--checkout", str(checkout)])


def test_a_record_is_run_and_its_table_written_with_what_a_reader_needs(checkout):
    done = results(checkout, "--run", "shared")
    assert done.exit_code == 0, done.output
    assert "stale" not in done.output
    page = (checkout / "docs" / "page.md").read_text()
    assert page.startswith("# Page\n\nText.\n\n<!-- record: shared table: 1 -->\n\n| tasks/s | slots |")
    assert page.endswith("<!-- end -->\n\nMore.\n")
    assert re.search(rf"\*Simulated\*: `{COMMAND}`; 20\d\d-\d\d-\d\d; seeds 0; 5 s\.\n", page)
    assert results(checkout, "--check").exit_code == 0
    assert results(checkout, "--run", "shared", "--check").exit_code == 0


def test_a_command_that_was_not_run_yet_says_so_and_a_record_that_no_page_shows_fails_the_check(checkout):
    assert results(checkout).exit_code == 0
    page = (checkout / "docs" / "page.md").read_text()
    assert f"*Not run yet*: `{COMMAND}`." in page
    assert "Stale" not in page
    assert "not run yet: shared: serfer bench results --run shared" in results(checkout, "--check").output
    results(checkout, "--run", "shared")
    (checkout / FOLDER / "shared.json").rename(checkout / FOLDER / "lonely.json")
    (checkout / "docs" / "page.md").write_text("# Page\n")
    assert "no page shows lonely" in str(results(checkout, "--check").exception)


def test_a_stale_record_is_listed_where_its_page_is_meant_and_fails_nothing(checkout):
    results(checkout, "--run", "shared")
    (checkout / "rule.py").write_text("one = 2\n")
    checked = results(checkout, "--check")
    assert checked.exit_code == 0
    assert "stale: shared: rule.py changed since" in checked.output
    assert "**Stale**" not in (checkout / "docs" / "page.md").read_text()
    results(checkout)
    assert "**Stale**" in (checkout / "docs" / "page.md").read_text()
    assert results(checkout, "--check").exit_code == 0
    shared = (checkout / FOLDER / "shared.json").read_text()
    (checkout / FOLDER / "other.json").write_text(shared)
    (checkout / "docs" / "other.md").write_text(PAGE.replace("shared", "other"))
    assert results(checkout, "other").output.count("stale: ") == 1
    assert results(checkout).output.count("stale: ") == 2
    checked = results(checkout, "--run", "shared", "--check")
    assert "shared: equal" in checked.output
    assert "other" not in checked.output


def test_an_edited_table_and_figures_of_old_fail_the_check(checkout):
    results(checkout, "--run", "shared")
    page = checkout / "docs" / "page.md"
    right = page.read_text()
    page.write_text(right.replace("at once", "at twice"))
    assert "docs/page.md: not what the records say" in str(results(checkout, "--check").exception)
    assert results(checkout, "page").exit_code == 0
    assert page.read_text() == right
    file = checkout / FOLDER / "shared.json"
    file.write_text(file.read_text().replace("at once", "at twice"))
    before = file.read_text()
    failed = results(checkout, "--run", "shared", "--check")
    assert "rule was at twice, gather meanwhile, is at once, gather meanwhile" in str(failed.exception)
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("record: shared", "record: other", "there is no record 'other'"),
        ("table: 1", "table: 7", "table 7: there are 1"),
        ("<!-- end -->", "", "lacks its <!-- end -->"),
    ],
)
def test_a_page_that_names_what_is_not_there_is_refused_by_its_name(checkout, old, new, fault):
    results(checkout, "--run", "shared")
    page = checkout / "docs" / "page.md"
    page.write_text(page.read_text().replace(old, new))
    assert re.search(rf"docs/page.md: .*{re.escape(fault)}", str(results(checkout).exception))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"kind": "guessed"}, "kind should be measured, emulated, modelled, simulated, assumed"),
        ({"files": {}}, "files are 1 to 10"),
        ({"files": {f"{number}.py": "" for number in range(11)}}, "files are 1 to 10"),
        ({"tables": [{"head": ["a"], "rows": [["1", "2"]]}]}, "a row does not have as many cells"),
        ({"layout": {"rows": [], "column": "b", "cell": "{c}"}, "tables": [{"head": ["a"], "rows": []}]}, "names b, c"),
    ],
)
def test_a_record_with_a_fault_is_refused_by_its_file(checkout, change, fault):
    file = checkout / FOLDER / "shared.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=f"shared.json: .*{fault}"):
        read_records(checkout)
    with pytest.raises(InputError, match="run this in a checkout of SerFer"):
        read_records(checkout / "docs")


@pytest.mark.parametrize("command", ["rm -r", f"{COMMAND} && rm -r"])
def test_only_commands_of_serfer_run(checkout, command):
    with pytest.raises(InputError, match=r"serfer's, joined by &&, not '.*rm -r'"):
        recorded(Record(command, "measured", "", "", {"rule.py": ""}), checkout)


def test_of_several_commands_all_are_run_and_the_last_ones_tables_recorded(checkout):
    one = Record(f"{COMMAND} --rate 3 && {COMMAND}", "simulated", "", "", {"rule.py": ""})
    assert [row[0] for row in recorded(one, checkout).tables[0].rows] == ["2"] * 5
    with pytest.raises(SerferError, match="nowhere"):
        recorded(replace(one, command=f"serfer bench results --checkout nowhere && {COMMAND}"), checkout)


@pytest.mark.parametrize(
    ("command", "check"),
    [
        ("paper infless --figure 16 --trace traces/nasa_http_1995_per_minute.csv", ("--check",)),
        ("policies optimum --traces traces --load nasa --load uniform:hours=0.1 --scale S --policy serverless", ()),
    ],
    ids=["a file", "one of two loads"],
)
def test_a_record_of_a_trace_that_is_not_here_is_skipped_and_stays_as_it_is(checkout, monkeypatch, command, check):
    monkeypatch.chdir(checkout)
    file = checkout / FOLDER / "shared.json"
    file.write_text(file.read_text().replace(COMMAND, f"serfer study {command}"))
    assert results(checkout).exit_code == 0
    before = file.read_text()
    done = results(checkout, "--run", "shared", *check)
    assert done.exit_code == 0, done.output
    assert "skipped: nasa_http_1995_per_minute: " in done.output
    assert "shared: skipped: a trace that it is of is not here" in done.output
    assert file.read_text() == before


def test_a_record_without_the_trace_that_its_command_skips_is_written(checkout, monkeypatch):
    """As that of MMPP is, of MArk's costs, of which Twitter's are another record."""
    monkeypatch.chdir(checkout)
    (checkout / "few.csv").write_text("minute,requests\n0,3\n60,3\n")
    command = "serfer study paper infless --figure 16 --trace few.csv --policy 60"
    record = recorded(Record(command, "simulated", "", "", {"rule.py": ""}), checkout)
    skips = replace(record, command=f"{command} --trace nasa_http_1995_per_minute.csv", date="")
    assert recorded(skips, checkout).tables == record.tables
    assert recorded(replace(skips, tables=()), checkout) is None


@pytest.mark.parametrize("name", sorted(read_records(ROOT)))
def test_the_command_of_each_record_parses(name):
    for words in steps(read_records(ROOT)[name]):
        parse(words)


def test_a_commit_is_marked_where_files_have_changed_but_not_for_pages_or_without_git(tmp_path, monkeypatch):
    def git(*words):
        names = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *names, *words], cwd=tmp_path, check=True, capture_output=True)  # noqa: S607

    assert commit_of(tmp_path) == ""
    git("init")
    (tmp_path / "rule.py").write_text("one = 1\n")
    git("add", ".")
    git("commit", "-m", "one")
    assert re.fullmatch(r"[0-9a-f]{12}", commit_of(tmp_path))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("text\n")
    assert re.fullmatch(r"[0-9a-f]{12}", commit_of(tmp_path))
    (tmp_path / "rule.py").write_text("one = 2\n")
    assert re.fullmatch(r"[0-9a-f]{12}\+", commit_of(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert commit_of(tmp_path) == ""


def test_record_and_layout_survive_being_written_and_long_tables_are_shown_in_part(tmp_path):
    table = Layout(("load",), "system", "{ms} ({share})").of(FIGURES)
    assert (table.head, table.body) == (["load", "a", "b"], [["low", "1,200 (50.0%)", "3"]])
    layout = Layout(("load",), "system", "{ms}")
    record = Record(COMMAND, "modelled", "", "", {"a": "b"}, tables=(FIGURES,), layout=layout)
    record.write(tmp_path / "a.json")
    assert Record.read(tmp_path / "a.json") == record
    assert '["a", "low", "1,200", "50.0%"],\n' in (tmp_path / "a.json").read_text()
    record = replace(record, layout=None, tables=(Figures(("n",), tuple((str(n),) for n in range(9))),))
    shown = record.markdown(1, 3)
    assert re.findall(r"^\| (\d) \|$", shown, re.MULTILINE) == ["0", "4", "8"]
    assert "3 of 9 rows" in shown
    assert record.markdown(1, 9) == record.markdown(1)


def test_a_picture_is_drawn_once_and_again_when_its_figures_change(checkout):
    (checkout / "docs" / "pictures").mkdir()
    file, picture = checkout / FOLDER / "shared.json", checkout / PICTURE.file
    tables = (Figures(HEAD, BODY),)
    Record("serfer x", "measured", "", "", {"rule.py": ""}, tables=tables, pictures=(PICTURE,)).write(file)
    assert f"{PICTURE.file}: not what the records say" in str(results(checkout, "--check").exception)
    assert f"drew {PICTURE.file}" in results(checkout).stderr
    first = picture.read_text()
    assert re.search(r"<!-- measured: serfer x; .* -->", first)
    assert "drew" not in results(checkout).stderr
    assert results(checkout, "--check").exit_code == 0
    file.write_text(file.read_text().replace("6,250", "6,500"))
    assert "drew" in results(checkout).stderr
    assert picture.read_text() != first


@pytest.mark.parametrize(
    ("row", "count"),
    [
        (("a", "low", "1,210", "50.1%"), 0),  # within 1%, and one in the last place
        (("a", "low", "1,300", "50.0%"), 1),
        (("a", "low", "1,200", "52.0%"), 1),
        (("a", "low", "1,200", ""), 1),
        (("a", "high", "1,200", "50.0%"), 1),
    ],
)
def test_figures_differ_beyond_their_rounding_and_where_there_are_not_as_many(row, count):
    now = Figures(FIGURES.head, (row, FIGURES.rows[1]))
    assert len([*differences([FIGURES], [now])]) == count
    assert [*differences([FIGURES], [])] == ["the tables have other columns, or not as many rows"]


def test_records_of_pages_are_whole():
    done = results(ROOT, "--check")
    assert done.exit_code == 0, f"run serfer bench results: {done.exception}"
    records = read_records(ROOT)
    assert {name: file for name, one in records.items() for file in one.files if not digest(ROOT / file)} == {}


def test_tables_of_results_are_of_records_but_for_definitions():
    found, heading = set(), ""
    for path in (ROOT / "docs" / "results").glob("*.md"):
        text = re.sub(r"<!-- record: .*?<!-- end -->", "", path.read_text(), flags=re.DOTALL)
        for line in text.splitlines():
            heading = line.lstrip("# ") if line.startswith("#") else heading
            if line.startswith("|") and re.search(r"\b\d", line):
                found.add((path.name, heading))
    assert found == {*TABLES_WITHOUT_A_RECORD}, "figures of ours come from records: docs/results/bench.md has how"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, one in read_records(ROOT).items() if one.cheap])
def test_cheap_records_are_what_their_commands_give(name):
    record = read_records(ROOT)[name]
    assert [*differences(record.tables, recorded(record, ROOT).tables)] == []
