"""RESP2, the protocol of Redis servers: commands to bytes, bytes to replies."""

from collections.abc import Sequence
from typing import Any, BinaryIO

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

_ONE_SEND = 64 * 1024  # bytes up to which a copy is cheaper than a system call for each part (measured: 15 us)
_LONGEST_LINE = 64 * 1024
_MOST_BYTES = 1 << 29  # of a value: the server's own limit
_MOST_ITEMS = 1 << 20
_DEEPEST = 8  # lists in lists
_SHOWN = 120
_CLOSED = "Connection closed by server."
_REFUSALS: dict[str, type[RedisError]] = {
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "MOVED": MovedError,
    "NOAUTH": AuthenticationError,
    "NOPERM": NoPermissionError,
    "OOM": OutOfMemoryError,
    "READONLY": ReadOnlyError,
    "TRYAGAIN": TryAgainError,
    "WRONGPASS": AuthenticationError,
}
"""What a server refuses with, by the first word of its error."""
_WORDS: dict[str, type[RedisError]] = {
    "max number of clients reached": RedisConnectionError,
    "invalid password": AuthenticationError,
    "wrong number of arguments for 'auth' command": AuthenticationWrongNumberOfArgsError,
    "without any password configured": AuthenticationError,
    "no password is set": AuthenticationError,
}
"""The same, by words of errors whose first one is ERR, in lower case."""

Buffer = bytes | bytearray | memoryview
Argument = str | int | float | Buffer


def packed(commands: Sequence[Sequence[Argument]]) -> list[Buffer]:
    """Return the bytes of commands, in parts; a memoryview is of single bytes. Values above 64 KB are not copied."""
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


def read_reply(file: BinaryIO, deepest: int = _DEEPEST) -> Any:  # noqa: ANN401 - bytes, a number, None, or their lists
    """Read a reply; one of errors inside a list is an item of it.

    Raises:
        ResponseError, redis.exceptions.ConnectionError: what the server refuses with.
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
    """Return the size in a line, -1 for nothing."""
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
    """Return the exception for an error; those that are not known keep their first word."""
    code, _, rest = text.partition(" ")
    if code == "ERR":
        kinds = (kind for words, kind in _WORDS.items() if words in rest.lower())
        return next(kinds, ResponseError)(rest)
    kind = _REFUSALS.get(code)
    try:
        return kind(rest) if kind else ResponseError(text)
    except ValueError:  # a redirection without an address
        return InvalidResponse(f"Protocol Error: {text[:_SHOWN]!r}")
