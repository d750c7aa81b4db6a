"""Coordination by values that begin with their version."""

import secrets
from abc import abstractmethod
from collections.abc import Callable, Sequence

from serfer.core.errors import MissingKeyError
from serfer.storage.coordination import Coordination, Entry
from serfer.storage.store import Bytes, Store, check_keys, check_ttl

VERSION_BYTES = 16


class PrefixedVersions(Coordination):
    """Coordination by values that begin with their version, VERSION_BYTES random bytes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def delete(self, keys: Sequence[str]) -> None:
        self._store.delete(keys)

    def get(self, key: str) -> Entry | None:
        framed = self._read(key)
        return None if framed is None else Entry(framed[VERSION_BYTES:], framed[:VERSION_BYTES].hex())

    def compare_and_set(self, key: str, expected: str | None, value: bytes, ttl: float) -> str | None:
        check_keys((key,))
        check_ttl(ttl)
        version = secrets.token_bytes(VERSION_BYTES)
        written = self._write(key, bytes.fromhex(expected or ""), version + value, ttl)
        return version.hex() if written else None

    @abstractmethod
    def _read(self, key: str) -> bytes | None: ...

    @abstractmethod
    def _write(self, key: str, expected: bytes, framed: bytes, ttl: float) -> bool:
        """Write `framed` if what lies there begins with `expected`, which is empty where nothing may lie there."""


class LocalStore(Store):
    """A store that compares and puts under one lock."""

    @abstractmethod
    def put_if(self, key: str, value: Bytes, ttl: float, condition: Callable[[bytes], bool]) -> bool:
        """Put a value if `condition` holds for the first VERSION_BYTES of the live one, empty where there is none."""

    def coordination(self) -> Coordination:
        return _LocalCoordination(self)


class _LocalCoordination(PrefixedVersions):
    def __init__(self, store: LocalStore) -> None:
        super().__init__(store)
        self._put_if = store.put_if

    def _read(self, key: str) -> bytes | None:
        try:
            return self._store.get(key)
        except MissingKeyError:
            return None

    def _write(self, key: str, expected: bytes, framed: bytes, ttl: float) -> bool:
        return self._put_if(key, framed, ttl, expected.__eq__)
