"""RESP2 over connections of our own (docs/adr/0072-one-redis-client-of-our-own.md)."""

import os
import select
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from weakref import WeakSet

from serfer.storage.redis.errors import (
    CLOSED,
    NO_CONNECTION,
    RedirectionError,
    RedisError,
    ResponseError,
    failure,
    invalid,
)

if TYPE_CHECKING:
    from ssl import SSLContext

_READ_BYTES = 1 << 18
_ONE_SEND = 64 * 1024  # bytes up to which a copy is cheaper than a system call for each part (measured: 15 us)
_WRITTEN: Final = (str, int, float)
_LONGEST_LINE = 64 * 1024
_MOST_BYTES = 1 << 29  # of a value: the server's own limit
_MOST_ITEMS = 1 << 20
_DEEPEST = 8  # lists in lists
_KEEPALIVE = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}  # seconds, seconds, probes: where the system has them

Buffer = bytes | bytearray | memoryview
Argument = str | int | float | Buffer

_pools: "WeakSet[RespPool]" = WeakSet()


class RespPool:
    """Connections to a server, for any number of threads.

    At most `max_connections` are in use; a caller waits `timeout` s for a free one. With `unbounded` there is one for
    each caller at once. A process that is forked begins without its parent's.
    """

    def __init__(self, options: dict[str, Any], *, unbounded: bool = False) -> None:
        self._options = {name: value for name, value in options.items() if name not in {"max_connections", "timeout"}}
        self._limit = sys.maxsize if unbounded else options["max_connections"]
        self._timeout = options["timeout"]
        self._idle: list[RespConnection] = []
        self.forget()
        _pools.add(self)

    def forget(self) -> None:
        """Close this process's ends of idle connections, and no longer count those in use: they are another's."""
        for connection in self._idle:
            connection.disconnect()
        self._free = Condition(Lock())  # a thread that the fork does not have may hold the former
        self._idle = []
        self._in_use: dict[RespConnection, bool] = {}  # and whether it stays open

    def take(self) -> "RespConnection":
        """Return a connection that is ready, for `release`; raises RedisError where there is none."""
        with self._free:
            if not self._free.wait_for(lambda: len(self._in_use) < self._limit, self._timeout):
                raise RedisError(NO_CONNECTION)
            connection = self._idle.pop() if self._idle else RespConnection(**self._options)
            self._in_use[connection] = True
        try:
            connection.connect()
        except BaseException:
            self.release(connection)
            raise
        return connection

    def release(self, connection: "RespConnection") -> None:
        with self._free:
            stays = self._in_use.pop(connection, None)  # None: taken before this process was forked
            if not stays:
                connection.disconnect()
            if stays is not None:
                self._idle.append(connection)
                self._free.notify()

    def close(self) -> None:
        """Close idle connections now, those in use when they are released; others are opened when needed."""
        with self._free:
            for connection in self._idle:
                connection.disconnect()
            self._in_use = dict.fromkeys(self._in_use, False)


def _forget_parents() -> None:
    for pool in _pools:
        pool.forget()


os.register_at_fork(after_in_child=_forget_parents)


