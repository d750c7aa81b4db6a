"""Errors of a request, as problem details for the client (RFC 9457): one line each, no traces."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.requests import Request

from serfer.core.errors import (
    CeilingError,
    DeadlineError,
    ImageError,
    ImageTooLargeError,
    InputError,
    LambdaThrottledError,
    NetworkLoadError,
    NotFiniteError,
    OverloadedError,
    PlanError,
    ResultGoneError,
    SerferError,
    TaskFailedError,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"
OVERLOADED = "overloaded"  # the type of a 429 for lack of room, not for a quota
PROBLEM_TYPES = {
    OVERLOADED: (
        429,
        "no room before the request's deadline, for running or for decoding, or no environment at Lambda",
    ),
    "quota": (429, "the API key's quota is used up"),
    "scope": (403, "the API key lacks the scope, or is for other applications; without keys: the registry is not open"),
    "ceiling": (429, "the dollars that an hour may cost are spent"),
    "unavailable": (
        503,
        "the store or the functions do not answer, a function failed again and again, or a network cannot be loaded",
    ),
    "host": (403, "without API keys: the request is for another host, or from another site's page"),
}
"""Every problem type: the last part of urn:serfer:problem:TYPE, with its status and meaning."""
_PROTOCOL = re.compile(r"/v2(/|$)")  # paths of the Open Inference Protocol
_RETRY_S = "1"  # after something was unavailable: it may be back soon, and asking is cheap
_OUTSIDE = (
    (ImageTooLargeError, 413),
    (ImageError, 400),
    (ResultGoneError, 404),
    (PlanError, 422),
    (InputError, 422),
    (UsageError, 422),
    (DeadlineError, 504),
    (NotFiniteError, 500),
)


class ProblemDetails(BaseModel):
    """Why there is no answer (RFC 9457); `type` is left out where the status says it all."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    request_id: str


class Problem(Exception):  # noqa: N818 - RFC 9457's word
    """A request that gets no answer: a status, a line for people, and headers such as Retry-After."""

    def __init__(
        self, status: int, detail: str, *, slug: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = int(status)
        self.detail = detail
        self.slug = slug
        self.headers = dict(headers or {})

    def as_dict(self, request_id: str) -> dict[str, Any]:
        """Return the members of the problem; `type` is left out where the status says it all (RFC 9457, 4.2.1)."""
        kind = {"type": f"urn:serfer:problem:{self.slug}"} if self.slug else {}
        title = HTTPStatus(self.status).phrase
        return {**kind, "title": title, "status": self.status, "detail": self.detail, "request_id": request_id}


def problem_of(error: Exception) -> Problem:
    """Return an error as a problem for the client; a bug's says nothing but that it is one."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, OverloadedError):
        wait = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
        slug = "ceiling" if isinstance(error, CeilingError) else OVERLOADED
        return Problem(429, str(error), slug=slug, headers=wait)
    if isinstance(error, LambdaThrottledError):
        return Problem(429, _BUSY, slug=OVERLOADED, headers={"Retry-After": str(1 + secrets.randbelow(3))})
    for kind, status in _OUTSIDE:
        if isinstance(error, kind) and not isinstance(error, TaskFailedError):  # whose plan is the service's own
            return Problem(status, str(error))
    if isinstance(error, SerferError):  # a task that failed for good, the store, Lambda: what they say is for our log
        detail = str(error) if isinstance(error, NetworkLoadError) else _UNAVAILABLE
        return Problem(503, detail, slug="unavailable", headers={"Retry-After": _RETRY_S})
    return Problem(500, "a bug of the service's; its log says more under this request's id")


_BUSY = "all execution environments of the functions are in use: try again later"
_UNAVAILABLE = "the store or the functions do not answer, or a function failed again and again: try again later"


def problem_response(problem: Problem, request: Request) -> JSONResponse:
    """Return a problem as a response; to a client of the inference protocol as that wants it, {"error": "..."}."""
    request_id = getattr(request.state, "request_id", "")
    if _PROTOCOL.match(request.scope["path"]):
        bug = f" ({request_id})" if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR else ""
        return JSONResponse({"error": f"{problem.detail}{bug}"}, problem.status, problem.headers)
    body = problem.as_dict(request_id)
    return JSONResponse(body, problem.status, problem.headers, media_type=MEDIA_TYPE)
