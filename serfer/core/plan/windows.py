"""The windows of a map plan: how an image that no function holds is computed piece by piece, as if it were whole.

rows of an image             windows overlap by exactly what the network reads around a pixel; what they write
┌──────────────┐             touches without a gap. Padding stands only where the image ends, so that windows at
│ kind 0       │ read        its first and last rows are computed by other graphs than those between:
├ ─ ─ ─ ─ ─ ─ ─┤ ◀─ overlap
│ kind 1       │             kind 0, 1, 1, ..., 1, 2
├ ─ ─ ─ ─ ─ ─ ─┤
│ kind 1  ...  │             A kind of rows and a kind of columns make a tile of the plan's only stage: nine for
most networks. A query is one window, and computes that tile alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from serfer.core.dataclass_codec import LATER
from serfer.core.errors import InputError
from serfer.core.geometry import Rect, Span
from serfer.core.plan.statistics import MapStatistics

NO_TILE = -1
"""What stands for a kind of rows and a kind of columns that never meet."""


@dataclass(frozen=True, slots=True)
class AxisWindow:
    """A window along one axis: it reads pixels `read` of the image and writes `written` of the result, as its kind."""

    kind: int
    read: Span
    written: Span


@dataclass(frozen=True, slots=True)
class AxisResult:
    """Another result of the windows along an axis, of an output besides the first; fields are as in `AxisWindows`."""

    result: int
    start: float | None
    step: float


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

    def of_output(self, number: int) -> AxisWindows:
        """Return the windows with what they write of output `number`, from 0, alone."""
        if not number:
            return replace(self, others=()) if self.others else self
        other = self.others[number - 1]
        starts = [round(each.written.start * self.step / other.step) for each in self.windows]
        spans = map(Span, starts, (*starts[1:], other.result))
        windows = tuple(replace(each, written=span) for each, span in zip(self.windows, spans, strict=True))
        return AxisWindows(self.size, other.result, windows, other.start, other.step)


@dataclass(frozen=True, slots=True)
class SampleDifference:
    """How far windows that are images of their own are from the network on a whole sample of height x width pixels.

    `error` and `mean_error` are the largest and the mean difference relative to the range of the network's values, None
    for whole numbers. `agreement` is the share of pixels with the same class, or largest channel; None for one channel,
    and for whole numbers that are the same everywhere in both, of which no difference can be seen.
    """

    sample: str
    height: int
    width: int
    error: float | None
    mean_error: float | None
    agreement: float | None

    @property
    def of_one_class(self) -> bool:
        """Whether all pixels had one class, so that nothing was measured."""
        return self.error is None and self.agreement is None

    def __str__(self) -> str:
        """Return it in words: what was measured, and on what."""
        parts = []
        if self.of_one_class:
            parts.append("all pixels have one class, so that nothing is known of the difference")
        if self.error is not None:
            parts.append(f"values differ by at most {self.error:.1e} of their range, {self.mean_error:.1e} on average")
        if self.agreement is not None:
            parts.append(f"{1 - self.agreement:.2%} of pixels have another class")
        return f"on {self.sample}, {self.height:,} x {self.width:,} pixels, {', and '.join(parts)}"


@dataclass(frozen=True, slots=True)
class StatisticsPass:
    """The windows of a pass over the image that adds up the statistics of `maps`; each "writes" one partial result.

    Heights, widths and tiles are as those of `Windows`: row r and column c of the result are the partial result of
    window (r, c), which its tile writes as channels, rows and columns of the map's own form, zeros behind its values.
    """

    heights: tuple[AxisWindows, ...]
    widths: tuple[AxisWindows, ...]
    tiles: tuple[tuple[int, ...], ...]
    maps: tuple[MapStatistics, ...]

    @property
    def partial_size(self) -> int:
        """How many values a partial result has."""
        return sum(each.partial_size for each in self.maps)

    def of(self, height: int, width: int) -> ImageWindows:
        """Return the windows of an image of a size that the plan is for."""
        [rows], [cols] = (
            [axis for axis in axes if axis.size == size]
            for axes, size in ((self.heights, height), (self.widths, width))
        )
        return ImageWindows(rows, cols, self.tiles)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of the images that a map plan is for: any of the heights with any of the widths.

    `tiles[r][c]` is the tile that computes row kind r and column kind c. Windows start at multiples of `stride` pixels,
    of which the network makes `stride_written` pixels of the result. `overlap` is 0 where the result is exactly the
    network's on the whole image; otherwise each window is taken for an image of its own, and so many pixels around
    what it writes are read as well: `difference` says what that makes of a sample.

    Where the network looks at the whole image, `passes` come before the map, in order, and every window has the
    statistics of all of them as a second input: one vector, in which those that are not known yet are 0. In place of
    passes there may be `known` statistics, those of a sample; `difference` says how much depends on them.
    """

    heights: tuple[AxisWindows, ...]
    widths: tuple[AxisWindows, ...]
    tiles: tuple[tuple[int, ...], ...]
    stride: int
    stride_written: int
    overlap: int = 0
    difference: SampleDifference | None = None
    passes: tuple[StatisticsPass, ...] = field(default=(), metadata=LATER)
    known: tuple[float, ...] = field(default=(), metadata=LATER)

    @property
    def statistics(self) -> int:
        """How many values the vector of statistics has; 0 where the network looks at neighbourhoods alone."""
        return max((each.stop for one in self.passes for each in one.maps), default=len(self.known))

    def pass_of(self, tile: int) -> StatisticsPass | None:
        """Return the pass that a tile belongs to, None for a tile of the map."""
        return next((one for one in self.passes for numbers in one.tiles if tile in numbers), None)

    @property
    def exact(self) -> bool:
        """Whether results equal the network's on the whole image."""
        return not self.overlap and not self.known

    @property
    def approximation(self) -> str:
        """In words, how results differ from the network's on the whole image; empty where they do not."""
        if self.exact:
            return ""
        if self.known:
            return f"statistics over the whole image are those of a sample; {self.difference}"
        around = f"{self.overlap:,} pixels around what it writes"
        return f"each window is an image of its own, with {around}; {self.difference}"

    @property
    def first(self) -> ImageWindows:
        """The windows of the first of the images."""
        return ImageWindows(self.heights[0], self.widths[0], self.tiles)

    def of(self, height: int, width: int, name: str = "the image") -> ImageWindows:
        """Return the windows of an image of a name; raises InputError for a size that the plan is not for."""
        rows = next((axis for axis in self.heights if axis.size == height), None)
        cols = next((axis for axis in self.widths if axis.size == width), None)
        if rows is None or cols is None:
            heights, widths = (" or ".join(str(axis.size) for axis in axes) for axes in (self.heights, self.widths))
            raise InputError(
                f"{name} has {height} x {width} pixels, and this plan is for heights of {heights} and widths of "
                f"{widths}: make a plan with --size {height}x{width}"
            )
        return ImageWindows(rows, cols, self.tiles)


