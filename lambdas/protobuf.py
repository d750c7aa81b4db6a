"""Fields of Protocol Buffers' messages, read and written without the `onnx` package, which no worker has."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _LENGTH_DELIMITED = 0, 2  # wire types
_FIXED = {1: 8, 5: 4}  # bytes by wire type


def fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the fields of a message: the number, all bytes, and the content of one that has a length."""
    at = 0
    while at < len(message):
        start = at
        key, at = read_varint(message, at)
        if key & 7 == _LENGTH_DELIMITED:
            length, at = read_varint(message, at)
            content = message[at : at + length]
            at += length
        else:
            began = at
            at = at + _FIXED[key & 7] if key & 7 else read_varint(message, at)[1]
            content = message[began:at]
        yield key >> 3, message[start:at], content


def read_varint(message: bytes, at: int = 0) -> tuple[int, int]:
    """Return the number that begins at a position, seven bits a byte, and the position after it."""
    value = shift = 0
    while message[at] & 0x80:
        value |= (message[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | message[at] << shift, at + 1


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))


def header(number: int, length: int) -> bytes:
    return varint(number << 3 | _LENGTH_DELIMITED) + varint(length)


def field(number: int, content: bytes) -> bytes:
    return header(number, len(content)) + content


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3 | _VARINT) + varint(value)
