"""The objects of values: their names, their expiry, and what a response says of one."""

import contextlib
import time
from collections.abc import Callable, Sequence

from serfer.core.errors import SerferError, StoreError
from storage.s3 import upkeep
from storage.s3.errors import Answer, no_s3, refusal
from storage.s3.http import NAMESPACE, Request, S3Http, document

_PART = 200
_EXPIRES = "x-amz-meta-serfer-expires"
_OK, _PARTIAL, _NOT_FOUND = 200, 206, 404
_UNCLEAR = frozenset(range(400, 500)) - {429}  # the response to a HEAD request has no body to say more
_DELETED_AT_ONCE = 1000


class Objects:
    """Objects below a prefix of one bucket; `doing` in errors says what was requested, such as "to put 'KEY'"."""

    def __init__(self, http: S3Http, prefix: str, clock: Callable[[], float] = time.time) -> None:
        self.http = http
        self.prefix = prefix
        self._clock = clock
        self._bucket_seen = False

    def name(self, key: str) -> str:
        """Return the name of the object that holds a key's value."""
        flat_key = key.replace("/", "!")
        parts = [flat_key[i : i + _PART] for i in range(0, len(flat_key), _PART)]
        last = "*" if parts[-1] == "." else parts[-1]
        return self.prefix + "".join(f"{part}*/" for part in parts[:-1]) + last

    def expiring(self, ttl: float) -> dict[str, str]:
        """Return the headers of an object that expires in `ttl` seconds."""
        return {_EXPIRES: f"{self._clock() + ttl:.3f}"}

    def look(self, key: str, doing: str, request: Request | None = None) -> Answer | None:
        """Return the response to a HEAD request, or to `request`, for a key's object, None where there is none."""
        answer = self.http.ask(request or Request("HEAD", self.name(key)))
        if answer.status in {_OK, _PARTIAL}:
            return answer
        if answer.status in _UNCLEAR and not (answer.status == _NOT_FOUND and self._bucket_seen):
            self._look_at_bucket(doing)
        if answer.status != _NOT_FOUND:
            raise refusal(self.http.address, answer, doing)
        return None

    def is_live(self, answer: Answer, doing: str) -> bool:
        """Return whether a response carries a value that has not expired; raises StoreError if it is not SerFer's."""
        if answer.status == _NOT_FOUND and answer.field("Code") == "NoSuchKey":
            return False
        if answer.status not in {_OK, _PARTIAL}:
            raise refusal(self.http.address, answer, doing)
        expiry = _expiry(answer)
        if expiry is None:
            raise StoreError(
                f"{doing} at {self.http.address.url}: the object was not put by SerFer, or this is not an S3 server; "
                "change --store"
            )
        return expiry > self._clock()

    def is_due(self, answer: Answer, moment: float) -> bool:
        """Return whether a response carries a value that has expired at a moment, in seconds since the epoch."""
        expiry = _expiry(answer) if answer.status == _OK else None
        return expiry is not None and expiry <= moment

    def delete(self, names: Sequence[str]) -> None:
        """DeleteObjects, a thousand a request."""
        for i in range(0, len(names), _DELETED_AT_ONCE):
            objects = "".join(f"<Object><Key>{name}</Key></Object>" for name in names[i : i + _DELETED_AT_ONCE])
            request = document("POST", "delete=", f'<Delete xmlns="{NAMESPACE}">{objects}<Quiet>true</Quiet></Delete>')
            answer = self.http.ask(request)
            if answer.status != _OK or b"<Error>" in answer.body:
                raise refusal(self.http.address, answer, "to delete")
            if b"<DeleteResult" not in answer.body:
                raise no_s3(self.http.address, answer)

    def delete_quietly(self, name: str) -> None:
        """Delete an object, unless that fails: then a sweep removes it once it has expired."""
        with contextlib.suppress(SerferError):
            self.delete([name])

    def _look_at_bucket(self, doing: str) -> None:
        """Raise what is wrong with the bucket or with our credentials for it, if anything is."""
        answer = self.http.ask(upkeep.listing(self.prefix, "max-keys=1"))
        if answer.status != _OK:
            raise refusal(self.http.address, answer, doing)
        if b"<ListBucketResult" not in answer.body:
            raise no_s3(self.http.address, answer)
        self._bucket_seen = True


def _expiry(answer: Answer) -> float | None:
    """Return the moment at which a value expires, in seconds since the epoch; None where it is not a value of ours."""
    try:
        return float(answer.headers[_EXPIRES])
    except (KeyError, ValueError):
        return None
