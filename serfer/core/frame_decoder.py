"""Boxes of a map: a detector's own last operators decode the maps of its heads frame by frame, anywhere in an image.

heads of a window, of several strides      ┌───────┬───────┬──┐   Each frame has the size that the operators were
                                           │ frame │ frame │  │   exported for, with constants of their own (a grid of
                                           ├───────┼───────┼──┤   cells). What is beyond the window's end is filled, and
                                           │ frame │ frame │  │   boxes of filled cells are left out; the others move to
                                           └───────┴───────┴──┘   where the frame lies.

Which box belongs to which cell is measured once: values of some cells are changed, and boxes that change are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.detections import Boxes, decoded
from serfer.core.errors import PlanError
from serfer.core.plan.detection import DetectionHead

Array = NDArray[Any]
Run = Callable[[Mapping[str, Array]], Sequence[Array]]
"""Computes, of maps (1, C, rows, cols) of a frame by the names of heads, the outputs that a `DetectionHead` names."""
COLUMNS = 7
"""Of a table of candidates: left, top, right, bottom, score, class, and the place in the order of the whole image."""


@dataclass(frozen=True)
class Head:
    """A map of a detector: a cell has `channels` values and is `stride` pixels wide."""

    name: str
    channels: int
    stride: int


class FrameDecoder:
    """Decodes maps of `heads` in frames of height x width pixels, multiples of each stride, by `run`.

    Raises PlanError where a box depends on more than one cell, so that no frame can stand for a part of an image.
    """

    def __init__(self, head: DetectionHead, heads: Sequence[Head], size: tuple[int, int], run: Run) -> None:
        self.head, self.heads, self.size, self._run = head, tuple(heads), size, run
        self.strides = tuple(dict.fromkeys(frame_head.stride for frame_head in heads))

    def outputs(self, maps: Mapping[str, Array]) -> list[Array]:
        """Return the detector's outputs, one image's share, for the maps of a frame."""
        return [np.asarray(values)[0] for values in self._run(maps)]

    def _boxes(self, maps: Mapping[str, Array]) -> Boxes:
        return decoded(self.head, self.outputs(maps), self.size)

    def _cells(self, stride: int) -> tuple[int, int]:
        return self.size[0] // stride, self.size[1] // stride

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Of each box of a frame (K, 4): its cell's stride, as its number in `strides`, row and column, and slot.

        A slot is the box's number among those of its cell. Raises PlanError.
        """
        random = np.random.default_rng(0)
        shapes = {head.name: (1, head.channels, *self._cells(head.stride)) for head in self.heads}
        one, other = ({name: random.normal(0, 1, shape) for name, shape in shapes.items()} for _ in range(2))
        numbers: dict[int, NDArray[np.int64]] = {}
        end = 0
        for stride in self.strides:
            rows, cols = self._cells(stride)
            numbers[stride] = end + np.arange(rows * cols).reshape(rows, cols)
            end += rows * cols

        def made(chosen: Callable[[Array], Array]) -> Boxes:
            maps = {
                head.name: np.where(chosen(numbers[head.stride]), other[head.name], one[head.name]).astype(np.float32)
                for head in self.heads
            }
            return self._boxes(maps)

        before, after = made(lambda cells: cells < 0), made(lambda cells: cells >= 0)
        cell = np.zeros(len(before), np.int64)
        single = _differ(before, after)
        for bit in range(end.bit_length()):
            ours = _differ(before, made(lambda cells, bit=bit: cells >> bit & 1 == 1))  # type: ignore[misc]
            theirs = _differ(before, made(lambda cells, bit=bit: cells >> bit & 1 == 0))  # type: ignore[misc]
            single &= ours != theirs
            cell |= ours.astype(np.int64) << bit
        if not len(before) or not single.all() or cell.max() >= end:
            raise PlanError("boxes of the detector depend on more than the cell of its maps that they belong to")
        scale = np.searchsorted([cells[0, 0] for cells in numbers.values()], cell, "right") - 1
        wide = np.array([self._cells(stride)[1] for stride in self.strides])[scale]
        inside = cell - np.array([cells[0, 0] for cells in numbers.values()])[scale]
        return np.stack([scale, inside // wide, inside % wide, _numbers_among_equals(cell)], axis=1)

    @cached_property
    def _order(self) -> list[tuple[int, int, bool]]:
        order = []
        for number in range(len(self.strides)):
            own = np.flatnonzero(self.places[:, 0] == number)
            slots = int(self.places[own, 3].max(initial=0)) + 1
            if len(own) != slots * np.prod(self._cells(self.strides[number])):
                raise PlanError("cells of the detector's maps have different numbers of boxes")
            order.append((int(own.min()), slots, bool(slots > 1 and self.places[own[1], 3] == 0)))
        ranks = np.argsort(np.argsort([first for first, _, _ in order])).tolist()
        return [(rank, slots, slots_first) for rank, (_, slots, slots_first) in zip(ranks, order, strict=True)]

    def candidates(
        self, maps: Mapping[str, Array], origin: tuple[int, int], image: tuple[int, int], min_score: float
    ) -> NDArray[np.float64]:
        """Return the boxes (K, COLUMNS) of a window's maps (1, C, rows, cols) whose score is at least `min_score`.

        `origin` is the row and column of the image at which the maps begin, a multiple of every stride; `image` is its
        height and width. Boxes are in its pixels.
        """
        sizes = {head.stride: maps[head.name].shape[2:] for head in self.heads}
        down, across = (
            max(-(-cells[axis] * stride // self.size[axis]) for stride, cells in sizes.items()) for axis in (0, 1)
        )
        found = [
            self._frame(maps, sizes, (row * self.size[0], col * self.size[1]), origin, image, min_score)
            for row in range(down)
            for col in range(across)
        ]
        return np.concatenate(found) if found else np.empty((0, COLUMNS))

    def _frame(
        self,
        maps: Mapping[str, Array],
        sizes: Mapping[int, tuple[int, ...]],
        within: tuple[int, int],
        origin: tuple[int, int],
        image: tuple[int, int],
        min_score: float,
    ) -> NDArray[np.float64]:
        given = {}
        for head in self.heads:
            top, left = (start // head.stride for start in within)
            rows, cols = self._cells(head.stride)
            part = maps[head.name][:, :, top : top + rows, left : left + cols]
            filled = np.zeros((1, head.channels, rows, cols), np.float32)
            filled[:, :, : part.shape[2], : part.shape[3]] = part
            given[head.name] = filled
        boxes, places = self._boxes(given), self.places
        scale, row, col, _ = places.T
        strides = np.array(self.strides)[scale]
        have = np.array([sizes[stride] for stride in self.strides])[scale]
        top, left = (np.full(len(scale), start) // strides for start in within)
        kept = (row + top < have[:, 0]) & (col + left < have[:, 1]) & (boxes.scores >= min_score)
        place = self._place(places, strides, (within[0] + origin[0], within[1] + origin[1]), image)
        shift = np.array([within[1] + origin[1], within[0] + origin[0]] * 2)
        table = [boxes.corners + shift, boxes.scores[:, None], boxes.classes[:, None], place[:, None]]
        return np.concatenate([column[kept] for column in table], axis=1)

    def _place(
        self, places: NDArray[np.int64], strides: Array, start: tuple[int, int], image: tuple[int, int]
    ) -> NDArray[np.int64]:
        scale, slot = places[:, 0], places[:, 3]
        row, col = places[:, 1] + start[0] // strides, places[:, 2] + start[1] // strides
        rank, slots, first = (np.array(column)[scale] for column in zip(*self._order, strict=True))
        height, width = (-(-side // strides) for side in image)
        place = np.where(first == 1, (slot * height + row) * width + col, (row * width + col) * slots + slot)
        whole = [
            -(-image[0] // s) * -(-image[1] // s) * count
            for s, (_, count, _) in zip(self.strides, self._order, strict=True)
        ]
        by_rank = [size for _, size in sorted(zip([rank for rank, _, _ in self._order], whole, strict=True))]
        return np.asarray(np.cumsum([0, *by_rank[:-1]])[rank] + place)


def _differ(one: Boxes, other: Boxes) -> NDArray[np.bool_]:
    return np.asarray((one.corners != other.corners).any(axis=1) | (one.scores != other.scores))


def _numbers_among_equals(values: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(values, kind="stable")
    _, first, counts = np.unique(values[order], return_index=True, return_counts=True)
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.arange(len(values)) - np.repeat(first, counts)
    return numbers
