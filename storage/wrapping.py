"""Stores around a store, and their URLs: `SCHEME://?store=PERCENT-ENCODED-URL&option=number`."""

import math
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit

from serfer.core.errors import UsageError
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
        """Exchange by `inner`, through `_wrapped`, where it can."""
        inner = self._inner.exchange()
        return None if inner is None else self._wrapped(inner)

    def close(self) -> None:
        self._inner.close()

    def _wrapped(self, inner: Exchange) -> Exchange:
        """Return the inboxes of `inner` with what differs; here nothing does."""
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


def wrapped_url(scheme: str, store: str, options: Mapping[str, float | None]) -> str:
    """Build the URL of a wrapper around the store `store`; options that are None are left out."""
    given = {name: str(value) for name, value in options.items() if value is not None}
    return f"{scheme}://?{urlencode({'store': store, **given})}"


def unwrapped(url: str, known: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """Return the inner URL and the options, each with the default of `known` where the URL does not give it.

    Raises:
        UsageError: there is no inner URL, or an option is unknown, given twice, or not a number from zero on.
    """
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    given = dict(pairs)
    store = given.pop("store", "")
    if parts.netloc or parts.path or parts.fragment or "://" not in store or len(given) != len(pairs) - 1:
        raise UsageError(
            f"--store {parts.scheme}:// must be {parts.scheme}://?store=PERCENT-ENCODED-URL and options, each once"
        )
    if given.keys() - known.keys():  # unnamed: it may be a part of an inner URL that is not percent-encoded
        raise UsageError(f"--store {parts.scheme}:// has an unknown option: use store, {', '.join(known)}")
    return store, {**known, **{name: _number(parts.scheme, name, text) for name, text in given.items()}}


def _number(scheme: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 <= number < math.inf):
        raise UsageError(f"--store {scheme}:// needs a number from zero on for {name}")
    return number
