"""What GDAL does not say of a TIFF: the orientation of its rows, and how the mask beside them is stored."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from serfer.core.errors import ImageError

ReadAt = Callable[[int, int], bytes]
"""Returns bytes of a file, from a position on, as many as are asked for or are there."""

ORIENTATION = 274
_KIND, _WIDTH, _LENGTH, _STRIP_ROWS, _TILE_WIDTH, _TILE_LENGTH = 254, 256, 257, 278, 322, 323
_MASK = 4
_NUMBERS = {3: "H", 4: "I", 16: "Q"}
_MOST_TAGS = 512
_MOST_DIRECTORIES = 64


@dataclass(frozen=True)
class Directory:
    """A directory's tags of one number each, and where the next directory is, 0 after the last."""

    numbers: dict[int, int]
    next: int

    @property
    def is_mask(self) -> bool:
        """Whether its pixels say which ones of the image hold data."""
        return self.numbers.get(_KIND) == _MASK

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a tile or strip."""
        rows = self.numbers.get(_TILE_LENGTH) or min(
            self.numbers.get(_STRIP_ROWS, 2**32), self.numbers.get(_LENGTH, 2**32)
        )
        return rows, self.numbers.get(_TILE_WIDTH) or self.numbers.get(_WIDTH, 2**32)


def directories(read_at: ReadAt, first: int, name: str) -> Iterator[Directory]:
    """Yield a TIFF's directories from the one at `first` on, 64 at most; raises ImageError for a broken one."""
    start = read_at(0, 4)
    order, big = "<" if start.startswith(b"II") else ">", start[2:4] in (b"+\0", b"\0+")
    seen: set[int] = set()
    while first and first not in seen and len(seen) < _MOST_DIRECTORIES:
        seen.add(first)
        try:
            found = _directory(read_at, first, order, big=big)
        except struct.error:
            raise ImageError(f"{name} cannot be read: a directory of it is cut off; is the file whole?") from None
        yield found
        first = found.next


def _directory(read_at: ReadAt, first: int, order: str, *, big: bool) -> Directory:
    head, entry, pointer = ("Q", "HHQ8s", "Q") if big else ("H", "HHI4s", "I")
    at, each = struct.calcsize(f"{order}{head}"), struct.calcsize(f"{order}{entry}")
    data = read_at(first, at + each * _MOST_TAGS + struct.calcsize(pointer))
    [count] = struct.unpack_from(f"{order}{head}", data)
    if count > _MOST_TAGS:
        raise struct.error
    numbers = {}
    for number in range(count):
        tag, kind, values, stored = struct.unpack_from(f"{order}{entry}", data, at + each * number)
        if values == 1 and kind in _NUMBERS and struct.calcsize(_NUMBERS[kind]) <= len(stored):
            [numbers[tag]] = struct.unpack_from(f"{order}{_NUMBERS[kind]}", stored)
    [following] = struct.unpack_from(f"{order}{pointer}", data, at + each * count)
    return Directory(numbers, following)
