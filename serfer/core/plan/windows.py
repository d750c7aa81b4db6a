"""The windows of a map plan: how an image that no function holds is computed piece by piece, as if it were whole.

rows of an image             windows overlap by exactly what the network reads around a pixel; what they write
┌──────────────┐             touches without a gap. Padding stands only where the image ends, so that windows at
│ kind 0       │ read        its first and last rows are computed by other graphs than those between:
├ ─ ─ ─ ─ ─ ─ ─┤ ◀─ overlap
│ kind 1       │             kind 0, 1, 1, ..., 1, 2
├ ─ ─ ─ ─ ─ ─ ─┤
│ kind 1  ...  │             A kind of rows and a kind of columns make a tile of the plan's only stage: nine for
most networks. A query is one window, and computes that tile alone.

A plan is for images of certain sizes, each side's windows listed, or for images of any size, by rules: windows at both
ends of a side are aligned to these, and those between start anywhere at multiples of the unit by which the network
shifts. What such a window computes and one before it does, too, is cut off (`made` and `written`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, floor

from serfer.core.dataclass_codec import LATER
from serfer.core.errors import InputError
from serfer.core.geometry import Rect, Span
from serfer.core.plan.statistics import POSITION, SKIPPED, MapStatistics

NO_TILE = -1
"""What stands for a kind of rows and a kind of columns that never meet."""
MAX_WINDOWS = 100_000
"""The most windows along an axis of an image."""
_QUERY_PIXELS = 128 * 128
"""Pixels that cost about as much as a query does beside those of its window."""


@dataclass(frozen=True, slots=True)
class AxisWindow:
    """A window along one axis: it reads pixels `read` of the image and writes `written` of the result, as its kind.

    Its tile computes `made` of the result, of which `written` is a part; None where that is all. `reads` are rows of
    the maps that it reads in place of the image, of which `read` are then the pixels that they cover; `keeps` are rows
    of those that it keeps for later passes. Both are in the order of `StatisticsPass`.
    """

    kind: int
    read: Span
    written: Span
    made: Span | None = field(default=None, metadata=LATER)
    reads: tuple[Span, ...] = field(default=(), metadata=LATER)
    keeps: tuple[Span, ...] = field(default=(), metadata=LATER)

    @property
    def computed(self) -> Span:
        return self.made or self.written


@dataclass(frozen=True, slots=True)
class AxisResult:
    """Another result of the windows along an axis, of an output besides the first; fields are as in `AxisWindows`."""

    result: int
    start: float | None
    step: float

    def at(self, pixel: float) -> int:
        """Return where in the result a window starts that starts at a pixel of the image."""
        return round(pixel / self.step)


@dataclass(frozen=True, slots=True)
class AxisWindows:
    """The windows, in order, along an axis of `size` pixels of an image, of whose result there are `result`.

    Pixel r of the result lies on the `step` pixels of the image from `start` + r `step` on. `start` is None where no
    place is the middle of what the network reads, as its branches disagree. `others` are the results of the network's
    outputs besides the first, of other steps perhaps: a window starts at the same pixel of the image in all of them.
    """

    size: int
    result: int
    windows: tuple[AxisWindow, ...]
    start: float | None = None
    step: float = 1.0
    others: tuple[AxisResult, ...] = field(default=(), metadata=LATER)

    @property
    def reach(self) -> tuple[int, int] | None:
        """How many pixels of the image are read, at most, before those that a window's result lies on, and behind.

        None where every window reads up to an end of the image.
        """
        before = [
            ceil(window.computed.start * self.step) - window.read.start for window in self.windows if window.read.start
        ]
        behind = [
            window.read.stop - floor(window.computed.stop * self.step)
            for window in self.windows
            if window.read.stop < self.size
        ]
        return (max(0, *before), max(0, *behind)) if before and behind else None

    def of_output(self, number: int) -> AxisWindows:
        """Return the windows with what they write of output `number`, from 0, alone."""
        if not number:
            return replace(self, others=()) if self.others else self
        other = self.others[number - 1]
        starts = [other.at(window.written.start * self.step) for window in self.windows]
        spans = map(Span, starts, (*starts[1:], other.result))
        windows = tuple(
            replace(window, written=span, made=window.made and Span(other.at(window.made.start * self.step), span.stop))
            for window, span in zip(self.windows, spans, strict=True)
        )
        return AxisWindows(self.size, other.result, windows, other.start, other.step)


Ending = tuple[int, tuple[Span, ...]]
"""What is left of an axis after whole units, and the sizes of it that end in one way; none stand for all."""


@dataclass(frozen=True, slots=True)
class AxisEnd:
    """How an axis ends of which `residue` pixels are left after its n units; it has at least `least` pixels.

    Its result has `rest` more than n times what a unit makes. Windows between start at `last` or before, and those at
    the end are `windows`; these numbers count from where the n-th unit ends. `start` is as in AxisWindows, and so are
    `others`, whose `result` is as `rest`. Of a network that resizes by a fraction, axes of a residue may end in several
    ways, as sizes are rounded: then `sizes` are those that end so.
    """

    residue: int
    least: int
    rest: int
    last: int
    windows: tuple[AxisWindow, ...]
    start: float | None
    others: tuple[AxisResult, ...] = field(default=(), metadata=LATER)
    sizes: tuple[Span, ...] = field(default=(), metadata=LATER)

    @property
    def ending(self) -> Ending:
        return self.residue, self.sizes


def at_least(size: int, ending: Ending, unit: int) -> int | None:
    """Return the shortest axis of at least `size` pixels that ends so, None where there is none."""
    for span in ending[1] or (Span(0, size + unit),):
        first = max(size, span.start)
        if (fitting := first + (ending[0] - first) % unit) < span.stop:
            return fitting
    return None


@dataclass(frozen=True, slots=True)
class AxisRule:
    """The windows along an axis of any length, in units: `unit` pixels of the image make `unit_written` of the result.

    `first` are the windows at its beginning. `middle` is one that begins at 0, to be moved by units. `ends` has a way
    to end for each length modulo the unit that the network takes. `step` is as in AxisWindows.
    """

    unit: int
    unit_written: int
    first: tuple[AxisWindow, ...]
    middle: AxisWindow
    ends: tuple[AxisEnd, ...]
    step: float

    def end_of(self, size: int) -> AxisEnd | None:
        """Return how an axis of `size` pixels ends, None if the network takes no such axis."""
        return next((end for end in self.ends if at_least(size, end.ending, self.unit) == size), None)

    def at(self, size: int) -> AxisWindows | None:
        """Return the windows along an axis of `size` pixels, None if there is no rule for it."""
        end = self.end_of(size)
        if end is None or size < end.least:
            return None
        units = size // self.unit
        origin = units * self.unit_written
        last = [self._moved(window, units) for window in end.windows]
        side, covered = self.middle.written.size, self.first[-1].written.stop
        count = ceil((last[0].written.start - covered) / side)
        if count > MAX_WINDOWS:
            return None
        starts = (min(covered + number * side, origin + end.last) for number in range(count))
        between = (self._moved(self.middle, start // self.unit_written) for start in starts)
        windows, done = list[AxisWindow](), 0
        for window in (*self.first, *between, *last):
            if window.written.stop > done:
                windows.append(_after(window, done))
                done = window.written.stop
        others = tuple(replace(other, result=other.at(units * self.unit) + other.result) for other in end.others)
        return AxisWindows(size, origin + end.rest, tuple(windows), end.start, self.step, others)

    def _moved(self, window: AxisWindow, units: int) -> AxisWindow:
        read, written = units * self.unit, units * self.unit_written
        return AxisWindow(window.kind, window.read.moved(read), window.written.moved(written))

    def __str__(self) -> str:
        residues = [*dict.fromkeys(end.residue for end in self.ends)]
        least = f"of {max(next(e.least for e in self.ends if e.residue == past) for past in residues):,} pixels or more"
        if len(residues) == self.unit:
            return least
        multiple = residues[1] if len(residues) > 1 else self.unit
        if residues == [*range(0, self.unit, multiple)]:
            return f"{least} that are multiples of {multiple}"
        return f"{least} that are {', '.join(map(str, residues))} more than multiples of {self.unit}"

    def near(self, size: int) -> int:
        """Return the longest axis of at most `size` pixels that the network takes, or the shortest of all."""
        lengths = range(size, max(0, size - 2 * self.unit), -1)
        fitting = (length for length in lengths if (end := self.end_of(length)) and length >= end.least)
        return next(fitting, min(end.least for end in self.ends))


def _after(window: AxisWindow, done: int) -> AxisWindow:
    if window.written.start == done:
        return window
    return AxisWindow(window.kind, window.read, Span(done, window.written.stop), made=window.written)


@dataclass(frozen=True, slots=True)
class WindowRules:
    """Windows of one side for images of any size: the rules along rows and along columns, whose kinds all meet."""

    rows: AxisRule
    cols: AxisRule


@dataclass(frozen=True, slots=True)
class SizeRules:
    """The rules of a plan for images of any size, those of the largest windows first.

    `refused` says why there are lengths that the network does not take; it is empty where it takes all.
    """

    sides: tuple[WindowRules, ...]
    refused: str = ""

    def of(self, height: int, width: int) -> tuple[AxisWindows, AxisWindows] | None:
        """Return the windows of an image, of the side that reads the least of it; None where no rule is for it."""
        axes = [(side.rows.at(height), side.cols.at(width)) for side in self.sides]
        possible = [(rows, cols) for rows, cols in axes if rows is not None and cols is not None]
        return min(possible, key=lambda pair: _work(*pair), default=None)

    def __str__(self) -> str:
        smallest = self.sides[-1]
        rows, cols = str(smallest.rows), str(smallest.cols)
        return f"heights and widths {rows}" if rows == cols else f"heights {rows}, and widths {cols}"

    def reason(self, height: int, width: int) -> str:
        smallest = self.sides[-1]
        sides = (smallest.rows, height), (smallest.cols, width)
        takes = f"this plan takes {self}"
        if all(rule.end_of(size) is not None for rule, size in sides):
            return f"{takes}: make a plan with --size {height}x{width}"
        near = " x ".join(str(rule.near(size)) for rule, size in sides)
        why = f" ({self.refused})" if self.refused else ""
        return f"{takes}{why}: crop it to {near} pixels, or pad it to a size that the plan takes"


def _work(rows: AxisWindows, cols: AxisWindows) -> int:
    down, across = (sum(window.read.size for window in axis.windows) for axis in (rows, cols))
    return down * across + len(rows.windows) * len(cols.windows) * _QUERY_PIXELS


IMAGE_READ = -1
"""The number of the image among the maps that windows read."""


@dataclass(frozen=True, slots=True)
class KeptMap:
    """A map that a pass keeps for later ones, float32; what each window keeps of it touches without a gap."""

    channels: int

    def shape(self, rect: Rect) -> tuple[int, int, int]:
        return self.channels, rect.rows.size, rect.cols.size


@dataclass(frozen=True, slots=True)
class StatisticsPass:
    """The windows of a pass over the image that adds up the statistics of `maps`; each "writes" one partial result.

    Heights, widths and tiles are as those of `Windows`: row r and column c of the result are the partial result of
    window (r, c), which its tile writes as channels, rows and columns of the map's own form, zeros behind its values.
    With `rules` the pass is over images of any size, and what windows write counts units: those that they own.
    Behind a partial result lies what the window keeps of the maps `keeps`. `reads` is as in `Windows`.
    """

    heights: tuple[AxisWindows, ...]
    widths: tuple[AxisWindows, ...]
    tiles: tuple[tuple[int, ...], ...]
    maps: tuple[MapStatistics, ...]
    rules: SizeRules | None = field(default=None, metadata=LATER)
    reads: tuple[int, ...] = field(default=(), metadata=LATER)
    keeps: tuple[KeptMap, ...] = field(default=(), metadata=LATER)

    @property
    def partial_size(self) -> int:
        return sum(map_.partial_size for map_ in self.maps)

    def of(self, height: int, width: int) -> ImageWindows:
        return _image_windows(self, height, width, "the image")


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of the images that a map plan is for: any of the heights with any of the widths.

    `tiles[r][c]` is the tile that computes row kind r and column kind c. Windows start at multiples of `stride` pixels,
    of which the network makes `stride_written` pixels of the result. With `rules` the plan is for images of any size,
    and the heights and widths are those of one of them, by which it is explained. `overlap` and `difference` have no
    use: the format has them, and a plan with another value is refused.

    Where the network looks at the whole image, `passes` come before the map, in order, and every window has the
    statistics of all of them as a second input: one vector, in which those that are not known yet are 0. With `rules`
    the vector has SKIPPED values more. Where windows are `positioned`, which those by rules are not, it ends with the
    first row and column of the image that the window reads.

    `crops` are the height and width of parts of an image on which unsplit.onnx makes what the network makes of the
    whole, but for what lies near a part's ends (crops.py): results are compared with it. None where there are none.

    Passes may keep maps, which are numbered in the order of passes. Windows then read the maps `reads`, among which
    IMAGE_READ stands for the image, as one input: their values one behind the other (serfer/core/passes.py). Without
    `reads` they read the image.
    """

    heights: tuple[AxisWindows, ...]
    widths: tuple[AxisWindows, ...]
    tiles: tuple[tuple[int, ...], ...]
    stride: int
    stride_written: int
    overlap: int = 0
    difference: None = None
    passes: tuple[StatisticsPass, ...] = field(default=(), metadata=LATER)
    rules: SizeRules | None = field(default=None, metadata=LATER)
    crops: tuple[int, int] | None = field(default=None, metadata=LATER)
    positioned: bool = field(default=False, metadata=LATER)
    reads: tuple[int, ...] = field(default=(), metadata=LATER)

    @property
    def values(self) -> int:
        """How many values the second input of every window has; 0 where there is none."""
        return self.statistics + POSITION * self.positioned

    def vector(self, statistics: bytes, window: ImageWindow) -> bytes:
        """Return the second input of a window: the statistics, little-endian float32, and where it is."""
        corner = window.read.rows.start, window.read.cols.start
        return statistics + struct.pack("<2f", *corner) if self.positioned else statistics

    @property
    def kept(self) -> tuple[KeptMap, ...]:
        return tuple(keep for pass_ in self.passes for keep in pass_.keeps)

    def kept_by(self, number: int) -> range:
        first = sum(len(pass_.keeps) for pass_ in self.passes[:number])
        return range(first, first + len(self.passes[number].keeps))

    def last_reader(self, kept: int) -> int:
        """Return the number of the last pass that reads a kept map; the map itself counts as one behind them."""
        reads = [*(pass_.reads for pass_ in self.passes), self.reads]
        return max((number for number, read in enumerate(reads) if kept in read), default=-1)

    def reads_of(self, tile: int) -> tuple[int, ...]:
        """Return the maps that a tile's windows read in place of the image; none for most."""
        return (self.pass_of(tile) or self).reads

    @property
    def statistics(self) -> int:
        """How many values the vector of statistics has; 0 where the network looks at neighbourhoods alone."""
        if not self.passes:
            return 0
        values = max(map_.stop for pass_ in self.passes for map_ in pass_.maps)
        return values if self.rules is None else values + SKIPPED

    def pass_of(self, tile: int) -> StatisticsPass | None:
        return next((pass_ for pass_ in self.passes for numbers in pass_.tiles if tile in numbers), None)

    @property
    def first(self) -> ImageWindows:
        return ImageWindows(self.heights[0], self.widths[0], self.tiles)

    def of(self, height: int, width: int, name: str = "the image") -> ImageWindows:
        """Return the windows of an image of a name; raises InputError for a size that the plan is not for."""
        return _image_windows(self, height, width, name)


