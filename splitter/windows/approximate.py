"""Windows that are images of their own, for networks that look at the whole image: an approximation.

along an axis          ┌ read: as much for every window, moved inward at the image's ends
┌────────┬──────┬────────┐
│overlap │writes│overlap │    A global average is then that of a window, and padding stands at a window's ends: what
└────────┴──────┴────────┘    windows write differs from the network on the whole image, by what sample.py measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import ceil, lcm

from serfer.core.errors import UsageError
from serfer.core.geometry import Rect, Span
from serfer.core.plan import FETCHED, ZIP, AxisWindow, AxisWindows, Windows
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph
from serfer.splitter.network.unsupported import refuse
from serfer.splitter.planning.limits import room_in
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.regions import infer_regions
from serfer.splitter.tiling.tiling_rule import extent
from serfer.splitter.windows.map_plan import STEPS, Network, WindowChoice, WindowTile, WindowTiles, window_usd
from serfer.splitter.windows.memory import window_mb
from serfer.splitter.windows.position import Place, place_of, placed
from serfer.splitter.windows.same_windows import weights_by_size

_LONGER = 4_032
"""Pixels by which an image is larger along one axis, to measure strides: 2^6 x 3^2 x 7, patches of 14 included."""
_Size = tuple[int, int]
_Kind = tuple[int, Span]
"""Pixels that a window has, and the rows (or columns) of its result that are written."""


@dataclass(frozen=True)
class Step:
    """Along one axis, `pixels` of an image make `written` of the result; windows start at multiples of it.

    `place` is that of the result on images which are as far past a multiple as the one that showed it.
    """

    pixels: int
    written: int
    place: Place | None = None


@dataclass(frozen=True)
class FixedOverlap:
    """Windows that write `side` pixels of the result along each axis, and have `overlap` pixels around those."""

    rows: Step
    cols: Step
    side: int
    overlap: int

    def reads(self, size: _Size) -> _Size:
        """Return the height and width of most windows of an image."""
        height, width = (
            _read(each, step, self.side, self.overlap) for each, step in zip(size, (self.rows, self.cols), strict=True)
        )
        return height, width

    def count(self, size: _Size) -> int:
        """Return about how many windows an image has; they all take the same time."""
        down, across = (
            max(1, ceil(each // step.pixels * step.written / self.side))
            for each, step in zip(size, (self.rows, self.cols), strict=True)
        )
        return down * across

    def beside(self, size: _Size, more: int) -> _Size:
        """Return the size of an image that has `more` windows along each axis than one, or of `size` if that is less.

        It is as far past a multiple of the strides as `size` is, so that a network that takes one takes the other.
        """
        longer = []
        for each, read, step in zip(size, self.reads(size), (self.rows, self.cols), strict=True):
            length = read + more * self.side // step.written * step.pixels
            longer.append(min(each, length + (each - length) % step.pixels))
        height, width = longer
        return height, width


def _read(size: int, step: Step, side: int, overlap: int) -> int:
    """Return how many pixels of an axis of `size` a window has, a multiple of the stride, or all of them."""
    wanted = side // step.written + 2 * ceil(overlap / step.pixels)
    return size if wanted >= size // step.pixels else wanted * step.pixels


def steps_of(network: Network, size: _Size) -> tuple[Step, Step]:
    """Return by what the network's map shifts along rows and columns, measured on a small image of `size`.

    Tensors that do not grow with the image, or are not maps, count for nothing: they are those of a window. Raises
    ModelError for a network whose result is not a map that grows with the image.
    """
    graph = network.of_one_map(size)
    height, width = size
    rows = _step(graph, network.at(height + _LONGER, width, size), ROW_AXIS)
    return rows, _step(graph, network.at(height, width + _LONGER, size), COL_AXIS)


def _step(graph: Graph, larger: Graph, axis: int) -> Step:
    rates = {}
    for node in graph.nodes:
        for name in (*graph.activations(node), node.output):
            if graph.axes(name) is not None:
                rates[name] = Fraction(extent(larger, name, axis) - extent(graph, name, axis), _LONGER)
    if not rates.get(graph.output):
        last = graph.nodes[-1]
        raise refuse(last.name, last.kind, "its result does not grow with the image, so no window makes a part of it")
    pixels = lcm(*(rate.denominator for rate in rates.values() if rate > 0))
    return Step(pixels, int(rates[graph.output] * pixels), place_of(larger, larger.output, axis, rates))


def choose_overlapping(
    network: Network, steps: tuple[Step, Step], size: _Size, overlap: int, budget: Budget, window: int | None
) -> tuple[FixedOverlap, WindowChoice]:
    """Return the windows with which an image of `size` costs the least, among those that functions can hold.

    Raises UsageError where none of `window` pixels, or none at all, fits the memory.
    """
    rows, cols = steps
    unit = lcm(rows.written, cols.written)
    if window and window % unit:
        below = max(unit, window // unit * unit)
        raise UsageError(
            f"--window {window} is not a multiple of the network's stride: the nearest ones are {below} and "
            f"{below + unit}"
        )
    sides = [window] if window else [*dict.fromkeys(max(unit, each // unit * unit) for each in STEPS)]
    best: tuple[float, FixedOverlap, WindowChoice] | None = None
    for side in sides:
        cut = FixedOverlap(rows, cols, side, overlap)
        graph = network.of_one_map(cut.reads(size))
        weights = weight_bytes(graph, 0, len(graph.nodes))
        place = ZIP if weights <= room_in(ZIP, budget) else FETCHED
        middle = _middle(graph, cut)
        regions = infer_regions(graph, graph.nodes, [{graph.output: middle}])[0]
        needed = window_mb(graph, regions, weights, place)
        fitting = [memory for memory in budget.memory_mb if memory >= needed]
        if not fitting:
            break  # larger ones take more
        for memory in fitting:
            usd = window_usd(graph, regions, budget, memory) * cut.count(size)
            if best is None or usd < best[0]:
                best = usd, cut, WindowChoice(side, memory, place)
    if best is None:
        raise UsageError(
            f"windows of {sides[0]} pixels with {overlap} around them take about {needed:,} MB, and functions have at "
            f"most {max(budget.memory_mb):,}: choose smaller ones, a smaller overlap, or more --memory"
        )
    return best[1], best[2]


def _middle(graph: Graph, cut: FixedOverlap) -> Rect:
    """Return what a window inside of an image writes of its own result."""
    spans = []
    for axis, step in ((ROW_AXIS, cut.rows), (COL_AXIS, cut.cols)):
        size = extent(graph, graph.output, axis)
        start = max(0, min(ceil(cut.overlap / step.pixels) * step.written, size - cut.side))
        spans.append(Span(start, min(size, start + cut.side)))
    return Rect(*spans)


def overlapping_tiles(network: Network, sizes: Sequence[_Size], cut: FixedOverlap) -> WindowTiles:
    """Return the windows of images of these sizes, and a tile for each pair of kinds that meet.

    Raises UsageError for an overlap that is less than what the network takes off at the ends of an image.
    """
    heights, widths = ([*dict.fromkeys(each)] for each in zip(*sizes, strict=True))
    high = [_axis(network, each, (each, widths[0]), ROW_AXIS, cut) for each in heights]
    wide = [_axis(network, each, (heights[0], each), COL_AXIS, cut) for each in widths]
    rows, cols = ([*dict.fromkeys(kind for axis in axes for kind, _ in axis.windows)] for axes in (high, wide))
    tiles = []
    for (height, down), (width, across) in product(rows, cols):
        graph = network.of_one_map((height, width))
        written = Rect(down, across)
        regions = infer_regions(graph, graph.nodes, [{graph.output: written}])[0]
        tiles.append(WindowTile(graph, regions, (written,)))
    own = weights_by_size(tile.graph for tile in tiles)
    numbers = tuple(tuple(range(row * len(cols), (row + 1) * len(cols))) for row in range(len(rows)))
    reads = [tile.regions[tile.graph.input] for tile in tiles]
    windows = Windows(
        tuple(_windows(axis, rows, [reads[each[0]].rows for each in numbers], cut.rows, heights[0]) for axis in high),
        tuple(_windows(axis, cols, [reads[each].cols for each in numbers[0]], cut.cols, widths[0]) for axis in wide),
        numbers,
        stride=lcm(cut.rows.pixels, cut.cols.pixels),
        stride_written=lcm(cut.rows.written, cut.cols.written),
        overlap=cut.overlap,
    )
    return WindowTiles(windows, tuple(replace(tile, own=own) for tile in tiles))


@dataclass(frozen=True)
class _Axis:
    """The windows along an axis of `size` pixels: of each its kind, and its first pixel and first row written."""

    size: int
    result: int
    windows: tuple[tuple[_Kind, _Size], ...]


def _axis(network: Network, size: int, image: _Size, axis: int, cut: FixedOverlap) -> _Axis:
    step = cut.rows if axis == ROW_AXIS else cut.cols
    read = cut.reads(image)
    most = read[axis - ROW_AXIS]
    last = most + (size - most) % step.pixels  # the last window has what is past a multiple of the stride, too
    ends = {}
    for each in {most, last}:
        graph = network.of_one_map((each, read[1]) if axis == ROW_AXIS else (read[0], each))
        ends[each] = extent(graph, graph.output, axis)
    furthest = (size - last) // step.pixels
    result = furthest * step.written + ends[last]
    windows = []
    for start in range(0, result, cut.side):
        unit = min(max(0, start // step.written - ceil(cut.overlap / step.pixels)), furthest)
        pixels = last if unit == furthest else most
        shift = unit * step.written
        span = Span(start - shift, min(start + cut.side, result) - shift)
        if span.stop > ends[pixels]:
            raise UsageError(
                f"--approximate {cut.overlap} is less than what the network takes off at the ends of an image: give a "
                "larger overlap"
            )
        windows.append(((pixels, span), (unit * step.pixels, shift)))
    return _Axis(size, result, tuple(windows))


def _windows(axis: _Axis, kinds: Sequence[_Kind], reads: Sequence[Span], step: Step, first: int) -> AxisWindows:
    """Return the windows of an axis; `reads` are the pixels that each kind needs of those that it has.

    `first` is the size on which, or on a small one for which, `step` was measured.
    """
    windows = []
    for kind, (pixel, shift) in axis.windows:
        number = kinds.index(kind)
        _, written = kind
        windows.append(AxisWindow(number, reads[number].moved(pixel), written.moved(shift)))
    place = None if (axis.size - first) % step.pixels else step.place
    return placed(AxisWindows(axis.size, axis.result, tuple(windows)), place, Fraction(step.pixels, step.written))
