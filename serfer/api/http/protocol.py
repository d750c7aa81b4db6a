"""HTTP/1.1 of a server of uvicorn's, with bounds on what a request's head may be and on how long it may take.

Whenever a connection waits for its client, a timer runs: for the next request's first byte after an answer, from the
connection's start or a head's first byte until the head is whole, and while a client keeps sending a body that was
answered already. While the application reads a body, it keeps the time itself (`serfer.api.http.body`). A client that
does not read its answer, of which a connection keeps one at a time, is disconnected after as long as a head may take.

No client has more than its share: connections of an address are bounded, but for those on which a trusted balancer
forwards; of the requests that it sends before earlier ones are answered (pipelining), few run at once, each after what
was written before it has left, and little is read ahead of them.

A client that ends its sending side after a whole request gets its answer (RFC 9112, section 9.6). Whether it has closed
the connection shows only when something is sent to it, so until then it gets `100 Continue` now and again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope
from uvicorn.config import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from serfer.api.http.body import EXCHANGE
from serfer.api.http.problems import MEDIA_TYPE
from serfer.api.requests import network_of
from serfer.core.http1 import Head, Refusal, RequestReader, closes

MOST_HEAD = 16 * 1024  # bytes, where uvicorn's configuration says nothing (h11_max_incomplete_event_size)
CONNECTIONS = 512  # of an address, where nothing else is said
_PIPELINED = 4  # requests of an address that run at once although they came before earlier ones were answered
_READ_AHEAD = 64 * 1024  # bytes of such requests that a connection keeps
_BODY = 64 * 1024  # bytes of a body after which no more is read until the application takes them
_LEAST_READ = 16 * 1024  # bytes of an answer that a client has to take in `header_timeout_s`
_TOO_MANY = (
    "your address has the {most} connections that it may have here (SERFER_API_CLIENT_CONNECTIONS): close some, or "
    "raise it"
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_PROBE_S, _PROBE_S = 0.05, 5.0  # after the end of a client's sending side; each time twice as long, at most
_STATUS_LINES: Final = {int(code): b"HTTP/1.1 %d %b\r\n" % (code, code.phrase.encode()) for code in HTTPStatus}
_PROBLEM = MEDIA_TYPE.encode()
_NO_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_log = logging.getLogger("uvicorn.error")


class _Client:
    """The connections of one address.

    Requests that came before earlier ones were answered run in the order in which they came, `_PIPELINED` at once.
    """

    def __init__(self) -> None:
        self.connections: set[LimitedProtocol] = set()
        self._waiting: dict[LimitedProtocol, None] = {}
        self._running: set[LimitedProtocol] = set()

    def wait(self, connection: LimitedProtocol) -> None:
        """Have a connection go on with its next request when its turn comes."""
        self._waiting[connection] = None
        self._admit()

    def end(self, connection: LimitedProtocol) -> None:
        """Let others run instead of a connection that has answered, or no longer wants to."""
        self._waiting.pop(connection, None)
        self._running.discard(connection)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < _PIPELINED:
            connection = next(iter(self._waiting))
            del self._waiting[connection]
            self._running.add(connection)
            connection.loop.call_soon(connection.go_on)

    def is_full(self, most: int) -> bool:
        if len(self.connections) >= most:  # but for a trusted balancer's, on which it has named another client
            self.connections = {known for known in self.connections if not known.is_forwarded}
        return len(self.connections) >= most


class _Cycle:
    """One request and its answer, as ASGI has them, in a task; `on_disconnect` is called when the client is `gone`."""

    task: asyncio.Task[None]

    def __init__(self, connection: LimitedProtocol, head: Head, scope: Scope) -> None:
        self.scope = scope
        self.closes = head.closes  # the connection, after the answer
        self.started = self.written = self.answered = self.gone = False
        self._connection = connection
        self._expects, self._is_1_0 = head.expects, head.is_1_0
        self._body, self.is_whole = b"", False
        self._has_news = False
        self._arrival: asyncio.Event | None = None
        self.on_disconnect: Callable[[], object] | None = None
        scope[EXCHANGE] = self

    def leave(self) -> None:
        """Tell the application that the client is gone."""
        self.gone = True
        self._wake()
        if self.on_disconnect is not None:
            self.on_disconnect()

    def add(self, data: bytes, *, is_whole: bool) -> None:
        """Add to the body; the application learns of it when it is whole, or large."""
        if self.answered:
            return
        self._body = self._body + data if self._body else data
        self.is_whole, is_large = is_whole, len(self._body) >= _BODY
        if is_whole or is_large:
            self._wake()
        if is_large:
            self._connection.pause_reading()

    def _wake(self) -> None:
        self._has_news = True
        if self._arrival is not None:
            self._arrival.set()

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends here
            _log.error("Exception in ASGI application", exc_info=error)
        self._connection.server_state.tasks.discard(self.task)
        if not (self.answered or self.gone):
            self._connection.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug of the service's: there is no answer")

    async def receive(self) -> Message:
        if self._expects:
            self._expects = False
            if not (self._body or self.is_whole or self.written or self._connection.transport.is_closing()):
                self._connection.transport.write(_CONTINUE)
        while not (self._has_news or self.gone or self.answered):
            self._connection.resume_reading()
            self._arrival = self._arrival or asyncio.Event()
            self._arrival.clear()
            await self._arrival.wait()
        if self.gone or self.answered:
            return {"type": "http.disconnect"}
        self._has_news = False
        body, self._body = self._body, b""
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    async def send(self, message: Message) -> None:
        """Write what an answer says: its head with the first bytes of its body."""
        connection = self._connection
        if connection.writable is not None and not self.gone:
            await connection.writable.wait()
        if self.gone:
            return
        if message["type"] != ("http.response.body" if self.started else "http.response.start") or self.answered:
            raise RuntimeError(f"{message['type']} is out of turn")
        if self.started:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            self._begin(message["status"], [*connection.server_state.default_headers, *message.get("headers", ())])
            self.started = True

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        head = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        left, has_body = math.inf, status not in _NO_BODY
        lines = 1
        for name, value in headers:
            if name == b"connection":
                self.closes = self.closes or closes(value)
            elif name != b"transfer-encoding":
                head += b"%b: %b\r\n" % (name, value)
                lines += 1
                if name == b"content-length":
                    left = int(value)
        if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
            raise ValueError("a header of the answer is not in one line")
        self._chunked = has_body and left == math.inf and not self._is_1_0
        self._left = left if has_body else 0
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b""
        self._head = head + framing + (b"connection: close\r\n\r\n" if self.closes else b"\r\n")

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        connection = self._connection
        if self.scope["method"] == "HEAD":
            body = b""
        else:
            self._left -= len(body)
            if self._left < 0 or (is_last and 0 < self._left < math.inf):
                raise RuntimeError("the answer is not as long as its Content-Length")
            if self._chunked:
                body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if is_last else b"")
        connection.transport.writelines((self._head, body))
        self._head, self.written = b"", True
        if is_last:
            self.answered = True
            connection.server_state.total_requests += 1
            if self._arrival is not None:
                self._arrival.set()
            connection.answer_ended()


class LimitedProtocol(asyncio.Protocol):
    """A connection with those bounds; `header_timeout_s` is seconds, `connections_each` of an address.

    `clients` are the addresses by what they share (serfer.api.requests.network_of). `writable` is None, or what is set
    once the client has taken what was written.
    """

    header_timeout_s = 10.0
    connections_each = CONNECTIONS
    clients: ClassVar[dict[str, _Client]] = {}

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.config, self.server_state = config, server_state
        self.loop = _loop or asyncio.get_running_loop()
        self.reader = RequestReader(config.h11_max_incomplete_event_size or MOST_HEAD)
        self.writable: asyncio.Event | None = None
        self._app = self._own_app = config.loaded_app
        if isinstance(self._app, ProxyHeadersMiddleware):
            self._own_app = self._app.app
        self._app_state = app_state
        self._cycle: _Cycle | None = None
        self._due = math.inf  # when the client has to have sent what the server waits for
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None  # runs while the client takes an answer
        self._ended = False  # the client sends nothing more
        self._waits = False  # the next request waits until what was written has left, or for its turn
        self._in_turn = False
        self._is_paused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.server_state.connections.add(self)  # type: ignore[arg-type] # typed as uvicorn's own protocols
        self.transport = transport
        self.client = get_remote_addr(transport)
        self._scope = {
            "type": "http",
            "asgi": {"version": self.config.asgi_version, "spec_version": "2.3"},
            "server": get_local_addr(transport),
            "client": self.client,
            "scheme": "https" if is_ssl(transport) else "http",
            "root_path": self.config.root_path,
        }
        self._network = network_of(self.client[0] if self.client else "")
        self._shared = self.clients.setdefault(self._network, _Client())
        if self._shared.is_full(self.connections_each):
            self.refuse(HTTPStatus.TOO_MANY_REQUESTS, _TOO_MANY.format(most=self.connections_each))
            return
        self._shared.connections.add(self)
        self._expect(self.header_timeout_s)

    @property
    def is_forwarded(self) -> bool:
        return self._cycle is not None and self._cycle.scope["client"] != self.client

    def data_received(self, data: bytes) -> None:
        reader = self.reader
        reader.unread = reader.unread + data if reader.unread else data
        self._read()

    def _read(self) -> None:
        reader = self.reader
        try:
            if reader.in_head:
                head = reader.read_head()
                if head is None:
                    if reader.unread:
                        self._expect(self.header_timeout_s)
                    return
                self._begin(head)
            cycle = self._cycle
            assert cycle is not None  # noqa: S101 - there is one since its head was read
            if not reader.whole:
                cycle.add(reader.read_body(), is_whole=reader.whole)
        except Refusal as refusal:
            _log.warning("Invalid HTTP request received.")
            self.refuse(refusal.status, refusal.detail)
            return
        if reader.whole and cycle.answered and not self._waits:
            self.go_on()
        elif reader.whole and reader.unread and len(reader.unread) >= _READ_AHEAD:
            self.pause_reading()

    def _begin(self, head: Head) -> None:
        raw_path, _, query = head.target.partition(b"?")
        path, root_path = str(raw_path, "ascii"), self.config.root_path
        scope: Scope = {
            **self._scope,
            "http_version": "1.0" if head.is_1_0 else "1.1",
            "method": str(head.method, "ascii"),
            "path": root_path + (unquote(path) if "%" in path else path),
            "raw_path": bytes(root_path, "ascii") + raw_path,
            "query_string": query,
            "headers": head.headers,
            "state": {**self._app_state},
        }
        self._due = math.inf  # while a request runs
        self._cycle = cycle = _Cycle(self, head, scope)
        if self.reader.whole:
            cycle.add(b"", is_whole=True)
        forwarded = b"x-forwarded-for" in head.sent or b"x-forwarded-proto" in head.sent
        cycle.task = task = self.loop.create_task(cycle.run(self._app if forwarded else self._own_app))
        self.server_state.tasks.add(task)

    def eof_received(self) -> bool:
        """Return whether the connection stays open, which is until what was sent as a whole is answered."""
        cycle, reader = self._cycle, self.reader
        if not reader.whole or cycle is None or (cycle.answered and not reader.unread):
            return False
        if not self._ended and cycle.scope["http_version"] != "1.0":  # which knows no 100
            self._probe(_FIRST_PROBE_S)
        self._ended = True
        return True

    def _probe(self, after_s: float) -> None:
        """Send what a client that is there ignores; a later one fails once the system of one that is not says so."""
        if not self.transport.is_closing():
            if self._cycle is not None and not self._cycle.written:
                self.transport.write(_CONTINUE)
            self.loop.call_later(after_s, self._probe, min(2 * after_s, _PROBE_S))

    def answer_ended(self) -> None:
        """Go on with the next request, at once only where the client waited for this answer, and has taken it."""
        if self._in_turn:
            self._end_turn()
        if self._cycle is not None and self._cycle.closes:
            self.transport.close()
            return
        self._waits = self.writable is not None or (self.reader.whole and bool(self.reader.unread))
        if not self._waits:
            self.go_on()
        elif self.writable is not None:
            self.pause_reading()
        else:
            self._in_turn = True
            self._shared.wait(self)

    def go_on(self) -> None:
        """Read the next request, or the rest of one that was answered already."""
        self._waits = False
        if self.transport.is_closing():
            return
        if self._is_paused:
            self.resume_reading()
        reader = self.reader
        if not reader.whole:
            self._expect(self.header_timeout_s)
        else:
            self._due = math.inf
            reader.read_next()
            if not reader.unread:
                self._expect(self.config.timeout_keep_alive)
            else:
                self._read()
        if reader.in_head and self._in_turn:
            self._end_turn()  # its next request is not whole
        if self._ended and not reader.whole:
            self.transport.close()

    def _end_turn(self) -> None:
        self._in_turn = False
        self._shared.end(self)

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless more than enough of later requests is there."""
        if self._is_paused and not (self.reader.whole and len(self.reader.unread) >= _READ_AHEAD):
            self._is_paused = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        self.writable = self.writable or asyncio.Event()
        self._watch_reading()

    def resume_writing(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        if self.writable is not None:
            self.writable.set()
            self.writable = None
        if self._waits:
            self.answer_ended()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.server_state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._waits = False
        if self._cycle is not None and not self._cycle.answered:
            self._cycle.leave()
        self.resume_writing()
        self._shared.connections.discard(self)
        if self._in_turn:
            self._end_turn()
        if not self._shared.connections and self.clients.get(self._network) is self._shared:
            del self.clients[self._network]

    def shutdown(self) -> None:
        """End the connection after the answer that runs; uvicorn calls it."""
        if self._cycle is None or self._cycle.answered:
            self.transport.close()
        else:
            self._cycle.closes = True

    def _expect(self, within_s: float) -> None:
        self._due = min(self._due, self.loop.time() + within_s)
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._due, self._look)

    def _look(self) -> None:
        """Close a connection that kept the server waiting; one that has sent part of a head gets the reason."""
        self._timer = None
        if self._due > self.loop.time():
            if self._due < math.inf:
                self._timer = self.loop.call_at(self._due, self._look)
        elif self.reader.in_head and self.reader.unread:
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, f"no whole request within {self.header_timeout_s:g} s")
        else:
            self.transport.close()

    def _watch_reading(self, before: float = math.inf) -> None:
        waiting = self.transport.get_write_buffer_size()
        if before - waiting < _LEAST_READ:
            self.transport.abort()
        else:
            self._reading = self.loop.call_later(self.header_timeout_s, self._watch_reading, waiting)

    def refuse(self, status: HTTPStatus, detail: str) -> None:
        """Say why there is no answer, where none has begun; then close."""
        cycle = self._cycle
        if cycle is None or cycle.answered:
            is_open = self.reader.in_head
        else:
            cycle.leave()  # whatever the application still says, the answer is this one
            is_open = not cycle.written
        if is_open:
            body = json.dumps({"title": status.phrase, "status": status.value, "detail": detail}).encode()
            again = b"Retry-After: 1\r\n" if status is HTTPStatus.TOO_MANY_REQUESTS else b""
            head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n" % (_STATUS_LINES[status], _PROBLEM, len(body))
            self.transport.write(b"%b%bConnection: close\r\n\r\n%b" % (head, again, body))
        self.transport.close()


def limited_protocol(header_timeout_s: float, connections_each: int = CONNECTIONS) -> type[LimitedProtocol]:
    """Return the protocol for uvicorn's `http=`: seconds for the head of a request, and connections of an address."""
    bounds = {"header_timeout_s": header_timeout_s, "connections_each": connections_each, "clients": {}}
    return type("LimitedProtocol", (LimitedProtocol,), bounds)
