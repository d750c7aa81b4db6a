"""A store in an S3 bucket, S3 Express directory buckets included.

    PREFIX/serfer:3f0c...:0:1     the value under that key; its metadata say when it expires
    PREFIX/kkk...k*/kkk           a key of more than 200 characters is cut, its first parts end in "*"
    PREFIX/*new3f0c...            for a moment: shows whether the server honours conditions (coordination.py)

A slash in a key is written "!" and a part "." is written "*": none of ! * can stand in a key, so names never collide,
and no server takes one for a folder or normalises it away. S3 knows no time to live for a key, so what has expired
reads as missing until `sweep`, or the bucket's own lifecycle rule, removes it.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from botocore.session import Session

from serfer.core.errors import SerferError, StoreUnavailableError, UsageError, ValueTooLargeError
from serfer.s3 import code_of, open_client, s3_errors
from serfer.storage.coordination import Coordination
from serfer.storage.s3.address import Address, address, parse_url
from serfer.storage.s3.client import RefusedError, S3Client
from serfer.storage.s3.errors import Answer, refusal
from serfer.storage.s3.objects import Objects
from serfer.storage.store import Bytes, Range, Store, check_keys, check_ranges, check_ttl, flat, missing

_THREADS = 32
_LONGEST_LINK_S = 7 * 86_400  # that Signature Version 4 allows
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Limits:
    """S3's limits, in bytes but for `parts`, and from which size a value is uploaded in parts of which size.

    `value` is the largest value.
    """

    value: int = 5 << 40
    multipart_from: int = 16 << 20
    part: int = 8 << 20
    parts: int = 10_000


S3_LIMITS = Limits()


class S3Store(Store):
    """Values as objects; one request for each range, those of one call at the same time."""

    def __init__(
        self,
        url: str,
        *,
        session: Session | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        limits: Limits = S3_LIMITS,
    ) -> None:
        self._url = parse_url(url)
        self._clock = clock
        self._sleep = sleep
        self._limits = limits
        self._session = session or Session()
        self._client = S3Client(self._url.bucket, address(self._url, self._session), self._session, sleep)
        self._objects = Objects(self._client, self._url.prefix, clock)
        self._threads = ThreadPoolExecutor(_THREADS, "s3")

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        check_keys((key,))
        check_ttl(ttl)
        data = flat(value)
        if len(data) > self._limits.value:
            raise ValueTooLargeError(f"value under {key!r} has {len(data)} bytes: S3 takes {self._limits.value}")
        part = None
        if len(data) >= self._limits.multipart_from:
            part = max(self._limits.part, math.ceil(len(data) / self._limits.parts))
        name, expires = self._objects.name(key), self._objects.expiry(ttl)
        self._objects.done(f"to put {key!r}", lambda: self._client.put(name, data, expires, part=part))

    def put_many(self, values: Mapping[str, Bytes], ttl: float) -> None:
        self._run_all(lambda item: self.put(*item, ttl), [*values.items()])

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        check_ranges(ranges)
        return self._run_all(self._read, ranges)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        check_keys(keys)
        return [size is not None for size in self._run_all(self._size, keys)]

    def delete(self, keys: Sequence[str]) -> None:
        check_keys(keys)
        self._objects.delete([self._objects.name(key) for key in keys])

    def link(self, key: str, lifetime_s: int) -> str | None:
        """Presign a GET; a directory bucket has no such links, since its sessions end after five minutes.

        A link lasts no longer than the credentials that sign it: those of a function or an instance last some hours.
        """
        check_keys((key,))
        if self._client.address.sessions:
            return None
        return self._client.sign(self._objects.name(key), min(max(1, lifetime_s), _LONGEST_LINK_S))

    def coordination(self) -> Coordination:
        from serfer.storage.s3.coordination import S3Coordination  # noqa: PLC0415  workers coordinate nothing

        return S3Coordination(self._objects, self._sleep)

    def close(self) -> None:
        threads, self._threads = self._threads, ThreadPoolExecutor(_THREADS, "s3")
        threads.shutdown()
        self._client.close()

    def sweep(self, *, older_than_s: float = 60.0, now: float | None = None) -> int:
        """Delete the expired objects under the prefix that were put `older_than_s` seconds ago or more; say how many.

        Each of those costs a HEAD request, so a higher age costs less. Other programs' objects stay.
        """
        moment = self._clock() if now is None else now
        swept = 0
        pages = self._client.names(self._url.prefix, moment - older_than_s)
        while (some := self._objects.done("to list", lambda: next(pages, None))) is not None:
            expiries = self._run_all(self._expiry, some)
            due = [name for name, end in zip(some, expiries, strict=True) if end is not None and end <= moment]
            self._objects.delete(due)
            swept += len(due)
        return swept

    def ensure_lifecycle(self, days: int = 1) -> None:
        """Give the bucket a rule that removes what lies under the prefix after `days` days; its other rules stay.

        It takes the place of an earlier rule of ours, and removes versions that were overwritten or deleted, too, but
        in a directory bucket, which keeps none.

        Raises:
            UsageError: the store has no prefix, so the rule would empty the bucket.
        """
        if not self._url.prefix:
            raise UsageError("a lifecycle rule would empty the whole bucket: give --store a prefix, s3://BUCKET/PREFIX")
        where = self._client.address
        rule: dict[str, Any] = {
            "ID": f"serfer {self._url.prefix}",
            "Status": "Enabled",
            "Filter": {"Prefix": self._url.prefix},
            "Expiration": {"Days": days},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": days},
        }
        if not where.sessions:
            rule["NoncurrentVersionExpiration"] = {"NoncurrentDays": days}
        with s3_errors(lambda error: _explain(where, error)):
            client = open_client(self._session, 2, 5, 3, region_name=where.region, endpoint_url=self._url.endpoint)
            try:
                rules = client.get_bucket_lifecycle_configuration(Bucket=self._url.bucket).get("Rules", [])
            except client.exceptions.ClientError as error:
                if code_of(error) != "NoSuchLifecycleConfiguration":
                    raise
                rules = []
            others = [other for other in rules if other.get("ID") != rule["ID"]]
            client.put_bucket_lifecycle_configuration(
                Bucket=self._url.bucket, LifecycleConfiguration={"Rules": [*others, rule]}
            )

    def _expiry(self, name: str) -> float | None:
        try:
            return self._client.head(name).expires
        except RefusedError:
            return None

    def _read(self, span: Range) -> bytes:
        if span.length == 0:
            return self._empty_range(span)
        found = self._objects.get(span.key, f"to get {span.key!r}", span.start, span.length)
        if found is None and span.start and span.length is None:
            return self._empty_range(span)
        if found is None or span.length not in {None, len(found.body)}:
            raise missing(span)
        return found.body

    def _empty_range(self, span: Range) -> bytes:
        size = self._size(span.key)
        if size is None or size < span.start or (span.length is None and size > span.start) or span.length:
            raise missing(span)
        return b""

    def _size(self, key: str) -> int | None:
        doing = f"to look for {key!r}"
        found = self._objects.look(key, doing)
        return found.size if found and self._objects.is_live(found, doing) else None

    def _run_all(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """At the same time, the first in this thread; raises what failed first in order, once none is at work."""
        others = [self._threads.submit(work, item) for item in items[1:]]
        try:
            return [*map(work, items[:1]), *(other.result() for other in others)]
        finally:
            for other in others:
                other.cancel()
            wait(others)  # none is at work, or writes, once this has raised


def _explain(where: Address, error: Exception) -> SerferError:
    response: Any = getattr(error, "response", None)
    if response is None:
        return StoreUnavailableError(
            f"S3 at {where.url} does not answer: {error}; check --store, AWS_ENDPOINT_URL_S3 and the network"
        )
    details = response.get("Error", {})
    body = f"<Code>{details.get('Code', '')}</Code><Message>{details.get('Message', '')}</Message>"
    status = response["ResponseMetadata"]["HTTPStatusCode"]
    return refusal(where, Answer(status, body.encode()), "to change its lifecycle rules")
