"""An output read in C order by strips, with bounded memory, each byte checked once.

planes (n, c)      strip: some planes whole,          a part's bytes of a strip are one range:
┌────┬────┐        or some rows of one plane          its planes, or its rows of the plane,
│ 0  │ 1  │                                           lie one behind the other
├────┼────┤
│ 2  │ 3  │        strips take each part's bytes from first to last, so that its checksum grows with them,
└────┴────┘        and is compared when the last of them has been read
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serfer.core.checksum import CHECKSUM_BYTES, checksum
from serfer.core.errors import MissingKeyError, ResultDamagedError
from serfer.core.geometry import Rect, Span
from serfer.core.units import FLOAT_BYTES
from serfer.results.manifest import ResultManifest, ResultOutput, ResultPart
from storage.store import Range, Store

Array = NDArray[Any]
STRIP_BYTES = 8 * 1024 * 1024
"""About how many bytes a strip has."""


class Strip(NamedTuple):
    """Rows of planes `planes`: all of them, or, of a single plane, some."""

    planes: Span
    rows: Span


def strips(output: ResultOutput, images: int, most_bytes: int = STRIP_BYTES) -> Iterator[Strip]:
    """Yield the strips of an output in C order, each of at most `most_bytes` or one row."""
    shape = output.shape
    planes, row_bytes = images * shape.channels, FLOAT_BYTES * shape.width
    at_once = most_bytes // (row_bytes * shape.height)
    if at_once:
        for start in range(0, planes, at_once):
            yield Strip(Span(start, min(start + at_once, planes)), Span(0, shape.height))
        return
    rows = max(1, most_bytes // row_bytes)
    for plane in range(planes):
        for start in range(0, shape.height, rows):
            yield Strip(Span(plane, plane + 1), Span(start, min(start + rows, shape.height)))


class OutputReader:
    """Reads an output once, strip by strip; each part's checksum is compared when its last byte has been read."""

    def __init__(self, store: Store, manifest: ResultManifest, output: ResultOutput) -> None:
        self._store, self._manifest, self._output = store, manifest, output
        place = manifest.place
        self._keys = [place.key(part.tile) for part in output.parts]
        self._sums = [checksum(b"", key, part.cell) for key, part in zip(self._keys, output.parts, strict=True)]

    def read(self, strip: Strip) -> Array:
        """Return the next strip, (planes, rows, cols), in the output's own type.

        Raises:
            ResultDamagedError: a part is missing, too short, or altered.
            StoreUnavailableError: the store does not answer.
        """
        width = self._output.shape.width
        rect = Rect(strip.rows, Span(0, width))
        pieces = [
            (number, overlap)
            for number, part in enumerate(self._output.parts)
            if (overlap := part.rect.overlap(rect)) is not None
        ]
        values = self._get([self._range(number, overlap, strip) for number, overlap in pieces])
        whole = np.empty((strip.planes.size, strip.rows.size, width), dtype=self._output.dtype)
        for (number, overlap), value in zip(pieces, values, strict=True):
            data = self._checked(number, value, overlap, strip)
            shape = strip.planes.size, overlap.rows.size, overlap.cols.size
            whole[:, *overlap.within(rect).slices] = np.frombuffer(data, dtype="<f4").reshape(shape)
        return whole

    def _range(self, number: int, overlap: Rect, strip: Strip) -> Range:
        """Return the bytes of a part that a strip has; with the checksum, where they are the part's last."""
        part = self._output.parts[number]
        row_bytes = FLOAT_BYTES * part.rect.cols.size
        rows = strip.planes.start * part.rect.rows.size + overlap.rows.start - part.rect.rows.start
        length = strip.planes.size * overlap.rows.size * row_bytes
        tail = CHECKSUM_BYTES if self._is_last(part, overlap, strip) else 0
        return Range(self._keys[number], part.start + rows * row_bytes, length + tail)

    def _is_last(self, part: ResultPart, overlap: Rect, strip: Strip) -> bool:
        planes = self._manifest.images * self._output.shape.channels
        return strip.planes.stop == planes and overlap.rows.stop == part.rect.rows.stop

    def _get(self, ranges: Sequence[Range]) -> list[bytes]:
        try:
            return self._store.get_many(ranges)
        except MissingKeyError as error:
            raise ResultDamagedError(f"result {self._manifest.id} lacks a part, so run it again: {error}") from error

    def _checked(self, number: int, value: bytes, overlap: Rect, strip: Strip) -> memoryview:
        """Return a part's values of a strip, without the checksum that may follow them."""
        part, view = self._output.parts[number], memoryview(value)
        last = self._is_last(part, overlap, strip)
        data = view[:-CHECKSUM_BYTES] if last else view
        self._sums[number] = zlib.crc32(data, self._sums[number])
        if last and self._sums[number].to_bytes(CHECKSUM_BYTES, "little") != view[len(data) :]:
            raise ResultDamagedError(
                f"a part of result {self._manifest.id} was altered, so run it again: the checksum of output "
                f"{self._output.name!r:.80} does not match that of tile {part.tile}"
            )
        return data
