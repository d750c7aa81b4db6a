"""Partial results of a pass over an image, as they are kept: a part for each window, read again in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect
from serfer.core.plan import StatisticsPass
from serfer.core.plan.windows import ImageWindows
from serfer.core.zarr import Axis, ChunkedArray
from serfer.raster import ResultParts


@dataclass(frozen=True)
class PartialForm:
    """The form of partial results: one position of an `array` for each window, the values in its channels.

    Pixels without data are 0 here as they are in the map: the network sees them so, and so do its statistics.
    """

    array: ChunkedArray

    @classmethod
    def of(cls, one: StatisticsPass, windows: ImageWindows) -> PartialForm:
        """Return the form of a pass over an image with such windows."""
        rows, cols = (Axis(tuple(range(size + 1))) for size in (windows.height, windows.width))
        dims = one.partial_size, windows.height, windows.width
        return cls(ChunkedArray("statistics", "float32", dims, 1, one.partial_size, rows, cols, flat=False))


@dataclass(frozen=True)
class PartialTarget:
    """Keeps the partial results of a pass; of every window, whatever data its pixels have."""

    windows: ImageWindows
    parts: ResultParts

    def covered(self, number: int, _size: tuple[int, int]) -> Rect:
        """Return the pixels that a window reads."""
        return self.windows[number].read

    def empty(self, _missing: NDArray[np.bool_], _read: Rect, _number: int) -> NDArray[np.bool_]:
        """Return that there is something in every window."""
        return np.zeros(1, np.bool_)

    def keep(self, number: int, outputs: Mapping[str, NDArray[Any]], _empty: NDArray[np.bool_] | None) -> None:
        """Keep a window's partial result: the first values of its output, (1, channels, rows, cols)."""
        [values] = outputs.values()
        channels = self.parts.array.channels
        self.parts.put(number, np.ascontiguousarray(values.reshape(-1)[:channels, None, None], np.float32))

    def keep_empty(self, number: int) -> None:
        """Refuse a window without a partial result, of which there is none."""
        raise NotImplementedError(f"window {number}")
