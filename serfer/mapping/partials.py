"""Partial results of a pass over an image, as they are kept: a part for each window, read again in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect
from serfer.core.plan import StatisticsPass
from serfer.core.plan.windows import ImageWindows
from serfer.core.zarr import Axis, ChunkedArray


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

    def part(self, values: NDArray[Any], _written: Rect, _empty: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Return a window's part from its output, (1, channels, rows, cols)."""
        return np.ascontiguousarray(values.reshape(-1)[: self.array.channels, None, None], np.float32)
