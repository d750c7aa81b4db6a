"""The record of a request while it is answered: for its log line, its metrics and its trace."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from serfer.api.service import ServiceResult


@dataclass(slots=True)
class RequestRecord:
    """A request's id and its query, if it came to one; once it is answered, `open` is False.

    `error` is why its query has no answer.
    """

    request_id: str
    model: str = ""
    answered: ServiceResult | None = None
    error: BaseException | None = None
    open: bool = True


CURRENT: ContextVar[RequestRecord | None] = ContextVar("serfer_request", default=None)
