"""A store in the memory of one process."""

import functools
import itertools
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from threading import Condition, Lock
from typing import NamedTuple
from urllib.parse import urlsplit

from serfer.storage.exchange import START, Exchange, Message, Received
from serfer.storage.store import Bytes, Range, check_keys, check_ranges, check_ttl, cut, flat, missing
from serfer.storage.versioned_values import VERSION_BYTES, LocalStore

_SWEEP_EVERY_S = 1.0
_NOTHING = b"", -math.inf  # a value and when it expires


class MemoryStore(LocalStore):
    """Values in a dict; expired ones are removed when next read, or by a sweep in a put."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._values: dict[str, tuple[bytes, float]] = {}
        self._exchange = _MemoryExchange(clock)
        self._next_sweep = clock() + _SWEEP_EVERY_S

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        self.put_if(key, value, ttl, lambda _: True)

    def put_if(self, key: str, value: Bytes, ttl: float, condition: Callable[[bytes], bool]) -> bool:
        check_keys((key,))
        check_ttl(ttl)
        kept, now = bytes(flat(value)), self._clock()
        with self._lock:
            if now >= self._next_sweep:
                self._values = {k: entry for k, entry in self._values.items() if entry[1] > now}
                self._exchange.sweep()
                self._next_sweep = now + _SWEEP_EVERY_S
            there, expiry = self._values.get(key, _NOTHING)
            if not condition(there[:VERSION_BYTES] if expiry > now else b""):
                return False
            self._values[key] = kept, now + ttl
            return True

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        check_ranges(ranges)
        return [cut(self._live(span), span) for span in ranges]

    def exists(self, keys: Sequence[str]) -> list[bool]:
        check_keys(keys)
        now = self._clock()
        with self._lock:
            return [key in self._values and self._values[key][1] > now for key in keys]

    def delete(self, keys: Sequence[str]) -> None:
        check_keys(keys)
        self._exchange.delete(keys)
        with self._lock:
            for key in keys:
                self._values.pop(key, None)

    def exchange(self) -> Exchange:
        return self._exchange

    def close(self) -> None:
        """Do nothing: others may hold the same named store."""

    def _live(self, span: Range) -> bytes:
        with self._lock:
            value, expiry = self._values.get(span.key, _NOTHING)
            if expiry <= self._clock():
                self._values.pop(span.key, None)
                raise missing(span)
            return value


class _Inbox(NamedTuple):
    messages: list[tuple[int, bytes]]
    expiry: float


class _MemoryExchange(Exchange):
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sent = Condition(Lock())
        self._inboxes: dict[str, _Inbox] = {}
        self._numbers = itertools.count(1)  # of all inboxes together: an inbox that is made again has greater ones
        self._next_sweep = clock() + _SWEEP_EVERY_S

    def send(self, messages: Sequence[Message], ttl: float) -> None:
        check_keys(message.inbox for message in messages)
        check_ttl(ttl)
        now = self._clock()
        if now >= self._next_sweep:
            self.sweep()
        with self._sent:
            for inbox, value in messages:
                there = self._live(inbox)
                self._inboxes[inbox] = _Inbox(there, now + ttl)
                there.append((next(self._numbers), bytes(value)))
            self._sent.notify_all()

    def receive(self, inbox: str, after: str, timeout_s: float) -> list[Received]:
        check_keys((inbox,))
        read = int(after) if after != START else 0

        def unread() -> list[tuple[int, bytes]]:
            messages = self._live(inbox)
            return messages[bisect_right(messages, read, key=itemgetter(0)) :]

        with self._sent:
            found = self._sent.wait_for(unread, timeout_s)
        return [Received(str(number), value) for number, value in found]

    def delete(self, inboxes: Iterable[str]) -> None:
        with self._sent:
            for inbox in inboxes:
                self._inboxes.pop(inbox, None)

    def sweep(self) -> None:
        now = self._clock()
        with self._sent:
            self._next_sweep = now + _SWEEP_EVERY_S
            self._inboxes = {key: inbox for key, inbox in self._inboxes.items() if inbox.expiry > now}

    def close(self) -> None:
        """Do nothing: others may hold the same named store."""

    def _live(self, key: str) -> list[tuple[int, bytes]]:
        inbox = self._inboxes.get(key)
        return inbox.messages if inbox and inbox.expiry > self._clock() else []


def open_memory(url: str) -> MemoryStore:
    """Open `memory://`, a new private store, or `memory://name`, the one of that name in this process."""
    parts = urlsplit(url)
    name = parts.netloc + parts.path
    return _shared_store(name) if name else MemoryStore()


@functools.cache
def _shared_store(_name: str) -> MemoryStore:
    return MemoryStore()
