import pytest

from storage.contract import CoordinationContract, StoreContract
from storage.memory import MemoryStore


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class RawMemory:
    """The dict of a memory store."""

    def __init__(self, store, clock):
        self.values, self.clock = store._values, clock

    def get(self, key):
        value, expiry = self.values[key]
        return value, expiry - self.clock()

    def put(self, key, value, ttl):
        self.values[key] = value, self.clock() + ttl


class TestMemory(StoreContract, CoordinationContract):
    @pytest.fixture
    def clock(self):
        return Clock()

    @pytest.fixture
    def store(self, clock):
        with MemoryStore(clock) as store:
            yield store

    @pytest.fixture
    def expire(self, clock):
        def wait(_key):
            clock.now += 0.05

        return wait

    @pytest.fixture
    def raw(self, store, clock):
        return RawMemory(store, clock)

    def test_bytes_are_not_copied(self, store, key):
        value = b"x" * 1000
        store.put(key, value, 1)
        assert store.get(key) is value

    def test_a_later_put_sweeps_unread_values(self, store, clock):
        store.put("old", b"x", 1)
        clock.now += 2
        store.put("new", b"x", 1)
        assert list(store._values) == ["new"]
