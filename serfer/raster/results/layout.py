"""Which part of a result lies where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serfer.core.errors import UsageError
from serfer.core.geometry import Rect

_MOST_CELLS = 20_000_000  # of the grid of all edges: 4,400 x 4,400 parts


@dataclass(frozen=True)
class ResultLayout:
    """A result of `channels` maps of height x width, and the rectangle that each part covers, by its number.

    The rectangles cover the result without gaps and without overlaps; UsageError otherwise.
    """

    height: int
    width: int
    channels: int
    rects: Sequence[Rect]

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.channels) < 1:
            raise UsageError("a result has at least one channel, row and column")
        whole = Rect.whole(self.height, self.width)
        if outside := next((rect for rect in self.rects if not whole.contains(rect) or min(_shape(rect)) < 1), None):
            raise UsageError(f"the part {outside} is not a rectangle of a result of {self.height} x {self.width}")
        if sum(rect.area for rect in self.rects) != whole.area or not self._covers_once():
            raise UsageError("the parts of a result cover it with gaps or overlaps")

    def shape(self, number: int) -> tuple[int, int, int]:
        """Return the shape (channels, rows, cols) of a part's array."""
        return (self.channels, *_shape(self.rects[number]))

    def bytes(self, dtype: str) -> int:
        """Return the bytes of all values."""
        return self.height * self.width * self.channels * np.dtype(dtype).itemsize

    def _covers_once(self) -> bool:
        """Count the parts over each cell of the grid that all their edges make."""
        edges = np.array([[r.rows.start, r.rows.stop, r.cols.start, r.cols.stop] for r in self.rects])
        rows, cols = np.unique(edges[:, :2]), np.unique(edges[:, 2:])
        if len(rows) * len(cols) > _MOST_CELLS:
            raise UsageError(f"the parts of a result have more than {_MOST_CELLS:,} crossings of edges: align them")
        changes = np.zeros((len(rows), len(cols)), np.int32)
        top, bottom = (np.searchsorted(rows, edges[:, index]) for index in (0, 1))
        left, right = (np.searchsorted(cols, edges[:, index]) for index in (2, 3))
        for row, col, change in ((top, left, 1), (top, right, -1), (bottom, left, -1), (bottom, right, 1)):
            np.add.at(changes, (row, col), change)
        return bool((changes.cumsum(0).cumsum(1)[:-1, :-1] == 1).all())


def _shape(rect: Rect) -> tuple[int, int]:
    return rect.rows.size, rect.cols.size
