"""Documents: their links lead somewhere, their commands exist, and the index has them all."""

import importlib.util
import itertools
import re
import shlex
from pathlib import Path

import pytest
import typer

import serfer
from serfer.api.http.problems import PROBLEM_TYPES
from serfer.cli.main import app
from serfer.cli.shared.schema import read_options
from serfer.core.options import flag_of, is_on_line, options_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s:]*)(#[^)\s]*)?\)")
ROOMS = ("serfer", "splitter", "drivers", "lambdas", "storage", "sam", "bench")
IN_TEXT = re.compile(
    r"\b(?:docs|serfer|splitter|drivers|lambdas|storage|sam|bench|tests|examples)/[\w./-]+\.(?:md|py|toml|yaml|sh)\b"
)


_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages_and_headings(page):
    for target, heading in LINK.findall(page.read_text(encoding="utf-8")):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        if heading:
            assert heading[1:] in map(
                anchor, re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    named = set(IN_TEXT.findall(page.read_text(encoding="utf-8")))
    of_the_reader = {"serfer/control/policies/half_hour.py"}
    assert [name for name in sorted(named - of_the_reader) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", generate.PARTS)
def test_generated_parts_agree_with_the_code(page):
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert written == generate.regenerated(page), "run .venv/bin/python docs/generate.py"


def test_every_problem_type_is_in_the_reference():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "serfer" / "api").rglob("*.py")]
    slugs = {slug for text in sources for slug in re.findall(r'slug(?:=|: str \| None = )"(\w+)"', text)}
    assert slugs <= PROBLEM_TYPES.keys()


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    assert [name for name in serfer.__all__ if name[0] != "_" and not re.search(rf"\b{name}\b", page)] == []


def test_rows_of_behaviour_name_tests_and_findings_that_exist():
    page = (ROOT / "docs" / "reference" / "behaviour.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .*\| (.*) \|$", page, re.MULTILINE)
    named = [
        re.fullmatch(r"`(?:(tests/[\w/]+\.py)::(?:(\w+)::)?(test_\w+)|(findings/[\w-]+\.sh))`", row) for row in rows
    ]
    assert 0 < sum(map(bool, named)) == len(rows) - page.count("| held by |") <= 120
    for file, group, test, finding in (row.groups() for row in named if row):
        text = (ROOT / (file or finding)).read_text(encoding="utf-8")
        text = text[text.index(f"class {group}:") :] if group else text
        assert finding or re.search(rf"def {test}\(", text), (file, test)
    scripts = {f"findings/{path.name}" for path in (ROOT / "findings").glob("*.sh")}
    assert scripts == {row[4] for row in named if row and row[4]}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


def lines_of(page):
    """Return the lines of a page's shell blocks, continued ones joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for line in "".join(blocks).replace("\\\n", " ").splitlines() if line.strip()]


def commands_of(lines):
    """Return the words of every command of SerFer, as the shell splits them."""
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split, words = True, []
        for word in [*lexer, ";"]:
            if not set(word) <= set(";&|<>"):
                words.append(word)
                continue
            named = [*itertools.dropwhile(lambda word: "=" in word, words)]
            if named and Path(named[0]).name == "serfer" and named[1] != "COMMAND":
                yield named[1:]
            words = []


def reached(command, words):
    """Return the command that words reach in a group, and the words after its name."""
    while words and hasattr(command, "list_commands"):
        names = command.list_commands(None)
        words = command.named(words, names) if hasattr(command, "named") else words
        name, *others = words[1:] if words[0] == "--" else words
        if name.startswith("-") and name not in names:
            break
        assert name in names, f"{command.name} has no {name}"
        command, words = command.get_command(None, name), others
    return command, words


def parse(words):
    """Have the command line parse a command: all options exist, and their values are of their types and bounds."""
    command, options = reached(typer.main.get_command(app), words)
    if not options:
        return  # its name alone
    context = command.make_context(" ".join(words), [*options], resilient_parsing="--help" in words)
    if (kind := getattr(command.callback, "options", None)) and not context.resilient_parsing:
        read_options(kind, context, context.params)


@pytest.mark.parametrize("page", [page for page in PAGES if [*commands_of(lines_of(page))]], ids=lambda page: page.name)
def test_commands_of_page_are_parsed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in commands_of(lines_of(page)):
        parse(words)


OF_OTHERS = {
    "of the AWS command line": {"--statistics"},
    "of a fleet's own processes": {"--log-level", "--memory-mb", "--exit-when-idle-s", "--auto-scaling-release"},
}
"""Options of other programs that have the names of keys."""


def test_no_message_and_no_page_names_a_key_as_an_option():
    commands = [command for command, _ in generate.walk()]
    kinds = {getattr(command.callback, "options", None) for command in commands} - {None}
    keys = {flag_of(item, how) for kind in kinds for item, how in options_of(kind) if not is_on_line(kind, item)}
    keys -= {flag for command in commands for option in command.params for flag in option.opts}
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "build" not in path.parts]
    for path in [*PAGES, ROOT / "CHANGELOG.md", *sources]:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", path.read_text(encoding="utf-8")))
        assert (named & keys).difference(*OF_OTHERS.values()) == set(), path
    for code in {code for page in PAGES for code in re.findall(r"`serfer ([a-z][^`\n]*)`", page.read_text("utf-8"))}:
        command, words = reached(typer.main.get_command(app), code.partition(" && ")[0].split())
        known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        assert set(re.findall(r"(?<!\S)--[a-z][a-z-]*", " ".join(words))) <= known | {"--help", "--debug"}, code


def test_metrics_and_settings_that_pages_name_exist():
    known = {*re.findall(r"SERFER_\w+", (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8"))}
    kinds = (getattr(command.callback, "options", None) for command, _ in generate.walk())
    known |= {
        f"SERFER_{kind.command.replace(' ', '_').replace('-', '_')}_{item.name}".upper()
        for kind in filter(None, kinds)
        for item, _ in options_of(kind)
    }
    metrics = {*re.findall(r"serfer_\w+", (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8"))}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"SERFER_[A-Z_]+[A-Z]", text))
        assert {name for name in named if name not in known and name != "SERFER_API"} == set(), page
        counted = {name.removesuffix("_bucket") for name in re.findall(r"\bserfer_[a-z]+_[a-z_]+[a-z]\b", text)}
        assert {name for name in counted if not any(one.startswith(name) for one in metrics)} == set(), page


def items_of_papers():
    """Return the rows of the tables of docs/papers.md, by paper: an item, where it is, its command, how far it goes."""
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {
        section.split("\n", 1)[0]: [
            [cell.strip() for cell in line.strip("| ").split(" | ")]
            for line in section.splitlines()
            if line.startswith("| ") and not line.startswith("| item |")
        ]
        for section in sections
    }


@pytest.mark.parametrize(
    ("paper", "tables", "figures"), [("SerFer", 3, 14), ("MArk", 5, 8), ("INFaaS", 8, 8), ("INFless", 4, 18)]
)
def test_every_table_and_figure_of_the_papers_has_a_row(paper, tables, figures):
    rows = items_of_papers()[paper]
    assert [row for row in rows if len(row) != 4 or not all(row)] == []
    named = {"table": set(), "figure": set()}
    for kind, numbers in re.findall(
        r"\b(tables?|figures?) ((?:\d+[a-d]?(?:, | and | to |, figures? )?)+)",
        "\n".join(row[0] for row in rows).lower(),
    ):
        found = [int(number) for number in re.findall(r"\d+", numbers)]
        several = range(found[0], found[-1] + 1) if re.search(r"\d to \d", numbers) else found
        named[kind.rstrip("s")].update(several)
    assert named == {"table": {*range(1, tables + 1)}, "figure": {*range(1, figures + 1)}}


def test_commands_that_repeat_the_papers_are_parsed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = [row[2] for rows in items_of_papers().values() for row in rows]
    commands = [
        *commands_of(text for cell in cells for text in re.findall(r"`((?:SERFER_\w+=\S+ )?serfer [^`]+)`", cell))
    ]
    for words in commands:
        parse(words)
    assert len(commands) > 80
