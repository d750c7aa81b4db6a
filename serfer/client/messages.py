"""Messages between client and service: queries as requests, replies as values or errors."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from serfer.core.dataclass_codec import structure
from serfer.core.errors import (
    ImageError,
    InputError,
    KeyRefusedError,
    PlanError,
    RequestRefusedError,
    ServiceDeadlineError,
    ServiceError,
    ServiceUnavailableError,
    UsageError,
)
from serfer.core.http_messages import (
    NO_OBJECTIVES,
    OBJECTIVES,
    JobStatus,
    Objectives,
    ServedModel,
    ServedPrediction,
    ServedReport,
)
from serfer.core.inference_protocol import read_json

T = TypeVar("T")
Image: TypeAlias = bytes | str | os.PathLike[str]
_ERRORS = ("application/problem+json", "application/json")  # the latter of the Open Inference Protocol
_MAX_DETAIL = 500
_ELSEWHERE, _CLIENTS_FAULT = range(300, 400), range(400, 500)
_VISIBLE = re.compile(r"[!-~]{1,255}")
_SECONDS = re.compile(r"[0-9]{1,9}")


class Sink(Protocol):
    """Takes the body of a reply as it comes, instead of it being kept; raises ServiceError for what it cannot be."""

    def start(self) -> None:
        """Begin, or begin again: a try may have failed half-way."""
        ...

    def write(self, chunk: bytes) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Call:
    """A request, the same in each try; a reply with a status that is not `expected` is an error.

    A reply may have `most_reply_bytes`, None for what any may have; that of a call with a `sink` is passed on to it.
    The path of a call to `elsewhere`, another server, is its whole address, and carries nothing of the client's.
    """

    method: str
    path: str
    expected: tuple[int, ...] = (HTTPStatus.OK,)
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = field(default=None, repr=False)
    most_reply_bytes: int | None = None
    sink: Sink | None = field(default=None, repr=False, compare=False)
    elsewhere: bool = False


@dataclass(frozen=True)
class Reply:
    """The service's response: `headers` are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Upload:
    """Images as the body of a request."""

    content: bytes = field(repr=False)
    content_type: str


@dataclass(frozen=True)
class QueryOptions:
    """The options of a query; None leaves one to the service.

    `application` and `objectives` are asked for in place of a `model`. One that `classifies` wants classes alone; boxes
    are wanted of at least `min_score`.
    """

    model: str | None
    top_k: int | None
    deadline_ms: int | None
    explain: bool = False
    idempotency_key: str | None = None
    application: str | None = None
    objectives: Objectives = NO_OBJECTIVES
    min_score: float | None = None
    classifies: bool = True

    def call(self, upload: Upload, expected: HTTPStatus, headers: Mapping[str, str], *, once: bool) -> Call:
        """Return the request, which has an idempotency key if one was given or it counts `once`; raises UsageError."""
        key = secrets.token_hex(16) if self.idempotency_key is None and once else self.idempotency_key
        if key is not None and not _VISIBLE.fullmatch(key):
            raise UsageError("an idempotency_key has 1 to 255 visible ASCII characters")
        keyed = {} if key is None else {"Idempotency-Key": key}
        given = {
            "top_k": None if self.top_k is None else str(self.top_k),
            "model": self.model,
            "deadline_ms": None if self.deadline_ms is None else str(self.deadline_ms),
            "explain": "true" if self.explain else None,
            "application": self.application,
            "min_score": None if self.min_score is None else repr(float(self.min_score)),
            **self._objectives(),
        }
        return Call(
            method="POST",
            path="/v1/classify" if self.classifies else "/v1/predict",
            expected=(expected,),
            params={name: value for name, value in given.items() if value is not None},
            headers={"Content-Type": upload.content_type, **keyed, **headers},
            content=upload.content,
        )

    def _objectives(self) -> dict[str, str | None]:
        asked = {name: getattr(self.objectives, name) for name in OBJECTIVES}
        texts = {name: value if isinstance(value, str | None) else repr(value) for name, value in asked.items()}
        return {**texts, "strict": "true" if self.objectives.strict else None}


def upload(images: Image | Sequence[Image], names: Sequence[str] | None) -> Upload:
    """Return images (encoded bytes, or paths) as multipart/form-data; `names` are what the answer calls them.

    Raises UsageError for none, and for another number of names; ImageError for a path that cannot be read.
    """
    several = [images] if isinstance(images, bytes | str | os.PathLike) else list(images)
    if not several:
        raise UsageError("a query has at least one image")
    if names is not None and len(names) != len(several):
        raise UsageError(f"{len(names)} names were given for {len(several)} images")
    boundary, parts = secrets.token_hex(16), []
    for number, image in enumerate(several):
        data = image if isinstance(image, bytes) else _read(Path(image))
        own = f"image {number}" if isinstance(image, bytes) else Path(image).name
        parts += [f"--{boundary}\r\n".encode(), _head(own if names is None else names[number]), data, b"\r\n"]
    return Upload(b"".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}")


