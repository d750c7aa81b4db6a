"""Stores around a store: those that pass every call on, and those that do something before and after each."""

from collections.abc import Sequence

from serfer.storage.coordination import Coordination, InterceptedCoordination
from serfer.storage.exchange import Exchange, Message, Received
from serfer.storage.store import Bytes, Range, Store


class WrapperStore(Store):
    """Passes every call to `inner`: derive from it and override what differs."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        self._inner.put(key, value, ttl)

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        return self._inner.get_many(ranges)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        return self._inner.exists(keys)

    def delete(self, keys: Sequence[str]) -> None:
        self._inner.delete(keys)

    def link(self, key: str, lifetime_s: int) -> str | None:
        return self._inner.link(key, lifetime_s)

    def coordination(self) -> Coordination:
        return self._inner.coordination()

    def exchange(self) -> Exchange | None:
        return self._inner.exchange()

    def close(self) -> None:
        self._inner.close()


class InterceptingStore(WrapperStore):
    """Calls `before` with the operation's name and the bytes that it takes, and `after` with items and bytes.

    `after` is not called where the operation fails, nor for coordination, whose values are small.
    """

    def before(self, operation: str, size: int = 0) -> None:
        """Do nothing: override it."""

    def after(self, operation: str, count: int, size: int) -> None:
        """Do nothing: override it."""

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        size = memoryview(value).nbytes
        self.before("put", size)
        self._inner.put(key, value, ttl)
        self.after("put", 1, size)

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        self.before("get")
        values = self._inner.get_many(ranges)
        self.after("get", len(values), sum(map(len, values)))
        return values

    def exists(self, keys: Sequence[str]) -> list[bool]:
        self.before("exists")
        flags = self._inner.exists(keys)
        self.after("exists", len(flags), 0)
        return flags

    def delete(self, keys: Sequence[str]) -> None:
        self.before("delete")
        self._inner.delete(keys)

    def coordination(self) -> Coordination:
        return InterceptedCoordination(self._inner.coordination(), self.before)

    def exchange(self) -> Exchange | None:
        inner = self._inner.exchange()
        return None if inner is None else _InterceptingExchange(inner, self)


class _InterceptingExchange(Exchange):
    def __init__(self, inner: Exchange, store: InterceptingStore) -> None:
        self._inner = inner
        self._store = store

    def send(self, messages: Sequence[Message], ttl: float) -> None:
        size = sum(len(message.value) for message in messages)
        self._store.before("send", size)
        self._inner.send(messages, ttl)
        self._store.after("send", len(messages), size)

    def receive(self, inbox: str, after: str, timeout_s: float) -> list[Received]:
        self._store.before("receive")
        received = self._inner.receive(inbox, after, timeout_s)
        self._store.after("receive", len(received), sum(len(message.value) for message in received))
        return received

    def close(self) -> None:
        self._inner.close()
