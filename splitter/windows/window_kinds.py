"""The windows along one axis of an image, and which of them are computed alike.

Windows of one kind have, but for a shift, the same rows of every tensor and the same padding; so one graph computes all
of them. Most networks have three kinds: with padding before, without any, and with padding after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ModelError, UsageError
from serfer.core.geometry import Rect, Span
from serfer.core.plan import AxisWindow, AxisWindows
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph
from serfer.splitter.tiling.receptive_field import Spans, spans_of
from serfer.splitter.tiling.regions import AxisWalk, axis_node, infer_regions
from serfer.splitter.tiling.tiling_rule import extent
from serfer.splitter.windows.sections import read_maps
from serfer.splitter.windows.strides import Strides

Shape = tuple[tuple[int, ...], ...]
"""Of each tensor, a window's first row and the row after its last one, relative to where the window's output is.

And the rows that each selection (Gather) takes, which may have an exception, as for the dead lines of a sensor.
"""
_MOST_EXCEPTIONS = 8
"""Windows along an axis that may be of kinds of their own by what they select: each has graphs of its own."""


@dataclass(frozen=True)
class AxisSpans:
    """The windows along an axis: of each tensor, the rows of each (2, windows); `shapes` says which are alike.

    `reads` are the maps that they read in place of the image `source`, `keeps` those that they keep, of which they own
    rows.
    """

    size: int
    rows: dict[str, Spans]
    outputs: tuple[str, ...]
    source: str
    shapes: tuple[Shape, ...]
    reads: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.shapes)

    def span(self, tensor: str, window: int) -> Span:
        return Span(*self.rows[tensor][:, window].tolist())


def axis_spans(graph: Graph, axis: int, known: Strides, step: int) -> AxisSpans:
    """Return the windows along an axis, `step` rows of the finest output each; the last one has what is left.

    Raises ModelError where outputs of several do not end together, so that the last window would have much of one.
    """
    strides = step // known.of(known.finest(graph.outputs))
    sizes = {name: extent(graph, name, axis) for name in graph.outputs}
    counts = {name: -(-size // (strides * known.of(name))) for name, size in sizes.items()}
    starts = np.arange(min(counts.values())) * strides
    targets = {}
    for name, size in sizes.items():
        if counts[name] > len(starts) + 1:
            raise ModelError(
                f"the outputs cover parts of the image that are too different for common windows: {name!r} has {size} "
                f"rows or columns, which end {counts[name] - len(starts)} windows after those of another output"
            )
        first = (starts * known.of(name)).tolist()
        targets[name] = spans_of([Span(*ends) for ends in zip(first, [*first[1:], size], strict=True)])
    return spans_that_make(graph, axis, known, targets, starts)


def spans_that_make(
    graph: Graph, axis: int, known: Strides, targets: Mapping[str, Spans], strides: NDArray[np.int64]
) -> AxisSpans:
    """Return windows that compute rows `targets` of some tensors; each starts so many `strides` after the first."""
    spans = AxisWalk([axis_node(graph, node, axis) for node in graph.nodes], targets).to_image()
    names = sorted(spans)
    shifts = {name: strides * known.of(name) for name in names}
    relative = np.stack([spans[name] - shifts[name] for name in names])  # tensors, 2, windows
    shapes: tuple[Shape, ...] = tuple(
        tuple(map(tuple, relative[:, :, window].tolist())) for window in range(len(strides))
    )
    by_selection = tuple(map(add, shapes, _selections(graph, axis, spans, shifts)))
    if len({*by_selection}) <= len({*shapes}) + _MOST_EXCEPTIONS:
        shapes = by_selection
    reads, rows = read_maps(graph), dict(spans)
    rows.setdefault(graph.input, _covered(graph, axis, known, [spans[name] for name in reads], reads))
    read = () if reads == (graph.input,) else reads
    return AxisSpans(extent(graph, graph.input, axis), rows, graph.outputs, graph.input, shapes, read)


def _covered(graph: Graph, axis: int, known: Strides, rows: Sequence[Spans], maps: Sequence[str]) -> Spans:
    rates = [known.rates[name] for name in maps]
    pairs = [(spans, rate.numerator, rate.denominator) for spans, rate in zip(rows, rates, strict=True)]
    first = np.min([spans[0] * below // above for spans, above, below in pairs], axis=0)
    last = np.max([-(-spans[1] * below // above) for spans, above, below in pairs], axis=0)
    size = extent(graph, graph.input, axis)
    return np.stack([np.minimum(first, size - 1), np.minimum(last, size)])


def owned(tensor: str) -> str:
    return f"{tensor} owned"


def _selections(
    graph: Graph, axis: int, spans: Mapping[str, Spans], shifts: Mapping[str, NDArray[np.int64]]
) -> list[Shape]:
    windows: list[Shape] = [()] * len(shifts[graph.output])
    for node in graph.nodes:
        if node.kind != "Gather":
            continue
        [source] = graph.activations(node)
        every = np.arange(extent(graph, node.output, axis))
        chosen = axis_node(graph, node, axis).inputs[source].field(np.stack([every, every + 1]))[0]
        parts = zip(spans[node.output].T.tolist(), shifts[source].tolist(), strict=True)
        taken = [tuple((chosen[start:stop] - shift).tolist()) for (start, stop), shift in parts]
        windows = [(*known, rows) for known, rows in zip(windows, taken, strict=True)]
    return windows


def middle_regions(graph: Graph, rows: Strides, cols: Strides, step: int) -> dict[str, Rect]:
    """Return the rectangle of every tensor of a window of `step` x `step` pixels far from the ends of the result.

    They are those of the finest output where there are several.
    """

    def side(name: str, axis: int, known: Strides) -> Span:
        finest = known.finest(graph.outputs)
        first = max(0, extent(graph, finest, axis) - step) // 2 // known.of(finest)
        start, size = first * known.of(name), step // known.of(finest) * known.of(name)
        return Span(start, min(start + size, extent(graph, name, axis)))

    targets = {name: Rect(side(name, ROW_AXIS, rows), side(name, COL_AXIS, cols)) for name in graph.outputs}
    return infer_regions(graph, graph.nodes, [targets])[0]


@dataclass(frozen=True)
class AxisKinds:
    """The windows along an axis of an image by their kinds, and the first window of each kind."""

    windows: AxisWindows
    examples: tuple[int, ...]


def axis_kinds(images: Sequence[AxisSpans]) -> AxisKinds:
    """Return the kinds of windows along an axis, of images that have as many pixels along it and others across.

    Raises ModelError where windows are not the same in all of them.
    """
    first = images[0]
    for other in images[1:]:
        ends = zip(
            (first.source, *first.outputs, *first.reads), (other.source, *other.outputs, *other.reads), strict=True
        )
        if not all(np.array_equal(first.rows[end], other.rows[twin]) for end, twin in ends):
            raise ModelError(
                f"what a result has along {first.size} pixels of an image depends on its other side: make a plan for "
                "each size"
            )
    numbers: dict[tuple[Shape, ...], int] = {}
    examples, listed = list[int](), list[AxisWindow]()
    for window in range(len(first)):
        shapes = tuple(image.shapes[window] for image in images)
        if shapes not in numbers:
            numbers[shapes] = len(examples)
            examples.append(window)
        spans = first.span(first.source, window), first.span(first.outputs[0], window)
        reads = tuple(first.span(name, window) for name in first.reads)
        keeps = tuple(first.span(owned(name), window) for name in first.keeps)
        listed.append(AxisWindow(numbers[shapes], *spans, reads=reads, keeps=keeps))
    return AxisKinds(AxisWindows(first.size, listed[-1].written.stop, tuple(listed)), tuple(examples))


def merged(tiles: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return a new number of each kind of rows and of columns, the same for kinds whose tiles are all the same.

    `tiles[r][c]` is the number of the tile of row kind r and column kind c.
    """
    rows, cols = dict[tuple[int, ...], int](), dict[tuple[int, ...], int]()
    down = [rows.setdefault(tuple(tile), len(rows)) for tile in tiles]
    return down, [cols.setdefault(column, len(cols)) for column in zip(*tiles, strict=True)]


def regions_of(rows: tuple[AxisSpans, int], cols: tuple[AxisSpans, int]) -> dict[str, Rect]:
    """Return the rectangle of every tensor of the window where a window of rows and one of columns meet."""
    (down, row), (across, col) = rows, cols
    return {name: Rect(down.span(name, row), across.span(name, col)) for name in down.rows}


def check_step(step: int, rows: Strides, cols: Strides, output: str) -> None:
    for known in (rows, cols):
        if step % known.of(output):
            raise UsageError(
                f"windows of {step} pixels of the result do not start at multiples of the network's stride: choose a "
                f"multiple of {known.of(output)}"
            )


def rounded_step(step: int, rows: Strides, cols: Strides, output: str) -> int:
    unit = int(np.lcm(rows.of(output), cols.of(output)))
    return max(unit, step // unit * unit)
