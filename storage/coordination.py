"""State that several drivers change: small values, each with a version, and compare-and-set."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from serfer.core.errors import StoreError


class Entry(NamedTuple):
    """A value and its version, an opaque token that every write changes, also one of the same bytes."""

    value: bytes
    version: str


class Coordination(Protocol):
    """Values under keys, each for a time to live; every method may be called from several threads at once.

    Keys look like a Store's, but no key is used through both interfaces. Every method raises UsageError for a malformed
    key and StoreUnavailableError where the backend does not answer.
    """

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

    def delete(self, keys: Sequence[str]) -> None:
        """Remove the keys, whatever their versions; absent ones are fine."""


class NoCoordination(Coordination):
    """Refuses: a store, named `store`, without compare-and-set serves pipelines all the same."""

    def __init__(self, store: str) -> None:
        self._store = store

    def get(self, key: str) -> Entry | None:
        """Refuse."""
        raise self._refusal(key)

    def compare_and_set(self, key: str, expected: str | None, value: bytes, ttl: float) -> str | None:
        """Refuse."""
        del expected, value, ttl
        raise self._refusal(key)

    def delete(self, keys: Sequence[str]) -> None:
        """Refuse."""
        raise self._refusal(keys[0])

    def _refusal(self, key: str) -> StoreError:
        return StoreError(f"{self._store} has no compare-and-set, which {key!r} needs: change --store")


class InterceptedCoordination(Coordination):
    """Calls `before` with the operation's name before it passes each to `inner`."""

    def __init__(self, inner: Coordination, before: Callable[[str], None]) -> None:
        self._inner = inner
        self._before = before

    def get(self, key: str) -> Entry | None:
        """Get after `before("get")`."""
        self._before("get")
        return self._inner.get(key)

    def compare_and_set(self, key: str, expected: str | None, value: bytes, ttl: float) -> str | None:
        """Compare and set after `before("compare_and_set")`."""
        self._before("compare_and_set")
        return self._inner.compare_and_set(key, expected, value, ttl)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete after `before("delete")`."""
        self._before("delete")
        self._inner.delete(keys)
