"""A result put together from its parts, window by window, in bounded memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import UsageError
from serfer.core.geometry import Rect, Span
from serfer.raster.limits import MIB
from serfer.raster.results.layout import ResultLayout
from serfer.raster.results.parts import ResultParts

BLOCK = 512
"""Rows and columns of a result's tiles."""
_MOST_BYTES = 32 * MIB


class Mosaic:
    """The values of a whole result, read from parts that are all there and verified."""

    def __init__(self, parts: ResultParts, layout: ResultLayout, dtype: str) -> None:
        self.layout, self.dtype = layout, dtype
        self._parts = parts
        if parts.count != len(layout.rects):
            raise UsageError(f"{parts.directory} has {parts.count} parts, and the result {len(layout.rects)}")
        for number in range(parts.count):
            header = parts.header(number)
            if (header.dtype, header.shape) != (dtype, layout.shape(number)):
                raise UsageError(
                    f"part {number} in {parts.directory} is {header.dtype} of {header.shape}, and the result needs "
                    f"{dtype} of {layout.shape(number)}"
                )

    @cached_property
    def _by_block_row(self) -> dict[int, list[int]]:
        """The numbers of the parts that each row of blocks crosses."""
        found: dict[int, list[int]] = defaultdict(list)
        for number, rect in enumerate(self.layout.rects):
            for row in range(rect.rows.start // BLOCK, -(-rect.rows.stop // BLOCK)):
                found[row].append(number)
        return found

    def windows(self, channels: int) -> Iterator[Rect]:
        """Yield windows of whole blocks, row by row of blocks, of which `channels` channels take bounded memory."""
        column = BLOCK * BLOCK * channels * np.dtype(self.dtype).itemsize
        step = BLOCK * max(1, _MOST_BYTES // column)
        for top in range(0, self.layout.height, BLOCK):
            for left in range(0, self.layout.width, step):
                yield Rect(
                    Span(top, min(top + BLOCK, self.layout.height)), Span(left, min(left + step, self.layout.width))
                )

    def read(self, window: Rect, channels: Span) -> NDArray[Any]:
        """Return the values (channels, rows, cols) of a window that lies in one row of blocks."""
        values = np.empty((channels.size, window.rows.size, window.cols.size), self.dtype)
        for number in self._by_block_row[window.rows.start // BLOCK]:
            rect = self.layout.rects[number]
            if (common := rect.overlap(window)) is None:
                continue
            inside, (rows, cols) = common.within(rect), common.within(window).slices
            for index, channel in enumerate(range(channels.start, channels.stop)):
                part = self._parts.rows(number, channel, inside.rows)
                values[index, rows, cols] = part[:, inside.cols.start : inside.cols.stop]
        return values
