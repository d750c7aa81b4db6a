"""Conformance tests: derive a class from StoreContract, and pytest runs them against your store.

    import time
    import pytest
    from serfer.storage.contract import StoreContract
    from my_package.my_store import MyStore

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            with MyStore("mine://somewhere") as store:
                yield store

        @pytest.fixture
        def expire(self):
            return lambda key: time.sleep(0.1)  # better: advance a clock of your own, or poll until `key` is gone

        @pytest.fixture
        def raw(self):
            return MyBackend("mine://somewhere")  # a Raw: gets and puts without your store

A store with a `coordination()` derives from CoordinationContract as well, one with an `exchange()` from
ExchangeContract. The tests need pytest, hypothesis and numpy; nothing that runs in production imports them.
"""

import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from threading import Barrier
from typing import Protocol, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serfer.core.errors import MissingKeyError, UsageError
from serfer.storage import Range, Store
from serfer.storage.coordination import Coordination, Entry, change
from serfer.storage.exchange import START, Exchange, Message

Expire: TypeAlias = Callable[[str], None]

TTL = 60.0
LONG_S = 30.0
WAKE_S = 0.2
_EXAMPLES = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
_SENDER = """
import os, sys, time
from serfer.storage import open_store
from serfer.storage.exchange import Message
exchange = open_store(os.environ["STORE"]).exchange()
print("ready", flush=True)
for line in sys.stdin:
    time.sleep(0.03)  # until the reader waits
    exchange.send([Message(line.strip(), str(time.time()).encode())], 60)
"""


class Raw(Protocol):
    """Access to a store's values without the store: what is wrong in its puts and gets alike shows only here."""

    def get(self, key: str) -> tuple[bytes, float]:
        """Return the value that lies where the backend's layout has it, and how many seconds it has left."""

    def put(self, key: str, value: bytes, ttl: float) -> None:
        """Put a value there."""


class _Keys:
    @pytest.fixture
    def key(self) -> str:
        return f"t:{secrets.token_hex(8)}"


