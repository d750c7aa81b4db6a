"""HTTP/1.1 as uvicorn speaks it, with bounds on what a request's head may be and on how long it may take.

Whenever a connection waits for a request, a timer runs: uvicorn's keep-alive between two requests, ours from the
connection's start, or from a head's first byte, until the head is whole. One more runs while a client keeps sending a
body that was answered already. While the application reads a body, it keeps the time itself (`serfer.api.http.body`). A
client that does not read its answer, of which uvicorn keeps one at a time, is disconnected after as long.

No client has more than its share: connections of an address are bounded, but for those on which a trusted balancer
forwards; of the requests that it sends before earlier ones are answered (pipelining), few run at once, each after what
was written before it has left, and little is read ahead of them.

A client that ends its sending side after a whole request gets its answer (RFC 9112, section 9.6). Whether it has closed
the connection shows only when something is sent to it, so until then it gets `100 Continue` now and again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from serfer.api.http.problems import MEDIA_TYPE
from serfer.api.requests import network_of

MOST_HEADERS = 100
MOST_HEAD = 16 * 1024  # bytes, where uvicorn's configuration says nothing (h11_max_incomplete_event_size)
CONNECTIONS = 512  # of an address, where nothing else is said
_PIPELINED = 4  # requests of an address that run at once although they came before earlier ones were answered
_READ_AHEAD = 64 * 1024  # bytes of such requests that a connection keeps
_LEAST_READ = 16 * 1024  # bytes of an answer that a client has to take in `header_timeout_s`
_VERSIONS = (b"1.0", b"1.1")
_TOO_MANY = (
    "your address has the {most} connections that it may have here (SERFER_API_CLIENT_CONNECTIONS): close some, or "
    "raise it"
)
_TOO_LARGE = f"the request's head is too large, or has more than {MOST_HEADERS} headers"
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\n[ \t]")  # a line's end without CR, a header that goes on in a second line
_URL = re.compile(rb"https?://((?:[\w.-]+|\[[\da-f.:]+\])(?::\d{0,5})?)(/.*|\?.*)?", re.IGNORECASE)
_BLANK_LINE = b"\r\n\r\n"
_ANSWERABLE = (h11.IDLE, h11.SEND_RESPONSE)
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)  # states of a client in which no whole request of it is being answered
_CONTINUE = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
_FIRST_PROBE_S, _PROBE_S = 0.05, 5.0  # after the end of a client's sending side; each time twice as long, at most


class _Connection(h11.Connection):
    """The states of one connection, which refuses large heads too where all of one arrives at once.

    What RFC 9112 lets a server take, and other servers read differently, is refused as well (sections 2.2, 5.2, 6.1).
    `refusal` is the status of the last error: 431 or 400 (h11 would say 501 to other transfer codings, as if it were
    the server's fault).
    """

    def __init__(self, most_head: int) -> None:
        super().__init__(h11.SERVER, most_head)
        self._most_head = most_head
        self._recent = b""  # what h11 has not parsed, and a few bytes before it at least
        self._chunked = False
        self.refusal = HTTPStatus.BAD_REQUEST

    def receive_data(self, data: bytes) -> None:
        unread = len(self.trailing_data[0])  # later requests, which h11 keeps until this one is answered
        self._recent = self._recent[-unread - len(_BLANK_LINE) :] + data
        super().receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        try:
            head = self.trailing_data[0] if self.their_state is h11.IDLE else b""
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_lines(head[: len(head) - len(self.trailing_data[0])])
                _check_head(event, self._most_head)
                event = _origin_form(event)
                self._chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
            elif isinstance(event, h11.EndOfMessage):
                received, self._recent = self._recent, self.trailing_data[0]
                if self._chunked:
                    _check_end(received[: len(received) - len(self._recent)])
                _check_size(event.headers, self._most_head)
        except h11.RemoteProtocolError as error:
            large = error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self.refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE if large else HTTPStatus.BAD_REQUEST
            raise
        return event


def _check_lines(head: bytes) -> None:
    """Refuse a head whose lines two servers may part differently; h11 itself takes bare line feeds and folded lines."""
    if _AMBIGUOUS.search(head):
        raise h11.RemoteProtocolError("a line of the head ends without CR LF, or is folded")


def _check_end(received: bytes) -> None:
    """Refuse chunks whose end two servers may see in different places: h11 takes a bare line feed for a blank line."""
    if not received.endswith(_BLANK_LINE):
        raise h11.RemoteProtocolError("the chunks do not end in CR LF CR LF")


def _check_size(headers: Iterable[tuple[bytes, bytes]], most: int) -> None:
    sizes = [len(name) + len(value) for name, value in headers]
    if len(sizes) > MOST_HEADERS or sum(sizes) > most:
        raise h11.RemoteProtocolError(_TOO_LARGE, error_status_hint=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)


def _check_head(request: h11.Request, most: int) -> None:
    """Refuse many or large headers, no HTTP/1, and a body of two lengths, which two servers may read differently."""
    _check_size(request.headers, most - len(request.target))
    if request.http_version not in _VERSIONS:
        raise h11.RemoteProtocolError("another version of HTTP")
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
        raise h11.RemoteProtocolError("Transfer-Encoding beside Content-Length, or in HTTP/1.0")


def _origin_form(request: h11.Request) -> h11.Request:
    """Return a request for a path; the host in a URL is the one meant, whatever Host says (RFC 9112, section 3.2.2)."""
    if request.target.startswith(b"/") or request.target == b"*":
        return request
    url = _URL.fullmatch(request.target)
    if url is None:
        raise h11.RemoteProtocolError("the target is neither a path nor a URL")
    path = url[2] or b"/"
    return h11.Request(
        method=request.method,
        target=path if path.startswith(b"/") else b"/" + path,
        headers=[(b"host", url[1]), *((name, value) for name, value in request.headers if name != b"host")],
        http_version=request.http_version,
    )


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
            self.connections = {
                known for known in self.connections if not known.scope or known.scope["client"] == known.client
            }
        return len(self.connections) >= most


class _Flow(FlowControl):
    """uvicorn's, which reads no further while more than enough of later requests is there."""

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        super().__init__(transport)
        self._conn = conn

    def resume_reading(self) -> None:
        if self._conn.their_state in _INCOMPLETE or len(self._conn.trailing_data[0]) < _READ_AHEAD:
            super().resume_reading()


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with those bounds; `header_timeout_s` is seconds, `connections_each` of an address.

    `clients` are the addresses by what they share (serfer.api.requests.network_of).
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
        super().__init__(config, server_state, app_state, _loop)
        self.conn: _Connection = _Connection(config.h11_max_incomplete_event_size or MOST_HEAD)
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None  # runs while the client takes an answer
        self._ended = False  # the client sends nothing more
        self._held = False  # the next request waits until what was written has left

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.conn)
        self._network = network_of(self.client[0] if self.client else "")
        self._shared = self.clients.setdefault(self._network, _Client())
        if self._shared.is_full(self.connections_each):
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS, _TOO_MANY.format(most=self.connections_each))
            return
        self._shared.connections.add(self)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open, which is until what was sent as a whole is answered."""
        answered = self.cycle is None or self.cycle.response_complete
        if self.conn.their_state in _INCOMPLETE or (answered and not self.conn.trailing_data[0]):
            return False
        if not self._ended and self.conn.their_http_version != b"1.0":  # which knows no 100
            self._probe(_FIRST_PROBE_S)
        self._ended = True
        return True

    def _probe(self, after_s: float) -> None:
        """Send what a client that is there ignores; a later one fails once the system of one that is not says so."""
        if not self.transport.is_closing():
            if self.conn.our_state is h11.SEND_RESPONSE:
                self.transport.write(self.conn.send(_CONTINUE))
            self.loop.call_later(after_s, self._probe, min(2 * after_s, _PROBE_S))

    def on_response_complete(self) -> None:
        """Go on with the next request, at once only where the client waited for this answer, and has taken it."""
        self._shared.end(self)
        self._held = self.flow.write_paused and not self.transport.is_closing()
        if self._held:
            self.flow.pause_reading()
        elif self.conn.trailing_data[0] and self.conn.their_state is h11.DONE:
            self._shared.wait(self)
        else:
            self.go_on()

    def go_on(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._shared.end(self)  # its next request is not whole
        if self._ended and self.conn.their_state in _INCOMPLETE:
            self.transport.close()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        self._stop_reading()
        super().resume_writing()
        if self._held:
            self.on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_reading()
        self._held = False
        super().connection_lost(exc)
        self._shared.connections.discard(self)
        self._shared.end(self)
        if not self._shared.connections and self.clients.get(self._network) is self._shared:
            del self.clients[self._network]

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, with a reason, where an answer has not begun; then close."""
        self._refuse(self.conn.refusal, msg if self.conn.refusal == HTTPStatus.BAD_REQUEST else _TOO_LARGE)

    def _watch(self) -> None:
        """Run the timer exactly while a peer keeps the server waiting and no other timer runs."""
        answered = self.cycle is not None and self.cycle.response_complete
        waiting = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        ignored = self.conn.their_state is h11.SEND_BODY and answered
        if self.transport.is_closing() or not (waiting or ignored):
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.header_timeout_s, self._give_up)

    def _watch_reading(self) -> None:
        before = self.transport.get_write_buffer_size()

        def look() -> None:
            if before - self.transport.get_write_buffer_size() < _LEAST_READ:
                self.transport.abort()
            else:
                self._watch_reading()

        self._reading = self.loop.call_later(self.header_timeout_s, look)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        """Close a connection that kept the server waiting; one that has sent part of a head gets the reason."""
        self._timer = None
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"no whole request within {self.header_timeout_s:g} s")
        else:
            self.transport.close()

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # whatever the application still says, the answer is this one
        if self.conn.our_state in _ANSWERABLE:
            self.transport.write(_answer(self.conn, status, detail))
        self.transport.close()


def _answer(conn: h11.Connection, status: HTTPStatus, detail: str) -> bytes:
    problem = {"title": status.phrase, "status": status.value, "detail": detail}
    body = json.dumps(problem).encode()
    headers = [("Content-Type", MEDIA_TYPE), ("Content-Length", str(len(body))), ("Connection", "close")]
    headers += [("Retry-After", "1")] if status is HTTPStatus.TOO_MANY_REQUESTS else []
    response = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
    return b"".join(conn.send(event) or b"" for event in (response, h11.Data(data=body), h11.EndOfMessage()))


def limited_protocol(header_timeout_s: float, connections_each: int = CONNECTIONS) -> type[H11Protocol]:
    """Return the protocol for uvicorn's `http=`: seconds for the head of a request, and connections of an address."""
    bounds = {"header_timeout_s": header_timeout_s, "connections_each": connections_each, "clients": {}}
    return type("LimitedProtocol", (LimitedProtocol,), bounds)
