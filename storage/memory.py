"""A store in the memory of one process."""

import functools
import math
import time
from collections.abc import Callable, Sequence
from threading import Lock
from urllib.parse import urlsplit

from storage.coordination import Coordination
from storage.store import Bytes, Range, Store, check_keys, check_ranges, check_ttl, cut, flat, missing
from storage.versions import VERSION_BYTES, LocalCoordination

_SWEEP_EVERY_S = 1.0
_NOTHING = b"", -math.inf  # a value and when it expires


class MemoryStore(Store):
    """Values in a dict; expired ones are removed when next read, or by a sweep in a put."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._values: dict[str, tuple[bytes, float]] = {}
        self._next_sweep = clock() + _SWEEP_EVERY_S

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        """Copy the value, unless it is bytes already."""
        self.put_if(key, value, ttl, lambda _: True)

    def put_if(self, key: str, value: Bytes, ttl: float, condition: Callable[[bytes], bool]) -> bool:
        """Check and put under one lock."""
        check_keys((key,))
        check_ttl(ttl)
        kept, now = bytes(flat(value)), self._clock()
        with self._lock:
            if now >= self._next_sweep:
                self._values = {k: entry for k, entry in self._values.items() if entry[1] > now}
                self._next_sweep = now + _SWEEP_EVERY_S
            there, expiry = self._values.get(key, _NOTHING)
            if not condition(there[:VERSION_BYTES] if expiry > now else b""):
                return False
            self._values[key] = kept, now + ttl
            return True

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """Slice the values; a whole one is not copied."""
        check_ranges(ranges)
        return [cut(self._live(span), span) for span in ranges]

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Look the keys up."""
        check_keys(keys)
        now = self._clock()
        with self._lock:
            return [key in self._values and self._values[key][1] > now for key in keys]

    def delete(self, keys: Sequence[str]) -> None:
        """Forget the keys."""
        check_keys(keys)
        with self._lock:
            for key in keys:
                self._values.pop(key, None)

    def coordination(self) -> Coordination:
        """Coordinate by the same dict."""
        return LocalCoordination(self)

    def close(self) -> None:
        """Do nothing: others may hold the same named store."""

    def _live(self, span: Range) -> bytes:
        with self._lock:
            value, expiry = self._values.get(span.key, _NOTHING)
            if expiry <= self._clock():
                self._values.pop(span.key, None)
                raise missing(span)
            return value


def open_memory(url: str) -> MemoryStore:
    """Open `memory://`, a new private store, or `memory://name`, the one of that name in this process."""
    parts = urlsplit(url)
    name = parts.netloc + parts.path
    return _named(name) if name else MemoryStore()


@functools.cache
def _named(_name: str) -> MemoryStore:
    return MemoryStore()
