"""Arrays on their way from a service into memory or a file, without numpy.

Values come in order, as a .npy file, or as parts, rectangles of the array. A file is written aside and renamed when it
is whole, so that what is interrupted leaves none.
"""

from __future__ import annotations

import ast
import contextlib
import math
import secrets
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from serfer.core.errors import ServiceError, UnavailableError

TYPES: Final = {"FP32": ("<f4", 4), "INT64": ("<i8", 8), "INT32": ("<i4", 4), "UINT8": ("|u1", 1), "BOOL": ("|b1", 1)}
"""Of each datatype of the protocol numpy's name, and the bytes of a value."""
CRC_BYTES: Final = 4
_CODES: Final = {"INT64": "q", "INT32": "i", "UINT8": "B", "BOOL": "B"}  # of the standard library's arrays
_MAGIC: Final = b"\x93NUMPY"
_ALIGN = 64
_LONGEST_HEAD = 64 * 1024


@dataclass(frozen=True)
class ArrayForm:
    """An array's name, datatype (the protocol's) and shape; its values lie in C order."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def values(self) -> int:
        """The number of its values."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return TYPES[self.datatype][1]

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.values * self.itemsize

    def npy_head(self) -> bytes:
        """Return the beginning of the array as a .npy file, version 1.0."""
        shape = f"({', '.join(map(str, self.shape))}{',' if len(self.shape) == 1 else ''})"
        text = f"{{'descr': {TYPES[self.datatype][0]!r}, 'fortran_order': False, 'shape': {shape}, }}"
        padding = -(len(_MAGIC) + 4 + len(text) + 1) % _ALIGN
        head = f"{text}{' ' * padding}\n".encode()
        return _MAGIC + b"\x01\x00" + len(head).to_bytes(2, "little") + head


class Values(Protocol):
    """A place for an array's values."""

    def start(self) -> None:
        """Begin, or begin again."""
        ...

    def place(self, offset: int, data: bytes | memoryview) -> None:
        """Put values where they belong, `offset` bytes from the first."""
        ...


class MemoryValues:
    """The values of an array in memory."""

    def __init__(self, form: ArrayForm) -> None:
        self._form = form
        self._memory = bytearray()

    def start(self) -> None:
        """Begin with zeros."""
        self._memory = bytearray(self._form.nbytes)

    def place(self, offset: int, data: bytes | memoryview) -> None:
        """Put values where they belong."""
        self._memory[offset : offset + len(data)] = data

    def take(self) -> bytes:
        """Return the values, and keep none."""
        values, self._memory = bytes(self._memory), bytearray()
        return values


class FileValues:
    """The values of an array in a .npy file, which must be open for writing."""

    def __init__(self, form: ArrayForm, file: IO[bytes]) -> None:
        self._head = form.npy_head()
        self._whole = len(self._head) + form.nbytes
        self._file = file

    def start(self) -> None:
        """Write the head, and make the file as long as it will be."""
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


class NpySink:
    """Takes a .npy file in pieces, which must be the array of a form, and puts its values in their place."""

    def __init__(self, form: ArrayForm, values: Values) -> None:
        self._form = form
        self._values = values
        self._head: bytearray | None = bytearray()
        self._got = 0

    def start(self) -> None:
        """Begin, or begin again."""
        self._head, self._got = bytearray(), 0
        self._values.start()

    def write(self, chunk: bytes) -> None:
        """Take what came; raises ServiceError for what is not this array."""
        values = memoryview(chunk)
        if self._head is not None:
            self._head += chunk
            length = _head_length(self._head)
            if length is None or len(self._head) < length:
                return
            if not _is_head_of(self._form, self._head[:length]):
                raise _wrong(f"output {self._form.name!r} has another type or shape than was said")
            values, self._head = memoryview(bytes(self._head[length:])), None
        if self._got + len(values) > self._form.nbytes:
            raise _wrong(f"output {self._form.name!r} is longer than its shape says")
        self._values.place(self._got, values)
        self._got += len(values)

    def end(self) -> None:
        """Check that nothing is missing; raises ServiceError."""
        if self._got != self._form.nbytes or self._head is not None:
            raise _wrong(f"output {self._form.name!r} is cut short")


