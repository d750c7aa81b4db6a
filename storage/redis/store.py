"""A store on a Redis server (or ElastiCache, Valkey)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from serfer.storage.coordination import Coordination
from serfer.storage.exchange import Exchange
from serfer.storage.redis.node import Command, Commands, RedisNode, check_size, milliseconds
from serfer.storage.redis.url import server_options
from serfer.storage.store import Bytes, Range, Store, check_keys, check_ranges, check_ttl, cut, flat, missing


class RedisCommands(Store):
    """Values as Redis strings: the commands of a store, wherever they go.

    `connect` opens the connections that they go over, and with `unbounded` some that commands may block.
    """

    def __init__(self, connect: Callable[..., Commands], socket_timeout: float) -> None:
        self._connect = connect
        self._socket_timeout = socket_timeout
        self._commands = connect()

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        self.execute([_setting(key, value, ttl)])

    def put_many(self, values: Mapping[str, Bytes], ttl: float) -> None:
        self.execute([_setting(key, value, ttl) for key, value in values.items()])

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        check_ranges(ranges)
        replies = self.execute([_command(span) for span in ranges])
        return [self._checked(span, reply) for span, reply in zip(ranges, replies, strict=True)]

    def exists(self, keys: Sequence[str]) -> list[bool]:
        check_keys(keys)
        return [reply == 1 for reply in self.execute([("EXISTS", key) for key in keys])]

    def delete(self, keys: Sequence[str]) -> None:
        check_keys(keys)
        self.execute([("DEL", *keys)] if keys else [])

    def coordination(self) -> Coordination:
        from serfer.storage.redis.coordination import RedisCoordination  # noqa: PLC0415  workers coordinate nothing

        return RedisCoordination(self, self._commands)

    def exchange(self) -> Exchange:
        from serfer.storage.redis.exchange import RedisExchange  # noqa: PLC0415  only gangs need it

        return RedisExchange(self, self._connect(unbounded=True), self._socket_timeout)

    def close(self) -> None:
        self._commands.close()

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Send the commands together and return their replies in order; the first refusal is raised."""
        return self._commands.execute(commands) if commands else []

    def _checked(self, span: Range, reply: bytes | None) -> bytes:
        """GETRANGE answers "" for a missing key, so where an empty range would be right the value is looked at."""
        if reply == b"" and span.start > 0 and not span.length:
            return cut(self.get(span.key), span)
        if reply is None or len(reply) < (span.length or 0):
            raise missing(span)
        return reply[: span.length]


class RedisStore(RedisCommands):
    """Values on one server; every method is one round trip of one pipeline.

    The URL's query may set options, such as `socket_timeout` and `timeout` (seconds; the latter is the
    wait for a free connection), `max_connections` and `ssl_ca_certs`.
    """

    def __init__(self, url: str) -> None:
        options = server_options(url)
        super().__init__(partial(RedisNode, options), options["socket_timeout"])


def _setting(key: str, value: Bytes, ttl: float) -> Command:
    check_keys((key,))
    check_ttl(ttl)
    data = flat(value)
    check_size(key, len(data))
    return ("SET", key, data, "PX", milliseconds(ttl))


def _command(span: Range) -> Command:
    if span.start == 0 and not span.length:
        return ("GET", span.key)
    last = -1 if span.length is None else span.start + max(span.length, 1) - 1
    return ("GETRANGE", span.key, span.start, last)
