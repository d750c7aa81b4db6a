import pytest

from serfer.core.errors import StoreUnavailableError
from serfer.storage.memory import MemoryStore
from serfer.storage.wrapping import WrapperStore


class WatchedStore(MemoryStore):
    """Remembers every key that was ever put."""

    def __init__(self):
        super().__init__()
        self.ever = set()

    def put(self, key, value, ttl):
        super().put(key, value, ttl)
        self.ever.add(key)

    @property
    def keys(self):
        return set(self._values)


class AwayStore(WrapperStore):
    """A store as a driver reaches it: it fails the first `failures` calls of a kind."""

    def __init__(self, store, **failures):
        super().__init__(store)
        self.failures = failures

    def _fail(self, call):
        if self.failures.get(call, 0) > 0:
            self.failures[call] -= 1
            raise StoreUnavailableError("the store is away")

    def put(self, key, value, ttl):
        self._fail("put")
        super().put(key, value, ttl)

    def get_many(self, ranges):
        self._fail("get")
        return super().get_many(ranges)

    def delete(self, keys):
        self._fail("delete")
        super().delete(keys)


@pytest.fixture
def store():
    """A store in which no query leaves anything behind."""
    store = WatchedStore()
    yield store
    assert store.keys == set()
