from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from serfer.core.errors import MissingKeyError
from serfer.core.keys import StoreCounts
from serfer.storage import Range
from serfer.storage.exchange import START, Message
from serfer.storage.intercepting import CountingStore
from serfer.storage.memory import MemoryStore


@pytest.fixture
def store():
    return CountingStore(MemoryStore())


def test_counts_bytes_ranges_and_keys(store):
    store.put("a", memoryview(np.zeros((2, 5), np.float32)), 1)
    store.put("b", b"123", 1)
    store.get("a", 8, 4)
    store.get_many([Range("a"), Range("b", 1), Range("b", 0, 1)])
    store.exists(["a", "b", "c"])
    store.delete(["a"])
    assert store.counts == StoreCounts(bytes_put=43, bytes_get=4 + 40 + 2 + 1, puts=2, gets=4, exists=3)


def test_messages_count_as_puts_and_ranges(store):
    exchange = store.exchange()
    exchange.send([Message("a", b"12"), Message("b", b"345")], 60)
    exchange.send([Message("b", b"")], 60)
    assert len(exchange.receive("b", START, 0)) == 2
    assert exchange.receive("c", START, 0) == []
    assert store.counts == StoreCounts(bytes_put=5, bytes_get=3, puts=3, gets=2)


def test_failures_do_not_count(store):
    with pytest.raises(MissingKeyError):
        store.get("a")
    assert store.counts == StoreCounts()


def test_counts_add_and_subtract(store):
    store.put("a", b"xy", 1)
    before = store.counts
    store.put("a", b"xyz", 1)
    store.get("a")
    assert store.counts - before == StoreCounts(bytes_put=3, bytes_get=3, puts=1, gets=1)
    assert (store.counts - before) + before == store.counts


def test_threads_lose_no_count(store):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: store.put(f"k{i % 3}", b"12", 1), range(2000)))
    assert store.counts == StoreCounts(bytes_put=4000, puts=2000)