@dataclass(frozen=True, slots=True)
class ImageWindow:
    """A window of an image: it reads `read` and writes `written` of the result, by tile `tile` of the plan.

    That makes `made`, of which `written` is a part. `reads` and `keeps` are as in `AxisWindow`.
    """

    tile: int
    read: Rect
    written: Rect
    made: Rect
    reads: tuple[Rect, ...] = ()
    keeps: tuple[Rect, ...] = ()

    @property
    def skipped(self) -> tuple[int, int]:
        """Rows and columns at the beginning of what it makes that windows before it write."""
        return self.written.rows.start - self.made.rows.start, self.written.cols.start - self.made.cols.start

    @property
    def kept(self) -> tuple[slice, slice]:
        """What is written of the tile's output, as numpy indices of its last two axes."""
        return self.written.within(self.made).slices


@dataclass(frozen=True, slots=True)
class ImageWindows:
    """The windows of an image, numbered row by row; its result has `height` x `width` pixels."""

    rows: AxisWindows
    cols: AxisWindows
    tiles: tuple[tuple[int, ...], ...]

    @property
    def height(self) -> int:
        return self.rows.result

    @property
    def width(self) -> int:
        return self.cols.result

    def __len__(self) -> int:
        return len(self.rows.windows) * len(self.cols.windows)

    def __getitem__(self, number: int) -> ImageWindow:
        row, col = divmod(number, len(self.cols.windows))
        down, across = self.rows.windows[row], self.cols.windows[col]
        tile = self.tiles[down.kind][across.kind]
        read, written = Rect(down.read, across.read), Rect(down.written, across.written)
        reads, keeps = (tuple(map(Rect, *spans)) for spans in ((down.reads, across.reads), (down.keeps, across.keeps)))
        return ImageWindow(tile, read, written, Rect(down.computed, across.computed), reads, keeps)

    def of_output(self, number: int) -> ImageWindows:
        """Return the windows with what they write of output `number`, from 0, alone."""
        return ImageWindows(self.rows.of_output(number), self.cols.of_output(number), self.tiles)

    def own(self, number: int) -> Rect:
        """Return the pixels that a window reads and none after it along either axis: each pixel read is one's own."""
        row, col = divmod(number, len(self.cols.windows))
        return Rect(_own_span(self.rows.windows, row), _own_span(self.cols.windows, col))

    def __iter__(self) -> Iterator[ImageWindow]:
        return (self[number] for number in range(len(self)))


def _image_windows(plan: Windows | StatisticsPass, height: int, width: int, name: str) -> ImageWindows:
    if plan.rules is not None:
        axes = plan.rules.of(height, width)
        if axes is None:
            raise InputError(f"{name} has {height} x {width} pixels, and {plan.rules.reason(height, width)}")
        return ImageWindows(*axes, plan.tiles)
    rows = next((axis for axis in plan.heights if axis.size == height), None)
    cols = next((axis for axis in plan.widths if axis.size == width), None)
    if rows is None or cols is None:
        heights, widths = (" or ".join(str(axis.size) for axis in axes) for axes in (plan.heights, plan.widths))
        raise InputError(
            f"{name} has {height} x {width} pixels, and this plan is for heights of {heights} and widths of {widths}: "
            f"make a plan with --size {height}x{width}"
        )
    return ImageWindows(rows, cols, plan.tiles)


def _own_span(windows: tuple[AxisWindow, ...], number: int) -> Span:
    read = windows[number].read
    after = windows[number + 1].read.start if number + 1 < len(windows) else read.stop
    return Span(read.start, max(read.start, min(read.stop, after)))
