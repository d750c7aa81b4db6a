"""Placement of labels of points so that they overlap neither each other nor points nor lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in inches from the lower left corner of the page."""

    left: float
    bottom: float
    width: float
    height: float

    def meets(self, other: Box) -> bool:
        """Return whether two rectangles overlap."""
        across = self.left < other.left + other.width and other.left < self.left + self.width
        return across and self.bottom < other.bottom + other.height and other.bottom < self.bottom + self.height

    @property
    def middle(self) -> tuple[float, float]:
        """The point in the middle."""
        return self.left + self.width / 2, self.bottom + self.height / 2

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """Return the point of the rectangle that is nearest to another point."""
        right, top = self.left + self.width, self.bottom + self.height
        return min(max(x, self.left), right), min(max(y, self.bottom), top)

    def holds(self, other: Box) -> bool:
        """Return whether a rectangle lies inside."""
        across = self.left <= other.left and other.left + other.width <= self.left + self.width
        return across and self.bottom <= other.bottom and other.bottom + other.height <= self.bottom + self.height


_RADII = (0.03, 0.14, 0.28, 0.45, 0.65, 0.9, 1.2, 1.6)
_DIRECTIONS = 16


def placed(dots: Sequence[Box], sizes: Sequence[tuple[float, float]], others: Sequence[Box], page: Box) -> list[Box]:
    """Return where each dot's label goes, as near to it as is free of dots, other labels and `others`.

    Where all is taken it lies on the last place that was tried: so many labels fit no page.
    """
    taken = [*dots, *others]
    count = len(taken)
    for dot, size in zip(dots, sizes, strict=True):
        tried = list(_around(dot, size))
        free = (box for box in tried if page.holds(box) and not any(box.meets(other) for other in taken))
        taken.append(next(free, tried[-1]))
    return taken[count:]


def _around(dot: Box, size: tuple[float, float]) -> Iterator[Box]:
    """Yield places for a label, the nearest first: right of the dot, then round it."""
    middle_x, middle_y = dot.middle
    for radius in _RADII:
        for turn in range(_DIRECTIONS):
            angle = math.tau * ((turn + 1) // 2) / _DIRECTIONS * (-1) ** turn
            across = math.cos(angle) * (dot.width / 2 + radius + size[0] / 2)
            up = math.sin(angle) * (dot.height / 2 + radius + size[1] / 2)
            yield Box(middle_x + across - size[0] / 2, middle_y + up - size[1] / 2, *size)