class StoreContract(_Keys):
    """Fixtures to provide: `store`, perhaps shared by tests; `expire(key)`, which waits out a 0.05 s value; `raw`."""

    @pytest.mark.parametrize("tail", ["", "/part", "x" * 300])
    def test_what_is_put_lies_where_the_layout_has_it(self, store: Store, raw: Raw, key: str, tail: str) -> None:
        store.put(key + tail, b"value", TTL)
        value, left_s = raw.get(key + tail)
        assert value == b"value"
        assert TTL - 10 < left_s <= TTL + 0.01

    @pytest.mark.parametrize("tail", ["", "/part", "x" * 300])
    def test_what_lies_where_the_layout_has_it_is_read(self, store: Store, raw: Raw, key: str, tail: str) -> None:
        raw.put(key + tail, b"value", TTL)
        assert store.get(key + tail) == b"value"
        assert store.get_many([Range(key + tail, 1, 3)]) == [b"alu"]
        assert store.exists([key + tail]) == [True]
        store.delete([key + tail])
        assert store.exists([key + tail]) == [False]

    @pytest.mark.parametrize("value", [b"", b"x", b"\r\n\x00$-1\r\n", bytes(range(256)) * 20_000])
    def test_round_trip_of_the_last_value(self, store: Store, key: str, value: bytes) -> None:
        store.put(key, b"a long old value", TTL)
        store.put(key, value, TTL)
        assert store.get(key) == value
        assert type(store.get(key)) is bytes

    def test_overwrite_renews_the_time_to_live(self, store: Store, key: str, expire: Expire) -> None:
        store.put(key, b"old", 0.05)
        store.put(key, b"new", TTL)
        other = key + ":other"
        store.put(other, b"x", 0.05)
        expire(other)
        assert store.get(key) == b"new"

    @pytest.mark.parametrize(
        ("start", "length"), [(0, 11), (0, 1 << 40), (9, 2), (10, 1), (11, None), (11, 0), (1 << 40, None)]
    )
    def test_range_past_the_end_is_missing(self, store: Store, key: str, start: int, length: int | None) -> None:
        store.put(key, b"0123456789", TTL)
        with pytest.raises(MissingKeyError, match=key):
            store.get(key, start, length)

    @pytest.mark.parametrize(("start", "length"), [(0, 0), (0, None), (3, 0), (3, None), (3, 2)])
    def test_range_of_a_missing_key_is_missing(self, store: Store, key: str, start: int, length: int | None) -> None:
        with pytest.raises(MissingKeyError, match=key):
            store.get(key, start, length)

    def test_put_many_puts_every_value(self, store: Store, raw: Raw, key: str) -> None:
        store.put_many({}, TTL)
        store.put_many({f"{key}:{name}": name.encode() * 200_000 for name in "abc"}, TTL)
        assert [raw.get(f"{key}:{name}")[0] for name in "abc"] == [name * 200_000 for name in (b"a", b"b", b"c")]

    def test_get_many_keeps_the_order_asked(self, store: Store, key: str) -> None:
        for name in "abc":
            store.put(f"{key}:{name}", name.encode() * 10, TTL)
        ranges = [Range(f"{key}:c", 2, 3), Range(f"{key}:a"), Range(f"{key}:b", 9, 1), Range(f"{key}:c", 8)]
        assert store.get_many(ranges) == [b"ccc", b"a" * 10, b"b", b"cc"]
        assert store.get_many([]) == []

    def test_get_many_names_the_missing_key(self, store: Store, key: str) -> None:
        store.put(key, b"0123", TTL)
        with pytest.raises(MissingKeyError, match=f"{key}:gone"):
            store.get_many([Range(key, 0, 2), Range(f"{key}:gone", 0, 2), Range(key, 2, 2)])
        assert store.get(key) == b"0123"

    def test_exists(self, store: Store, key: str) -> None:
        store.put(key, b"", TTL)
        assert store.exists([f"{key}:no", key, f"{key}:no2"]) == [False, True, False]
        assert store.exists([]) == []

    def test_delete(self, store: Store, key: str) -> None:
        store.put(key, b"x", TTL)
        store.put(f"{key}:kept", b"y", TTL)
        store.delete([key, f"{key}:absent"])
        store.delete([key])
        store.delete([])
        assert store.exists([key, f"{key}:kept"]) == [False, True]

    def test_value_expires(self, store: Store, key: str, expire: Expire) -> None:
        store.put(key, b"x", 0.05)
        expire(key)
        assert store.exists([key]) == [False]
        with pytest.raises(MissingKeyError, match=key):
            store.get(key)

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
    def test_time_to_live_must_be_a_positive_number(self, store: Store, key: str, ttl: float) -> None:
        with pytest.raises(UsageError, match="time to live"):
            store.put(key, b"x", ttl)
        assert store.exists([key]) == [False]

    @pytest.mark.parametrize("bad", ["", "a b", "a\n", "../x", "a/..", "ключ", "a%", "k" * 513, "a#", "a\0"])
    def test_bad_keys_are_refused(self, store: Store, bad: str) -> None:
        for ask in (
            lambda: store.put(bad, b"", TTL),
            lambda: store.get(bad),
            lambda: store.exists([bad]),
            lambda: store.delete([bad]),
        ):
            with pytest.raises(UsageError, match="not allowed"):
                ask()

    @pytest.mark.parametrize("start_length", [(-1, None), (0, -1), (-3, 2)])
    def test_negative_ranges_are_refused(self, store: Store, key: str, start_length: tuple[int, int | None]) -> None:
        with pytest.raises(UsageError, match="negative"):
            store.get(key, *start_length)

    @pytest.mark.parametrize("tail", ["{a}/b.c_d-e", "/", ".", "/.", "a/" * 200, "k" * 490, "x" * 200, "x" * 201])
    def test_good_keys_do_not_collide(self, store: Store, key: str, tail: str) -> None:
        keys = [key, key + tail, key + tail + "z"]
        for own_key in keys:
            store.put(own_key, own_key.encode(), TTL)
        assert [store.get(own_key) for own_key in keys] == [own_key.encode() for own_key in keys]

    @pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
    @pytest.mark.parametrize("shape", [(2, 3, 50, 50), (3,), (0, 4), ()])
    def test_array_memory_is_taken_as_it_is(self, store: Store, key: str, dtype: str, shape: tuple[int, ...]) -> None:
        array = np.full(shape, 7, dtype)
        store.put(key, array.data, TTL)
        assert store.get(key) == array.tobytes()

    def test_buffer_may_be_reused_after_put(self, store: Store, key: str) -> None:
        buffer = bytearray(b"first")
        store.put(key, buffer, TTL)
        buffer[:] = b"later"
        assert store.get(key) == b"first"

    def test_scattered_memory_is_refused(self, store: Store, key: str) -> None:
        with pytest.raises(TypeError, match="contiguous"):
            store.put(key, np.zeros((4, 4)).data[::2], TTL)

    def test_readers_see_whole_values_while_writers_overwrite(self, store: Store, key: str) -> None:
        values = [bytes([i]) * 200_000 for i in range(4)]
        store.put(key, values[0], TTL)

        def write(value: bytes) -> None:
            for _ in range(20):
                store.put(key, value, TTL)

        def read(_: int) -> bool:
            return all(store.get(key) in values for _ in range(20))

        with ThreadPoolExecutor(8) as threads:
            writes = threads.map(write, values)
            assert all(threads.map(read, range(4)))
            list(writes)

    @_EXAMPLES
    @given(value=st.binary(max_size=2000), data=st.data())
    def test_any_range_equals_slicing(self, store: Store, key: str, value: bytes, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(value)))
        length = data.draw(st.none() | st.integers(0, len(value) - start))
        store.put(key, value, TTL)
        expected = value[start:] if length is None else value[start : start + length]
        assert store.get(key, start, length) == expected


