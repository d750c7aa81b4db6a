import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.errors import MissingKeyError, StoreUnavailableError, UsageError
from serfer.core.keys import inbox_key, input_key, output_key, reply_key
from serfer.core.plan import CACHE, INLINE, OBJECTS, sealed
from serfer.storage import Range
from serfer.storage.exchange import START, Message
from serfer.storage.faults import FailingStore
from serfer.storage.file.store import FileStore
from serfer.storage.memory import MemoryStore
from serfer.storage.routed import RoutedStore, open_routed, routed
from tests.core.plans import small_plan

QUERY = "0123456789abcdef" * 2
MAIN, FAR = "main", "far"


def far(key):
    return key.startswith(FAR)


NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
RANGES = st.lists(st.builds(Range, NAMES, st.integers(0, 3), st.none() | st.integers(0, 3)), max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES, st.binary(max_size=5), st.sampled_from([1.0, 100.0])),
        st.tuples(st.just("get_many"), RANGES),
        st.tuples(st.just("exists"), st.lists(NAMES, max_size=5)),
        st.tuples(st.just("delete"), st.lists(NAMES, max_size=5)),
        st.tuples(st.just("wait"), st.just(2.0)),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(steps=STEPS, apart=st.sets(NAMES))
def test_two_stores_are_as_one(steps, apart):
    now = [0.0]

    def clock():
        return now[0]

    two = RoutedStore(MemoryStore(clock), MemoryStore(clock), apart.__contains__)
    one = MemoryStore(clock)
    for what, *arguments in steps:
        if what == "wait":
            now[0] += arguments[0]
            continue
        outcomes = []
        for store in (one, two):
            try:
                outcomes.append(getattr(store, what)(*arguments))
            except MissingKeyError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


@pytest.fixture
def near():
    return MemoryStore()


@pytest.fixture
def objects():
    return MemoryStore()


@pytest.fixture
def both(near, objects):
    return RoutedStore(near, objects, far)


def test_each_value_lies_where_the_rule_says(both, near, objects):
    both.put("main:1", b"x", 60)
    both.put("far:1", b"y", 60)
    both.coordination().compare_and_set("far:2", None, b"y", 60)
    assert (list(near._values), list(objects._values)) == (["main:1", "far:2"], ["far:1"])
    both.delete(["far:1", "main:1"])
    both.coordination().delete(["far:2"])
    assert not near._values
    assert not objects._values


class Meeting(MemoryStore):
    """Answers only when the other store has been asked as well."""

    def __init__(self, barrier):
        super().__init__()
        self.barrier = barrier

    def get_many(self, ranges):
        self.barrier.wait()
        return super().get_many(ranges)

    def exists(self, keys):
        self.barrier.wait()
        return super().exists(keys)

    def delete(self, keys):
        self.barrier.wait()
        super().delete(keys)


def test_both_stores_are_used_at_once():
    barrier = threading.Barrier(2, timeout=20)
    both = RoutedStore(Meeting(barrier), Meeting(barrier), far)
    both.put("main:1", b"x", 60)
    both.put("far:1", b"y", 60)
    assert both.get_many([Range("far:1"), Range("main:1")]) == [b"y", b"x"]
    assert both.exists(["far:1", "main:2"]) == [True, False]
    both.delete(["far:1", "main:1"])
    assert not both._inner._values
    assert not both._objects._values


class Unasked(MemoryStore):
    def get_many(self, ranges):
        raise AssertionError(ranges)

    def exists(self, keys):
        raise AssertionError(keys)

    def delete(self, keys):
        raise AssertionError(keys)


def test_a_store_without_any_of_the_keys_is_not_used(near):
    for both, key in ((RoutedStore(near, Unasked(), far), "main:1"), (RoutedStore(Unasked(), near, far), "far:1")):
        both.put(key, b"x", 60)
        assert both.get_many([Range(key)]) == [b"x"]
        assert both.exists([key]) == [True]
        both.delete([key])
    main_only = RoutedStore(near, Unasked(), far)
    assert (main_only.get_many([]), main_only.exists([]), main_only.delete([])) == ([], [], None)


@pytest.mark.hostile
def test_a_malformed_key_is_refused_before_either_store_is_used():
    both = RoutedStore(Unasked(), Unasked(), far)
    for ask in (
        lambda: both.get_many([Range("far:1"), Range("main:1"), Range("a b")]),
        lambda: both.exists(["far:1", "main:1", "a b"]),
        lambda: both.delete(["far:1", "main:1", "a b"]),
    ):
        with pytest.raises(UsageError, match="'a b' is not allowed"):
            ask()


