"""A value that an S3 bucket keeps only where it has none: conditional puts, of any number of which one is done.

S3 can be told to put an object only where there is none, or only in place of the one with a certain entity tag. A tag
is mostly a digest of the content, so that of an expired value would come back with an equal one. Therefore such an
object ends in 16 random bytes of its own, which its metadata leave out of the value's length and also hold: whoever
has lost the answer to a put sees from them whether what lies there is what was put. What a plain put has kept has no
such bytes: one that puts an expired value's very bytes again, just while it is replaced, may be replaced too.
"""

import random
import secrets
import time
from collections.abc import Callable

from serfer.core.errors import StoreError, StoreUnavailableError
from storage.s3.errors import Answer, no_s3, refusal
from storage.s3.http import Request, S3Http
from storage.store import Bytes

TAIL = 16  # random bytes at an object's end
_LENGTH = "x-amz-meta-serfer-length"
_TAIL = "x-amz-meta-serfer-tail"
_WHERE_NONE = {"If-None-Match": "*"}
_NO_SUCH_TAG = {"If-Match": f'"{"0" * 32}"'}
_ROUNDS = 10
_WAIT_S = 0.05  # give or take a half
_OK, _NOT_FOUND, _CONFLICT, _UNMET, _UNKNOWN = 200, 404, 409, 412, 501


class NewValue:
    """A value on its way to the object `name`, in one request however large; `doing` says so in errors.

    `look` returns what lies there, None where there is nothing, and `is_live` whether that is a value that has not
    expired; both raise StoreError where it is nobody's value.
    """

    def __init__(
        self,
        http: S3Http,
        name: str,
        doing: str,
        *,
        look: Callable[[], Answer | None],
        is_live: Callable[[Answer], bool],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._http = http
        self._name = name
        self._doing = doing
        self._look = look
        self._is_live = is_live
        self._sleep = sleep

    def run(self, data: Bytes, headers: dict[str, str]) -> bool:
        """Put it unless a live value lies there; say whether it was kept.

        Raises:
            StoreUnavailableError: there is no answer, nor one to the question what lies there now.
        """
        tail = secrets.token_bytes(TAIL)
        headers = {**headers, _LENGTH: str(len(data)), _TAIL: tail.hex()}
        body, condition = b"".join((data, tail)), _WHERE_NONE
        for _ in range(_ROUNDS):
            try:
                if _is_done(self._http, Request("PUT", self._name, "", {**headers, **condition}, body), self._doing):
                    return True
            except StoreUnavailableError:
                # It may have been kept, or another's while it waited: SeaweedFS makes those who meet wait for seconds.
                if (kept := self._is_kept(self._look(), tail)) is None:
                    raise
                return kept
            there = self._look()
            if (kept := self._is_kept(there, tail)) is not None:
                return kept
            condition = _WHERE_NONE if there is None else {"If-Match": self._tag(there)}
            self._sleep(_WAIT_S * random.uniform(0.5, 1.5))  # noqa: S311  so that callers do not meet again
        raise StoreUnavailableError(
            f"S3 at {self._http.address.url} failed {self._doing}: what lies there changes all the time; try again"
        )

    def _is_kept(self, there: Answer | None, tail: bytes) -> bool | None:
        """Say of what lies there whether it is ours, False if a live value of another's, None if it is neither."""
        if there is None:
            return None
        if there.headers.get(_TAIL) == tail.hex():
            return True
        return False if self._is_live(there) else None

    def _tag(self, there: Answer) -> str:
        if "etag" not in there.headers:
            raise no_s3(self._http.address, there)
        return there.headers["etag"]


def check_conditions(http: S3Http, name: str, headers: dict[str, str]) -> None:
    """Make sure that the server heeds conditions, by means of an object `name` that it has not got; that stays.

    Raises:
        StoreError: it does not.
    """
    doing = "a conditional put"
    first, other = (Request("PUT", name, headers={**headers, **condition}) for condition in (_WHERE_NONE, _NO_SUCH_TAG))
    _is_done(http, first, doing)
    if _is_done(http, first, doing) or _is_done(http, other, doing):
        raise _lacking(http)


def value_length(answer: Answer) -> int | None:
    """Return the length in bytes of a value that was put as new; None for any other."""
    length = answer.headers.get(_LENGTH, "")
    return int(length) if length.isascii() and length.isdecimal() else None


def _is_done(http: S3Http, put: Request, doing: str) -> bool:
    """Say whether a conditional put was done; raises what any refusal but that of the condition means."""
    answer = http.ask(put)
    code = answer.field("Code")
    if answer.status == _OK and "etag" in answer.headers:
        return True
    if answer.status == _UNKNOWN or code == "NotImplemented":
        raise _lacking(http)
    if answer.status == _UNMET or (answer.status, code) == (_CONFLICT, "ConditionalRequestConflict"):
        return False
    if (answer.status, code) == (_NOT_FOUND, "NoSuchKey") and "If-Match" in put.headers:
        return False
    raise refusal(http.address, answer, doing)


def _lacking(http: S3Http) -> StoreError:
    return StoreError(
        f"S3 at {http.address.url} does not do conditional puts (If-None-Match, If-Match), so it cannot keep the first "
        "of several values: name another store with --store"
    )
