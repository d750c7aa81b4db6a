"""A lean HTTP/1.1 server: one protocol per connection, one callback per request, no task and no routing on the way.

The Invoke API and every environment's Runtime API stand on it; serfer/core/http1.py reads. A warm invoke costs three
requests, so what one costs matters: with aiohttp's `web.Server` a query of one function took 1.17 times as long.
"""

from __future__ import annotations

import asyncio
import re
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING

from serfer.core.http1 import Head, Refusal, RequestReader
from serfer.local.acceptor import Acceptor
from serfer.local.lambda_.socket_owner import is_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HEAD_LIMIT = 65536  # bytes of a request's line and headers
_LOCAL_HOST = re.compile(rb"(127\.0\.0\.1|localhost|\[::1\])?(:\d{1,5})?")
_PIPELINE_LIMIT = 1 << 20  # bytes read ahead of the request that is being answered
_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class Exchange:
    """One request and its reply to come; `oversize` requests carry no body."""

    __slots__ = ("_connection", "_headers", "_sent", "body", "length", "method", "oversize", "target")

    def __init__(self, connection: _Connection, head: Head) -> None:
        self._connection = connection
        self._sent = head.sent
        self._headers: dict[str, str] | None = None
        self.method = head.method.decode("ascii")
        self.target = head.target.decode("ascii")
        self.length = int(head.sent.get(b"content-length", 0))
        self.oversize = False
        self.body = b""

    @property
    def headers(self) -> dict[str, str]:
        """Headers by their names, which are in lower case."""
        if self._headers is None:  # two requests of three need none
            self._headers = {name.decode("ascii"): value.decode("latin-1") for name, value in self._sent.items()}
        return self._headers

    def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send the answer, head and body in one write; a client that is gone is not an error."""
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]) if headers else ""
        length = "" if status == HTTPStatus.NO_CONTENT else f"Content-Length: {len(body)}\r\n"
        self._connection.send(f"{_STATUS[status]}{fields}{length}\r\n".encode("latin-1") + body, self)


class HttpServer:
    """A listening socket and its connections; `handle` gets each request, `limit` says how long its body may be.

    With `ours_only`, it drops the connections of other users' processes.
    """

    def __init__(
        self, handle: Callable[[Exchange], None], limit: Callable[[Exchange], int], *, ours_only: bool = False
    ) -> None:
        self.handle = handle
        self.limit = limit
        self.ours_only = ours_only
        self.connections: set[_Connection] = set()
        self._acceptor: Acceptor | None = None
        self.open = True

    def listen(self, host: str, port: int = 0) -> int:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
        self._acceptor = Acceptor(listener, lambda: _Connection(self))
        return int(listener.getsockname()[1])

    def close(self) -> None:
        self.open = False
        if self._acceptor is not None:
            self._acceptor.close()
        for connection in list(self.connections):
            connection.abort()


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._reader = RequestReader(HEAD_LIMIT)
        self._exchange: Exchange | None = None  # that is read, or to be answered
        self._body: list[bytes] = []
        self._last = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # typed too widely
        self._transport = transport
        self._server.connections.add(self)
        if not self._server.open or (self._server.ours_only and not self._is_ours()):
            transport.abort()

    def _is_ours(self) -> bool:
        ends = (self._transport.get_extra_info("peername"), self._transport.get_extra_info("sockname"))
        try:
            return all(ends) and is_ours(*ends)
        except OSError:  # no descriptor left to look it up with
            return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._server.connections.discard(self)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.unread = reader.unread + data if reader.unread else data
        if not reader.whole:
            self._read()
        elif len(reader.unread) > _PIPELINE_LIMIT:
            self._transport.pause_reading()

    def send(self, reply: bytes, exchange: Exchange) -> None:
        """Write one whole reply and continue with the next request."""
        if self._exchange is not exchange or self._transport.is_closing():
            return
        self._transport.write(reply)
        self._exchange = None
        if self._last:
            self._transport.close()
        elif self._reader.whole:
            self._go_on()

    def _read(self) -> None:
        """Read on, to the end of a request, and have it handled; one that is too large at the end of its head."""
        reader = self._reader
        if reader.whole or self._transport.is_closing():
            return
        try:
            head = reader.read_head() if reader.in_head else None
            exchange = self._begin(head) if head else self._exchange
            if not (reader.in_head or reader.whole):
                self._body.append(reader.read_body())
        except Refusal as refusal:
            self._transport.write(f"{_STATUS[refusal.status]}Connection: close\r\nContent-Length: 0\r\n\r\n".encode())
            self._transport.close()
            return
        if exchange is None or exchange.oversize:
            self._body.clear()
        if exchange and (head if exchange.oversize else reader.whole):
            exchange.body = b"".join(self._body)
            self._body.clear()
            self._server.handle(exchange)
        elif exchange is None and reader.whole:
            self._go_on()

    def _begin(self, head: Head) -> Exchange:
        if b"origin" in head.sent or not _LOCAL_HOST.fullmatch(dict(head.headers).get(b"host", b"")):
            raise Refusal("this is a web page's, not an SDK's", HTTPStatus.FORBIDDEN)
        if b"transfer-encoding" in head.sent:
            raise Refusal("there is no Content-Length", HTTPStatus.LENGTH_REQUIRED)
        exchange = self._exchange = Exchange(self, head)
        exchange.oversize = exchange.length > self._server.limit(exchange)
        self._last = head.closes or (head.expects and exchange.oversize)
        if head.expects and not exchange.oversize:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return exchange

    def _go_on(self) -> None:
        self._reader.read_next()
        if self._reader.unread:
            self._transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._read)
