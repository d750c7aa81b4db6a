"""A store around a store that counts its requests, for tests."""

from __future__ import annotations

from threading import Lock

from serfer.core.keys import StoreCounts
from serfer.storage.store import Store
from serfer.storage.wrapping import InterceptingStore


class CountingStore(InterceptingStore):
    """Counts the puts, ranges and keys that succeeded, messages as puts and ranges; deletions are free."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._lock = Lock()
        self.counts = StoreCounts()

    def after(self, operation: str, count: int, size: int) -> None:
        if operation in ("put", "send"):
            more = StoreCounts(bytes_put=size, puts=count)
        elif operation in ("get", "receive"):
            more = StoreCounts(bytes_get=size, gets=count)
        else:
            more = StoreCounts(exists=count)
        with self._lock:
            self.counts += more
