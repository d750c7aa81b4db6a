import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from serfer.core.errors import MissingKeyError, StoreUnavailableError, UsageError
from serfer.core.keys import StoreCounts
from serfer.storage import Range, open_store
from serfer.storage.contract import CoordinationContract, ExchangeContract, StoreContract
from serfer.storage.exchange import START, Message
from serfer.storage.faults import DelayingStore, FailingStore, wrapped_url
from serfer.storage.memory import MemoryStore
from serfer.storage.wrapping import WrapperStore
from tests.storage.test_memory import RawMemory
from tests.support.counting_store import CountingStore


class TestWrapper(StoreContract, CoordinationContract, ExchangeContract):
    @pytest.fixture
    def inner(self, clock):
        return MemoryStore(clock)

    @pytest.fixture
    def store(self, inner):
        with WrapperStore(inner) as store:
            yield store

    @pytest.fixture
    def exchange(self, store):
        return store.exchange()

    @pytest.fixture
    def raw(self, inner, clock):
        return RawMemory(inner, clock)


def received(store):
    exchange = store.exchange()
    exchange.send([Message("k", bytes(16))], 60)
    [message] = exchange.receive("k", START, 60)
    assert exchange.receive("k", message.cursor, 0.05) == []


def coordinated(store):
    coordination = store.coordination()
    assert coordination.compare_and_set("k", None, bytes(16), 60)
    assert coordination.get("k").value == bytes(16)
    coordination.delete(["k"])


def ranges_read(store):
    store.put("k", b"12345678", 60)
    assert store.get_many([Range("k"), Range("k", 0, 4), Range("k", 4, 4)]) == [b"12345678", b"1234", b"5678"]


def missing(store):
    with pytest.raises(MissingKeyError):
        store.get("k")


@pytest.mark.parametrize(
    ("ask", "waited"),
    [
        (lambda store: store.put("k", memoryview(bytearray(16)), 60), [0.5 + 2]),
        (coordinated, [0.5, 0.25, 0.5]),
        (lambda store: store.exchange().send([Message("a", bytes(16)), Message("b", bytes(8))], 60), [0.5 + 3]),
        (received, [0.5 + 2, 0.125, 0.125 + 2, 0.125, 0.125]),  # one request however long it waits
        (ranges_read, [0.5 + 1, 0.25, 2]),
        (lambda store: store.exists(["a", "b", "c"]), [0.25]),
        (lambda store: store.delete(["a", "b"]), [0.5]),
        (missing, [0.25]),
    ],
)
def test_delays_are_those_of_each_request_and_its_bytes(ask, waited):
    sleeps = []
    ask(DelayingStore(MemoryStore(), put_s=0.5, get_s=0.25, bytes_per_s=8, sleep=sleeps.append))
    assert sleeps == waited


def test_jitter_spreads_the_latency_and_a_wait_of_zero_does_not_sleep():
    delays, sleeps = [], []

    def uniform(low, high):
        delays.append((low, high))
        return high

    store = DelayingStore(MemoryStore(), put_s=0.5, get_s=0.0, jitter=0.5, sleep=sleeps.append, uniform=uniform)
    store.put("k", b"x", 60)
    assert (delays, sleeps) == ([(0.25, 0.75)], [0.75])
    DelayingStore(MemoryStore(), sleep=sleeps.append).put("k", b"x", 60)
    assert sleeps == [0.75]


