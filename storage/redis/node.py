"""One Redis server: a pool of connections, and batches of commands over one of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from redis.exceptions import RedisError, ResponseError

from serfer.core.errors import ValueTooLargeError
from storage.redis.connection import Connection, ConnectionPool
from storage.redis.errors import explained

_MAX_VALUE = 512 * 1024 * 1024  # the server's own limit (proto-max-bulk-len)

Command: TypeAlias = tuple[Any, ...]


class RedisNode:
    """Sends commands together, without MULTI, and reads their replies: one round trip.

    redis-py's clients would take more processor time, for each command and for a worker's imports
    (docs/adr/0024-redis-commands-over-pooled-connections.md), and their retries hide a lost server.

    A pool's bound keeps callers waiting for a free connection. Where commands block, `unbounded` gives each caller one.
    """

    def __init__(self, options: dict[str, Any], kind: str = "", *, unbounded: bool = False) -> None:
        rest = dict(options)
        most, timeout = rest.pop("max_connections"), rest.pop("timeout")
        make: Callable[[], Connection] = partial(rest.pop("connection_class", Connection), **rest)
        self._pool = ConnectionPool(make) if unbounded else ConnectionPool(make, most, timeout)
        self.host = options["host"]
        self._where = f"{options['host']}:{options['port']}{kind}"

    @contextmanager
    def sent(self, commands: Sequence[Command]) -> Iterator[Callable[[], list[Any]]]:
        """Send commands; the body calls what it gets, once, to read the replies, refusals as ResponseErrors.

        Raises:
            StoreUnavailableError: the server cannot be reached, or refuses every command.
        """
        with self._explaining(commands):
            connection = self._pool.acquire()
        try:
            with self._explaining(commands):
                connection.send(commands)
            yield lambda: self._read(connection, commands)
        except BaseException:
            connection.disconnect()  # replies may still be on their way
            raise
        finally:
            self._pool.release(connection)

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and return their replies in order; the first refusal is raised as `refusal` makes it."""
        with self.sent(commands) as read:
            replies = read()
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ResponseError):
                raise self.refusal(reply, command)
        return replies

    def refusal(self, reply: ResponseError, command: Command) -> Exception:
        """Return the project's error for what the server has answered to a command."""
        return explained(reply, self._where, command[0])

    def close(self) -> None:
        """Disconnect; a later call connects again. A command that blocks goes on, then its connection is closed."""
        self._pool.close()

    def _read(self, connection: Connection, commands: Sequence[Command]) -> list[Any]:
        with self._explaining(commands):
            return [_reply(connection) for _ in commands]

    @contextmanager
    def _explaining(self, commands: Sequence[Command]) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            raise explained(error, self._where, commands[0][0]) from error


def _reply(connection: Connection) -> Any:  # noqa: ANN401  whatever the protocol carries
    try:
        return connection.read()
    except ResponseError as refusal:
        return refusal


def check_size(key: str, size: int) -> None:
    """Refuse a value that no server takes; raises ValueTooLargeError."""
    if size > _MAX_VALUE:
        raise ValueTooLargeError(f"value under {key!r} has {size} bytes: Redis takes at most {_MAX_VALUE}")


def milliseconds(ttl: float) -> int:
    """Return a time to live as PX takes it."""
    return max(1, round(ttl * 1000))
