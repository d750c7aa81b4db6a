"""A wrapper that counts the operations on a store."""

from collections.abc import Callable, Sequence
from threading import Lock

from serfer.core.keys import StoreCounts
from serfer.storage.exchange import Exchange, Message, Received
from serfer.storage.store import Bytes, Range, Store
from serfer.storage.wrapping import WrapperExchange, WrapperStore


class CountingStore(WrapperStore):
    """Counts the puts, ranges and keys that succeeded, messages as puts and ranges; deletions are free."""

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

    def _wrapped(self, inner: Exchange) -> Exchange:
        return _CountingExchange(inner, self._add)

    def _add(self, more: StoreCounts) -> None:
        with self._lock:
            self._counts += more


class _CountingExchange(WrapperExchange):
    def __init__(self, inner: Exchange, add: Callable[[StoreCounts], None]) -> None:
        super().__init__(inner)
        self._add = add

    def send(self, messages: Sequence[Message], ttl: float) -> None:
        """Count a put for each message."""
        self._inner.send(messages, ttl)
        self._add(StoreCounts(bytes_put=sum(len(message.value) for message in messages), puts=len(messages)))

    def receive(self, inbox: str, after: str, timeout_s: float) -> list[Received]:
        """Count a range for each message; a wait in vain is free."""
        received = self._inner.receive(inbox, after, timeout_s)
        self._add(StoreCounts(bytes_get=sum(len(message.value) for message in received), gets=len(received)))
        return received
