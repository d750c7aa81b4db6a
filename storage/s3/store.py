"""A store in an S3 bucket, S3 Express directory buckets included.

    PREFIX/serfer:3f0c...:0:1     the value under that key; its metadata say when it expires
    PREFIX/kkk...k*/kkk           a key of more than 200 characters is cut, its first parts end in "*"
    PREFIX/*new3f0c...            for a moment: by it `put_new` finds out whether the server heeds conditions

A slash in a key is written "!" and a part "." is written "*": none of ! * can stand in a key, so names never collide,
and no server takes one for a folder or normalises it away. S3 knows no time to live for a key, so what has expired
reads as missing until `sweep`, or the bucket's own lifecycle rule, removes it.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from botocore.session import Session

from serfer.core.errors import SerferError, StoreError, UsageError, ValueTooLargeError
from storage.s3 import upkeep as s3_upkeep
from storage.s3.address import address, target
from storage.s3.conditional_put import TAIL, NewValue, check_conditions, value_length
from storage.s3.errors import Answer, no_s3, refusal
from storage.s3.express import SessionSigner
from storage.s3.http import NAMESPACE, KeySigner, Request, S3Http, document
from storage.s3.multipart import S3_LIMITS, Limits, Upload
from storage.store import Bytes, Range, Store, check_keys, check_ranges, check_ttl, cut, flat, missing

_THREADS = 32
_PART = 200
_EXPIRES = "x-amz-meta-serfer-expires"
_OK, _PARTIAL, _NOT_FOUND, _NO_RANGE = 200, 206, 404, 416
_UNCLEAR = frozenset(range(400, 500)) - {429}  # the answer to a HEAD request has no body to say more
_DELETED_AT_ONCE = 1000
_TRIAL_S = 60.0
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


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
        self._target = target(url)
        self._clock = clock
        self._sleep = sleep
        self._limits = limits
        self._session = session or Session()
        where = address(self._target, self._session)
        self._http = S3Http(where, KeySigner(where, self._session), self._session, sleep)
        if where.sessions:
            self._http = S3Http(where, SessionSigner(self._http, clock), self._session, sleep)
        self._bucket_seen = False
        self._heeds_conditions = False
        self._threads = ThreadPoolExecutor(_THREADS, "s3")

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        """PutObject, or a multipart upload whose parts go at the same time where the value is large."""
        data = _checked(key, value, ttl, self._limits.value)
        headers = self._expiring(ttl)
        if len(data) >= self._limits.multipart_from:
            Upload(self._http, self._name(key), self._limits, f"to put {key!r}").run(data, headers, self._threads)
            return
        answer = self._http.ask(Request("PUT", self._name(key), headers=headers, body=data))
        if answer.status != _OK:
            raise refusal(self._http.address, answer, f"to put {key!r}")
        if "etag" not in answer.headers:
            raise no_s3(self._http.address, answer)

    def put_new(self, key: str, value: Bytes, ttl: float) -> bool:
        """PutObject on condition that there is none, or in place of the expired one; one request where it is new.

        Before the first, four requests find out whether the server heeds conditions.
        """
        data, doing = _checked(key, value, ttl, self._limits.whole - TAIL), f"to put {key!r}"
        if not self._heeds_conditions:
            self._check_conditions()
        return NewValue(
            self._http,
            self._name(key),
            doing,
            look=lambda: self._look(key, doing),
            is_live=lambda answer: self._is_live(answer, doing),
            sleep=self._sleep,
        ).run(data, self._expiring(ttl))

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """GetObject with a Range for each, at the same time."""
        check_ranges(ranges)
        return self._all(self._read, ranges)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """HeadObject for each, at the same time."""
        check_keys(keys)
        return [size is not None for size in self._all(self._size, keys)]

    def delete(self, keys: Sequence[str]) -> None:
        """DeleteObjects, a thousand a request."""
        check_keys(keys)
        self._delete([self._name(key) for key in keys])

    def close(self) -> None:
        """Close the connections and end the threads; a later call would start anew."""
        threads, self._threads = self._threads, ThreadPoolExecutor(_THREADS, "s3")
        threads.shutdown()
        self._http.close()

    def sweep(self, *, older_than_s: float = 60.0, now: float | None = None) -> int:
        """Delete the expired objects under the prefix that were put `older_than_s` seconds ago or more; say how many.

        It asks for each of those once (a HEAD request), so a higher age costs less. What others keep there stays.
        """
        moment = self._clock() if now is None else now
        swept = 0
        for some in s3_upkeep.names(self._http, self._target.prefix, moment - older_than_s):
            answers = self._all(lambda name: self._http.ask(Request("HEAD", name)), some)
            due = [name for name, answer in zip(some, answers, strict=True) if _is_due(answer, moment)]
            self._delete(due)
            swept += len(due)
        return swept

    def ensure_lifecycle(self, days: int = 1) -> None:
        """Give the bucket a rule that removes what lies under the prefix after `days` days; its other rules stay.

        Raises:
            UsageError: the store has no prefix, so the rule would empty the bucket.
        """
        if not self._target.prefix:
            raise UsageError("a lifecycle rule would empty the whole bucket: give --store a prefix, s3://BUCKET/PREFIX")
        where = address(self._target, self._session, control=True)
        http = S3Http(where, KeySigner(where, self._session), self._session)
        try:
            s3_upkeep.ensure_lifecycle(http, self._target.prefix, days, versions=not self._http.address.sessions)
        finally:
            http.close()

    def _read(self, asked: Range) -> bytes:
        if asked.length == 0:
            return self._nothing(asked)
        headers = _range_header(asked)
        answer = self._http.ask(Request("GET", self._name(asked.key), headers=headers, limit=asked.length))
        if answer.status == _NO_RANGE:
            return self._nothing(asked)
        if not self._is_live(answer, f"to get {asked.key!r}"):
            raise missing(asked)
        size = value_length(answer)
        if answer.status == _OK:
            return cut(answer.body[:size], asked)
        body = answer.body if size is None else answer.body[: max(0, size - asked.start)]
        if asked.length not in {None, len(body)} or (size is not None and asked.start > size):
            raise missing(asked)
        return body

    def _nothing(self, asked: Range) -> bytes:
        """Return the empty range, which S3 cannot be asked for, if the value has it."""
        size = self._size(asked.key)
        if size is None or size < asked.start or (asked.length is None and size > asked.start) or asked.length:
            raise missing(asked)
        return b""

    def _size(self, key: str) -> int | None:
        """Return the length of a value in bytes, None where there is none."""
        doing = f"to look for {key!r}"
        answer = self._look(key, doing)
        if answer is None or not self._is_live(answer, doing):
            return None
        size = value_length(answer)
        return int(answer.headers.get("content-length", 0)) if size is None else size

    def _look(self, key: str, doing: str) -> Answer | None:
        """Return what S3 says of the object of a key, None where there is none."""
        answer = self._http.ask(Request("HEAD", self._name(key)))
        if answer.status == _OK:
            return answer
        if answer.status in _UNCLEAR and not (answer.status == _NOT_FOUND and self._bucket_seen):
            self._look_at_bucket(doing)
        if answer.status != _NOT_FOUND:
            raise refusal(self._http.address, answer, doing)
        return None

    def _look_at_bucket(self, doing: str) -> None:
        """Raise what is wrong with the bucket or with our credentials for it, if anything is."""
        answer = self._http.ask(s3_upkeep.listing(self._target.prefix, "max-keys=1"))
        if answer.status != _OK:
            raise refusal(self._http.address, answer, doing)
        if b"<ListBucketResult" not in answer.body:
            raise no_s3(self._http.address, answer)
        self._bucket_seen = True

    def _is_live(self, answer: Answer, doing: str) -> bool:
        """Say whether an answer carries a value that has not expired."""
        if answer.status == _NOT_FOUND and answer.field("Code") == "NoSuchKey":
            return False
        if answer.status not in {_OK, _PARTIAL}:
            raise refusal(self._http.address, answer, doing)
        expiry = _expiry(answer)
        if expiry is None:
            raise StoreError(
                f"{doing} at {self._http.address.url}: what lies there was not put by SerFer, or no S3 server answers; "
                "change --store"
            )
        return expiry > self._clock()

    def _delete(self, names: Sequence[str]) -> None:
        for i in range(0, len(names), _DELETED_AT_ONCE):
            objects = "".join(f"<Object><Key>{name}</Key></Object>" for name in names[i : i + _DELETED_AT_ONCE])
            asked = document("POST", "delete=", f'<Delete xmlns="{NAMESPACE}">{objects}<Quiet>true</Quiet></Delete>')
            answer = self._http.ask(asked)
            if answer.status != _OK or b"<Error>" in answer.body:
                raise refusal(self._http.address, answer, "to delete")
            if b"<DeleteResult" not in answer.body:
                raise no_s3(self._http.address, answer)

    def _check_conditions(self) -> None:
        """Try conditions out; several threads may do so at once."""
        name = f"{self._target.prefix}*new{secrets.token_hex(8)}"
        check_conditions(self._http, name, self._expiring(_TRIAL_S))
        self._heeds_conditions = True
        with contextlib.suppress(SerferError):  # then a sweep removes it
            self._delete([name])

    def _expiring(self, ttl: float) -> dict[str, str]:
        return {_EXPIRES: f"{self._clock() + ttl:.3f}"}

    def _name(self, key: str) -> str:
        """Return the name of the object that holds a key's value."""
        flat_key = key.replace("/", "!")
        parts = [flat_key[i : i + _PART] for i in range(0, len(flat_key), _PART)]
        last = "*" if parts[-1] == "." else parts[-1]
        return self._target.prefix + "".join(f"{part}*/" for part in parts[:-1]) + last

    def _all(self, work: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """Do the work on every item at the same time, the first in this thread; raises what failed first in order."""
        others = [self._threads.submit(work, item) for item in items[1:]]
        try:
            return [*map(work, items[:1]), *(other.result() for other in others)]
        finally:
            for other in others:
                other.cancel()


def _checked(key: str, value: Bytes, ttl: float, limit: int) -> Bytes:
    """Return a value's bytes if all that belongs to it is right."""
    check_keys((key,))
    check_ttl(ttl)
    data = flat(value)
    if len(data) > limit:
        raise ValueTooLargeError(f"value under {key!r} has {len(data)} bytes: S3 takes {limit}")
    return data


def _range_header(asked: Range) -> dict[str, str]:
    if asked.start == 0 and asked.length is None:
        return {}
    last = "" if asked.length is None else asked.start + asked.length - 1
    return {"Range": f"bytes={asked.start}-{last}"}


def _expiry(answer: Answer) -> float | None:
    """Return the moment at which a value expires, in seconds since the epoch; None where it is not a value of ours."""
    try:
        return float(answer.headers[_EXPIRES])
    except (KeyError, ValueError):
        return None


def _is_due(answer: Answer, moment: float) -> bool:
    expiry = _expiry(answer) if answer.status == _OK else None
    return expiry is not None and expiry <= moment
