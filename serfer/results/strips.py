"""An output read in C order by strips, with bounded memory, each byte checked once.

planes (n, c)      strip: some planes whole,          a chunk's bytes of a strip are one range: its planes, or
┌────┬────┐        or some rows of one plane          its rows of the plane, lie one behind the other; rows that
│ 0  │ 1  │                                           are stored behind its last one go with that
├────┼────┤
│ 2  │ 3  │        strips take each chunk's bytes from first to last, so that its checksum grows with them,
└────┴────┘        and is compared when the last of them has been read
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serfer.core.crc32c import crc32c
from serfer.core.errors import MissingKeyError, ResultDamagedError
from serfer.core.geometry import Rect, Span
from serfer.core.zarr import CRC_BYTES, Chunk, ChunkedArray
from serfer.results.manifest import ResultManifest
from serfer.storage.store import Range, Store

Array = NDArray[Any]
STRIP_BYTES = 8 * 1024 * 1024
"""About how many bytes a strip has."""


class Strip(NamedTuple):
    """Planes `planes`: all rows of them, or, of a single plane, some."""

    planes: Span
    rows: Span


def strips(output: ChunkedArray, most_bytes: int = STRIP_BYTES) -> Iterator[Strip]:
    height, row_bytes = output.rows.size, output.item_bytes * output.cols.size
    if at_once := most_bytes // (row_bytes * height):
        for start in range(0, output.planes, at_once):
            yield Strip(Span(start, min(start + at_once, output.planes)), Span(0, height))
        return
    rows = max(1, most_bytes // row_bytes)
    for plane in range(output.planes):
        for start in range(0, height, rows):
            yield Strip(Span(plane, plane + 1), Span(start, min(start + rows, height)))


class OutputReader:
    """Reads an output once, strip by strip; each chunk's checksum is compared when its last byte has been read."""

    def __init__(self, store: Store, manifest: ResultManifest, output: ChunkedArray) -> None:
        self._store, self._manifest, self._output = store, manifest, output
        self._number = manifest.outputs.index(output)
        self._sums: dict[Chunk, int] = {}

    def read(self, strip: Strip) -> Array:
        """Return the next strip, (planes, rows, cols); raises ResultDamagedError for a damaged chunk."""
        output = self._output
        rect = Rect(strip.rows, Span(0, output.cols.size))
        pieces = [(chunk, common) for chunk in output.chunks if (common := chunk.rect.overlap(rect)) is not None]
        values = self._get([self._range(chunk, common, strip) for chunk, common in pieces])
        whole = np.empty((strip.planes.size, strip.rows.size, output.cols.size), dtype=output.dtype)
        dtype = np.dtype(output.dtype).newbyteorder("<")
        for (chunk, common), value in zip(pieces, values, strict=True):
            data = np.frombuffer(self._checked(chunk, value, strip), dtype)
            stored = data.reshape(strip.planes.size, -1, output.cols.chunk)
            whole[:, *common.within(rect).slices] = stored[:, : common.rows.size, : common.cols.size]
        return whole

    def _range(self, chunk: Chunk, common: Rect, strip: Strip) -> Range:
        """Return the bytes of a chunk that a strip has; with the checksum, where they are the chunk's last."""
        output = self._output
        row_bytes, stored = output.item_bytes * output.cols.chunk, output.rows.chunk
        rows = common.within(chunk.rect).rows
        stop = stored if common.rows.stop == chunk.rect.rows.stop else rows.stop
        start = (strip.planes.start * stored + rows.start) * row_bytes
        length = strip.planes.size * (stop - rows.start) * row_bytes
        key = self._manifest.place.key(f"{self._number}/{chunk.path}")
        return Range(key, start, length + (CRC_BYTES if self._is_last(chunk, strip) else 0))

    def _is_last(self, chunk: Chunk, strip: Strip) -> bool:
        return strip.planes.stop == self._output.planes and strip.rows.stop >= chunk.rect.rows.stop

    def _get(self, ranges: list[Range]) -> list[bytes]:
        try:
            return self._store.get_many(ranges)
        except MissingKeyError as error:
            raise ResultDamagedError(f"result {self._manifest.id} lacks a chunk, so run it again: {error}") from error

    def _checked(self, chunk: Chunk, value: bytes, strip: Strip) -> memoryview:
        view = memoryview(value)
        last = self._is_last(chunk, strip)
        data = view[:-CRC_BYTES] if last else view
        self._sums[chunk] = crc32c(data, self._sums.get(chunk, 0))
        if last and self._sums[chunk].to_bytes(CRC_BYTES, "little") != view[len(data) :]:
            raise ResultDamagedError(
                f"a chunk of result {self._manifest.id} was altered, so run it again: the checksum of chunk "
                f"{chunk.path} of output {self._output.name!r:.80} does not match"
            )
        return data
