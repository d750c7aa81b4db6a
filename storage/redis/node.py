"""One Redis server: a pool of connections, and batches of commands over one of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from redis.connection import BlockingConnectionPool, ConnectionPool
from redis.exceptions import RedisError, ResponseError

from serfer.core.errors import UsageError, ValueTooLargeError
from storage.redis.errors import explained
from storage.redis.url import MALFORMED

_ONE_SEND = 64 * 1024  # bytes up to which a copy is cheaper than a system call for each part (measured: 15 us)
_UNBOUNDED = 1 << 31
_MAX_VALUE = 512 * 1024 * 1024  # the server's own limit (proto-max-bulk-len)

Command: TypeAlias = tuple[Any, ...]


class RedisNode:
    """Sends commands together, without MULTI, and reads their replies: one round trip.

    Commands go over the pool's connections without redis-py's client: its pipelines take 8 to 58% more processor time
    (docs/adr/0024-redis-commands-over-pooled-connections.md), and its retries hide a lost server.

    A pool's bound keeps callers waiting for a free connection. Where commands block, `unbounded` gives each caller one.
    """

    def __init__(self, options: dict[str, Any], kind: str = "", *, unbounded: bool = False) -> None:
        try:
            self._pool: Any = _unbounded(options) if unbounded else BlockingConnectionPool(**options)  # type: ignore[no-untyped-call]
            example = self._pool.connection_class(**self._pool.connection_kwargs)
            self.host = example.host
            self._where = f"{example.host}:{example.port}{kind}"
        except (ValueError, TypeError, RedisError):  # their messages quote parts of the URL, perhaps of its password
            raise UsageError(MALFORMED) from None

    @contextmanager
    def sent(self, commands: Sequence[Command]) -> Iterator[Callable[[], list[Any]]]:
        """Send commands; the body calls what it gets, once, to read the replies, refusals as ResponseErrors.

        Raises:
            StoreUnavailableError: the server cannot be reached, or refuses every command.
        """
        with self._explaining(commands):
            connection = self._pool.get_connection()
        try:
            with self._explaining(commands):
                packed = connection.pack_commands(commands)
                if sum(map(len, packed)) <= _ONE_SEND:
                    packed = [b"".join(packed)]
                connection.send_packed_command(packed)
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
        if isinstance(self._pool, BlockingConnectionPool):
            self._pool.disconnect()
        else:
            self._pool.update_active_connections_for_reconnect()
            self._pool.disconnect(inuse_connections=False)

    def _read(self, connection: Any, commands: Sequence[Command]) -> list[Any]:  # noqa: ANN401  redis-py's own type is wrong
        with self._explaining(commands):
            return [_reply(connection) for _ in commands]

    @contextmanager
    def _explaining(self, commands: Sequence[Command]) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            raise explained(error, self._where, commands[0][0]) from error


def _unbounded(options: dict[str, Any]) -> ConnectionPool:
    rest = {name: value for name, value in options.items() if name not in {"max_connections", "timeout"}}
    return ConnectionPool(**rest, max_connections=_UNBOUNDED)


def _reply(connection: Any) -> Any:  # noqa: ANN401  whatever the protocol carries
    try:
        return connection.read_response()
    except ResponseError as refusal:
        return refusal


def check_size(key: str, size: int) -> None:
    """Refuse a value that no server takes; raises ValueTooLargeError."""
    if size > _MAX_VALUE:
        raise ValueTooLargeError(f"value under {key!r} has {size} bytes: Redis takes at most {_MAX_VALUE}")


def milliseconds(ttl: float) -> int:
    """Return a time to live as PX takes it."""
    return max(1, round(ttl * 1000))
