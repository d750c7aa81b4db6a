"""Coordination by values that begin with their version."""

import secrets
from abc import abstractmethod
from collections.abc import Callable, Sequence

from serfer.core.errors import MissingKeyError
from serfer.storage.coordination import Coordination, Entry
from serfer.storage.store import Store, check_keys, check_ttl

VERSION_BYTES = 16


class PrefixedVersions(Coordination):
    """Coordination by values that begin with their version, VERSION_BYTES random bytes."""

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


PutIf = Callable[[str, bytes, float, Callable[[bytes], bool]], bool]
"""Puts a value if the condition holds for the first VERSION_BYTES of the live one, empty where there is none."""


class LocalCoordination(PrefixedVersions):
    """Coordination over a store that compares and puts under one lock."""

    def __init__(self, store: Store, put_if: PutIf) -> None:
        self._store = store
        self._put_if = put_if

    def delete(self, keys: Sequence[str]) -> None:
        self._store.delete(keys)

    def _read(self, key: str) -> bytes | None:
        try:
            return self._store.get(key)
        except MissingKeyError:
            return None

    def _write(self, key: str, expected: bytes, framed: bytes, ttl: float) -> bool:
        return self._put_if(key, framed, ttl, expected.__eq__)
