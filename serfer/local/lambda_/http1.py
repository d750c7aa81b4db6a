"""A lean HTTP/1.1 server: one protocol per connection, one callback per request, no task and no routing on the way.

The Invoke API and every environment's Runtime API stand on it. A warm invoke costs three requests, so what a request
costs matters: with aiohttp's `web.Server` in its place a query of one function took 1.17 times as long, of three 1.11.
"""

from __future__ import annotations

import asyncio
import re
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING

from serfer.local.acceptor import Acceptor
from serfer.local.lambda_.socket_owner import is_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HEAD_LIMIT = 65536  # bytes of a request's line and headers
_LOCAL_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])?(:\d{1,5})?", re.ASCII)
_PIPELINE_LIMIT = 1 << 20  # bytes read ahead of the request that is being answered
_BARE = re.compile(r"\r(?!\n)|(?<!\r)\n")  # an incomplete end of line
_STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class Exchange:
    """One request and its reply to come; `headers` have lower-case names, `oversize` requests carry no body."""

    __slots__ = ("_connection", "body", "headers", "length", "method", "oversize", "target")

    def __init__(self, connection: _Connection, method: str, target: str, headers: dict[str, str], length: int) -> None:
        self._connection = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.length = length
        self.oversize = False
        self.body = b""

    def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Send the answer, head and body in one write; a client that is gone is not an error."""
        lines = [_STATUS[status]]
        if headers:
            lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        lines.append("\r\n" if status == HTTPStatus.NO_CONTENT else f"Content-Length: {len(body)}\r\n\r\n")
        self._connection.send("".join(lines).encode("latin-1") + body, self)


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


class _RefusedError(Exception):
    """A head that we do not serve; the argument is the status."""


class _Connection(asyncio.Protocol):
    """One client: requests are parsed and answered one at a time, in order."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._reading: Exchange | None = None  # its head is read, its body is not
        self._answering: Exchange | None = None
        self._skip = 0  # bytes of a refused body still to come
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
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        self._buffer += data
        if self._answering is None:
            self._advance()
        elif len(self._buffer) > _PIPELINE_LIMIT:
            self._transport.pause_reading()

    def send(self, reply: bytes, exchange: Exchange) -> None:
        """Write one whole reply and continue with the next request."""
        if self._answering is not exchange or self._transport.is_closing():
            return
        self._transport.write(reply)
        self._answering = None
        if self._last:
            self._transport.close()
        elif self._buffer:
            self._transport.resume_reading()
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        if self._answering is not None or self._transport.is_closing():
            return
        try:
            exchange = self._reading or self._read_head()
        except _RefusedError as refusal:
            self._transport.write(f"{_STATUS[refusal.args[0]]}Connection: close\r\nContent-Length: 0\r\n\r\n".encode())
            self._transport.close()
            return
        if exchange is None:
            return
        if not exchange.oversize:
            if len(self._buffer) < exchange.length:
                self._reading = exchange
                return
            exchange.body = bytes(self._buffer[: exchange.length])
            del self._buffer[: exchange.length]
        self._reading = None
        self._answering = exchange
        self._server.handle(exchange)

    def _read_head(self) -> Exchange | None:
        """Parse a request's line and headers, if they are here; raises _RefusedError for what we do not serve."""
        end = self._buffer.find(b"\r\n\r\n", 0, HEAD_LIMIT)
        if end < 0:
            if len(self._buffer) >= HEAD_LIMIT:
                raise _RefusedError(431)
            return None
        exchange = self._parse(self._buffer[:end].decode("latin-1"))
        del self._buffer[: end + 4]
        if exchange.length > self._server.limit(exchange):
            exchange.oversize = True
            self._skip = max(0, exchange.length - len(self._buffer))
            del self._buffer[: exchange.length]
        if exchange.headers.get("expect", "").lower() == "100-continue":
            if exchange.oversize:
                self._last = True
            else:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return exchange

    def _parse(self, head: str) -> Exchange:
        first, *lines = head.split("\r\n")
        parts = first.split(" ")
        fields = [line.partition(":") for line in lines]
        if not all(colon for _, colon, _ in fields) or _BARE.search(head):
            raise _RefusedError(400)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        length = headers.get("content-length", "0")
        if len(parts) != 3 or not (length.isascii() and length.isdigit()):  # noqa: PLR2004 - method, target, version
            raise _RefusedError(400)
        if "origin" in headers or not _LOCAL_HOST.fullmatch(headers.get("host", "")):  # a web page's, not an SDK's
            raise _RefusedError(403)
        if "transfer-encoding" in headers:
            raise _RefusedError(411)
        self._last = parts[2] != "HTTP/1.1" or headers.get("connection", "").lower() == "close"
        return Exchange(self, parts[0], parts[1], headers, int(length))