@pytest.mark.parametrize("down", [MAIN, FAR])
def test_deletion_reaches_one_store_when_the_other_is_down(near, objects, down):
    failing = FailingStore(near if down == MAIN else objects, fail=1)
    both = RoutedStore(failing, objects, far) if down == MAIN else RoutedStore(near, failing, far)
    near.put("main:1", b"x", 60)
    objects.put("far:1", b"y", 60)
    with pytest.raises(StoreUnavailableError):
        both.delete(["main:1", "far:1"])
    assert bool(near._values) == (down == MAIN)
    assert bool(objects._values) == (down == FAR)
    for ask in (lambda: both.get_many([Range("main:1"), Range("far:1")]), lambda: both.exists(["main:1", "far:1"])):
        near.put("main:1", b"x", 60)
        objects.put("far:1", b"y", 60)
        with pytest.raises(StoreUnavailableError):
            ask()


class Closing(MemoryStore):
    def __init__(self, *, fails=False):
        super().__init__()
        self.fails, self.closed = fails, False

    def close(self):
        self.closed = True
        if self.fails:
            raise StoreUnavailableError("cannot be closed")


@pytest.mark.parametrize("fails", [False, True])
def test_both_are_closed(fails):
    one, other = Closing(fails=fails), Closing()
    try:
        RoutedStore(one, other, far).close()
    except StoreUnavailableError:
        assert fails
    assert one.closed
    assert other.closed


@pytest.mark.two_at_once
def test_many_threads_may_use_it_at_once(both):
    def use(number):
        keys = [f"{side}:{number}" for side in (MAIN, FAR)]
        for key in keys:
            both.put(key, key.encode(), 60)
        return both.get_many([Range(key) for key in reversed(keys)]) == [key.encode() for key in reversed(keys)]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(use, range(100)))


def sent_apart(plan, *stages):
    """Return the plan with some of its stages sent to the object store."""
    paths = [OBJECTS if number in stages else stage.path for number, stage in enumerate(plan.stages)]
    changed = [replace(stage, path=path) for stage, path in zip(plan.stages, paths, strict=True)]
    return sealed(replace(plan, stages=tuple(changed)))


def test_inboxes_are_those_of_the_main_store(near, objects):
    inbox = inbox_key(QUERY, 0, 1)
    store = routed(sent_apart(small_plan(), 0), near, objects)
    exchange = store.exchange()
    exchange.send([Message(inbox, b"x")], 60)
    assert len(near.exchange().receive(inbox, START, 0)) == 1
    store.delete([inbox])
    assert exchange.receive(inbox, START, 0) == []


def test_a_plan_sends_the_outputs_of_its_stages_and_nothing_else(near, objects):
    store = routed(sent_apart(small_plan(), 0), near, objects)
    apart = {output_key(QUERY, 0, tile) for tile in range(2)} | {output_key(f"{{{QUERY}}}", 0, 1)}
    together = {output_key(QUERY, 1, 0), input_key(QUERY, 0), reply_key(QUERY, 0, 0, 1), "serfer:result:0:0"}
    for key in apart | together:
        store.put(key, b"x", 60)
    assert (set(near._values), set(objects._values)) == (together, apart)


@pytest.mark.parametrize("path", [CACHE, INLINE])
def test_a_plan_without_such_stages_and_a_store_without_another_stay_as_they_are(near, objects, path):
    first, last = small_plan().stages
    assert routed(replace(small_plan(), stages=(replace(first, path=path), last)), near, objects) is near
    assert routed(sent_apart(small_plan(), 0), near, None) is near


def test_an_object_store_is_opened_only_where_it_is_needed(tmp_path):
    url = f"file://{tmp_path / 'objects'}"
    with open_routed(small_plan(), "memory://", url) as store:
        assert isinstance(store, MemoryStore)
    with open_routed(sent_apart(small_plan(), 0), "memory://", None) as store:
        assert isinstance(store, MemoryStore)
    assert not (tmp_path / "objects").exists()
    with open_routed(sent_apart(small_plan(), 0), "memory://", url) as store:
        store.put(output_key(QUERY, 0, 0), b"x", 60)
        assert isinstance(store._objects, FileStore)
        assert store.get(output_key(QUERY, 0, 0)) == b"x"


def test_the_store_is_closed_again_where_the_other_cannot_be_opened(monkeypatch):
    opened = Closing()
    monkeypatch.setattr("serfer.storage.routed.open_store", {"one://": opened}.__getitem__)
    with pytest.raises(KeyError):
        open_routed(sent_apart(small_plan(), 0), "one://", "other://")
    assert opened.closed