class CoordinationContract(_Keys):
    """Fixtures to provide: `store`, whose coordination is tested, or `coordination`; `expire(key)` as above."""

    @pytest.fixture
    def coordination(self, store: Store) -> Coordination:
        return store.coordination()

    @pytest.mark.parametrize("value", [b"", b"x", b"\r\n\x00$-1\r\n", bytes(range(256)) * 20_000])
    def test_a_key_without_a_value_is_set_once(self, coordination: Coordination, key: str, value: bytes) -> None:
        assert coordination.get(key) is None
        version = coordination.compare_and_set(key, None, value, TTL)
        assert version is not None
        assert coordination.compare_and_set(key, None, b"another", TTL) is None
        assert coordination.compare_and_set(key, None, value, TTL) is None
        assert coordination.get(key) == Entry(value, version)

    @pytest.mark.parametrize("value", [b"2", b"1"])
    def test_only_the_last_version_is_replaced(self, coordination: Coordination, key: str, value: bytes) -> None:
        first = coordination.compare_and_set(key, None, b"1", TTL)
        second = coordination.compare_and_set(key, first, value, TTL)  # also of the same bytes
        assert second not in {None, first}
        assert coordination.compare_and_set(key, first, b"3", TTL) is None
        assert coordination.get(key) == Entry(value, str(second))

    def test_a_deleted_key_has_no_version(self, coordination: Coordination, key: str) -> None:
        first = coordination.compare_and_set(key, None, b"1", TTL)
        coordination.delete([key, f"{key}:absent"])
        assert coordination.get(key) is None
        assert coordination.compare_and_set(key, first, b"2", TTL) is None
        assert coordination.get(key) is None
        assert coordination.compare_and_set(key, None, b"3", TTL) is not None

    def test_an_expired_key_has_no_value(self, coordination: Coordination, key: str, expire: Expire) -> None:
        coordination.compare_and_set(key, None, b"old", 0.05)
        expire(key)
        assert coordination.get(key) is None
        version = coordination.compare_and_set(key, None, b"new", TTL)
        assert coordination.compare_and_set(key, None, b"late", TTL) is None
        assert coordination.get(key) == Entry(b"new", str(version))

    def test_a_write_renews_the_time_to_live(self, coordination: Coordination, key: str, expire: Expire) -> None:
        version = coordination.compare_and_set(key, None, b"old", 0.5)
        coordination.compare_and_set(key, version, b"new", TTL)
        coordination.compare_and_set(f"{key}:other", None, b"x", 0.05)
        expire(f"{key}:other")
        entry = coordination.get(key)
        assert entry is not None
        assert entry.value == b"new"

    @pytest.mark.parametrize("there", ["nothing", "expired", "a version"])
    def test_of_callers_at_once_one_succeeds(
        self, coordination: Coordination, key: str, expire: Expire, there: str
    ) -> None:
        for number in range(3):
            own_key, expected = f"{key}:{number}", None
            if there == "expired":
                coordination.compare_and_set(own_key, None, b"same", 0.05)
                expire(own_key)
            elif there == "a version":
                expected = coordination.compare_and_set(own_key, None, b"same", TTL)
            versions = _at_once(coordination, own_key, expected, [b"same"] * 4 + [b"%d" % value for value in range(4)])
            assert sorted(version is None for version in versions) == [False] + [True] * 7
            entry = coordination.get(own_key)
            assert entry is not None
            assert entry.version in versions

    def test_changes_of_many_callers_are_all_kept(self, coordination: Coordination, key: str) -> None:
        def increment(_: int) -> Entry | None:
            return change(coordination, key, lambda value: b"%d" % (int(value or 0) + 1), TTL)

        with ThreadPoolExecutor(4) as threads:
            entries = list(threads.map(increment, range(12)))
        assert coordination.get(key) in entries
        assert {int(entry.value) for entry in entries if entry} == {*range(1, 13)}

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
    def test_time_to_live_of_a_version_must_be_a_positive_number(
        self, coordination: Coordination, key: str, ttl: float
    ) -> None:
        with pytest.raises(UsageError, match="time to live"):
            coordination.compare_and_set(key, None, b"x", ttl)
        assert coordination.get(key) is None

    @pytest.mark.parametrize("bad", ["", "a b", "../x", "k" * 513])
    def test_bad_keys_of_versions_are_refused(self, coordination: Coordination, bad: str) -> None:
        for ask in (
            lambda: coordination.get(bad),
            lambda: coordination.compare_and_set(bad, None, b"", TTL),
            lambda: coordination.delete([bad]),
        ):
            with pytest.raises(UsageError, match="not allowed"):
                ask()


