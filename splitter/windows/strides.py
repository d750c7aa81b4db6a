"""What shifts with the image: how many rows of each tensor one row of the image makes, and which operators prevent it.

A network whose image is shifted by its total stride computes the same as before, shifted by so much. Only such a
network can be computed by windows of a few kinds; what looks at the whole image cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from serfer.core.geometry import Span
from serfer.splitter.network.graph import BROADCAST, MAP_RANK, NCHW, ROW_AXIS, Graph, Node
from serfer.splitter.network.unsupported import refuse
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.receptive_field import spans_of
from serfer.splitter.tiling.tiling_rule import extent

LONGER = 11_520
"""Pixels by which a second image is larger: a multiple of every common stride, 2^8 x 3^2 x 5."""
_LARGEST_DENOMINATOR = 64
_REMEDY = "serfer split takes such networks, for images that functions hold"
PLAINER_RESIZE = (
    "give sizes that are multiples of the network's stride, or resize linearly or by a plain factor such as 1.5, not "
    "to a size, and without aligned corners"
)
_GLOBAL = f"it looks at the whole image, which no window has; use a network without it ({_REMEDY})"

_UNKNOWN = "there is no rule for windows"
_WHOLE = frozenset({"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "InstanceNormalization", "Attention"})


@dataclass(frozen=True)
class Strides:
    """Rows (or columns) of each tensor for one of the image, and the image's rows after which all are whole numbers.

    Tensors that are as large for every image have none: 0.
    """

    rates: dict[str, Fraction]
    stride: int

    def of(self, tensor: str) -> int:
        return int(self.rates[tensor] * self.stride)

    def finest(self, tensors: Sequence[str]) -> str:
        return max(tensors, key=lambda name: self.rates[name])


def check_local(graph: Graph) -> None:
    """Refuse operators that look at more than a neighbourhood; raises ModelError that names the first one."""
    for node in graph.nodes:
        if node.output in graph.fixed:
            continue
        if operators.is_replicated(graph, node) or not operators.tileable(graph, node):
            raise refuse(node.name, node.kind, _why_not_local(graph, node))


def _why_not_local(graph: Graph, node: Node) -> str:
    shapes = [graph.shapes[name] for name in (*graph.activations(node), node.output)]
    if any(len(shape) > MAP_RANK for shape in shapes):
        return f"{_UNKNOWN} of tensors of {max(map(len, shapes))} axes; {_REMEDY}"
    if node.kind not in _WHOLE and not operators.has_rule(node.kind):
        return f"{_UNKNOWN} of it; write it with other operators ({_REMEDY})"
    if graph.axes(node.output) == NCHW and node.kind not in _WHOLE and shapes[-1][2:] == shapes[0][2:] == (1, 1):
        return "its map has one position: the image is too small to have windows"
    return _GLOBAL


def strides(graph: Graph, larger: Graph, axis: int) -> Strides:
    """Return the strides along an axis: `larger` is the network at an image of LONGER more rows and columns.

    Raises ModelError for an operator whose result does not grow with the image, or that a larger one does not have.
    """
    rates = dict.fromkeys(graph.fixed, Fraction(0))
    for node in graph.nodes:
        for name in (*graph.activations(node), node.output):
            if name in graph.fixed:
                continue
            if name not in larger.shapes:
                raise refuse(node.name, node.kind, "whether the network has it depends on the image's size")
            more = extent(larger, name, axis) - extent(graph, name, axis)
            rates[name] = rate(more)
            if not more:
                raise refuse(node.name, node.kind, _GLOBAL)
    return Strides(rates, lcm(*(rate.denominator for rate in rates.values())))


def rate(more: int) -> Fraction:
    """Return how many rows one row of the image makes, where LONGER make so many.

    A resizing by 0.7 may round one of the two images otherwise.
    """
    exact = Fraction(more, LONGER)
    plain = exact.limit_denominator(_LARGEST_DENOMINATOR)
    return plain if LONGER % plain.denominator == 0 and abs(plain * LONGER - more) <= 1 else exact


def check_shifts(graph: Graph, axis: int, known: Strides) -> None:
    """Refuse operators that do not shift by the stride, such as a resizing whose factor is not the strides' own.

    Raises ModelError that names the first one.
    """
    for node in graph.nodes:
        if node.output in graph.fixed:
            continue
        _check_constants(graph, node, axis)
        step, size = known.of(node.output), extent(graph, node.output, axis)
        first = size // 2 // step * step  # far from both ends
        for source in graph.activations(node):
            field = operators.receptive_field(graph, node, source, axis)
            spans = [
                field(spans_of([Span(start, start + step)])) for start in (first, first + step) if start + step <= size
            ]
            if any((span != spans[0] + number * known.of(source)).any() for number, span in enumerate(spans)):
                why = f"what it reads does not shift by the image's stride of {known.stride} pixels; {PLAINER_RESIZE}"
                raise refuse(node.name, node.kind, why)


def _check_constants(graph: Graph, node: Node, axis: int) -> None:
    axes = graph.axes(node.output)
    if axes is None or node.kind not in BROADCAST:
        return
    place = axes[0] if axis == ROW_AXIS else axes[1]
    rank = len(graph.shapes[node.output])
    for name in graph.constants(node):
        shape = (1,) * (rank - graph.weights[name].ndim) + graph.weights[name].shape
        if shape[place] > 1:
            what = "row" if axis == ROW_AXIS else "column"
            raise refuse(node.name, node.kind, f"its constant has a value for each {what} of the image")
