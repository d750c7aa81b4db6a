"""Code in the documents runs as it stands there."""

import re
from pathlib import Path

import pytest

from serfer.control.policies import make_policy
from serfer.control.selection import Catalogue, make_selector
from serfer.control.windows import Windows, window_policies
from serfer.core.variants import Objectives
from serfer.splitter.tiling.operators import _RULES
from tests.control.selection.worlds import ACTIVE, INACTIVE, states, variant
from tests.control.worlds import scenario, seen

DOCS = Path(__file__).parents[1] / "docs"


def runnable(page):
    """Return the Python blocks of a page that are marked to run."""
    return re.findall(r"<!-- runs -->\n```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [*filter(runnable, DOCS.rglob("*.md"))], ids=lambda page: str(page.relative_to(DOCS)))
def test_blocks_that_are_marked_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("serfer.splitter.tiling.operators._RULES", dict(_RULES))
    names = {}
    for block in runnable(page):
        exec(block, names)  # noqa: S102 - it is our own page


def test_the_policy_that_is_shown_follows_the_load(tmp_path, monkeypatch):
    page = (DOCS / "how-to" / "add-a-policy.md").read_text(encoding="utf-8")
    text = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    assert text.count("\n") <= 50
    monkeypatch.chdir(tmp_path)
    Path("half_hour.py").write_text(text, encoding="utf-8")
    policy = make_policy("half_hour.py:HalfHour", scenario(qps=10.0))
    assert [policy.observe(seen(600.0, rate)).total for rate in (0.0, 50.0, 50.0, 50.0, 0.0, 0.0, 0.0)] == [
        *(0, 3, 4, 5),
        *(4, 2, 0),
    ]


def test_the_forecaster_that_is_shown_is_marks(tmp_path, monkeypatch):
    page = (DOCS / "how-to" / "add-a-policy.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(# my_mark\.py\n.*?)```", page, re.DOTALL)
    Path("my_mark.py").write_text(code, encoding="utf-8")
    policy = make_policy("mark:forecaster=my_mark.py:LastPeak", scenario(qps=10.0))
    assert [policy.observe(seen(60.0, rate)).total for rate in (30.0, 50.0, 0.0)] == [3, 5, 5]


def test_the_selector_that_is_shown_takes_the_slowest_active_variant(tmp_path, monkeypatch):
    page = (DOCS / "how-to" / "add-a-policy.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(# patient\.py\n.*?)```", page, re.DOTALL)
    Path("patient.py").write_text(code, encoding="utf-8")
    selector = make_selector("patient.py:Patient")
    catalogue = Catalogue([variant("slow", qps=5.0), variant("fast", qps=50.0), variant("cold", qps=1.0)])
    active = {"fast": [(ACTIVE, 0.5)], "cold": [(INACTIVE, 0.0)]}
    for more, name in (({"slow": [(ACTIVE, 0.9)]}, "slow"), ({}, "fast")):
        chosen = selector.get_variant(Objectives(), catalogue, states(**active, **more), 0.0)
        assert (chosen.variant, chosen.place) == (name, "p0")
    assert selector.get_variant(Objectives(), catalogue, states(cold=[(INACTIVE, 0.0)]), 0.0).variant == "cold"


def test_the_windows_that_are_shown_are_twice_the_longest_idle_time(tmp_path, monkeypatch):
    page = (DOCS / "how-to" / "add-a-policy.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(# twice\.py\n.*?)```", page, re.DOTALL)
    Path("twice.py").write_text(code, encoding="utf-8")
    make = window_policies("twice.py:Twice")
    shown = make()
    shown.observe(1000.0, 700.0)
    assert shown.windows(1000.0) == Windows(0.0, 1400.0)
