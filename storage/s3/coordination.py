"""Compare-and-set on a bucket, by conditional puts: If-None-Match and If-Match with an object's entity tag.

An entity tag is mostly a digest of the content, so equal content would have an equal tag. Each object therefore begins
with random bytes of its own. By these a caller whose response was lost also sees whether the object is its own.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from serfer.core.errors import SerferError, StoreError, StoreUnavailableError, ValueTooLargeError
from serfer.core.retry import Backoff, RetryPolicy, retry
from serfer.storage.coordination import Coordination, Entry
from serfer.storage.s3.client import RefusedError, S3Object
from serfer.storage.s3.errors import refusal
from serfer.storage.s3.objects import Objects
from serfer.storage.store import check_keys, check_ttl

TAG_BYTES = 16
_MAX_VALUE = (5 << 30) - TAG_BYTES
_NO_SUCH_TAG = f'"{"0" * 32}"'
_TRIAL_S = 60.0
_NOT_FOUND, _CONFLICT, _UNMET, _UNKNOWN = 404, 409, 412, 501


class _ContendedError(StoreUnavailableError):
    """Others wrote while S3 was asked, and what they wrote has gone again."""


_PUTS = RetryPolicy("s3 condition", _ContendedError, Backoff(base=0.05, longest=0.2), attempts=10)


class S3Coordination(Coordination):
    """Values as objects of `objects`; a version is an entity tag."""

    def __init__(
        self, objects: Objects, sleep: Callable[[float], None] = time.sleep, *, max_value: int = _MAX_VALUE
    ) -> None:
        self._objects = objects
        self._sleep = sleep
        self._max_value = max_value
        self._checked = False

    def get(self, key: str) -> Entry | None:
        check_keys((key,))
        found = self._objects.get(key, f"to get {key!r}")
        return Entry(found.body[TAG_BYTES:], found.tag) if found else None

    def compare_and_set(self, key: str, expected: str | None, value: bytes, ttl: float) -> str | None:
        """PutObject on condition; before the first, four requests find out whether the server honours conditions."""
        check_keys((key,))
        check_ttl(ttl)
        if len(value) > self._max_value:
            raise ValueTooLargeError(f"value under {key!r} has {len(value)} bytes: S3 takes {self._max_value}")
        if not self._checked:
            self._check_conditions()
            self._checked = True
        own, doing, version = secrets.token_bytes(TAG_BYTES), f"to put {key!r}", expected

        def put() -> str | None:
            nonlocal version
            try:
                if tag := self._put(self._objects.name(key), version, own + value, ttl, doing):
                    return tag
            except StoreUnavailableError:
                # It may have been written, or another's while it waited: SeaweedFS makes those who meet wait for
                # seconds.
                there = self._read_head(key, doing)
                if there is None or not (there.body == own or self._is_other(there, expected, doing)):
                    raise
            else:
                there = self._read_head(key, doing)
            if there is not None and there.body == own:
                return there.tag
            if (expected and there is None) or (there and self._is_other(there, expected, doing)):
                return None
            version = expected or (there.tag if there else None)  # of a value that has expired
            raise _ContendedError(
                f"S3 at {self._objects.client.address.url} failed {doing}: other writers change it all the time; "
                "try again"
            )

        return retry(put, _PUTS, self._sleep)

    def delete(self, keys: Sequence[str]) -> None:
        check_keys(keys)
        self._objects.delete([self._objects.name(key) for key in keys])

    def _read_head(self, key: str, doing: str) -> S3Object | None:
        return self._objects.look(key, doing, lambda name: self._objects.client.get(name, 0, TAG_BYTES))

    def _is_other(self, there: S3Object, expected: str | None, doing: str) -> bool:
        if expected:
            return there.tag != expected
        return self._objects.is_live(there, doing)

    def _put(self, name: str, version: str | None, body: bytes, ttl: float, doing: str) -> str | None:
        try:
            return self._objects.client.put(
                name, body, self._objects.expiry(ttl), {"e_tag": version} if version else "create"
            )
        except RefusedError as refused:
            answer, code = refused.answer, refused.answer.field("Code")
            if answer.status == _UNKNOWN or code == "NotImplemented":
                raise self._lacking() from None
            if answer.status == _UNMET or (answer.status, code) == (_CONFLICT, "ConditionalRequestConflict"):
                return None
            if (answer.status, code) == (_NOT_FOUND, "NoSuchKey") and version:
                return None
            raise refusal(self._objects.client.address, answer, doing) from refused

    def _check_conditions(self) -> None:
        name, doing = f"{self._objects.prefix}*new{secrets.token_hex(8)}", "a conditional put"
        self._put(name, None, b"", _TRIAL_S, doing)
        for version in (None, _NO_SUCH_TAG):
            if self._put(name, version, b"", _TRIAL_S, doing):
                raise self._lacking()
        with suppress(SerferError):  # a sweep removes it once it has expired
            self._objects.delete([name])

    def _lacking(self) -> StoreError:
        return StoreError(
            f"S3 at {self._objects.client.address.url} does not support conditional puts (If-None-Match, If-Match), so "
            "drivers cannot share state in it: name another store with --store"
        )
