"""A store on a Redis server (or ElastiCache, Valkey)."""

from collections.abc import Sequence
from typing import Any

from redis.connection import BlockingConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from serfer.core.errors import StoreError, StoreUnavailableError, UsageError, ValueTooLargeError
from storage.store import Bytes, Range, Store, check_keys, check_ranges, check_ttl, cut, flat, missing

_MAX_VALUE = 512 * 1024 * 1024  # the server's own limit (proto-max-bulk-len)
_ONE_SEND = 64 * 1024  # bytes up to which a copy is cheaper than a system call for each part (measured: 15 us)
_UNAVAILABLE = (RedisConnectionError, RedisTimeoutError, OutOfMemoryError, ReadOnlyError)


class RedisStore(Store):
    """Values as Redis strings; every method is one round trip of one pipeline, without MULTI.

    The URL's query may set redis-py's own options, such as `socket_timeout` and `timeout` (seconds; the latter is the
    wait for a free connection), `max_connections` and `ssl_ca_certs`. Commands go over the pool's connections by
    themselves: redis-py's client adds 30 us of processor time to each (measured), and its retries hide a lost server.
    """

    def __init__(self, url: str) -> None:
        try:
            self._pool: Any = BlockingConnectionPool.from_url(url, **_DEFAULTS)
            example = self._pool.connection_class(**self._pool.connection_kwargs)
            self._where = f"{example.host}:{example.port}"
        except (ValueError, TypeError, RedisError):  # their messages quote parts of the URL, perhaps of its password
            raise UsageError("the Redis URL is malformed or has an unknown option") from None

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        """SET with PX."""
        check_keys((key,))
        check_ttl(ttl)
        data = flat(value)
        if len(data) > _MAX_VALUE:
            raise ValueTooLargeError(f"value under {key!r} has {len(data)} bytes: Redis takes at most {_MAX_VALUE}")
        self._ask([("SET", key, data, "PX", max(1, round(ttl * 1000)))])

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """GET or GETRANGE, all in one round trip."""
        check_ranges(ranges)
        replies = self._ask([_command(asked) for asked in ranges])
        return [self._checked(asked, reply) for asked, reply in zip(ranges, replies, strict=True)]

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """EXISTS, all in one round trip."""
        check_keys(keys)
        return [reply == 1 for reply in self._ask([("EXISTS", key) for key in keys])]

    def delete(self, keys: Sequence[str]) -> None:
        """DEL; UNLINK would free a string in the foreground just the same."""
        check_keys(keys)
        if keys:
            self._ask([("DEL", *keys)])

    def close(self) -> None:
        """Disconnect; a later call would connect anew."""
        self._pool.disconnect()

    def _ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send the commands together and return their replies in order."""
        if not commands:
            return []
        try:
            connection = self._pool.get_connection()
            try:
                packed = connection.pack_commands(commands)
                if sum(map(len, packed)) <= _ONE_SEND:
                    packed = [b"".join(packed)]
                connection.send_packed_command(packed)
                return [connection.read_response() for _ in commands]
            except BaseException:
                connection.disconnect()  # replies may still be on their way
                raise
            finally:
                self._pool.release(connection)
        except _UNAVAILABLE as error:
            raise StoreUnavailableError(f"Redis at {self._where} does not answer: {error}") from error
        except RedisError as error:
            raise StoreError(f"Redis at {self._where} refused {commands[0][0]}: {error}") from error

    def _checked(self, asked: Range, reply: bytes | None) -> bytes:
        """Return a reply if it is what was asked for in full.

        GETRANGE answers "" for a missing key, so where an empty range would be right the value has to be looked at.
        """
        if reply == b"" and asked.start > 0 and not asked.length:
            return cut(self.get(asked.key), asked)
        if reply is None or len(reply) < (asked.length or 0):
            raise missing(asked)
        return reply[: asked.length]


_DEFAULTS: dict[str, Any] = {
    "max_connections": 64,
    "timeout": 5.0,
    "socket_timeout": 5.0,
    "socket_connect_timeout": 2.0,
    "socket_read_size": 1 << 18,
    "protocol": 2,
    "driver_info": None,
}


def _command(asked: Range) -> tuple[Any, ...]:
    if asked.start == 0 and not asked.length:
        return ("GET", asked.key)
    last = -1 if asked.length is None else asked.start + max(asked.length, 1) - 1
    return ("GETRANGE", asked.key, asked.start, last)
