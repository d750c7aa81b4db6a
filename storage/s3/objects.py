"""The objects of values: their names, their expiry, and what a refusal says of one; and ranges of any objects."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from botocore.session import Session

from serfer.core.errors import AlteredPieceError, MissingKeyError, StoreError
from serfer.storage.s3.address import address, parse_url
from serfer.storage.s3.client import RefusedError, S3Client, S3Object
from serfer.storage.s3.errors import refusal

_PART = 200
_NOT_FOUND, _NO_RANGE = 404, 416
_UNCLEAR = frozenset(range(400, 500)) - {429}  # the response to a HEAD request has no body to say more
_T = TypeVar("_T")


class Objects:
    """Objects below a prefix of one bucket; `doing` in errors says what was requested, such as "to put 'KEY'"."""

    def __init__(self, client: S3Client, prefix: str, clock: Callable[[], float] = time.time) -> None:
        self.client = client
        self.prefix = prefix
        self._clock = clock
        self._bucket_seen = False

    def name(self, key: str) -> str:
        flat_key = key.replace("/", "!")
        parts = [flat_key[i : i + _PART] for i in range(0, len(flat_key), _PART)]
        last = "*" if parts[-1] == "." else parts[-1]
        return self.prefix + "".join(f"{part}*/" for part in parts[:-1]) + last

    def expiry(self, ttl: float) -> float:
        return self._clock() + ttl

    def look(self, key: str, doing: str, request: Callable[[str], S3Object] | None = None) -> S3Object | None:
        """Return what a HEAD request, or `request`, finds for a key's object, None where there is none."""
        try:
            return (request or self.client.head)(self.name(key))
        except RefusedError as refused:
            answer = refused.answer
            if answer.status in _UNCLEAR and not (answer.status == _NOT_FOUND and self._bucket_seen):
                self.done(doing, lambda: next(self.client.names(self.prefix, 0), None))
                self._bucket_seen = True
            if answer.status != _NOT_FOUND:
                raise refusal(self.client.address, answer, doing) from refused
            return None

    def is_live(self, found: S3Object, doing: str) -> bool:
        """Return whether a value has not expired; raises StoreError if the object is not SerFer's."""
        if found.expires is None:
            raise StoreError(
                f"{doing} at {self.client.address.url}: the object was not put by SerFer, or this is not an S3 server; "
                "change --store"
            )
        return found.expires > self._clock()

    def get(self, key: str, doing: str, start: int = 0, length: int | None = None) -> S3Object | None:
        try:
            found = self.client.get(self.name(key), start, length)
        except RefusedError as refused:
            answer = refused.answer
            if answer.status == _NO_RANGE or (answer.status == _NOT_FOUND and answer.field("Code") == "NoSuchKey"):
                return None
            raise refusal(self.client.address, answer, doing) from refused
        return found if self.is_live(found, doing) else None

    def done(self, doing: str, request: Callable[[], _T]) -> _T:
        try:
            return request()
        except RefusedError as refused:
            raise refusal(self.client.address, refused.answer, doing) from refused

    def delete(self, names: Sequence[str]) -> None:
        self.done("to delete", lambda: self.client.delete(names))


class S3Ranges:
    """Reads byte ranges of objects that others put below `s3://BUCKET/PREFIX`, without expiry; for any threads."""

    def __init__(self, url: str, session: Session | None = None) -> None:
        self._url = parse_url(url)
        session = session or Session()
        self._client = S3Client(self._url.bucket, address(self._url, session), session)
        self.place = f"s3://{self._url.bucket}/{self._url.prefix}"

    def read(self, name: str, start: int, into: memoryview) -> None:
        short = AlteredPieceError(f"{name} below {self.place} has fewer than {start + len(into):,} bytes")
        try:
            body = self._client.get(self._url.prefix + name, start, len(into)).body
        except RefusedError as refused:
            if refused.answer.status == _NOT_FOUND and refused.answer.field("Code") == "NoSuchKey":
                raise MissingKeyError(f"there is no object {name} below {self.place}") from None
            if refused.answer.status == _NO_RANGE:
                raise short from None
            raise refusal(self._client.address, refused.answer, f"to get {name}") from refused
        if len(body) != len(into):
            raise short
        into[:] = body

    def close(self) -> None:
        self._client.close()
