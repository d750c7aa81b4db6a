"""RESP2 and connections of our own, for workers, a fifth of whose first answer redis-py's import would take.

A `RespPool` has what a RedisNode uses of redis-py's pools and connections, and raises redis-py's exceptions, whose
module imports nothing (docs/adr/0045-redis-py-but-in-workers.md).
"""

import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from redis.exceptions import AskError, InvalidResponse, MovedError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

if TYPE_CHECKING:
    from ssl import SSLContext

_READ_BYTES = 1 << 18
_ONE_SEND = 64 * 1024  # bytes up to which a copy is cheaper than a system call for each part (measured: 15 us)
_LONGEST_LINE = 64 * 1024
_MOST_BYTES = 1 << 29  # of a value: the server's own limit
_MOST_ITEMS = 1 << 20
_DEEPEST = 8  # lists in lists
_SHOWN = 120
_CLOSED = "Connection closed by server."
_REDIRECTIONS = {"ASK": AskError, "MOVED": MovedError}

Buffer = bytes | bytearray | memoryview
Argument = str | int | float | Buffer


class RespPool:
    """As many connections as threads use at once: an environment runs one task at a time."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._idle: list[RespConnection] = []

    def get_connection(self) -> "RespConnection":
        """Return a connection that is ready, for `release`; raises RedisError where there is none."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = RespConnection(**self._options)
        connection.connect()
        return connection

    def release(self, connection: "RespConnection") -> None:
        self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().disconnect()


class RespConnection:
    """A connection to a server: opened by `connect`, and again after `disconnect`.

    Times are in seconds. `login` returns what AUTH takes: a password, perhaps after a user's name.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        db: int = 0,
        login: Callable[[], Sequence[str]] | None = None,
        tls: "SSLContext | None" = None,
        socket_timeout: float | None = None,
        socket_connect_timeout: float | None = None,
    ) -> None:
        self._host, self._port, self._db = host, port, db
        self._login, self._tls = login, tls
        self._timeout, self._connect_timeout = socket_timeout, socket_connect_timeout
        self._socket: socket.socket | None = None
        self._file: Any = None

    def connect(self) -> None:
        """Connect and log in, unless a usable connection is open."""
        if self._socket is not None and _is_quiet(self._socket):
            return
        self.disconnect()
        try:
            self._socket = self._open()
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout connecting to server") from error
        except OSError as error:
            raise RedisConnectionError(str(error)) from error
        self._socket.settimeout(self._timeout)
        self._file = self._socket.makefile("rb", _READ_BYTES)
        try:
            if self._login:
                self._command("AUTH", *self._login())
            if self._db:
                self._command("SELECT", self._db)
        except BaseException:
            self.disconnect()
            raise

    def pack_commands(self, commands: Sequence[Sequence[Argument]]) -> list[Buffer]:
        """Return the bytes of commands, in parts: a value above 64 KB, a memoryview of single bytes, is not copied."""
        parts: list[Buffer] = []
        small: list[Buffer] = []
        for command in commands:
            small.append(b"*%d\r\n" % len(command))
            for argument in command:
                data = str(argument).encode() if isinstance(argument, str | int | float) else argument
                small.append(b"$%d\r\n" % len(data))
                if len(data) > _ONE_SEND:
                    parts += [b"".join(small), data]
                    small = [b"\r\n"]
                else:
                    small += (data, b"\r\n")
        return [*parts, b"".join(small)]

    def send_packed_command(self, parts: Sequence[Buffer], *, check_health: bool = False) -> None:  # noqa: ARG002
        """Send packed commands; raises RedisError. Health is never checked."""
        opened = self._socket
        if opened is None:
            raise RedisConnectionError(_CLOSED)
        try:
            for part in parts:
                opened.sendall(part)
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout writing to socket") from error
        except OSError as error:
            raise RedisConnectionError("Error while writing to socket") from error

    def read_response(self, *, disable_decoding: bool = True) -> Any:  # noqa: ANN401, ARG002 - what RESP2 has, undecoded
        """Read the reply to a command; raises RedisError, ResponseError for a refusal."""
        try:
            return read_reply(self._file)
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout reading from server") from error
        except OSError as error:
            raise RedisConnectionError("Error while reading from server") from error

    def disconnect(self) -> None:
        opened, self._socket, self._file = (self._file, self._socket), None, None
        for connection in opened:
            with suppress(OSError):
                if connection is not None:
                    connection.close()

    def _open(self) -> socket.socket:
        host: Any = self._host.encode() if self._host.isascii() else self._host  # text is looked up in IDNA's tables
        opened = socket.create_connection((host, self._port), self._connect_timeout)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return opened
        try:
            return self._tls.wrap_socket(opened, server_hostname=self._host)
        except OSError:
            opened.close()
            raise

    def _command(self, *command: Argument) -> None:
        self.send_packed_command(self.pack_commands([command]))
        self.read_response()


def read_reply(file: BinaryIO, deepest: int = _DEEPEST) -> Any:  # noqa: ANN401 - bytes, a number, None, or their lists
    """Read a reply; one of errors inside a list is an item of it.

    Raises:
        ResponseError: what the server refuses with.
        InvalidResponse: these are not bytes of a reply.
        redis.exceptions.ConnectionError: they end before it does.
    """
    line = _line(file)
    kind, rest = line[:1], line[1:]
    if kind == b"$":
        return _bulk(file, _size(line, _MOST_BYTES))
    if kind == b":":
        return _number(line)
    if kind == b"+":
        return rest
    if kind == b"*" and deepest:
        size = _size(line, _MOST_ITEMS)
        return None if size < 0 else [_item(file, deepest - 1) for _ in range(size)]
    if kind == b"-":
        raise _refusal(rest.decode(errors="replace"))
    raise _invalid(line)


def _is_quiet(opened: socket.socket) -> bool:
    poll = select.poll()
    poll.register(opened, select.POLLIN)
    return not poll.poll(0)


def _item(file: BinaryIO, deepest: int) -> Any:  # noqa: ANN401 - as a reply
    try:
        return read_reply(file, deepest)
    except ResponseError as refusal:
        return refusal


def _line(file: BinaryIO) -> bytes:
    line = file.readline(_LONGEST_LINE)
    if line.endswith(b"\r\n"):
        return line[:-2]
    if line.endswith(b"\n") or len(line) == _LONGEST_LINE:
        raise _invalid(line)
    raise RedisConnectionError(_CLOSED)


def _bulk(file: BinaryIO, size: int) -> bytes | None:
    if size < 0:
        return None
    data, end = file.read(size), file.read(2)
    if end != b"\r\n":
        raise RedisConnectionError(_CLOSED) if len(end) < len(b"\r\n") else _invalid(end)
    return data


def _size(line: bytes, most: int) -> int:
    if not -1 <= (size := _number(line)) <= most:
        raise _invalid(line)
    return size


def _number(line: bytes) -> int:
    try:
        return int(line[1:])
    except ValueError:
        raise _invalid(line) from None


def _invalid(line: bytes) -> InvalidResponse:
    return InvalidResponse(f"Protocol Error: {line[:_SHOWN]!r}")


def _refusal(text: str) -> RedisError:
    code, _, rest = text.partition(" ")
    try:
        return _REDIRECTIONS[code](rest) if code in _REDIRECTIONS else ResponseError(text)
    except ValueError:  # a redirection without an address
        return InvalidResponse(f"Protocol Error: {text[:_SHOWN]!r}")
