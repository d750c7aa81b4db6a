"""The file of an inbox.

    16 bytes   a random identity: a deleted inbox and the next one of its name have different ones
    8 bytes    where the last message that was appended in full ends
    8 bytes    when the inbox expires, nanoseconds since 1970
    messages   the length (8 bytes) and CRC-32 (4 bytes) of each, then the message

Integers are little-endian. Writers append under an exclusive lock of the file, and write the end after the messages:
what a killed one leaves behind the end is overwritten by the next. The first to write to an expired inbox takes its
identity away before anything else, so that a reader that finds the same one before and after its read has one inbox.
"""

import contextlib
import fcntl
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

from serfer.storage.exchange import START, Received

_HEAD = struct.Struct("<16sQQ")
_FRAME = struct.Struct("<QI")
_IDENTITY_BYTES = 16


def append(path: Path, values: Sequence[bytes], now_ns: int, expiry: int) -> None:
    """Append messages to an inbox, whose directory exists, and let it live until `expiry`."""
    frames = b"".join(part for value in values for part in (_FRAME.pack(len(value), crc32(value)), value))
    with _lock(path) as file:
        identity, end, old_expiry = _read_head(file)
        if old_expiry <= now_ns:
            _pwrite(file, bytes(_HEAD.size), 0)
            identity, end = secrets.token_bytes(_IDENTITY_BYTES), _HEAD.size
        _pwrite(file, frames, end)
        _pwrite(file, _HEAD.pack(identity, end + len(frames), expiry), 0)


def read(path: Path, after: str, now_ns: int) -> list[Received]:
    try:
        opened = path.open("rb", buffering=0)
    except FileNotFoundError:
        return []
    with opened:
        file = opened.fileno()
        while True:
            identity, end, expiry = _read_head(file)
            if expiry <= now_ns:
                return []
            known, _, offset = after.partition("-")
            start = int(offset) if after != START and known == identity.hex() else _HEAD.size
            data = pread(file, end - start, start)
            if _read_head(file)[0] == identity:
                return _cut_messages(data, identity.hex(), start)


def expiry_ns(path: Path) -> int:
    with path.open("rb", buffering=0) as file:
        return _read_head(file.fileno())[2]


def pread(file: int, length: int, start: int) -> bytes:
    """Read `length` bytes, fewer only at the file's end; a read of more than 2 GiB comes back in parts."""
    data = part = os.pread(file, length, start)
    while part and len(data) < length:
        part = os.pread(file, length - len(data), start + len(data))
        data += part
    return data


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[int]:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:  # it was not deleted before it was locked
                yield file
                return
        finally:
            os.close(file)


def _read_head(file: int) -> tuple[bytes, int, int]:
    identity, end, expiry = _HEAD.unpack(os.pread(file, _HEAD.size, 0).ljust(_HEAD.size, b"\0"))
    return identity, end, expiry


def _cut_messages(data: bytes, identity: str, start: int) -> list[Received]:
    found, at = [], 0
    while at + _FRAME.size <= len(data):
        length, check = _FRAME.unpack_from(data, at)
        at += _FRAME.size + length
        value = data[at - length : at]
        if at > len(data) or crc32(value) != check:
            break
        found.append(Received(f"{identity}-{start + at}", value))
    return found


def _pwrite(file: int, data: bytes, start: int) -> None:
    written = os.pwrite(file, data, start)
    while written < len(data):
        written += os.pwrite(file, data[written:], start + written)
