"""Where the result of a network lies on its image, by what its pixels read.

A pixel of the result lies in the middle of what it reads. Where a network enlarges maps, neighbours read the same, and
the middles take turns; then the operators' own shifts add up, each in the mean of a period: a convolution without
padding moves its result inward by half of what its kernel reaches over, a crop by what it cuts off. Where branches
meet that are off from one another, there is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import compress
from math import lcm

import numpy as np

from serfer.core.geometry import Span
from serfer.core.plan import AxisWindows
from serfer.splitter.network.graph import Graph, Node, needed_for
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.receptive_field import Spans, spans_of
from serfer.splitter.tiling.regions import AxisWalk, axis_node
from serfer.splitter.tiling.tiling_rule import extent

Place = tuple[Fraction, Fraction]
"""The least and the most pixels of the image that lie before a tensor, among the branches that make it."""


def place_of(graph: Graph, output: str, axis: int, rates: Mapping[str, Fraction]) -> Place | None:
    """Return the place of a network's result `output` along an axis of the image, None where no branch says.

    `rates` are rows (or columns) of each tensor for one of the image. The graph is that of an image so large that its
    middle reads nothing beyond its ends.
    """
    period = lcm(*(rate.denominator for rate in rates.values() if rate))
    nodes = [node for node in needed_for(graph.nodes, [output]) if node.output not in graph.fixed]
    local = [operators.tileable(graph, node) and not operators.is_replicated(graph, node) for node in nodes]
    if all(local) and (middle := _middle(graph, nodes, axis, rates, period)) is not None:
        return middle, middle
    places: dict[str, Place] = {graph.input: (Fraction(0), Fraction(0))}
    for node in compress(nodes, local):
        before = [
            (places[source], _shift(graph, node, source, axis, rates, period))
            for source in graph.activations(node)
            if source in places and rates.get(source) and rates.get(node.output)
        ]
        if before:
            places[node.output] = (
                min(least + shift for (least, _), shift in before),
                max(most + shift for (_, most), shift in before),
            )
    return places.get(output)


def _pixels(graph: Graph, tensor: str, axis: int, rows: int) -> tuple[int, Spans]:
    first = extent(graph, tensor, axis) // 2 // rows * rows
    return first, spans_of([Span(row, row + 1) for row in range(first, first + rows)])


def _middle(
    graph: Graph, nodes: Sequence[Node], axis: int, rates: Mapping[str, Fraction], period: int
) -> Fraction | None:
    """Return where the last node's result starts if each pixel is the middle of what it reads; None for no such."""
    output = nodes[-1].output
    rate = rates[output]
    first, pixels = _pixels(graph, output, axis, int(rate * period))
    walk = AxisWalk([axis_node(graph, node, axis) for node in nodes], {output: pixels}, clip=False)
    sums = walk.to_image()[graph.input].sum(axis=0).tolist()
    starts = {Fraction(total, 2) - (first + row + Fraction(1, 2)) / rate for row, total in enumerate(sums)}
    return starts.pop() if len(starts) == 1 else None


def _shift(graph: Graph, node: Node, source: str, axis: int, rates: Mapping[str, Fraction], period: int) -> Fraction:
    rows = int(rates[node.output] * period)
    first, pixels = _pixels(graph, node.output, axis, rows)
    read = operators.receptive_field(graph, node, source, axis)(pixels)
    middle = Fraction(int(read.sum(dtype=np.int64)), 2 * rows)
    return middle / rates[source] - Fraction(2 * first + rows, 2) / rates[node.output]


def placed(windows: AxisWindows, place: Place | None, step: Fraction) -> AxisWindows:
    """Return the windows of an axis with where their result starts; each of its pixels is `step` of the image.

    A result that covers its image lies on it, even where padding makes the middle of what it reads another one, as
    training with masks of the image's size has it.
    """
    left = windows.size - windows.result * step
    least, most = place or (None, None)
    start = least if least == most else None
    if -step < left <= step and (left <= 0 or (most is not None and most <= 0)) and _reads_its_place(windows, step):
        start = Fraction(0)
    return replace(windows, start=None if start is None else float(start), step=float(step))


def _reads_its_place(windows: AxisWindows, step: Fraction) -> bool:
    near = max(step, Fraction(1))
    return all(
        window.read.start < window.written.start * step + near
        and window.read.stop > min(window.written.stop * step, Fraction(windows.size)) - near
        for window in windows.windows
    )
