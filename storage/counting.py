"""A wrapper that counts the operations on a store."""

from collections.abc import Sequence
from threading import Lock

from serfer.core.report import StoreCounts
from storage.store import Bytes, Range, Store
from storage.wrapping import WrapperStore


class CountingStore(WrapperStore):
    """Counts the puts, ranges and keys that succeeded; deletions are free."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = Lock()
        self._counts = StoreCounts()

    @property
    def counts(self) -> StoreCounts:
        """The counts so far."""
        return self._counts

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        """Count one put and its bytes."""
        self._inner.put(key, value, ttl)
        self._add(StoreCounts(bytes_put=memoryview(value).nbytes, puts=1))

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """Count every range and its bytes."""
        values = self._inner.get_many(ranges)
        self._add(StoreCounts(bytes_get=sum(map(len, values)), gets=len(values)))
        return values

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Count every key."""
        flags = self._inner.exists(keys)
        self._add(StoreCounts(exists=len(flags)))
        return flags

    def _add(self, more: StoreCounts) -> None:
        with self._lock:
            self._counts += more
