"""Code in the documents runs as it stands there."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from splitter.tiling.operators import _RULES

DOCS = Path(__file__).parents[1] / "docs"


def runnable(page):
    """Return the Python blocks of a page that are marked to run."""
    return re.findall(r"<!-- runs -->\n```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [*filter(runnable, DOCS.rglob("*.md"))], ids=lambda page: str(page.relative_to(DOCS)))
def test_blocks_that_are_marked_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("splitter.tiling.operators._RULES", dict(_RULES))
    names = {}
    for block in runnable(page):
        exec(block, names)  # noqa: S102 - it is our own page


def test_the_policy_that_is_shown_follows_the_load():
    page = (DOCS / "how-to" / "add-a-policy.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)  # noqa: S102 - it is our own page
    policy = names["HalfHour"](SimpleNamespace(instance=SimpleNamespace(qps=10.0)))
    assert [policy.observe(600.0, rate).instances for rate in (0.0, 50.0, 50.0, 50.0, 0.0, 0.0, 0.0)] == [
        *(0, 3, 4, 5),
        *(4, 2, 0),
    ]
