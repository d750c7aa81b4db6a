"""The outermost middleware: a request id, security headers, a log line, and a response whatever happens."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serfer.api.admission import Bytes, HeldBytes
from serfer.api.http.problems import Problem
from serfer.api.observability.logs import CURRENT, RequestRecord, log_request
from serfer.api.observability.metrics import METHODS
from serfer.api.observability.telemetry import Telemetry
from serfer.api.requests import client_of

if TYPE_CHECKING:
    from serfer.api.observability.telemetry import RequestSpan

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_SINCE = re.compile(rb"t=(\d{13})")  # X-Request-Start: milliseconds since 1970 at which a balancer took the request
_LONGEST_WAIT_S = 60.0  # in a balancer, which any client may claim: it makes only its own deadline earlier
_MS_PER_S = 1000
_CLIENT_CLOSED = 499  # for logs and metrics: no client reads it
_ID_BYTES = 16
_NO_STORE = (b"cache-control", b"no-store")
_CAREFUL = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
}
_CAREFUL_NAMES, _ADDED = frozenset(_CAREFUL), tuple(_CAREFUL.items())


Respond = Callable[[Request, Exception], Awaitable[Response]]


class RequestMiddleware:
    """The outermost middleware; what bodies hold of `budget` until a request has ended is `request.state.held`.

    An error before an answer is answered by `respond`.
    """

    def __init__(
        self,
        app: ASGIApp,
        telemetry: Telemetry,
        budget: Bytes,
        respond: Respond,
    ) -> None:
        self._app, self._respond = app, respond
        self._telemetry = telemetry
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._budget)
        tracing = self._telemetry.tracing
        traced = tracing.begin(scope) if tracing else None
        token = CURRENT.set(exchange.record)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends here
            exchange.state["error"] = error
            if not exchange.status and not isinstance(error, ClientDisconnect):
                response = await self._respond(Request(scope), error)
                await response(scope, exchange.receive, exchange.send)
        finally:
            CURRENT.reset(token)
            exchange.record.open = False
            if not exchange.held.kept:
                exchange.held.release()
            self._record(exchange, traced)

    def _record(self, exchange: _Exchange, traced: RequestSpan | None) -> None:
        seconds = (exchange.ended or time.monotonic()) - exchange.started
        status, scope, state = exchange.status or _CLIENT_CLOSED, exchange.scope, exchange.state
        method = scope["method"] if scope["method"] in METHODS else "other"
        error, request_id = state.get("error"), exchange.record.request_id
        route: str | None = scope["route"].path if "route" in scope else None  # the template of the one that took it
        self._telemetry.metrics.request(route, method, status, seconds, exchange.bytes_in)
        if isinstance(error, Problem):
            self._telemetry.metrics.refused(error)
        fields = {
            "request_id": request_id,
            "method": method,
            "route": route or "other",
            "status": status,
            "ms": round(seconds * 1000, 3),
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
            **({"client": state["client"].name} if "client" in state else {}),
        }
        log_request(fields, exchange.record, error)
        if self._telemetry.tracing and traced:
            self._telemetry.tracing.end(traced, method, route, status, request_id)


class _Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send, budget: Bytes) -> None:
        self.started, self.ended = time.monotonic(), 0.0
        self.status = self.bytes_in = self.bytes_out = 0
        self.scope, self.held = scope, HeldBytes("", budget)
        self._receive, self._send = receive, send
        waited_s, request_id = 0.0, ""
        for name, value in scope["headers"]:
            if name == b"x-request-start" and (since := _SINCE.fullmatch(value)):
                waited_s = min(max(time.time() - int(since[1]) / _MS_PER_S, 0.0), _LONGEST_WAIT_S)
            elif name == b"x-request-id" and not request_id and _REQUEST_ID.fullmatch(value):
                request_id = str(value, "ascii")
        self.record = RequestRecord(request_id or os.urandom(_ID_BYTES).hex())
        self.state: dict[str, Any] = scope.setdefault("state", {})
        self.state |= {
            "request_id": self.record.request_id,
            "arrived": self.started - waited_s,  # deadlines count from here
            "held": self.held,
        }

    async def receive(self) -> Message:
        message = await self._receive()
        if body := message.get("body"):
            size = len(body)
            self.bytes_in += size
            self.held.client = self.held.client or client_of(self.scope)  # known since its key was looked at
            self.held.add(size)
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self.status, headers = message["status"], message.get("headers", ())
            own = dict(headers)
            added = _ADDED if _CAREFUL_NAMES.isdisjoint(own) else (_CAREFUL | own).items() - own.items()
            if _NO_STORE[0] not in own and self.scope["path"].startswith(("/v1", "/v2")):
                added = (*added, _NO_STORE)
            named = (b"x-request-id", self.record.request_id.encode())
            message = {**message, "headers": [*headers, *added, named]}
        await self._send(message)
        if kind == "http.response.body":
            self.bytes_out += len(message.get("body", b""))
            if not message.get("more_body", False):
                self.ended = time.monotonic()
