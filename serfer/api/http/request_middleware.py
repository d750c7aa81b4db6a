"""The outermost middleware: a request id, security headers, a log line, and a response whatever happens."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serfer.api.http.problems import Problem, problem_of, problem_response
from serfer.api.observability.logs import CURRENT, RequestRecord, log_request
from serfer.api.observability.telemetry import Telemetry

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_SINCE = re.compile(rb"t=(\d{13})")
_LONGEST_WAIT_S = 60.0  # in a balancer
_MS_PER_S = 1000
_CLIENT_CLOSED = 499  # for logs and metrics: no client reads it
_NO_STORE = (b"cache-control", b"no-store")
_CAREFUL = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class RequestMiddleware:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and tell of it when it is over, however it ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        tracing = self._telemetry.tracing
        with tracing.request(scope) if tracing else contextlib.nullcontext() as span:
            token = CURRENT.set(exchange.record)
            try:
                await self._answer(exchange)
            finally:
                CURRENT.reset(token)
                exchange.record.open = False
                self._record(exchange)
                if tracing and span:
                    known = exchange.route, exchange.status, exchange.record.request_id
                    tracing.responded(span, scope["method"], *known)

    async def _answer(self, exchange: _Exchange) -> None:
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except ClientDisconnect as error:
            exchange.state["error"] = error
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends here
            exchange.state["error"] = error
            if not exchange.status:
                response = problem_response(problem_of(error), Request(exchange.scope))
                await response(exchange.scope, exchange.receive, exchange.send)

    def _record(self, exchange: _Exchange) -> None:
        seconds = (exchange.ended or time.perf_counter()) - exchange.started
        exchange.status = exchange.status or _CLIENT_CLOSED
        method, error = exchange.scope["method"], exchange.state.get("error")
        self._telemetry.metrics.request(exchange.route, method, exchange.status, seconds, exchange.bytes_in)
        if isinstance(error, Problem):
            self._telemetry.metrics.refused(error)
        client = exchange.state.get("client")
        fields = {
            "request_id": exchange.record.request_id,
            "method": method if method.isalpha() else "other",
            "route": exchange.route or "other",
            "status": exchange.status,
            "ms": round(seconds * 1000, 3),
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
            **({"client": client.name} if client else {}),
        }
        log_request(fields, exchange.record, error)


class _Exchange:
    __slots__ = (
        *("bytes_in", "bytes_out", "ended", "record", "scope", "started", "state", "status"),
        *("_careful", "_receive", "_send"),
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started = time.perf_counter()
        self.ended = 0.0
        self.status = self.bytes_in = self.bytes_out = 0
        self.scope = scope
        self.state: dict[str, Any] = scope.setdefault("state", {})
        self.record = RequestRecord(_request_id(scope))
        self.state["request_id"] = self.record.request_id
        self.state["arrived"] = time.monotonic() - _waited_s(scope)  # deadlines count from here
        self._receive = receive
        self._send = send

    @property
    def route(self) -> str | None:
        """The template of the route that took the request, once one has."""
        return getattr(self.scope.get("route"), "path", None)

    async def receive(self) -> Message:
        """Count what comes."""
        message = await self._receive()
        if message["type"] == "http.request":
            self.bytes_in += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        """Add headers where the application has none of its own, and count what goes."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._headers(message.get("headers", ()))}
        elif message["type"] == "http.response.body":
            self.bytes_out += len(message.get("body", b""))
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.ended = time.perf_counter()

    def _headers(self, headers: Any) -> list[tuple[bytes, bytes]]:  # noqa: ANN401 - pairs of bytes, of any kind
        own = {name for name, _ in headers}
        added = [pair for pair in _CAREFUL if pair[0] not in own]
        if _NO_STORE[0] not in own and self.scope["path"].startswith(("/v1", "/v2")):
            added.append(_NO_STORE)
        return [*headers, *added, (b"x-request-id", self.record.request_id.encode())]


def _waited_s(scope: Scope) -> float:
    """Return how long ago a balancer took the request (X-Request-Start: t=MILLISECONDS since 1970), 0 if none says so.

    It is believed of any client: it makes only that client's own deadline earlier, by no more than `_LONGEST_WAIT_S`.
    """
    given = next((value for name, value in scope["headers"] if name == b"x-request-start"), b"")
    match = _SINCE.fullmatch(given)
    return min(max(time.time() - int(match[1]) / _MS_PER_S, 0.0), _LONGEST_WAIT_S) if match else 0.0


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return secrets.token_hex(16)
