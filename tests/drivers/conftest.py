import pytest

from serfer.storage.memory import MemoryStore


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


@pytest.fixture
def store():
    return WatchedStore()
