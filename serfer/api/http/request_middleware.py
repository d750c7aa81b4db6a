"""The outermost middleware: a request id, security headers, a log line, and a response whatever happens."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serfer.api.admission import Bytes, HeldBytes
from serfer.api.http.problems import Problem, problem_of, problem_response
from serfer.api.observability.logs import CURRENT, RequestRecord, log_request
from serfer.api.observability.telemetry import Telemetry
from serfer.api.requests import client_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_SINCE = re.compile(rb"t=(\d{13})")  # X-Request-Start: milliseconds since 1970 at which a balancer took the request
_LONGEST_WAIT_S = 60.0  # in a balancer, which any client may claim: it makes only its own deadline earlier
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
    """The outermost middleware; what bodies hold of `budget` until a request has ended is `request.state.held`."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry, budget: Bytes) -> None:
        self._app = app
        self._telemetry = telemetry
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._budget.hold())
        tracing = self._telemetry.tracing
        with exchange.held, tracing.request(scope) if tracing else contextlib.nullcontext() as span:
            token = CURRENT.set(exchange.record)
            try:
                await self._app(scope, exchange.receive, exchange.send)
            except ClientDisconnect as error:
                exchange.state["error"] = error
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends here
                exchange.state["error"] = error
                if not exchange.status:
                    response = problem_response(problem_of(error), Request(scope))
                    await response(scope, exchange.receive, exchange.send)
            finally:
                CURRENT.reset(token)
                exchange.record.open = False
                self._record(exchange, span)

    def _record(self, exchange: _Exchange, span: Span | None) -> None:
        seconds = (exchange.ended or time.perf_counter()) - exchange.started
        status = exchange.status or _CLIENT_CLOSED
        method, error = exchange.scope["method"], exchange.state.get("error")
        route: str | None = getattr(exchange.scope.get("route"), "path", None)  # the template of the one that took it
        self._telemetry.metrics.request(route, method, status, seconds, exchange.bytes_in)
        if isinstance(error, Problem):
            self._telemetry.metrics.refused(error)
        client = exchange.state.get("client")
        fields = {
            "request_id": exchange.record.request_id,
            "method": method if method.isalpha() else "other",
            "route": route or "other",
            "status": status,
            "ms": round(seconds * 1000, 3),
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
            **({"client": client.name} if client else {}),
        }
        log_request(fields, exchange.record, error)
        if self._telemetry.tracing and span:
            self._telemetry.tracing.responded(span, method, route, status, exchange.record.request_id)


class _Exchange:
    __slots__ = (
        *("bytes_in", "bytes_out", "ended", "held", "record", "scope", "started", "state", "status"),
        *("_receive", "_send"),
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, held: HeldBytes) -> None:
        self.started, self.ended = time.perf_counter(), 0.0
        self.status = self.bytes_in = self.bytes_out = 0
        self.scope, self.held = scope, held
        self._receive, self._send = receive, send
        waited_s, request_id = 0.0, ""
        for name, value in scope["headers"]:
            if name == b"x-request-start" and (since := _SINCE.fullmatch(value)):
                waited_s = min(max(time.time() - int(since[1]) / _MS_PER_S, 0.0), _LONGEST_WAIT_S)
            elif name == b"x-request-id" and not request_id and _REQUEST_ID.fullmatch(value):
                request_id = str(value, "ascii")
        self.record = RequestRecord(request_id or secrets.token_hex(16))
        self.state: dict[str, Any] = scope.setdefault("state", {})
        self.state |= {
            "request_id": self.record.request_id,
            "arrived": time.monotonic() - waited_s,  # deadlines count from here
            "held": held,
        }

    async def receive(self) -> Message:
        message = await self._receive()
        if body := message.get("body"):
            self.bytes_in += len(body)
            self.held.client = self.held.client or client_of(Request(self.scope))  # known since its key was looked at
            self.held.add(len(body))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, headers = message["status"], message.get("headers", ())
            own = {name for name, _ in headers}
            added = [pair for pair in _CAREFUL if pair[0] not in own]
            if _NO_STORE[0] not in own and self.scope["path"].startswith(("/v1", "/v2")):
                added.append(_NO_STORE)
            named = (b"x-request-id", self.record.request_id.encode())
            message = {**message, "headers": [*headers, *added, named]}
        elif message["type"] == "http.response.body":
            self.bytes_out += len(message.get("body", b""))
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.ended = time.perf_counter()