@dataclass(eq=False, kw_only=True)
class RespConnection:
    """A connection to a server: opened by `connect`, and again after `disconnect`.

    Times are in seconds. `login` returns what AUTH takes: a password, perhaps after a user's name.
    """

    host: str
    port: int
    db: int = 0
    login: Callable[[], Sequence[str]] | None = field(default=None, repr=False)
    tls: "SSLContext | None" = None
    socket_timeout: float | None = None
    socket_connect_timeout: float | None = None
    _socket: Any = field(default=None, init=False)
    _file: Any = field(default=None, init=False)

    def connect(self) -> None:
        """Connect and log in, unless a usable connection is open."""
        if self._socket is not None and _is_quiet(self._socket):
            return
        self.disconnect()
        try:
            self._socket = self._open()
        except (OSError, ValueError, OverflowError) as error:  # the latter two: no name or port of a host
            raise RedisError(failure(error, "connecting")) from error
        self._socket.settimeout(self.socket_timeout)
        self._file = self._socket.makefile("rb", _READ_BYTES)
        try:
            if self.login:
                self._command("AUTH", *self.login())
            if self.db:
                self._command("SELECT", self.db)
        except BaseException:
            self.disconnect()
            raise

    def send(self, commands: Sequence[Sequence[Argument]]) -> None:
        """Send commands together; raises RedisError, the server's own where it has said one before it hung up."""
        try:
            for part in pack(commands):
                self._socket.sendall(part)
        except OSError as error:
            refusal = self._last_words() if isinstance(error, ConnectionError) else None
            raise refusal or RedisError(failure(error, "writing")) from error

    def read(self) -> Any:  # noqa: ANN401 - what RESP2 has, undecoded
        """Read the reply to a command, which may be a ResponseError; raises RedisError."""
        try:
            return read_reply(self._file)
        except OSError as error:
            raise RedisError(failure(error, "reading")) from error

    def disconnect(self) -> None:
        opened, self._socket, self._file = (self._file, self._socket), None, None
        for connection in opened:
            with suppress(OSError):
                if connection is not None:
                    connection.close()

    def _open(self) -> socket.socket:
        host: Any = self.host.encode() if self.host.isascii() else self.host  # text is looked up in IDNA's tables
        opened = socket.create_connection((host, self.port), self.socket_connect_timeout)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if option := getattr(socket, name, None):
                    opened.setsockopt(socket.IPPROTO_TCP, option, value)
            return self.tls.wrap_socket(opened, server_hostname=self.host) if self.tls else opened
        except BaseException:
            opened.close()
            raise

    def _command(self, *command: Argument) -> None:
        self.send([command])
        if isinstance(reply := self.read(), ResponseError):
            raise reply

    def _last_words(self) -> ResponseError | None:
        with suppress(OSError, RedisError):
            reply = read_reply(self._file)
            return reply if isinstance(reply, ResponseError) else None
        return None


def pack(commands: Sequence[Sequence[Argument]]) -> list[Buffer]:
    """Return the bytes of commands, in parts: a value above 64 KB, a memoryview of single bytes, is not copied."""
    parts: list[Buffer] = []
    small: list[Buffer] = []
    for command in commands:
        small.append(b"*%d\r\n" % len(command))
        for argument in command:
            data = str(argument).encode() if isinstance(argument, _WRITTEN) else argument
            small.append(b"$%d\r\n" % len(data))
            if len(data) > _ONE_SEND:
                parts += [b"".join(small), data]
                small = [b"\r\n"]
            else:
                small += (data, b"\r\n")
    return [*parts, b"".join(small)]


def read_reply(file: BinaryIO, deepest: int = _DEEPEST) -> Any:  # noqa: ANN401 - bytes, a number, None, or their lists
    """Read a reply; what the server refuses with is a ResponseError that is returned.

    Raises:
        RedisError: these are not bytes of a reply, or they end before it does.
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
        return None if size < 0 else [read_reply(file, deepest - 1) for _ in range(size)]
    if kind == b"-":
        return _refusal(line)
    raise invalid(line)


def _is_quiet(opened: socket.socket) -> bool:
    poll = select.poll()
    poll.register(opened, select.POLLIN)
    return not poll.poll(0)


def _line(file: BinaryIO) -> bytes:
    line = file.readline(_LONGEST_LINE)
    if line.endswith(b"\r\n"):
        return line[:-2]
    if line.endswith(b"\n") or len(line) == _LONGEST_LINE:
        raise invalid(line)
    raise RedisError(CLOSED)


def _bulk(file: BinaryIO, size: int) -> bytes | None:
    if size < 0:
        return None
    data, end = file.read(size), file.read(2)
    if end != b"\r\n":
        raise RedisError(CLOSED) if len(end) < len(b"\r\n") else invalid(end)
    return data


def _size(line: bytes, most: int) -> int:
    if not -1 <= (size := _number(line)) <= most:
        raise invalid(line)
    return size


def _number(line: bytes) -> int:
    try:
        return int(line[1:])
    except ValueError:
        raise invalid(line) from None


def _refusal(line: bytes) -> ResponseError:
    text = line[1:].decode(errors="replace")
    if text.partition(" ")[0] not in {"ASK", "MOVED"}:
        return ResponseError(text)
    try:
        return RedirectionError(text)
    except ValueError:
        raise invalid(line) from None
