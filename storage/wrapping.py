"""Stores around a store."""

from collections.abc import Sequence

from serfer.storage.coordination import Coordination
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
        inner = self._inner.exchange()
        return None if inner is None else self._wrapped(inner)

    def close(self) -> None:
        self._inner.close()

    def _wrapped(self, inner: Exchange) -> Exchange:
        return inner


class WrapperExchange(Exchange):
    """Passes every call to `inner`: derive from it and override what differs."""

    def __init__(self, inner: Exchange) -> None:
        self._inner = inner

    def send(self, messages: Sequence[Message], ttl: float) -> None:
        self._inner.send(messages, ttl)

    def receive(self, inbox: str, after: str, timeout_s: float) -> list[Received]:
        return self._inner.receive(inbox, after, timeout_s)

    def close(self) -> None:
        self._inner.close()
