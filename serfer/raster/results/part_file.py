"""A part of a result as a file: what it is, and its values, each followed by its checksum (serfer/core/checksum.py).

    SFPART01 │ length (4 bytes) │ header: JSON │ crc │ values, in C order │ crc

The header has the values' dtype and shape; the key of the checksums is the job's digest and the part's number.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from serfer.core.checksum import CHECKSUM_BYTES, checksum, protect, verified
from serfer.core.errors import AlteredPieceError
from serfer.core.geometry import Span
from serfer.raster.durable import write_durably

DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "float64")
_MAGIC = b"SFPART01"
_LENGTH_BYTES = 4
_MOST_HEADER = 1024
_CHUNK = 1 << 20


@dataclass(frozen=True)
class PartHeader:
    """The dtype and shape (channels, rows, cols) of a part's values, which begin at byte `start` of its file."""

    dtype: str
    shape: tuple[int, int, int]
    start: int

    @property
    def bytes(self) -> int:
        """Length of the values."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def write_part(path: Path, key: str, values: NDArray[Any]) -> PartHeader:
    """Write a part (channels, rows, cols), whole or not at all; raises OSError."""
    values = np.ascontiguousarray(values)
    header = json.dumps({"dtype": values.dtype.name, "shape": values.shape}).encode()
    data = values.data.cast("B")
    crc = checksum(data, key, 1).to_bytes(CHECKSUM_BYTES, "little")
    start = _MAGIC + len(header).to_bytes(_LENGTH_BYTES, "little") + protect(header, key, 0)
    write_durably(path, start, data, crc)
    channels, rows, cols = values.shape
    return PartHeader(values.dtype.name, (channels, rows, cols), len(start))


def read_part(path: Path, key: str) -> NDArray[Any]:
    """Return a part's values; raises AlteredPieceError for a file that is not what `write_part` wrote, OSError."""
    with path.open("rb") as file:
        header = _header(file, path, key)
        values = np.empty(header.shape, header.dtype)
        data = values.data.cast("B")
        if file.readinto(data) != len(data):
            raise _altered(path)
        if file.read() != checksum(data, key, 1).to_bytes(CHECKSUM_BYTES, "little"):
            raise _altered(path)
    return values


def verify_part(path: Path, key: str) -> PartHeader:
    """Read a part without keeping it, and return its header; raises AlteredPieceError, OSError."""
    with path.open("rb") as file:
        header = _header(file, path, key)
        crc, left = checksum(b"", key, 1), header.bytes
        while left and (chunk := file.read(min(left, _CHUNK))):
            crc, left = zlib.crc32(chunk, crc), left - len(chunk)
        if left or file.read() != crc.to_bytes(CHECKSUM_BYTES, "little"):
            raise _altered(path)
    return header


def read_rows(path: Path, header: PartHeader, channel: int, rows: Span) -> NDArray[Any]:
    """Return some rows (rows, cols) of one channel of a part that was verified; raises OSError, AlteredPieceError."""
    _, height, width = header.shape
    values = np.empty((rows.size, width), header.dtype)
    offset = header.start + (channel * height + rows.start) * width * values.itemsize
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.preadv(fd, [values.data.cast("B")], offset) != values.nbytes:
            raise _altered(path)
    finally:
        os.close(fd)
    return values


def _header(file: BinaryIO, path: Path, key: str) -> PartHeader:
    """Read the beginning of a part, whose length must be what it says, so that nothing larger is ever allocated."""
    start = file.read(len(_MAGIC) + _LENGTH_BYTES)
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    if start[: len(_MAGIC)] != _MAGIC or length > _MOST_HEADER:
        raise _altered(path)
    try:
        said = json.loads(bytes(verified(file.read(length + CHECKSUM_BYTES), key, 0)))
        channels, rows, cols = (int(size) for size in said["shape"])
        header = PartHeader(DTYPES[DTYPES.index(said["dtype"])], (channels, rows, cols), file.tell())
    except (AlteredPieceError, LookupError, TypeError, ValueError) as error:
        raise _altered(path) from error
    if min(header.shape) < 0 or os.fstat(file.fileno()).st_size != header.start + header.bytes + CHECKSUM_BYTES:
        raise _altered(path)
    return header


def _altered(path: Path) -> AlteredPieceError:
    return AlteredPieceError(f"{path} is not the part that was written there: it is cut or altered")
