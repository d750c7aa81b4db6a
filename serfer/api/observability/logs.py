"""Logs for the operator: one JSON object a line, or text where a person watches.

Nothing of a client's is written: no name of a file, no key, no query string, no header. A line about a failure of ours
has the error's own words, which may quote the client where it made a mistake, and in a bug: lines about these have the
class, and lines of our code.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TextIO

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from serfer.api.http.problems import Problem
from serfer.api.observability.background_log import BackgroundHandler
from serfer.api.service import ServiceResult
from serfer.core.errors import InputError, SerferError, UsageError


@dataclass(slots=True)
class RequestRecord:
    """A request's id and its query, if it came to one; once it is answered, `open` is False.

    `error` is why its query has no answer, `failure` why a task or a call of the store failed that was tried again.
    """

    request_id: str
    model: str = ""
    answered: ServiceResult | None = None
    error: BaseException | None = None
    open: bool = True
    failure: str = ""

    def failed(self, why: str) -> None:
        self.failure = why.partition("\n")[0]

    def why(self, error: BaseException) -> dict[str, Any]:
        """Return the fields of an error: where it says only that time was up, what failed before does, too."""
        return {**reason(error), **({"failure": self.failure} if self.failure else {})}


CURRENT: ContextVar[RequestRecord | None] = ContextVar("serfer_request", default=None)


def note_retry(_policy: str, _attempt: int, error: Exception) -> None:
    """Note with the request why a call of a store is tried again (serfer.core.retry.RetryHook)."""
    if record := CURRENT.get():
        record.failed(str(error))


_log = logging.getLogger("serfer.api")
_encode = json.JSONEncoder(default=str).encode
_QUIET = ("/healthz", "/readyz", "/metrics", "/v1/load")  # requested every second or two by machines: level debug
_BUG: Final = HTTPStatus.INTERNAL_SERVER_ERROR.value
_OF_CLIENTS: Final = (Problem, InputError, UsageError, HTTPException, RequestValidationError, ClientDisconnect)
_NESTED: Final = 4  # causes of an error that a traceback goes back to
_WORST = logging.CRITICAL + 1


def configure_logs(
    level: str, stream: TextIO | None = None, *, as_json: bool | None = None, in_background: bool = False
) -> None:
    """Send every log line of this process to `stream`, standard error by default, in one format.

    `level` ("debug", "info", "warning", "error") is ours; libraries are heard from "warning" on. By default lines are
    text on a terminal, else JSON. `in_background`: a thread writes them, so that an event loop does not wait for a
    stream that is not read; not for a process that is frozen between requests.
    """
    stream = stream or sys.stderr
    handler = _handler(stream, in_background=in_background)
    json_wanted = not stream.isatty() if as_json is None else as_json
    handler.setFormatter(JsonFormatter() if json_wanted else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("serfer").setLevel(level.upper())
    for name, least in (("uvicorn", logging.WARNING), ("uvicorn.error", logging.WARNING), ("uvicorn.access", _WORST)):
        logger = logging.getLogger(name)  # its lines of access would show query strings
        logger.handlers[:], logger.propagate = [], True
        logger.setLevel(least)


def _handler(stream: TextIO, *, in_background: bool) -> logging.Handler:
    with suppress(OSError):  # a stream in memory has no descriptor
        if in_background:
            return BackgroundHandler(stream.fileno())
    return logging.StreamHandler(stream)


class JsonFormatter(logging.Formatter):
    """Makes one JSON object a line of a record."""

    def format(self, record: logging.LogRecord) -> str:
        return _encode(_fields(record))


class TextFormatter(logging.Formatter):
    """Makes a line for people of a record."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        when = time.strftime("%H:%M:%S", time.localtime(record.created))
        frames = fields.pop("traceback", ())
        text = " ".join(str(fields.pop(name)) for name in ("event", "message") if name in fields)
        known = "  ".join(f"{name}={_text(value)}" for name, value in fields.items() if name not in ("time", "level"))
        line = f"{when} {record.levelname:<7} {text}  {known}".rstrip()
        return "\n".join(["".join(char if char.isprintable() else " " for char in line), *frames])


