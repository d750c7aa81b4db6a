"""Spans and rectangles on an activation map; every interval is half open, [start, stop)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """The rows (or columns) start, start + 1, ..., stop - 1; start may be negative before clipping."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def within(self, other: Span) -> Span:
        """Return this span in the coordinates of `other`, whose first row becomes 0."""
        return Span(self.start - other.start, self.stop - other.start)

    def moved(self, rows: int) -> Span:
        return Span(self.start + rows, self.stop + rows)

    def contains(self, other: Span) -> bool:
        return self.start <= other.start and other.stop <= self.stop


@dataclass(frozen=True, order=True, slots=True)
class Rect:
    """A rectangle of an activation map."""

    rows: Span
    cols: Span

    @classmethod
    def whole(cls, height: int, width: int) -> Rect:
        return cls(Span(0, height), Span(0, width))

    @property
    def area(self) -> int:
        return (self.rows.stop - self.rows.start) * (self.cols.stop - self.cols.start)

    def within(self, other: Rect) -> Rect:
        """Return this rectangle in the coordinates of `other`, whose corner becomes (0, 0)."""
        return Rect(self.rows.within(other.rows), self.cols.within(other.cols))

    def contains(self, other: Rect) -> bool:
        return self.rows.contains(other.rows) and self.cols.contains(other.cols)

    def overlap(self, other: Rect) -> Rect | None:
        rows = Span(max(self.rows.start, other.rows.start), min(self.rows.stop, other.rows.stop))
        cols = Span(max(self.cols.start, other.cols.start), min(self.cols.stop, other.cols.stop))
        return Rect(rows, cols) if rows.size > 0 and cols.size > 0 else None

    @property
    def slices(self) -> tuple[slice, slice]:
        return slice(self.rows.start, self.rows.stop), slice(self.cols.start, self.cols.stop)

    def slices_in(self, other: Rect) -> tuple[slice, slice]:
        """Return the rows and columns of this rectangle in an array of the values of `other`."""
        top, left = other.rows.start, other.cols.start
        return slice(self.rows.start - top, self.rows.stop - top), slice(self.cols.start - left, self.cols.stop - left)


@dataclass(frozen=True, order=True, slots=True)
class Grid:
    """The cut of a stage's output: rows x cols tiles of maps, numbered row by row, or `columns` of a vector."""

    rows: int
    cols: int
    columns: bool = False

    @property
    def tiles(self) -> int:
        return self.rows * self.cols

    def __str__(self) -> str:
        """Write the grid as the command line takes it: `2x2`, `col4`, or `1` for a single tile."""
        if self.tiles == 1:
            return "1"
        return f"col{self.cols}" if self.columns else f"{self.rows}x{self.cols}"


def even_parts(size: int, count: int) -> list[Span]:
    """Cut `size` rows into `count` spans whose sizes differ by one row at most, the larger ones first."""
    base, extra = divmod(size, count)
    starts = [index * base + min(index, extra) for index in range(count + 1)]
    return [Span(start, stop) for start, stop in pairwise(starts)]


def grid_rects(height: int, width: int, grid: Grid) -> list[Rect]:
    return [Rect(rows, cols) for rows in even_parts(height, grid.rows) for cols in even_parts(width, grid.cols)]
