import pytest

from storage.contract import StoreContract
from storage.memory import MemoryStore


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class TestMemory(StoreContract):
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

    def test_bytes_are_not_copied(self, store, key):
        value = b"x" * 1000
        store.put(key, value, 1)
        assert store.get(key) is value

    def test_a_later_put_sweeps_what_nobody_read(self, store, clock):
        store.put("old", b"x", 1)
        clock.now += 2
        store.put("new", b"x", 1)
        assert list(store._values) == ["new"]