def _head(name: str) -> bytes:
    """Tell a name's quotation marks and percent signs apart, as httpx does not: it writes `%22` and `%`."""
    quoted = "".join(filter(str.isprintable, name)).replace("\\", "\\\\").replace('"', '\\"')
    return f'Content-Disposition: form-data; name="image"; filename="{quoted}"\r\n\r\n'.encode(errors="replace")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise ImageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


@dataclass(frozen=True)
class _Models:
    models: tuple[ServedModel, ...]


def read_report(reply: Reply) -> ServedReport:
    """Return a reply's report; raises ServiceError that names what is wrong with it."""
    return _structured(ServedReport, _with_timeline(document_of(reply)), "report", reply)


def read_prediction(reply: Reply) -> ServedPrediction:
    return _structured(ServedPrediction, _with_timeline(document_of(reply)), "report", reply)


def read_status(reply: Reply) -> JobStatus:
    document = document_of(reply)
    if isinstance(document, dict):
        ended = {"result": _with_timeline(document.get("result")), "problem": document.get("problem")}
        document = {**document, **ended}
    return _structured(JobStatus, document, "status", reply)


def read_models(reply: Reply) -> tuple[ServedModel, ...]:
    return _structured(_Models, document_of(reply), "answer", reply).models


def _with_timeline(report: Any) -> Any:  # noqa: ANN401 - any JSON value
    return {"timeline": None, **report} if isinstance(report, dict) else report


def document_of(reply: Reply) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON of a reply; raises ServiceError for what is none."""
    try:
        return read_json(reply.body)
    except InputError as error:
        raise unreadable("no JSON", reply) from error


def _structured(kind: type[T], document: Any, where: str, reply: Reply) -> T:  # noqa: ANN401 - any JSON value
    try:
        return structure(kind, document, where, lenient=True)
    except PlanError as error:
        raise unreadable(str(error), reply) from error


def unreadable(fault: str, reply: Reply) -> ServiceError:
    """Return the error for a reply that no SerFer service gives."""
    return ServiceError(
        f"the answer is not what a SerFer service of this version gives: {fault}; look at the client's base_url",
        status=reply.status,
        request_id=reply.headers.get("X-Request-Id"),
    )


def refusal(reply: Reply, now: float, secret: str) -> ServiceError:
    """Return what a reply with a status that was not hoped for means; `now` is in seconds since 1970."""
    problem: Any = None
    if reply.headers.get("Content-Type", "").partition(";")[0].strip().lower() in _ERRORS:
        try:
            problem = document_of(reply)
        except ServiceError:
            problem = None
    members = problem if isinstance(problem, dict) else {}
    request = members.get("request_id") or reply.headers.get("X-Request-Id")
    wait_s = retry_after(reply, now)
    detail = members.get("detail", members.get("error"))
    return failure(reply.status, detail, request, secret, retry_after_s=wait_s)


def failure(
    status: int,
    detail: Any,  # noqa: ANN401 - whatever the other side wrote there
    request: Any,  # noqa: ANN401 - same
    secret: str,
    retry_after_s: float | None = None,
) -> ServiceError:
    """Return the error for a status, whose message is one line of bounded length without the secret."""
    explanation, name = _line(detail, secret), _line(request, secret)
    where = f"HTTP {status}, request {name}" if name else f"HTTP {status}"
    message = f"{explanation or _meaning(status)} ({where})"
    kind = _kind(status, explained=bool(explanation))
    return kind(message, status=status, detail=explanation, request_id=name or None, retry_after_s=retry_after_s)


def _kind(status: int, *, explained: bool) -> type[ServiceError]:
    """Return what a status means; a 504 without a problem is a balancer's, which had no driver to answer."""
    match status:
        case 504 if explained:
            return ServiceDeadlineError
        case 401 | 403:
            return KeyRefusedError
        case 429 | 502 | 503 | 504:
            return ServiceUnavailableError
        case _:
            return RequestRefusedError if status in _CLIENTS_FAULT else ServiceError


def _meaning(status: int) -> str:
    if status in _ELSEWHERE:
        return "the service has moved: give the address where it is as base_url"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return "the service wants another API key: look at api_key"
    try:
        return f"the service answered {HTTPStatus(status).phrase}"
    except ValueError:
        return "the service answered with a status that HTTP does not know"


def _line(text: Any, secret: str) -> str:  # noqa: ANN401 - any JSON value
    if not isinstance(text, str):
        return ""
    bare = text.replace(secret, "***") if secret else text
    return " ".join("".join(sign if sign.isprintable() else " " for sign in bare[:_MAX_DETAIL]).split())


def retry_after(reply: Reply, now: float) -> float | None:
    """Return for how many seconds a reply asks to be left alone, from `now` in seconds since 1970; None if it does not.

    It says so in seconds, or as a date (RFC 9110, 10.2.3).
    """
    text = reply.headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return None