class TestFailures:
    @pytest.mark.parametrize(
        "operations",
        [
            lambda store: [
                lambda: store.put("k", b"x", 60),
                lambda: store.get("k"),
                lambda: store.exists(["k"]),
                lambda: store.delete(["k"]),
            ],
            lambda store: [
                lambda: store.coordination().compare_and_set("k", None, b"x", 60),
                lambda: store.coordination().get("k"),
                lambda: store.coordination().delete(["k"]),
            ],
            lambda store: [
                lambda: store.exchange().send([Message("k", b"x")], 60),
                lambda: store.exchange().receive("k", START, 0),
            ],
        ],
    )
    def test_each_operation_fails_by_its_share_and_does_nothing(self, operations):
        store = FailingStore(MemoryStore(), fail=0.1, draw=iter([0.0, 0.2, 0.0999, 0.1, 0.05, 0.5, 0.0, 0.9]).__next__)
        for operation in operations(store):
            before = _contents(store._inner)
            with pytest.raises(StoreUnavailableError, match="on purpose"):
                operation()
            assert _contents(store._inner) == before
            operation()

    def test_a_hang_lasts_and_then_fails(self):
        sleeps = []
        draws = iter([0.25, 0.74, 0.75])
        store = FailingStore(MemoryStore(), fail=0.25, hang=0.5, hang_s=3, draw=draws.__next__, sleep=sleeps.append)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="hung on purpose for 3 s"):
                store.exists(["k"])
        assert store.exists(["k"]) == [False]
        assert sleeps == [3, 3]

    def test_a_seed_repeats(self):
        def outcomes(seed):
            with open_store(wrapped_url("fail", "memory://", fail=0.5, seed=seed)) as store:
                return [_fails(store) for _ in range(100)]

        assert outcomes(7) == outcomes(7) != outcomes(8)


def _contents(store):
    return store.exists(["k"]), store.coordination().get("k"), store.exchange().receive("k", START, 0)


def _fails(store):
    try:
        store.exists(["k"])
    except StoreUnavailableError:
        return True
    return False


@pytest.mark.parametrize("wrapper", [WrapperStore, CountingStore, DelayingStore, FailingStore])
def test_a_wrapper_closes_the_store_and_the_inboxes_within_and_has_none_where_that_has_none(wrapper, monkeypatch):
    inner, closed = MemoryStore(), []
    monkeypatch.setattr(inner.exchange(), "close", lambda: closed.append("inboxes"))
    monkeypatch.setattr(inner, "close", lambda: closed.append("store"))
    outer = wrapper(inner)
    outer.exchange().close()
    outer.close()
    assert closed == ["inboxes", "store"]
    monkeypatch.setattr(inner, "exchange", lambda: None)
    assert outer.exchange() is None


def test_urls_carry_the_options_and_nest():
    failing = wrapped_url("fail", "memory://wrapped", fail=1)
    with open_store(wrapped_url("delay", failing, put_ms=20, get_ms=15, bytes_per_s=1e6)) as store:
        assert (store._put_s, store._get_s, store._byte_s, store._jitter) == (0.02, 0.015, 1e-6, 0)
        with pytest.raises(StoreUnavailableError, match="on purpose"):
            store.put("k", b"x", 60)


def test_urls_open_in_other_processes(tmp_path):
    code = "import sys, serfer.storage; serfer.storage.open_store(sys.argv[1]).put('k', b'x', 60)"
    subprocess.run([sys.executable, "-c", code, wrapped_url("delay", f"file://{tmp_path}/a%20b", put_ms=1)], check=True)
    with open_store(f"file://{tmp_path}/a%20b") as store:
        assert store.get("k") == b"x"


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("delay://", "must be [?]store="),
        ("delay://?put_ms=3", "must be"),
        ("delay://?store=memory", "must be"),
        ("delay://memory://?put_ms=3", "must be"),
        ("fail://?store=memory://&fail=1&fail=0", "each once"),
        ("fail://?store=memory://&hush=1", "unknown option: use store, fail, hang, hang_s, seed"),
        ("delay://?store=redis://:a&hush@host", "unknown option: use store, put_ms, get_ms, bytes_per_s, jitter"),
        ("delay://?store=memory://&put_ms=hush", "needs a number from zero on for put_ms"),
        ("delay://?store=memory://&put_ms=-1", "put_ms"),
        ("delay://?store=memory://&get_ms=nan", "get_ms"),
        ("delay://?store=memory://&get_ms=inf", "get_ms"),
        ("delay://?store=memory://&jitter=1.5", "jitter from 0 to 1"),
        ("fail://?store=memory://&fail=0.6&hang=0.5", "at most 1"),
        ("fail://?store=bogus://:hush@host", "no store is known for 'bogus://'"),
    ],
)
def test_malformed_urls_are_refused_by_name(url, message):
    with pytest.raises(UsageError, match=message) as caught:
        open_store(url)
    assert "hush" not in str(caught.value)


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
