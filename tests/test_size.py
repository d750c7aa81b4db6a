"""A budget of lines for each room of the house: a feature that needs more makes room; a number is only lowered.

The budgets of tests and documents have room for the issues after the redesign.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {  # the folders and modules of a room, and the most lines of Python in it
    "splitter": (("splitter",), 21_369),
    "core": (("serfer/core",), 10_138),
    "api": (("serfer/api",), 9_531),
    "control and fleet": (("serfer/control", "serfer/fleet"), 8_401),
    "applications": (("serfer/applications", "serfer/registry", "serfer/variants"), 5_164),
    "cost": (("serfer/cost", "serfer/sim"), 2_272),
    "mapping": (("serfer/mapping", "serfer/raster", "serfer/results", "serfer/offline"), 7_920),
    "pipeline": (("serfer/pipeline", "serfer/wiring"), 3_983),
    "cli": (("serfer/cli",), 5_632),
    "client, instance and local": (("serfer/client", "serfer/instance", "serfer/local"), 6_271),
    "drivers, lambdas and storage": (("drivers", "lambdas", "storage"), 9_945),
    "sam": (("sam",), 5_055),
    "bench and study": (("bench",), 33_052),
    "tests": (("tests",), 98_000),
}
SINGLE = 4_337  # pictures, doctor, packaging and the modules of serfer itself: what no other room holds
PRODUCT = 100_021
PAGE = 1_500  # JavaScript, CSS and HTML
DOCUMENTS = 130_000  # words below docs/
CHANGELOG = 25_000  # bytes

MARKED = {"exact": 123, "killed": 84, "who_may": 137, "two_at_once": 37, "hostile": 113}
"""The least number of test functions with the marks of the kinds of tests that must not shrink."""


def lines(pattern, *folders):
    """Count the lines of a folder's files, of its own and not of what its links lead to."""
    files = [file for folder in folders for file in (ROOT / folder).rglob(pattern) if file.is_file()]
    return sum(file.read_bytes().count(b"\n") for file in files if not _elsewhere(file))


def _elsewhere(file):
    linked = any(parent.is_symlink() for parent in file.parents if parent.is_relative_to(ROOT))
    return linked or any(file.is_relative_to(ROOT / built) for built in ("bench/build", "serfer/client/build"))


@pytest.mark.parametrize(("folders", "budget"), ROOMS.values(), ids=ROOMS)
def test_room_holds_its_budget(folders, budget):
    counted = lines("*.py", *folders)
    assert counted <= budget, f"{', '.join(folders)}: {counted} lines of {budget}; make room before you add"


def product():
    return lines("*.py", "serfer", "splitter", "drivers", "lambdas", "storage", "sam")


def test_single_modules_hold_their_budget():
    rooms = sum(
        lines("*.py", *folders) for name, (folders, _) in ROOMS.items() if name not in ("bench and study", "tests")
    )
    assert product() - rooms <= SINGLE


def test_product_holds_its_budget():
    assert product() <= PRODUCT


def test_page_holds_its_budget():
    assert sum(lines(pattern, "serfer/api/routes/page") for pattern in ("*.js", "*.css", "*.html")) <= PAGE


def test_documents_hold_their_budget():
    pages = (ROOT / "docs").rglob("*.md")
    assert (
        sum(len(page.read_text(encoding="utf-8").split()) for page in pages if "_build" not in page.parts) <= DOCUMENTS
    )


def test_changelog_holds_its_budget():
    assert (ROOT / "CHANGELOG.md").stat().st_size <= CHANGELOG


@pytest.mark.parametrize(("kind", "least"), MARKED.items())
def test_marked_kind_does_not_shrink(kind, least):
    marks = re.compile(rf"^\s*@pytest\.mark\.{kind}$", re.MULTILINE)
    assert sum(len(marks.findall(file.read_text(encoding="utf-8"))) for file in (ROOT / "tests").rglob("*.py")) >= least
