"""Connections to a Redis server, and a pool of them.

Not redis-py's: importing those took a sixth of the processor time of a worker's cold start
(docs/adr/0024-redis-commands-over-pooled-connections.md). Exceptions are redis-py's, whose module imports nothing.
"""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from storage.redis.resp import Argument, Buffer, packed, read_reply

_READ_BYTES = 1 << 18
Login = Callable[[], Sequence[str]]


class Connection:
    """A connection to a server: opened when first used, and again after `disconnect`.

    Times are in seconds. `login` returns what AUTH takes: a password, perhaps after a user's name; nothing where there
    is no password.
    """

    UNREADY: tuple[type[OSError], ...] = (BlockingIOError,)
    """What reading raises at once where there is nothing to read."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        db: int = 0,
        login: Login | None = None,
        socket_timeout: float | None = None,
        socket_connect_timeout: float | None = None,
    ) -> None:
        self.host, self.port = host, port
        self._db = db
        self._login = login
        self._timeout = socket_timeout
        self.connect_timeout = socket_connect_timeout
        self._socket: socket.socket | None = None
        self._file: Any = None

    def make_ready(self) -> None:
        """Connect and log in, unless a usable connection is open.

        Raises RedisError: the server cannot be reached, or refuses the login.
        """
        if self._socket is not None and self._is_quiet(self._socket):
            return
        self.disconnect()
        try:
            self._socket = self.open_socket()
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout connecting to server") from error
        except OSError as error:
            raise RedisConnectionError(str(error)) from error
        self._socket.settimeout(self._timeout)
        self._file = self._socket.makefile("rb", _READ_BYTES)
        if self._login and (login := self._login()):
            self._command("AUTH", *login)
        if self._db:
            self._command("SELECT", self._db)

    def send(self, commands: Sequence[Sequence[Argument]]) -> None:
        """Send commands; raises RedisError."""
        self._send(packed(commands))

    def read(self) -> Any:  # noqa: ANN401 - bytes, a number, None, or a list of these
        """Read the reply to a command; raises RedisError, ResponseError for a refusal."""
        try:
            return read_reply(self._file)
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout reading from server") from error
        except OSError as error:
            raise RedisConnectionError("Error while reading from server") from error

    def disconnect(self) -> None:
        """Close the connection, if it is open; the server may have done so."""
        opened, self._socket, self._file = (self._file, self._socket), None, None
        for one in opened:
            with suppress(OSError):
                if one is not None:
                    one.close()

    def open_socket(self) -> socket.socket:
        """Return a new connection's socket, whose timeouts are of `connect_timeout`; raises OSError."""
        host: Any = self.host.encode() if self.host.isascii() else self.host  # text is looked up in IDNA's tables
        opened = socket.create_connection((host, self.port), self.connect_timeout)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def _is_quiet(self, opened: socket.socket) -> bool:
        """Return whether there is nothing to read: what a server says unasked is that it has closed."""
        opened.settimeout(0)
        try:
            opened.recv(1)
        except self.UNREADY:
            return True
        except OSError:
            return False
        finally:
            opened.settimeout(self._timeout)
        return False

    def _command(self, *command: Argument) -> None:
        self.send([command])
        self.read()

    def _send(self, parts: Sequence[Buffer]) -> None:
        opened = self._socket
        if opened is None:
            raise RedisConnectionError("Connection closed.")
        try:
            for part in parts:
                opened.sendall(part)
        except TimeoutError as error:
            raise RedisTimeoutError("Timeout writing to socket") from error
        except OSError as error:
            raise RedisConnectionError("Error while writing to socket") from error


class ConnectionPool:
    """At most `most` connections, any number for None; a caller waits `timeout` s for a free one."""

    def __init__(self, make: Callable[[], Connection], most: int | None = None, timeout: float | None = None) -> None:
        self._make = make
        self._most = most
        self._timeout = timeout
        self._begin()

    def acquire(self) -> Connection:
        """Return a connection that is ready, for `release`; raises RedisError where there is none."""
        if self._process != os.getpid():  # a fork: what is open is the parent's
            self._begin()
        with self._changed:
            if not self._changed.wait_for(self._has_room, self._timeout):
                raise RedisConnectionError("No connection available.")
            if not self.idle:
                self.idle.append(self._make())
                self.connections.append(self.idle[-1])
            connection = self.idle.pop()
        try:
            connection.make_ready()
        except BaseException:
            connection.disconnect()
            self.release(connection)
            raise
        return connection

    def release(self, connection: Connection) -> None:
        """Take a connection back, to be used again or, if the pool was closed meanwhile, disconnected."""
        with self._changed:
            kept = connection in self.connections
            if kept:
                self.idle.append(connection)
                self._changed.notify()
        if not kept:
            connection.disconnect()

    def close(self) -> None:
        """Disconnect what is idle now, and what is in use when it is released; a later call connects again."""
        with self._changed:
            idle = self.idle
            self._forget()
            self._changed.notify_all()
        for connection in idle:
            connection.disconnect()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = Condition()
        self._forget()

    def _forget(self) -> None:
        self.connections: list[Connection] = []
        self.idle: list[Connection] = []

    def _has_room(self) -> bool:
        return bool(self.idle) or self._most is None or len(self.connections) < self._most
