"""A result put together from its parts, window by window, in bounded memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.crc32c import crc32c, crc32c_joined, crc32c_with_zeros
from serfer.core.geometry import Rect, Span
from serfer.core.units import MIB
from serfer.raster.results.parts import ResultParts

BLOCK = 512
"""Rows and columns of a result's tiles."""
_MOST_BYTES = 16 * MIB


class Mosaic:
    """The values of a whole result, read from parts that are all there.

    Their checksums are taken along with the values, so that nothing is read once more for them: `verify` comes after
    all windows, of which each channel's are read from top to bottom.
    """

    def __init__(self, parts: ResultParts) -> None:
        self.array = parts.array
        self._parts = parts
        self._sums: dict[tuple[int, int], tuple[int, int]] = {}
        """Of each part and channel, the checksum of the rows that were read, and how many these are."""

    @cached_property
    def _by_block_row(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for number, rect in enumerate(self._parts.rects):
            for row in range(rect.rows.start // BLOCK, -(-rect.rows.stop // BLOCK)):
                found[row].append(number)
        return found

    def windows(self, channels: int) -> Iterator[Rect]:
        """Yield windows of whole blocks, row by row of blocks, of which `channels` channels take bounded memory."""
        column = BLOCK * BLOCK * channels * self.array.item_bytes
        step = BLOCK * max(1, _MOST_BYTES // column)
        for top in range(0, self.array.rows.size, BLOCK):
            for left in range(0, self.array.cols.size, step):
                yield Rect(
                    Span(top, min(top + BLOCK, self.array.rows.size)),
                    Span(left, min(left + step, self.array.cols.size)),
                )

    def read(self, window: Rect, channels: Span) -> NDArray[Any]:
        values = np.empty((channels.size, window.rows.size, window.cols.size), self.array.dtype)
        for number in self._by_block_row[window.rows.start // BLOCK]:
            rect = self._parts.rects[number]
            if (common := rect.overlap(window)) is None:
                continue
            inside, (rows, cols) = common.within(rect), common.within(window).slices
            for index, channel in enumerate(range(channels.start, channels.stop)):
                part = self._parts.rows(number, channel, inside.rows)
                self._add_up((number, channel), inside.rows, part)
                values[index, rows, cols] = part[:, inside.cols.start : inside.cols.stop]
        return values

    def _add_up(self, which: tuple[int, int], rows: Span, values: NDArray[Any]) -> None:
        crc, count = self._sums.get(which, (0, 0))
        if rows.start == count:  # another window may read the same rows again, for other columns
            self._sums[which] = crc32c(values.data.cast("B"), crc), rows.stop

    def verify(self) -> None:
        row = self.array.cols.chunk * self.array.item_bytes
        size = row * self.array.rows.chunk
        for number in range(self._parts.count):
            whole = 0
            for channel in range(self.array.channels):
                crc, count = self._sums.pop((number, channel))
                whole = crc32c_joined(whole, crc32c_with_zeros(crc, size - row * count), size)
            self._parts.check_sum(number, whole)
