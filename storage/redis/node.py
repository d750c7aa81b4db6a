"""One Redis server: a pool of connections, and batches of commands over one of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

from serfer.core.errors import ValueTooLargeError
from serfer.storage.redis.errors import RedisError, ResponseError, explained
from serfer.storage.redis.resp import RespPool

_MAX_VALUE = 512 * 1024 * 1024  # the server's own limit (proto-max-bulk-len)

T = TypeVar("T")
Command: TypeAlias = tuple[Any, ...]


class Commands(Protocol):
    """Sends commands together and returns their replies; the connection of one that blocks serves no other caller."""

    def execute(self, commands: Sequence[Command]) -> list[Any]: ...

    def close(self) -> None: ...


class RedisNode:
    """Sends commands together, without MULTI, and reads their replies: one round trip.

    Callers wait for a free connection within the pool's bound. Where commands block, `unbounded` gives each one.
    """

    def __init__(self, options: dict[str, Any], kind: str = "", *, unbounded: bool = False) -> None:
        self._pool = RespPool(options, unbounded=unbounded)
        self.host = options["host"]
        self._where = f"{options['host']}:{options['port']}{kind}"

    @contextmanager
    def sent(self, commands: Sequence[Command]) -> Iterator[Callable[[], list[Any]]]:
        """Send commands; the body calls what it gets, once, to read the replies, refusals as ResponseErrors.

        Raises:
            StoreUnavailableError: the server cannot be reached, or refuses every command.
        """
        connection = self._explained(commands, self._pool.take)
        try:
            self._explained(commands, lambda: connection.send(commands))
            yield lambda: self._explained(commands, lambda: [connection.read() for _ in commands])
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
        return explained(reply, self._where, command[0])

    def close(self) -> None:
        self._pool.close()

    def _explained(self, commands: Sequence[Command], call: Callable[[], T]) -> T:
        try:
            return call()
        except RedisError as error:
            raise explained(error, self._where, commands[0][0]) from error


def check_size(key: str, size: int) -> None:
    if size > _MAX_VALUE:
        raise ValueTooLargeError(f"value under {key!r} has {size} bytes: Redis takes at most {_MAX_VALUE}")


def milliseconds(ttl: float) -> int:
    return max(1, round(ttl * 1000))