@dataclass(frozen=True, slots=True)
class ImageWindow:
    """A window of an image: it reads `read` and writes `written` of the result, by tile `tile` of the plan."""

    tile: int
    read: Rect
    written: Rect


@dataclass(frozen=True, slots=True)
class ImageWindows:
    """The windows of an image, numbered row by row; its result has `height` x `width` pixels."""

    rows: AxisWindows
    cols: AxisWindows
    tiles: tuple[tuple[int, ...], ...]

    @property
    def height(self) -> int:
        """Rows of the result."""
        return self.rows.result

    @property
    def width(self) -> int:
        """Columns of the result."""
        return self.cols.result

    def __len__(self) -> int:
        """Return how many windows there are."""
        return len(self.rows.windows) * len(self.cols.windows)

    def __getitem__(self, number: int) -> ImageWindow:
        """Return a window by its number."""
        row, col = divmod(number, len(self.cols.windows))
        down, across = self.rows.windows[row], self.cols.windows[col]
        tile = self.tiles[down.kind][across.kind]
        return ImageWindow(tile, Rect(down.read, across.read), Rect(down.written, across.written))

    def of_output(self, number: int) -> ImageWindows:
        """Return the windows with what they write of output `number`, from 0, alone."""
        return ImageWindows(self.rows.of_output(number), self.cols.of_output(number), self.tiles)

    def own(self, number: int) -> Rect:
        """Return the pixels that a window reads and none after it along either axis: each pixel read is one's own."""
        row, col = divmod(number, len(self.cols.windows))
        return Rect(_own(self.rows.windows, row), _own(self.cols.windows, col))

    def __iter__(self) -> Iterator[ImageWindow]:
        """Yield the windows in order."""
        return (self[number] for number in range(len(self)))


def _own(windows: tuple[AxisWindow, ...], number: int) -> Span:
    read = windows[number].read
    if number + 1 == len(windows):
        return read
    return Span(read.start, max(read.start, min(read.stop, windows[number + 1].read.start)))
