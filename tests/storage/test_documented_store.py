"""The store of docs/how-to/add-a-store.md passes the conformance tests, and answers a query."""

import re
import sys
import types
from pathlib import Path

import numpy as np

import serfer
from serfer import storage

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "add-a-store.md").read_text(encoding="utf-8")
PLAN = next((ROOT / "tests" / "data" / "plans").glob("*/answer.npy")).parent


def module(name):
    """Make a module of the page's block that begins with its file name."""
    made = sys.modules[name] = types.ModuleType(name)
    exec(re.search(rf"```python\n(# {name}\.py\n.*?)```", PAGE, re.DOTALL)[1], made.__dict__)  # noqa: S102 - our own page
    return made


SQLiteStore = module("sqlite_store").SQLiteStore
TestSQLiteStore = module("test_sqlite_store").TestSQLiteStore


def test_it_holds_the_pieces_of_a_query(tmp_path, monkeypatch):
    monkeypatch.setitem(storage._BUILT_IN, "sqlite", "sqlite_store:SQLiteStore")
    with serfer.open(PLAN, store=f"sqlite://{tmp_path}/pieces.db", inline="never") as pipeline:
        answer = pipeline.run(np.load(PLAN / "input.npy"))
        assert pipeline.last_report.store.puts > 0
    assert (answer == np.load(PLAN / "answer.npy")).all()
