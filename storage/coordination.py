"""State that several drivers change: small values, each with a version, and compare-and-set."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from serfer.core.errors import StoreError, StoreUnavailableError
from serfer.core.retry import Backoff, RetryPolicy, retry


class Entry(NamedTuple):
    """A value and its version, an opaque token that every write changes, also one of the same bytes."""

    value: bytes
    version: str


class Versioned(Protocol):
    """Values under keys, each with a version; every method may be called from several threads at once."""

    def get(self, key: str) -> Entry | None:
        """Return what lies under a key, None where there is nothing or it has expired."""

    def compare_and_set(self, key: str, expected: str | None, value: bytes, ttl: float) -> str | None:
        """Write a value for `ttl` seconds if the key's version is `expected`, None meaning that it has no live value.

        Of any number of callers with the same `expected` at most one succeeds. The version of an expired value may
        match until something replaces it.

        Returns:
            The new version, None where the key has another one.

        Raises:
            UsageError: `ttl` is not a positive number.
            ValueTooLargeError: the backend takes no value of that size.
            StoreUnavailableError: the value may have been written or not.
            StoreError: the backend has no atomic compare-and-set.
        """


class Coordination(Versioned, Protocol):
    """Values under keys, each for a time to live.

    Keys look like a Store's, but no key is used through both interfaces. Every method raises UsageError for a malformed
    key and StoreUnavailableError where the backend does not answer.
    """

    def delete(self, keys: Sequence[str]) -> None:
        """Remove the keys, whatever their versions; absent ones are fine."""


class ContendedError(StoreUnavailableError):
    """Other writers came first each time that a value was to be changed."""


CHANGES: Final = RetryPolicy("change", ContendedError, Backoff(0.02, 1.0), attempts=30)
"""The usual attempts of a change: 12 to 24 seconds of waits."""
UNREAD: Final = Entry(b"", "")
"""In place of an entry: read what lies there first."""


def change(
    values: Versioned,
    key: str,
    f: Callable[[bytes | None], bytes | None],
    ttl: float,
    *,
    known: Entry | None = UNREAD,
    policy: RetryPolicy = CHANGES,
    sleep: Callable[[float], object] = time.sleep,
    left_s: Callable[[], float] = lambda: math.inf,
) -> Entry | None:
    """Replace a value by what `f` makes of it, and return what then lies under the key.

    `f` gets None where there is no value. It is called again with the new value after another writer came first, and
    only the result of its last call is written. Where it returns None, nothing is written. The value is read first,
    unless what probably lies there is `known`. Raises what `f` and `values` raise; ContendedError once the policy's
    attempts, or the seconds that are left, are used up.
    """

    def attempt() -> Entry | None:
        nonlocal known
        entry, known = values.get(key) if known is UNREAD else known, UNREAD
        value = f(entry.value if entry else None)
        if value is None:
            return entry
        version = values.compare_and_set(key, entry.version if entry else None, value, ttl)
        if version is None:
            raise ContendedError(f"others change {key!r} all the time: --store is too slow for so many")
        return Entry(value, version)

    return retry(attempt, policy, sleep, left_s)


def set_once(
    values: Versioned, key: str, value: bytes, ttl: float, stays: Callable[[bytes], bool] = lambda _: True
) -> Entry:
    """Write a value unless one is there that `stays`, and return what then is there: `value` itself if written.

    It is written without a read first. Where that fails, the existing value is read at once, without a backoff.
    """
    version = values.compare_and_set(key, None, value, ttl)
    if version is not None:
        return Entry(value, version)

    def changed(there: bytes | None) -> bytes | None:
        return None if there is not None and stays(there) else value

    return change(values, key, changed, ttl) or Entry(value, "")  # there is one: no change leaves nothing


class NoCoordination(Coordination):
    """Refuses: a store, named `store`, without compare-and-set serves pipelines all the same."""

    def __init__(self, store: str) -> None:
        self._store = store

    def get(self, key: str) -> Entry | None:
        raise self._refusal(key)

    def compare_and_set(self, key: str, expected: str | None, value: bytes, ttl: float) -> str | None:
        del expected, value, ttl
        raise self._refusal(key)

    def delete(self, keys: Sequence[str]) -> None:
        raise self._refusal(keys[0])

    def _refusal(self, key: str) -> StoreError:
        return StoreError(f"{self._store} has no compare-and-set, which {key!r} needs: change --store")


class InterceptedCoordination(Coordination):
    """Calls `before` with the operation's name before it passes each to `inner`."""

    def __init__(self, inner: Coordination, before: Callable[[str], None]) -> None:
        self._inner = inner
        self._before = before

    def get(self, key: str) -> Entry | None:
        self._before("get")
        return self._inner.get(key)

    def compare_and_set(self, key: str, expected: str | None, value: bytes, ttl: float) -> str | None:
        self._before("compare_and_set")
        return self._inner.compare_and_set(key, expected, value, ttl)

    def delete(self, keys: Sequence[str]) -> None:
        self._before("delete")
        self._inner.delete(keys)