def _text(value: Any) -> str:  # noqa: ANN401 - any field's
    if isinstance(value, dict):
        return ",".join(f"{name}:{_text(inner)}" for name, inner in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    fields = {"time": f"{when}.{int(record.msecs):03}Z", "level": record.levelname.lower()}
    ours = record.__dict__.get("serfer")
    if ours is not None:
        bug = record.exc_info[1] if record.exc_info else None
        return {**fields, "event": record.msg, **ours, **({"traceback": _frames(bug)} if bug else {})}
    message = record.getMessage().partition("\n")[0]
    fields |= {"event": "log", "logger": record.name, "message": message}
    if record.exc_info and record.exc_info[1]:
        fields |= reason(record.exc_info[1])
    return fields


def log_request(fields: dict[str, Any], record: RequestRecord, error: BaseException | None) -> None:
    status, level = fields["status"], logging.INFO
    if status == _BUG:
        level = logging.ERROR
    elif fields["route"] in _QUIET:
        level = logging.DEBUG
    elif status > _BUG:
        level = logging.WARNING
    if not _log.isEnabledFor(level):
        return
    error = error or record.error
    write(level, "request", {**fields, **query_fields(record), **(record.why(error) if error else {})})


def write(level: int, event: str, fields: dict[str, Any]) -> None:
    """Write a line; the logging module would look for the caller, which costs more than all the rest."""
    if _log.isEnabledFor(level):
        line = logging.LogRecord(_log.name, level, "", 0, event, None, None)
        line.__dict__["serfer"] = fields
        _log.handle(line)


def log_query(model: str, answered: ServiceResult | None = None, error: BaseException | None = None) -> None:
    """Note how a query ends: in its request's line, or in one of its own where that is written already."""
    record = CURRENT.get() or RequestRecord("", open=False)
    record.model, record.answered, record.error = model, answered or record.answered, error or record.error
    if not record.open:
        why = record.why(record.error) if record.error else {}
        level = logging.WARNING if error else logging.INFO
        write(level, "query", {"request_id": record.request_id, **query_fields(record), **why})


def query_fields(record: RequestRecord) -> dict[str, Any]:
    if record.answered is None:
        return {"model": record.model} if record.model else {}
    result = record.answered.result
    report = result.report
    return {
        "model": record.model,
        "query": result.answer.query.strip("{}"),  # braces are a Redis cluster's, which keys of a query lie together by
        "target": report.target,
        **({"instance": result.served.instance, "batch": result.served.batch} if result.served else {}),
        "queue_ms": round(record.answered.queued_s * 1000, 3),
        "decode_ms": round((result.split[1] - result.split[0]) * 1000, 3),
        "query_ms": report.latency_ms,
        "stages_ms": {stage.name: stage.ms for stage in report.stages},
        "cold": sum(stage.cold for stage in report.stages),
        "retries": report.retries,
        "hedges": report.hedges,
        "restarts": report.restarts,
        "cost_usd": report.cost_usd,
        **({"wait_gb_s": report.wait_gb_s} if any(stage.gang is not None for stage in report.stages) else {}),
        **({"disbanded": report.disbanded} if report.disbanded else {}),
        **({"warm_ups": report.warm_ups} if report.warm_ups else {}),
        **({"plan": report.plan, "plan_reason": report.plan_reason} if report.plan_reason else {}),
    }


def reason(error: BaseException) -> dict[str, Any]:
    """Return an error's class and line; of what a client sent, our line that refused it; of a bug, where it was."""
    fields: dict[str, Any] = {"error": type(error).__name__}
    if isinstance(error, Problem) and error.slug:
        return {**fields, "problem": error.slug}
    if isinstance(error, _OF_CLIENTS):
        at = traceback.extract_tb(error.__traceback__)[-1:]
        return fields if not at else {**fields, "reason": f"{Path(at[0].filename).name}:{at[0].lineno} {at[0].line}"}
    if isinstance(error, SerferError):
        return {**fields, "reason": str(error).partition("\n")[0]}
    return {**fields, "traceback": _frames(error)} if isinstance(error, Exception) else fields


def _frames(error: BaseException) -> list[str]:
    """Return where an error and its causes came from: files, lines and code, but no values."""
    lines: list[str] = []
    cause: BaseException | None = error
    for _ in range(_NESTED):
        if cause is None:
            break
        frames = traceback.extract_tb(cause.__traceback__)
        lines += [f"{type(cause).__name__}:"]
        lines += [f"  {frame.filename}:{frame.lineno} {frame.name}: {frame.line}" for frame in frames]
        cause = cause.__cause__ or cause.__context__
    return lines
