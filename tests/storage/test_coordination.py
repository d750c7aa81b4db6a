"""What callers do by compare-and-set, whatever the store."""

from unittest import mock

import pytest

from serfer.core.retry import observe_retries
from serfer.storage.coordination import ContendedError, Entry, InterceptedCoordination, change, set_once
from serfer.storage.memory import MemoryStore

TTL = 60.0


@pytest.fixture
def coordination():
    return MemoryStore().coordination()


@pytest.fixture
def requests():
    return []


@pytest.fixture
def watched(coordination, requests):
    return InterceptedCoordination(coordination, requests.append)


def test_a_change_is_made_again_of_what_another_writer_wrote(coordination):
    read = []

    def changed(value):
        read.append(value)
        if value is None:
            coordination.compare_and_set("k", None, b"theirs", TTL)
        return b"mine after " + (value or b"nothing")

    entry = change(coordination, "k", changed, TTL, sleep=lambda _: None)
    assert (read, entry) == ([None, b"theirs"], coordination.get("k"))
    assert entry.value == b"mine after theirs"


def test_a_change_may_leave_what_is_there(coordination):
    assert change(coordination, "k", lambda _: None, TTL) is None
    there = Entry(b"x", coordination.compare_and_set("k", None, b"x", TTL))
    assert change(coordination, "k", lambda _: None, TTL) == there == coordination.get("k")
    assert change(coordination, "k", lambda value: None if value else b"new", TTL, known=None) == there


def test_a_change_of_what_is_known_reads_only_where_that_has_changed(watched, requests):
    entry = change(watched, "k", lambda _: b"1", TTL, known=None)
    newer = change(watched, "k", lambda _: b"2", TTL, known=entry)
    assert requests == ["compare_and_set"] * 2
    last = change(watched, "k", lambda value: (value or b"") + b"3", TTL, known=entry, sleep=lambda _: None)
    assert requests[2:] == ["compare_and_set", "get", "compare_and_set"]
    assert (newer.value, last.value) == (b"2", b"23")


def test_a_change_ends_with_its_time_where_others_always_come_first(coordination):
    waits = []

    def changed(value):
        entry = coordination.get("k")
        coordination.compare_and_set("k", entry.version if entry else None, b"theirs", TTL)
        return (value or b"") + b"mine"

    with pytest.raises(ContendedError):
        change(coordination, "k", changed, TTL, sleep=waits.append, left_s=lambda: 1.0 - sum(waits))
    assert 3 <= len(waits) <= 10
    assert sum(waits) < 1.0
    assert coordination.get("k").value == b"theirs"


def test_a_value_that_is_set_once_stays_or_makes_way(coordination, watched, requests):
    retried = []
    with observe_retries(lambda call, *_: retried.append(call)):
        first, second, third = b"first", b"second", b"third"
        assert set_once(watched, "k", first, TTL).value is first
        assert set_once(watched, "k", second, TTL) == coordination.get("k") == Entry(first, mock.ANY)
        assert requests == ["compare_and_set", "compare_and_set", "get"]
        entry = set_once(watched, "k", third, TTL, stays=lambda value: value != first)
    assert entry == coordination.get("k")
    assert entry.value is third
    assert "change" not in retried, "an existing value counts as no retry"
