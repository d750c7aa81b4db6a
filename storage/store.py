"""The contract of a store, where pieces live between stages, and the checks that every backend shares."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, Self, TypeAlias

from serfer.core.errors import MissingKeyError, UsageError
from serfer.storage.coordination import Coordination, NoCoordination
from serfer.storage.exchange import Exchange

Bytes: TypeAlias = bytes | bytearray | memoryview

_KEY = re.compile(r"(?!.*\.\.)[A-Za-z0-9:_./{}-]{1,512}")


class Range(NamedTuple):
    """The bytes [start, start + length) of the value under a key; a length of None reads to its end."""

    key: str
    start: int = 0
    length: int | None = None


class Store(Protocol):
    """Values under keys, each for a time to live; every method may be called from several threads at once.

    Every method raises UsageError for a key outside `[A-Za-z0-9:_./{}-]{1,512}` or with ".." in it, and
    StoreUnavailableError where the backend does not answer.
    """

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        """Keep a C-contiguous value for `ttl` seconds; a reader sees the old value or the new one, never a mixture.

        Raises:
            UsageError: `ttl` is not a positive number.
            ValueTooLargeError: the backend takes no value of that size.
        """

    def put_many(self, values: Mapping[str, Bytes], ttl: float) -> None:
        """Put values by key, in one round trip where the backend can; where it raises as `put`, any may be there."""
        for key, value in values.items():
            self.put(key, value, ttl)

    def get(self, key: str, start: int | None = None, length: int | None = None) -> bytes:
        """Return one range of a value, or all of it, in full or not at all.

        Raises:
            MissingKeyError: there is no such key, or its value ends before the range does.
        """
        return self.get_many([Range(key, start or 0, length)])[0]

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """Return the ranges in their order, in one round trip where the backend can.

        Raises:
            MissingKeyError: names the first range that is missing or short.
        """
        ...

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Return for each key whether it holds a value, without reading one."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Remove the keys, in one round trip where the backend can; absent ones are fine."""

    def link(self, key: str, lifetime_s: int) -> str | None:
        """Return a URL that anyone can GET a value from, in any range, for so many seconds; None where there are none.

        It is not looked whether there is such a value. The URL is a secret: it needs no credentials.
        """
        del key, lifetime_s
        return None

    def coordination(self) -> Coordination:
        """Return what drivers share state by, over this store's connections; closing the store ends it too.

        Where a store does not override this, each call to what it returns raises StoreError.
        """
        return NoCoordination(type(self).__name__)

    def exchange(self) -> Exchange | None:
        """Return the inboxes that running functions hand one another messages through; None where there are none.

        Its owner closes it; it is not closed with the store.
        """
        return None

    def close(self) -> None:
        """Give back connections and the like; values stay until their time to live has passed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_keys(keys: Iterable[str]) -> None:
    """Refuse keys that some backend could not hold, or that could mean a path; raises UsageError."""
    for key in keys:
        if not _KEY.fullmatch(key):
            raise UsageError(
                f"key {key[:80]!r} is not allowed: use 1 to 512 characters of A-Z a-z 0-9 : _ . / {{ }} - and no '..'"
            )


def check_ranges(ranges: Iterable[Range]) -> None:
    """Refuse bad keys and negative offsets; raises UsageError."""
    for span in ranges:
        check_keys((span.key,))
        if span.start < 0 or (span.length is not None and span.length < 0):
            raise UsageError(f"start and length must not be negative: {span}")


def check_ttl(ttl: float) -> None:
    """Refuse a time to live that is not a positive, finite number of seconds; raises UsageError."""
    if not (ttl > 0 and math.isfinite(ttl)):
        raise UsageError(f"time to live must be a positive number of seconds, not {ttl}")


def flat(value: Bytes) -> Bytes:
    """View a C-contiguous buffer of any item type as single bytes, without a copy."""
    if isinstance(value, bytes):
        return value
    view = memoryview(value)
    return view.cast("B") if view.nbytes else b""


def cut(value: bytes, span: Range) -> bytes:
    """Take a range out of a whole value; raises MissingKeyError where the value is too short."""
    end = len(value) if span.length is None else span.start + span.length
    if not span.start <= end <= len(value):
        raise missing(span)
    return value[span.start : end]


def missing(span: Range) -> MissingKeyError:
    """Build the error for a range that cannot be read in full."""
    if span.start == 0 and span.length is None:
        return MissingKeyError(f"no value under {span.key!r}: it was deleted, has expired, or was never put")
    end = "end" if span.length is None else span.start + span.length
    return MissingKeyError(
        f"no bytes [{span.start}, {end}) under {span.key!r}: deleted, expired, never put, or shorter than that"
    )
