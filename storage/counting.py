"""A wrapper that counts what goes through a store."""

from collections.abc import Sequence
from threading import Lock

from serfer.core.report import StoreCounts
from storage.store import Bytes, Range, Store


class CountingStore(Store):
    """Passes everything to `inner` and counts what succeeded; closing it closes `inner`."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._lock = Lock()
        self._counts = StoreCounts()

    @property
    def counts(self) -> StoreCounts:
        """What has gone through so far."""
        return self._counts

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        """Count one put and its bytes."""
        self._inner.put(key, value, ttl)
        self._add(StoreCounts(bytes_put=memoryview(value).nbytes, puts=1))

    def put_new(self, key: str, value: Bytes, ttl: float) -> bool:
        """Count one put and its bytes, also where the value was not kept: it went to the store all the same."""
        kept = self._inner.put_new(key, value, ttl)
        self._add(StoreCounts(bytes_put=memoryview(value).nbytes, puts=1))
        return kept

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """Count every range and its bytes."""
        values = self._inner.get_many(ranges)
        self._add(StoreCounts(bytes_get=sum(map(len, values)), gets=len(values)))
        return values

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Count every key asked for."""
        found = self._inner.exists(keys)
        self._add(StoreCounts(exists=len(found)))
        return found

    def delete(self, keys: Sequence[str]) -> None:
        """Pass through, uncounted."""
        self._inner.delete(keys)

    def close(self) -> None:
        """Close `inner`."""
        self._inner.close()

    def _add(self, more: StoreCounts) -> None:
        with self._lock:
            self._counts += more