class ExchangeContract(_Keys):
    """Fixtures to provide: `store`, whose exchange is tested, or `exchange`; `expire(key)` as above.

    `url` opens the store in another process; None, where that is impossible, skips the test that does.
    """

    @pytest.fixture
    def exchange(self, store: Store) -> Iterator[Exchange]:
        exchange = store.exchange()
        assert exchange is not None
        yield exchange
        exchange.close()

    @pytest.fixture
    def url(self) -> str | None:
        return None

    @pytest.mark.parametrize("value", [b"", b"x", b"\r\n\x00$-1\r\n", bytes(range(256)) * 32_768])
    def test_a_message_arrives_whole(self, exchange: Exchange, key: str, value: bytes) -> None:
        exchange.send([Message(key, value)], TTL)
        [received] = exchange.receive(key, START, LONG_S)
        assert received.value == value
        assert type(received.value) is bytes

    def test_messages_keep_their_order_and_stay(self, exchange: Exchange, key: str) -> None:
        exchange.send([Message(key, b"1"), Message(f"{key}:other", b"x"), Message(key, b""), Message(key, b"1")], TTL)
        exchange.send([Message(key, b"2")], TTL)
        exchange.send([], TTL)
        for _ in range(2):
            assert _values(exchange, key) == [b"1", b"", b"1", b"2"]
        assert _values(exchange, f"{key}:other") == [b"x"]

    def test_a_cursor_is_a_place_in_an_inbox(self, exchange: Exchange, key: str) -> None:
        assert _values(exchange, key) == []
        exchange.send([Message(key, b"%d" % number) for number in range(5)], TTL)
        received = exchange.receive(key, START, 0)
        for number, message in enumerate(received):
            assert exchange.receive(key, message.cursor, 0) == received[number + 1 :]

    @pytest.mark.parametrize("timeout_s", [-1.0, 0.0, 0.15])
    def test_a_wait_ends_without_a_message(self, exchange: Exchange, key: str, timeout_s: float) -> None:
        exchange.send([Message(key, b"read"), Message(f"{key}:other", b"x")], TTL)
        [read] = exchange.receive(key, START, 0)
        started = time.monotonic()
        assert exchange.receive(key, read.cursor, timeout_s) == []
        assert exchange.receive(f"{key}:absent", START, timeout_s) == []
        assert 2 * timeout_s <= time.monotonic() - started < LONG_S

    def test_a_message_of_another_thread_wakes_a_wait(self, exchange: Exchange, key: str) -> None:
        with ThreadPoolExecutor(1) as thread:
            latencies, cursor = [], START
            for _ in range(9):
                waiting = thread.submit(lambda after: (exchange.receive(key, after, LONG_S), time.time()), cursor)
                time.sleep(0.03)  # until it waits
                sent = time.time()
                exchange.send([Message(key, b"x")], TTL)
                [received], at = waiting.result()
                latencies.append(at - sent)
                cursor = received.cursor
        assert median(latencies) < WAKE_S

    def test_a_message_of_another_process_wakes_a_wait(self, exchange: Exchange, key: str, url: str | None) -> None:
        if url is None:
            pytest.skip("no other process can open this store")
        environment = {"STORE": url, "PYTHONPATH": ":".join(filter(None, sys.path))}
        with subprocess.Popen(  # noqa: S603  the command is ours
            [sys.executable, "-c", _SENDER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as sender:
            assert sender.stdin is not None
            assert sender.stdout is not None
            assert sender.stdout.readline() == "ready\n"
            latencies, cursor = [], START
            for _ in range(9):
                sender.stdin.write(f"{key}\n")
                sender.stdin.flush()
                [(cursor, sent)] = exchange.receive(key, cursor, LONG_S)
                latencies.append(time.time() - float(sent))
            sender.stdin.close()
        assert median(latencies) < WAKE_S

    def test_waits_keep_nobody_from_sending(self, exchange: Exchange, store: Store, key: str) -> None:
        """Also where the store has few connections."""
        inboxes = [f"{key}:{number % 12}" for number in range(16)]  # some are read by several
        with ThreadPoolExecutor(16) as threads:
            waits = threads.map(lambda inbox: exchange.receive(inbox, START, LONG_S), inboxes)
            time.sleep(0.1)  # until they wait
            store.put(f"{key}:value", b"y", TTL)
            assert store.get(f"{key}:value") == b"y"
            assert exchange.receive(f"{key}:absent", START, 0.05) == []
            exchange.send([Message(inbox, inbox.encode()) for inbox in inboxes[:12]], TTL)
            assert [[message.value for message in got] for got in waits] == [[inbox.encode()] for inbox in inboxes]

    def test_readers_and_writers_at_once(self, exchange: Exchange, key: str) -> None:
        def write(writer: int) -> None:
            for number in range(20):
                exchange.send([Message(key, b"%d:%d" % (writer, number)), Message(f"{key}:other", bytes(3000))], TTL)

        def read(_: int) -> list[bytes]:
            values: list[bytes] = []
            cursor = START
            while len(values) < 80:
                received = exchange.receive(key, cursor, LONG_S)
                assert received
                values += [message.value for message in received]
                cursor = received[-1].cursor
            return values

        with ThreadPoolExecutor(7) as threads:
            reads = threads.map(read, range(3))
            list(threads.map(write, range(4)))
            [first, *others] = list(reads)
        assert all(other == first for other in others)
        for writer in range(4):
            mine = [value for value in first if value.startswith(b"%d:" % writer)]
            assert mine == [b"%d:%d" % (writer, number) for number in range(20)]

    @_EXAMPLES
    @given(
        steps=st.lists(st.integers(0, 1) | st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=40)), max_size=4))
    )
    def test_any_reader_gets_each_message_once_in_order(
        self, exchange: Exchange, steps: list[int | list[tuple[int, bytes]]]
    ) -> None:
        """A step is a send, or a number: the inbox that is read on."""
        inboxes = [f"t:{secrets.token_hex(8)}" for _ in range(2)]
        sent: list[list[bytes]] = [[], []]
        read: list[list[bytes]] = [[], []]
        cursors = [START, START]
        for step in [*steps, 0, 1]:
            if isinstance(step, int):
                for cursor, value in exchange.receive(inboxes[step], cursors[step], 0):
                    read[step].append(value)
                    cursors[step] = cursor
                assert read[step] == sent[step]
            else:
                exchange.send([Message(inboxes[number], value) for number, value in step], TTL)
                for number, value in step:
                    sent[number].append(value)

    def test_an_inbox_expires(self, exchange: Exchange, key: str, expire: Expire) -> None:
        exchange.send([Message(key, b"old"), Message(key, b"older")], 0.05)
        cursor = exchange.receive(key, START, 0)[-1:]
        expire(key)
        assert _values(exchange, key) == []
        exchange.send([Message(key, b"new")], TTL)
        for after in (START, *(message.cursor for message in cursor)):
            assert [message.value for message in exchange.receive(key, after, 0)] == [b"new"]

    def test_a_send_renews_the_time_to_live(self, exchange: Exchange, key: str, expire: Expire) -> None:
        exchange.send([Message(key, b"1"), Message(f"{key}:other", b"x")], 0.05)
        exchange.send([Message(key, b"2")], TTL)
        expire(f"{key}:other")
        assert _values(exchange, key)[-1] == b"2"
        assert _values(exchange, f"{key}:other") == []

    def test_the_store_deletes_inboxes(self, exchange: Exchange, store: Store, key: str) -> None:
        exchange.send([Message(key, b"1"), Message(key, b"2"), Message(f"{key}:kept", b"x")], TTL)
        store.delete([key, f"{key}:absent"])
        assert _values(exchange, key) == []
        assert _values(exchange, f"{key}:kept") == [b"x"]
        exchange.send([Message(key, b"3")], TTL)
        assert _values(exchange, key) == [b"3"]

    def test_a_deleted_inbox_wakes_nobody(self, exchange: Exchange, store: Store, key: str) -> None:
        exchange.send([Message(key, b"1")], TTL)
        [first] = exchange.receive(key, START, 0)
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(exchange.receive, key, first.cursor, LONG_S)
            time.sleep(0.05)  # until it waits
            store.delete([key])
            time.sleep(0.05)
            assert not waiting.done()
            exchange.send([Message(key, b"2")], TTL)
            assert [message.value for message in waiting.result()] == [b"2"]

    def test_closing_ends_no_wait(self, exchange: Exchange, store: Store, key: str) -> None:
        other = store.exchange()
        assert other is not None
        with ThreadPoolExecutor(2) as threads:
            waits = [threads.submit(reader.receive, key, START, LONG_S) for reader in (exchange, other)]
            time.sleep(0.05)  # until they wait
            other.close()
            time.sleep(0.05)
            assert not any(wait.done() for wait in waits)
            exchange.send([Message(key, b"x")], TTL)
            assert [[message.value for message in wait.result()] for wait in waits] == [[b"x"]] * 2
        assert [message.value for message in other.receive(key, START, 0)] == [b"x"]
        other.close()

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
    def test_time_to_live_of_an_inbox_must_be_a_positive_number(self, exchange: Exchange, key: str, ttl: float) -> None:
        with pytest.raises(UsageError, match="time to live"):
            exchange.send([Message(key, b"x")], ttl)
        assert _values(exchange, key) == []

    @pytest.mark.parametrize("bad", ["", "a b", "../x", "k" * 513])
    def test_bad_names_of_inboxes_are_refused(self, exchange: Exchange, key: str, bad: str) -> None:
        with pytest.raises(UsageError, match="not allowed"):
            exchange.receive(bad, START, 0)
        with pytest.raises(UsageError, match="not allowed"):
            exchange.send([Message(key, b"x"), Message(bad, b"x")], TTL)
        assert _values(exchange, key) == []

    @pytest.mark.parametrize("tail", ["", "/part", "x" * 300])
    def test_inboxes_may_have_any_key(self, exchange: Exchange, key: str, tail: str) -> None:
        exchange.send([Message(key + tail, b"x"), Message(f"{key}{tail}/", b"y")], TTL)
        assert _values(exchange, key + tail) == [b"x"]
        assert _values(exchange, f"{key}{tail}/") == [b"y"]


def _values(exchange: Exchange, inbox: str) -> list[bytes]:
    return [received.value for received in exchange.receive(inbox, START, 0)]


def _at_once(coordination: Coordination, key: str, expected: str | None, values: list[bytes]) -> list[str | None]:
    start = Barrier(len(values))

    def work(value: bytes) -> str | None:
        start.wait()
        return coordination.compare_and_set(key, expected, value, TTL)

    with ThreadPoolExecutor(len(values)) as threads:
        return list(threads.map(work, values))
