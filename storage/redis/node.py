"""One Redis server: a pool of connections, and batches of commands over one of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from redis.exceptions import InvalidResponse, RedisError, ResponseError

from serfer import storage
from serfer.core.errors import ValueTooLargeError
from serfer.storage.redis.errors import explained

_MAX_VALUE = 512 * 1024 * 1024  # the server's own limit (proto-max-bulk-len)

Command: TypeAlias = tuple[Any, ...]
Execute: TypeAlias = Callable[[Sequence[Command]], list[Any]]


class RedisNode:
    """Sends commands together, without MULTI, and reads their replies: one round trip.

    Its connections are redis-py's, in a worker's process our own (docs/adr/0045-redis-py-but-in-workers.md). A pool's
    bound keeps callers waiting for a free connection. Where commands block, `unbounded` gives each caller one.
    """

    def __init__(self, options: dict[str, Any], kind: str = "", *, unbounded: bool = False) -> None:
        self._pool = _open_pool(options, unbounded=unbounded)
        self.host = options["host"]
        self._where = f"{options['host']}:{options['port']}{kind}"

    @contextmanager
    def sent(self, commands: Sequence[Command]) -> Iterator[Callable[[], list[Any]]]:
        """Send commands; the body calls what it gets, once, to read the replies, refusals as ResponseErrors.

        Raises:
            StoreUnavailableError: the server cannot be reached, or refuses every command.
        """
        with self._explain_errors(commands):
            connection = self._pool.get_connection()
        try:
            with self._explain_errors(commands):
                connection.send_packed_command(connection.pack_commands(commands), check_health=False)
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
        return explained(reply, self._where, command[0])

    def close(self) -> None:
        self._pool.close()

    def _read(self, connection: Any, commands: Sequence[Command]) -> list[Any]:  # noqa: ANN401 - of either pool
        with self._explain_errors(commands):
            return [_reply(connection) for _ in commands]

    @contextmanager
    def _explain_errors(self, commands: Sequence[Command]) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            raise explained(error, self._where, commands[0][0]) from error
        except (ValueError, RecursionError) as error:  # redis-py's parser does not catch these
            invalid = InvalidResponse(f"Protocol Error: {error}")
            raise explained(invalid, self._where, commands[0][0]) from error


def _open_pool(options: dict[str, Any], *, unbounded: bool) -> Any:  # noqa: ANN401 - redis-py's pool or a RespPool
    if storage.in_worker:
        from serfer.storage.redis.resp import RespPool  # noqa: PLC0415 - where redis-py's is too slow to import

        return RespPool({name: value for name, value in options.items() if name not in {"max_connections", "timeout"}})
    from serfer.storage.redis.client import open_pool  # noqa: PLC0415 - the other way round

    return open_pool(options, unbounded=unbounded)


def _reply(connection: Any) -> Any:  # noqa: ANN401 - of either pool; whatever the protocol carries
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as refusal:
        return refusal


def check_size(key: str, size: int) -> None:
    if size > _MAX_VALUE:
        raise ValueTooLargeError(f"value under {key!r} has {size} bytes: Redis takes at most {_MAX_VALUE}")


def milliseconds(ttl: float) -> int:
    return max(1, round(ttl * 1000))
