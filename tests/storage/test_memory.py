import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import serfer
from serfer import storage
from serfer.storage import open_store
from serfer.storage.contract import CoordinationContract, ExchangeContract, StoreContract
from serfer.storage.exchange import START, Message
from serfer.storage.memory import MemoryStore


class RawMemory:
    def __init__(self, store, clock):
        self.values, self.clock = store._values, clock

    def get(self, key):
        value, expiry = self.values[key]
        return value, expiry - self.clock()

    def put(self, key, value, ttl):
        self.values[key] = value, self.clock() + ttl


class TestMemory(StoreContract, CoordinationContract, ExchangeContract):
    @pytest.fixture
    def store(self, clock):
        with MemoryStore(clock) as store:
            yield store

    @pytest.fixture
    def raw(self, store, clock):
        return RawMemory(store, clock)

    def test_bytes_are_not_copied(self, store, key):
        value = b"x" * 1000
        store.put(key, value, 1)
        assert store.get(key) is value

    def test_a_later_put_sweeps_unread_values(self, store, clock):
        store.put("old", b"x", 1)
        clock.ahead += 2
        store.put("new", b"x", 1)
        assert list(store._values) == ["new"]

    @pytest.mark.parametrize("write", ["put", "send"])
    def test_a_later_write_sweeps_unread_inboxes(self, store, clock, write):
        exchange = store.exchange()
        exchange.send([Message("old", b"x")], 1)
        clock.ahead += 2
        if write == "put":
            store.put("new", b"x", 1)
        else:
            exchange.send([Message("new", b"x")], 1)
        assert "old" not in exchange._inboxes

    def test_a_named_store_shares_its_inboxes(self):
        open_store("memory://inboxes").exchange().send([Message("k", b"x")], 60)
        assert open_store("memory://inboxes").exchange().receive("k", START, 0)
        assert not open_store("memory://").exchange().receive("k", START, 0)


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
