"""Non-maximum suppression of very many boxes, by grids of cells: what overlaps is found near each box alone.

Boxes are sorted into levels by their longer side, 2^(L-1) to 2^L pixels, and lie in the cell, 2^L pixels wide, of their
centre. What overlaps a box has its centre in few cells of each level; a level whose boxes are so much smaller or larger
that their intersection cannot be `max_iou` of the union is passed over. The best boxes come first, in blocks: each box
of a block that is not dropped yet drops, in order, the later ones that it overlaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.core.detections import Boxes, box_areas

_Indices = NDArray[np.int64]
_NONE: _Indices = np.empty(0, np.int64)
_FIRST_BLOCK, _LARGEST_BLOCK = 2_048, 131_072
_MOST_PAIRS = 4_000_000
"""Pairs of boxes that are compared at once: some hundred MB."""
_MOST_CELLS = 1 << 22
"""Cells of a grid in each direction from the corner; what lies further counts as there, and is compared in vain."""
_SIDE = 2 * _MOST_CELLS + 1
_MOST_LEVEL = 40


def without_overlaps_by_cells(boxes: Boxes, max_iou: float) -> _Indices:
    """Return what `without_overlaps` keeps of boxes in order, best first, in bounded memory beside theirs."""
    if max_iou >= 1 or not len(boxes):
        return np.arange(len(boxes))
    grids, dropped = _Grids(boxes, max_iou), np.zeros(len(boxes), bool)
    start, size = 0, _FIRST_BLOCK
    while start < len(boxes):
        stop = min(start + size, len(boxes))
        block = start + np.flatnonzero(~dropped[start:stop])
        if len(block) > 1 and grids.near(block) > _MOST_PAIRS:
            size = (stop - start) // 2
            continue
        _decide(dropped, [*grids.pairs(block)])
        start, size = stop, min(2 * size, _LARGEST_BLOCK)
    return np.flatnonzero(~dropped)


def _decide(dropped: NDArray[np.bool_], pairs: list[tuple[_Indices, _Indices]]) -> None:
    ones, others = (np.concatenate([pair[side] for pair in pairs]) if pairs else _NONE for side in (0, 1))
    order = np.argsort(ones, kind="stable")
    ones, others = ones[order], others[order]
    first = np.flatnonzero(np.r_[True, ones[1:] != ones[:-1]]) if len(ones) else _NONE
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(ones)], strict=False):
        if not dropped[ones[begin]]:
            dropped[others[begin:end]] = True


@dataclass(frozen=True)
class _Level:
    """The boxes of a level: their cells' numbers, in order, and their indices."""

    cells: _Indices
    indices: _Indices


class _Grids:
    """The boxes in a grid for each level and class."""

    def __init__(self, boxes: Boxes, max_iou: float) -> None:
        self.boxes, self.max_iou = boxes, max_iou
        levels = _level_of((boxes.corners[:, 2:] - boxes.corners[:, :2]).max(axis=1, initial=0))
        self._levels: dict[int, _Level] = {}
        for level in np.unique(levels).tolist():
            own = np.flatnonzero(levels == level)
            cells = self._cells(own, level)
            order = np.argsort(cells, kind="stable")
            self._levels[level] = _Level(cells[order], own[order])

    def _cells(self, indices: _Indices, level: int) -> _Indices:
        corners = self.boxes.corners[indices]
        centres = (corners[:, :2] + corners[:, 2:]) / 2
        return _numbers(self.boxes.classes[indices], _cell(centres[:, 1], level), _cell(centres[:, 0], level))

    def near(self, block: _Indices) -> int:
        return sum(int((last - first).sum()) for _, _, first, last in self._ranges(block))

    def pairs(self, block: _Indices) -> Iterator[tuple[_Indices, _Indices]]:
        """Yield boxes of the block and, of the grids, the later ones that overlap them by more than `max_iou`."""
        for level, queries, first, last in self._ranges(block):
            counts = last - first
            ones = np.repeat(queries, counts)
            places = np.arange(len(ones)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
            others = level.indices[places]
            over = self._overlapping(ones, others) & (ones < others)
            if over.any():
                yield ones[over], others[over]

    def _ranges(self, block: _Indices) -> Iterator[tuple[_Level, _Indices, _Indices, _Indices]]:
        corners = self.boxes.corners[block]
        centres, halves = (corners[:, :2] + corners[:, 2:]) / 2, (corners[:, 2:] - corners[:, :2]).clip(0) / 2
        own = _level_of(2 * halves.max(axis=1, initial=0))
        for number, level in self._levels.items():
            fits = np.exp2(-np.abs(own - number) + 1.0) > self.max_iou
            queries, half = block[fits], halves[fits] + 2.0**number / 2
            low, high = (_cell(centres[fits] + sign * half, number) for sign in (-1, 1))
            wide = high[:, 1] - low[:, 1] >= len(level.cells)  # more rows than boxes: all of these are near
            if wide.any():
                most = np.full(int(wide.sum()), len(level.cells))
                yield level, queries[wide], np.zeros_like(most), most
                queries, low, high = queries[~wide], low[~wide], high[~wide]
            classes = self.boxes.classes[queries]
            for row in range(int((high[:, 1] - low[:, 1]).max(initial=-1)) + 1):
                inside = low[:, 1] + row <= high[:, 1]
                rows = low[inside, 1] + row
                first = np.searchsorted(level.cells, _numbers(classes[inside], rows, low[inside, 0]), "left")
                last = np.searchsorted(level.cells, _numbers(classes[inside], rows, high[inside, 0]), "right")
                some = last > first
                yield level, queries[inside][some], first[some], last[some]

    def _overlapping(self, ones: _Indices, others: _Indices) -> NDArray[np.bool_]:
        one, other = self.boxes.corners[ones], self.boxes.corners[others]
        sides = np.minimum(one[:, 2:], other[:, 2:]) - np.maximum(one[:, :2], other[:, :2])
        common = sides.clip(0).prod(axis=1)
        alike = self.boxes.classes[ones] == self.boxes.classes[others]
        over: NDArray[np.bool_] = alike & (common > self.max_iou * (box_areas(one) + box_areas(other) - common))
        return over


def _level_of(sides: NDArray[np.float64]) -> _Indices:
    levels = np.ceil(np.log2(np.maximum(sides, 1.0)))
    clipped: _Indices = levels.clip(0, _MOST_LEVEL).astype(np.int64)
    return clipped


def _cell(places: NDArray[np.float64], level: int) -> _Indices:
    cells: _Indices = np.floor(places / 2.0**level).clip(-_MOST_CELLS, _MOST_CELLS).astype(np.int64)
    return cells


def _numbers(classes: _Indices, rows: _Indices, cols: _Indices) -> _Indices:
    numbers: _Indices = (classes * _SIDE + rows + _MOST_CELLS) * _SIDE + cols + _MOST_CELLS
    return numbers