class PartSink:
    """Takes a part, the rectangle of `shape` from `start`, and puts its values in their place in the array of `form`.

    It comes as float32 and, in four bytes, their CRC-32 begun with `seed`; all of it must be there.
    """

    def __init__(self, form: ArrayForm, start: Sequence[int], shape: Sequence[int], seed: int, values: Values) -> None:
        self._form = form
        self._start = start
        self._shape = tuple(shape)
        self._seed = seed
        self._bytes = ArrayForm(form.name, "FP32", self._shape).nbytes
        self._values = values
        self._data = bytearray()

    def start(self) -> None:
        """Begin, or begin again."""
        self._data = bytearray()

    def write(self, chunk: bytes) -> None:
        """Take what came; raises ServiceError for more than the part has."""
        self._data += chunk
        if len(self._data) > self._bytes + CRC_BYTES:
            raise _wrong(f"a part of output {self._form.name!r} is longer than its shape says")

    def end(self) -> None:
        """Put the part in its place; raises ServiceError where it is cut short or altered."""
        data = memoryview(self._data)
        floats, said = data[: self._bytes], data[self._bytes :]
        if zlib.crc32(floats, self._seed).to_bytes(CRC_BYTES, "little") != said:
            raise _wrong(f"a part of output {self._form.name!r} is cut short, or was altered")
        place_part(self._values, self._form, self._start, self._shape, _converted(floats, self._form))


def _converted(floats: memoryview, form: ArrayForm) -> memoryview:
    """Return little-endian float32 values as those of an array's type, in which each has the same value."""
    if form.datatype == "FP32":
        return floats
    values = array("f", floats.tobytes())
    if sys.byteorder == "big":
        values.byteswap()
    try:
        converted = array(_CODES[form.datatype], map(int, values))
    except (ValueError, OverflowError):  # NaN, infinity, and what the type cannot hold
        raise _wrong(f"output {form.name!r} has values that are not {form.datatype}") from None
    if sys.byteorder == "big":
        converted.byteswap()
    return memoryview(converted).cast("B")


def _head_length(head: bytes | bytearray) -> int | None:
    """Return how long the head of a .npy file is, None where too little is there to know it; raises ServiceError."""
    if not _MAGIC.startswith(bytes(head[: len(_MAGIC)])):
        raise _wrong("what comes is not a .npy file")
    digits = 2 if head[6:7] == b"\x01" else 4
    if len(head) < 8 + digits:
        return None
    length = 8 + digits + int.from_bytes(head[8 : 8 + digits], "little")
    if length > _LONGEST_HEAD:
        raise _wrong("the .npy file has too long a head")
    return length


def _is_head_of(form: ArrayForm, head: bytes | bytearray) -> bool:
    """Return whether a .npy file's head says what a form says."""
    try:
        said = ast.literal_eval(head[head.index(b"{") :].decode("latin-1").strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    expected = {"descr": TYPES[form.datatype][0], "fortran_order": False, "shape": form.shape}
    return isinstance(said, dict) and said == expected


def place_part(values: Values, form: ArrayForm, start: Sequence[int], shape: Sequence[int], data: memoryview) -> None:
    """Put a part, the rectangle of `shape` that begins at `start`, into the array of `form`, run by run."""
    whole = form.shape
    inner = len(whole)  # axes from here on are whole, so that a run of them is contiguous
    while inner > 0 and shape[inner - 1 :] == whole[inner - 1 :]:
        inner -= 1
    run_axes = max(inner - 1, 0)  # the axis before them may be cut, and still be one run
    strides = [math.prod(whole[axis + 1 :]) * form.itemsize for axis in range(len(whole))]
    run = math.prod(shape[run_axes:]) * form.itemsize
    base = sum(place * stride for place, stride in zip(start, strides, strict=True))
    for number, offset in enumerate(_offsets(shape[:run_axes], strides)):
        values.place(base + offset, data[number * run : (number + 1) * run])


def _offsets(shape: Sequence[int], strides: Sequence[int]) -> Iterator[int]:
    """Yield where each run begins, from the part's own beginning, in C order."""
    if not shape:
        yield 0
        return
    for place in range(shape[0]):
        for offset in _offsets(shape[1:], strides[1:]):
            yield place * strides[0] + offset


def _wrong(fault: str) -> ServiceError:
    return ServiceError(f"the answer is not what a SerFer service of this version gives: {fault}")
