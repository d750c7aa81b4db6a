"""A large value as a multipart upload: all of it becomes visible at once, or nothing of it stays."""

import contextlib
import math
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, Executor, wait
from dataclasses import dataclass
from urllib.parse import quote
from xml.sax.saxutils import escape

from serfer.core.errors import SerferError
from storage.s3.errors import Answer, no_s3, refusal
from storage.s3.http import NAMESPACE, Request, S3Http
from storage.store import Bytes

_OK = 200


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


class Upload:
    """One value on its way to the object `name`; `doing` says so in errors."""

    def __init__(self, http: S3Http, name: str, limits: Limits, doing: str) -> None:
        self._http = http
        self._name = name
        self._limits = limits
        self._doing = doing

    def run(self, data: Bytes, headers: Mapping[str, str], threads: Executor) -> None:
        """Upload the parts at the same time; on a failure of any kind, take back what has arrived."""
        upload = self._checked(self._ask("POST", "uploads=", headers=headers)).field("UploadId")
        if not upload:
            raise no_s3(self._http.address, Answer(_OK, {}, b""))
        query = f"uploadId={quote(upload, safe='')}"
        try:
            self._complete(query, self._parts(query, data, threads))
        except BaseException:
            with contextlib.suppress(SerferError):  # then the bucket's lifecycle rule takes it back
                self._ask("DELETE", query)
            raise

    def _parts(self, query: str, data: Bytes, threads: Executor) -> list[str]:
        """Send the parts and return their entity tags; returns or raises when none is under way any more."""
        size = max(self._limits.part, math.ceil(len(data) / self._limits.parts))
        view = memoryview(data)
        sent = [
            threads.submit(self._part, f"partNumber={number}&{query}", view[start : start + size])
            for number, start in enumerate(range(0, len(data), size), 1)
        ]
        try:
            wait(sent, return_when=FIRST_EXCEPTION)
        finally:
            for part in sent:
                part.cancel()
            wait(sent)
        failed = [part for part in sent if not part.cancelled() and part.exception()]
        return [part.result() for part in failed or sent]

    def _part(self, query: str, data: memoryview) -> str:
        answer = self._checked(self._ask("PUT", query, body=data))
        if "etag" not in answer.headers:
            raise no_s3(self._http.address, answer)
        return answer.headers["etag"]

    def _complete(self, query: str, tags: list[str]) -> None:
        """Make the value visible; S3 may say 200 first and then that it failed."""
        parts = "".join(
            f"<Part><ETag>{escape(tag)}</ETag><PartNumber>{number}</PartNumber></Part>"
            for number, tag in enumerate(tags, 1)
        )
        body = f'<CompleteMultipartUpload xmlns="{NAMESPACE}">{parts}</CompleteMultipartUpload>'
        answer = self._checked(self._ask("POST", query, body=body.encode()))
        if b"<CompleteMultipartUploadResult" not in answer.body:
            raise refusal(self._http.address, answer, self._doing)

    def _ask(self, method: str, query: str, *, headers: Mapping[str, str] | None = None, body: Bytes = b"") -> Answer:
        return self._http.ask(Request(method, self._name, query, headers or {}, body))

    def _checked(self, answer: Answer) -> Answer:
        if answer.status != _OK:
            raise refusal(self._http.address, answer, self._doing)
        return answer
