"""Arrays on their way from a service into memory or a file, without numpy.

Values come in chunks, rectangles of the array. A file is written aside and renamed when it is whole, so that what is
interrupted leaves none.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from serfer.core.crc32c import crc32c
from serfer.core.errors import ServiceError, UnavailableError
from serfer.core.inference_protocol import DATATYPES
from serfer.core.zarr import CRC_BYTES, Chunk, ChunkedArray

_MAGIC: Final = b"\x93NUMPY"
_ALIGN = 64


@dataclass(frozen=True)
class ArrayForm:
    """An array's name, datatype (the protocol's) and shape; its values lie in C order."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def values(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return DATATYPES[self.datatype].itemsize

    @property
    def nbytes(self) -> int:
        return self.values * self.itemsize

    def npy_head(self) -> bytes:
        """Return the beginning of the array as a .npy file, version 1.0."""
        shape = f"({', '.join(map(str, self.shape))}{',' if len(self.shape) == 1 else ''})"
        text = f"{{'descr': {DATATYPES[self.datatype].typestr!r}, 'fortran_order': False, 'shape': {shape}, }}"
        padding = -(len(_MAGIC) + 4 + len(text) + 1) % _ALIGN
        head = f"{text}{' ' * padding}\n".encode()
        return _MAGIC + b"\x01\x00" + len(head).to_bytes(2, "little") + head


class Values(Protocol):
    """A place for an array's values."""

    def start(self) -> None: ...

    def place(self, offset: int, data: bytes | memoryview) -> None: ...


class MemoryValues:
    """The values of an array in memory."""

    def __init__(self, form: ArrayForm) -> None:
        self._form = form
        self._memory = bytearray()

    def start(self) -> None:
        self._memory = bytearray(self._form.nbytes)

    def place(self, offset: int, data: bytes | memoryview) -> None:
        self._memory[offset : offset + len(data)] = data

    def take(self) -> bytes:
        values, self._memory = bytes(self._memory), bytearray()
        return values


class FileValues:
    """The values of an array in a .npy file, which must be open for writing."""

    def __init__(self, form: ArrayForm, file: IO[bytes]) -> None:
        self._head = form.npy_head()
        self._whole = len(self._head) + form.nbytes
        self._file = file

    def start(self) -> None:
        with _writing(self._file.name):
            self._file.seek(0)
            self._file.write(self._head)
            self._file.truncate(self._whole)

    def place(self, offset: int, data: bytes | memoryview) -> None:
        """Put values where they belong; raises UnavailableError where the file cannot be written."""
        with _writing(self._file.name):
            self._file.seek(len(self._head) + offset)
            self._file.write(data)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write that gets its name, in place of one that has it, when the body ends without an error."""
    aside = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    with _writing(path):
        file = aside.open("xb")
    try:
        with file:
            yield file
            with _writing(path):
                file.flush()
        with _writing(path):
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(path: object) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror or error}") from error


class ChunkSink:
    """Takes a chunk of an array, and puts its values in their place; all of it must be there, and match its CRC-32C."""

    def __init__(self, array: ChunkedArray, chunk: Chunk, values: Values) -> None:
        self._array = array
        self._chunk = chunk
        self._values = values
        self._data = bytearray()

    def start(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        """Take what came; raises ServiceError for more than a chunk has."""
        self._data += data
        if len(self._data) > self._array.chunk_bytes:
            raise _wrong(f"a chunk of output {self._array.name!r} is longer than its shape says")

    def end(self) -> None:
        """Put the chunk in its place; raises ServiceError where it is cut short or altered."""
        data = memoryview(self._data)
        values, crc = data[:-CRC_BYTES], data[-CRC_BYTES:]
        if len(data) != self._array.chunk_bytes or crc32c(values).to_bytes(CRC_BYTES, "little") != crc:
            raise _wrong(f"a chunk of output {self._array.name!r} is cut short, or was altered")
        place_chunk(self._values, self._array, self._chunk, values)


def place_chunk(values: Values, array: ChunkedArray, chunk: Chunk, data: memoryview) -> None:
    """Put a chunk's values into the array, run by run: rows, or, where no column is cut, all rows of a plane."""
    height, width, item = array.rows.size, array.cols.size, array.item_bytes
    stored_rows, stored_cols = array.rows.chunk, array.cols.chunk
    rows, cols = chunk.rect.rows, chunk.rect.cols
    step = rows.size if array.cols.count == 1 else 1
    run = step * cols.size * item
    for plane in range(array.planes):
        for row in range(0, rows.size, step):
            start = (plane * stored_rows + row) * stored_cols * item
            place = ((plane * height + rows.start + row) * width + cols.start) * item
            values.place(place, data[start : start + run])


def _wrong(fault: str) -> ServiceError:
    return ServiceError(f"the answer is not what a SerFer service of this version gives: {fault}")
