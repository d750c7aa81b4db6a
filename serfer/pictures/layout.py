"""Layout of a network's boxes: rows under each other, wrapped into columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from serfer.pictures.network import Box, lanes_of, near_rows, rows_of, slots_of

ROW, BOX_HEIGHT = 0.38, 0.25
SLOT, BOX_WIDTH = 1.72, 1.56
LANE, GUTTER, MARGIN = 0.11, 0.42, 0.25
NARROWEST = 3.3
CONTINUED = 0.34
_ASPECT = 1.5
_MISSED, _MOST_CROSSING = 40.0, 5  # what a column that is too long by all its height costs, in crossing lines


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the picture: a row of boxes, or the band above a stage's first row (`stage`), `height` inches high."""

    height: float
    row: int
    stage: int | None
    crossing: int


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a line: its column, its top, and where that column's first slot begins."""

    column: int
    top: float
    height: float

    @property
    def bottom(self) -> float:
        """Its lower end."""
        return self.top + self.height


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the picture, from `left`; `slots` is where its first slot begins."""

    left: float
    slots: float
    width: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of everything: of rows by number, of bands by stage; slots and lanes of boxes."""

    rows: dict[int, Place]
    bands: dict[int, Place]
    columns: tuple[Column, ...]
    row_of: tuple[int, ...]
    slots: tuple[int, ...]
    lanes: dict[int, int]
    near: dict[int, int]

    @property
    def width(self) -> float:
        """Inches across."""
        return self.columns[-1].left + self.columns[-1].width

    @property
    def height(self) -> float:
        """Inches from top to bottom."""
        return max(column.bottom for column in self.columns)

    def slot_x(self, column: int, slot: int) -> float:
        """Return the middle of a slot."""
        return self.columns[column].slots + (slot + 0.5) * SLOT

    def lane_x(self, column: int, lane: int) -> float:
        """Return where a lane lies; lanes are counted from the slots to the left."""
        return self.columns[column].slots - (lane + 0.5) * LANE


def arrange(boxes: Sequence[Box], bands: Sequence[float], top: float) -> Layout:
    """Arrange boxes below `top`, with a band of the given height above each stage."""
    row_of, lanes = rows_of(boxes), lanes_of(boxes, rows_of(boxes))
    slots, near = slots_of(boxes, row_of), near_rows(boxes, row_of)
    lines = _lines(boxes, row_of, bands)
    least = (max(slots) + 1) * SLOT + _lanes_width(lanes) + GUTTER
    chunks = wrapped(lines, max(least, NARROWEST + GUTTER))
    rows: dict[int, Place] = {}
    places: dict[int, Place] = {}
    columns: list[Column] = []
    left = MARGIN
    for number, chunk in enumerate(chunks):
        y = top if chunk[0].stage is not None else top + CONTINUED
        for line in chunk:
            place = Place(number, y, line.height)
            if line.stage is None:
                rows[line.row] = place
            else:
                places[line.stage] = place
            y += line.height
        column = _column(left, top, y, _used(boxes, row_of, slots, lanes, chunk))
        columns.append(column)
        left += column.width + GUTTER
    return Layout(rows, places, tuple(columns), tuple(row_of), tuple(slots), lanes, near)


def _lanes_width(lanes: dict[int, int]) -> float:
    return LANE * (max(lanes.values(), default=-1) + 1)


def _used(
    boxes: Sequence[Box], row_of: Sequence[int], slots: Sequence[int], lanes: dict[int, int], chunk: Sequence[Line]
) -> tuple[int, int]:
    """Return how many slots and lanes a column needs."""
    first, last = chunk[0].row, chunk[-1].row
    ends = _ends(boxes, row_of)
    wide = [slot for slot, row, end in zip(slots, row_of, ends, strict=True) if row <= last and end >= first]
    high = [
        lane
        for source, lane in lanes.items()
        if (row_of[source] if source >= 0 else -1) <= last and (ends[source] if source >= 0 else last) >= first
    ]
    return max(wide, default=0) + 1, max(high, default=-1) + 1


def _ends(boxes: Sequence[Box], row_of: Sequence[int]) -> list[int]:
    """Return the last row where each box is read."""
    ends = list(row_of)
    for number, box in enumerate(boxes):
        for source in box.reads:
            if source >= 0:
                ends[source] = max(ends[source], row_of[number])
    return ends


def _column(left: float, top: float, bottom: float, used: tuple[int, int]) -> Column:
    slots, lanes = used
    needed = slots * SLOT + lanes * LANE
    width = max(needed, NARROWEST)
    return Column(left, left + lanes * LANE + (width - needed) / 2, width, top, bottom)


def _lines(boxes: Sequence[Box], row_of: Sequence[int], bands: Sequence[float]) -> list[Line]:
    ends = _ends(boxes, row_of)
    lines: list[Line] = []
    stage = -1
    stages = dict(zip(row_of, (box.stage for box in boxes), strict=True))
    for row in range(max(row_of) + 1):
        crossing = sum(start < row <= end for start, end in zip(row_of, ends, strict=True))
        if stages[row] != stage:
            stage = stages[row]
            lines.append(Line(bands[stage], row, stage, crossing))
        lines.append(Line(ROW, row, None, crossing))
    return lines


def wrapped(lines: Sequence[Line], width: float) -> list[list[Line]]:
    """Cut lines into columns of about one height, so that the page is wider than high; best where little crosses."""
    total = sum(line.height for line in lines)
    count = max(1, round(math.sqrt(_ASPECT * total / width)))
    cuts = sorted({_break(lines, total * number / count, total / count) for number in range(1, count)})
    return [list(lines[start:stop]) for start, stop in pairwise([0, *cuts, len(lines)])]


def _break(lines: Sequence[Line], ideal: float, target: float) -> int:
    """Return after how many lines a column ends, near `ideal` inches: not after a band, nor where much crosses."""
    best, cost, height = len(lines), math.inf, lines[0].height
    for number in range(1, len(lines)):
        if lines[number - 1].stage is None:
            missed = abs(height - ideal) / target
            crossing = min(lines[number].crossing, _MOST_CROSSING) - 2 * (lines[number].stage is not None)
            penalty = _MISSED * missed * missed + crossing
            if penalty < cost:
                best, cost = number, penalty
        height += lines[number].height
    return best
