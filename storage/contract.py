"""What every store must do, as tests: derive a class from StoreContract, and pytest runs them against your store.

    import time
    import pytest
    from storage.contract import StoreContract
    from my_package.my_store import MyStore

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self):
            with MyStore("mine://somewhere") as store:
                yield store

        @pytest.fixture
        def expire(self):
            return lambda key: time.sleep(0.1)  # better: move a clock of your own on, or ask until `key` is gone

It needs pytest, hypothesis and numpy; nothing that runs in production imports it.
"""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serfer.core.errors import MissingKeyError, UsageError
from storage import Range, Store

TTL = 60.0


class StoreContract:
    """Fixtures to provide: `store`, open and perhaps shared between tests; `expire(key)`, waits out a 0.05 s value."""

    @pytest.fixture
    def key(self) -> str:
        """Make up a key that no other test uses."""
        return f"t:{secrets.token_hex(8)}"

    @pytest.mark.parametrize("value", [b"", b"x", b"\r\n\x00$-1\r\n", bytes(range(256)) * 20_000])
    def test_round_trip(self, store: Store, key: str, value: bytes) -> None:
        store.put(key, value, TTL)
        assert store.get(key) == value
        assert type(store.get(key)) is bytes

    def test_overwrite_replaces_the_whole_value(self, store: Store, key: str) -> None:
        store.put(key, b"a long old value", TTL)
        store.put(key, b"new", TTL)
        assert store.get(key) == b"new"

    def test_overwrite_renews_the_time_to_live(self, store: Store, key: str, expire: Callable[[str], None]) -> None:
        store.put(key, b"old", 0.05)
        store.put(key, b"new", TTL)
        other = key + ":other"
        store.put(other, b"x", 0.05)
        expire(other)
        assert store.get(key) == b"new"

    @pytest.mark.parametrize("value", [b"", b"x", b"\r\n\x00$-1\r\n", bytes(range(256)) * 20_000])
    def test_new_value_is_kept_and_the_next_is_not(self, store: Store, key: str, value: bytes) -> None:
        assert store.put_new(key, memoryview(value), TTL) is True
        assert store.put_new(key, b"another", TTL) is False
        assert store.put_new(key, value, TTL) is False
        assert store.get(key) == value
        assert type(store.get(key)) is bytes

    def test_new_value_is_read_like_any(self, store: Store, key: str) -> None:
        store.put_new(key, b"0123456789", TTL)
        asked = [Range(key, 3), Range(key, 3, 2), Range(key, 8, 2), Range(key, 10), Range(key, 10, 0), Range(key, 0, 0)]
        assert store.get_many(asked) == [b"3456789", b"34", b"89", b"", b"", b""]
        assert store.exists([key, key + "0"]) == [True, False]
        for start, length in [(0, 11), (9, 2), (10, 1), (11, None), (11, 0), (26, None), (27, None), (20, 1)]:
            with pytest.raises(MissingKeyError, match=key):
                store.get(key, start, length)

    def test_value_of_a_plain_put_is_no_room_for_a_new_one(self, store: Store, key: str) -> None:
        store.put(key, b"plain", TTL)
        assert store.put_new(key, b"new", TTL) is False
        assert store.get(key) == b"plain"

    def test_plain_put_replaces_a_new_value(self, store: Store, key: str) -> None:
        store.put_new(key, b"a new value", TTL)
        store.put(key, b"plain", TTL)
        assert store.get(key) == b"plain"

    def test_deleted_value_makes_room_for_a_new_one(self, store: Store, key: str) -> None:
        store.put_new(key, b"first", TTL)
        store.delete([key])
        assert store.put_new(key, b"second", TTL) is True
        assert store.get(key) == b"second"

    @pytest.mark.parametrize("put", ["put", "put_new"])
    def test_expired_value_makes_room_for_a_new_one(
        self, store: Store, key: str, put: str, expire: Callable[[str], None]
    ) -> None:
        getattr(store, put)(key, b"old", 0.05)
        expire(key)
        assert store.put_new(key, b"new", TTL) is True
        assert store.put_new(key, b"late", TTL) is False
        assert store.get(key) == b"new"

    def test_new_value_expires(self, store: Store, key: str, expire: Callable[[str], None]) -> None:
        store.put_new(key, b"x", 0.05)
        expire(key)
        assert store.exists([key]) == [False]
        with pytest.raises(MissingKeyError, match=key):
            store.get(key)

    @pytest.mark.parametrize("expired", [False, True])
    @pytest.mark.parametrize("same", [False, True])
    def test_one_of_many_callers_is_kept(
        self, store: Store, key: str, expire: Callable[[str], None], *, expired: bool, same: bool
    ) -> None:
        values = [b"same" if same else b"%d" % number for number in range(8)]
        rounds = [f"{key}:{number}" for number in range(3)]
        if expired:
            for each in rounds:
                store.put_new(each, values[0], 0.05)
            expire(rounds[-1])
        for each in rounds:
            kept = _at_once(store, each, values)
            assert sorted(kept) == [False] * 7 + [True]
            assert store.get(each) == values[kept.index(True)]

    def test_missing_key_is_named(self, store: Store, key: str) -> None:
        with pytest.raises(MissingKeyError, match=key):
            store.get(key)

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

    def test_get_many_keeps_the_order_asked(self, store: Store, key: str) -> None:
        for name in "abc":
            store.put(f"{key}:{name}", name.encode() * 10, TTL)
        asked = [Range(f"{key}:c", 2, 3), Range(f"{key}:a"), Range(f"{key}:b", 9, 1), Range(f"{key}:c", 8)]
        assert store.get_many(asked) == [b"ccc", b"a" * 10, b"b", b"cc"]
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

    def test_value_expires(self, store: Store, key: str, expire: Callable[[str], None]) -> None:
        store.put(key, b"x", 0.05)
        expire(key)
        assert store.exists([key]) == [False]
        with pytest.raises(MissingKeyError, match=key):
            store.get(key)

    @pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
    def test_time_to_live_must_be_a_positive_number(self, store: Store, key: str, ttl: float) -> None:
        with pytest.raises(UsageError, match="time to live"):
            store.put(key, b"x", ttl)
        with pytest.raises(UsageError, match="time to live"):
            store.put_new(key, b"x", ttl)
        assert store.exists([key]) == [False]

    @pytest.mark.parametrize("bad", ["", "a b", "a\n", "../x", "a/..", "ключ", "a%", "k" * 513, "a#", "a\0"])
    def test_bad_keys_are_refused(self, store: Store, bad: str) -> None:
        for ask in (
            lambda: store.put(bad, b"", TTL),
            lambda: store.put_new(bad, b"", TTL),
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
        for each in keys:
            store.put(each, each.encode(), TTL)
        assert [store.get(each) for each in keys] == [each.encode() for each in keys]

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
        with pytest.raises(TypeError, match="contiguous"):
            store.put_new(key, np.zeros((4, 4)).data[::2], TTL)

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

    @settings(
        deadline=None,
        max_examples=60,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(value=st.binary(max_size=2000), data=st.data())
    def test_any_range_equals_slicing(self, store: Store, key: str, value: bytes, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(value)))
        length = data.draw(st.none() | st.integers(0, len(value) - start))
        store.put(key, value, TTL)
        expected = value[start:] if length is None else value[start : start + length]
        assert store.get(key, start, length) == expected


def _at_once(store: Store, key: str, values: list[bytes]) -> list[bool]:
    """Put every value as the new one, from as many threads, when all have started."""
    start = Barrier(len(values))

    def work(value: bytes) -> bool:
        start.wait()
        return store.put_new(key, value, TTL)

    with ThreadPoolExecutor(len(values)) as threads:
        return list(threads.map(work, values))
