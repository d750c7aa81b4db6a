"""Rules of operators that leave rows and columns alone: element by element, or along other axes than those two.

That is more than activations and sums. In channels-last form a normalisation and a product with a matrix act on the
last axis; a channel shuffle gives the channels two axes and swaps them. Wherever the rows and the columns are, they
come through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import combinations
from math import prod

import numpy as np

from serfer.splitter.network.graph import MAP_RANK, NCHW, VECTOR_RANK, Axes, Graph, Node, integers
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.tiling_rule import Rule, TileOperator

Along = Callable[[Graph, Node], Collection[int] | None]


def rank(graph: Graph, node: Node) -> int:
    return len(graph.shapes[graph.activations(node)[0]])


class Elementwise(Rule):
    """Activations, and arithmetic of several operands, which may be broadcast."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        """Return where the operands that are maps have theirs, if constants and small maps can be broadcast to that."""
        size, names = graph.shapes[node.output], graph.activations(node)
        maps = {axes for name in names if (axes := graph.axes(name)) and graph.shape(name).whole.area > 1}
        places = maps or {graph.axes(name) or NCHW for name in names}  # those of one position are where they were
        axes = next(iter(places)) if len(places) == 1 else NCHW
        if len(maps) > 1 or max(axes) >= len(size) or any(len(graph.shapes[name]) != len(size) for name in names):
            return None
        shapes = [graph.shapes[name] for name in names] + [graph.weights[name].shape for name in graph.constants(node)]
        return axes if all(_broadcasts(shape, size, axes) for shape in shapes) else None

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        node = tile.node
        operands = [
            builder.broadcast(name, node.output, tile.region) if name in tile.graph.weights else given
            for name, given in zip(node.inputs, tile.inputs, strict=True)
        ]
        builder.append(node.kind, operands, node.output, node.attributes)


def _broadcasts(shape: Sequence[int], size: Sequence[int], axes: Axes) -> bool:
    """Operands must have the output's rows and columns, or a single one."""
    missing = len(size) - len(shape)
    return all(axis < missing or shape[axis - missing] in (1, size[axis]) for axis in axes)


class Expand(Elementwise):
    """An explicit broadcast of a small map, such as the gates of squeeze-and-excite."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        """Return where the input has rows and columns (NCHW if it has one of each), if the new shape is constant."""
        source = graph.activations(node)[0]
        plain = integers(graph, node, 1) is not None and len(graph.shapes[source]) == MAP_RANK
        size = graph.shapes[node.output]
        axes = graph.axes(source) if graph.shape(source).whole.area > 1 else NCHW
        if axes is None or not plain or len(size) != MAP_RANK:
            return None
        return axes if _broadcasts(graph.shapes[source], size, axes) else None

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        _write_shaped("Expand", builder, tile, batch=1)


def _write_shaped(kind: str, builder: OnnxBuilder, tile: TileOperator, batch: int) -> None:
    output = tile.node.output
    rows, cols = tile.graph.axes(output) or NCHW
    shape = [batch, *tile.graph.shapes[output][1:]]
    shape[rows], shape[cols] = tile.region.rows.size, tile.region.cols.size
    builder.append(kind, [tile.inputs[0], builder.constant(f"{output}.shape", np.array(shape))], output)


class Channelwise(Rule):
    """Operators that act along axes which are neither rows nor columns nor the batch; `along` says which."""

    def __init__(self, along: Along) -> None:
        self._along = along

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        axes = _common(graph, node)
        acted = self._along(graph, node)
        if axes is None or acted is None or {0, *axes} & set(acted):
            return None
        return axes if len(graph.shapes[node.output]) == rank(graph, node) else None


def _common(graph: Graph, node: Node) -> Axes | None:
    names = graph.activations(node)
    places = {graph.axes(name) for name in names}
    sizes = {graph.shape(name).whole for name in names}
    return places.pop() if len(places) == len(sizes) == 1 else None


class Reduce(Channelwise):
    """Means, sums and maxima (or their indices) along channels; `along` says which axes are reduced."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        axes, gone = _common(graph, node), self._along(graph, node)
        if axes is None or not gone or {0, *axes} & set(gone):
            return None
        if node.attributes.get("keepdims", 1):
            return axes
        return _shifted(axes, lambda axis: -sum(other < axis for other in gone))


def _shifted(axes: Axes, by: Callable[[int], int]) -> Axes:
    return axes[0] + by(axes[0]), axes[1] + by(axes[1])


class Transpose(Rule):
    """Another order of the axes."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        axes, order = _common(graph, node), list(node.attributes.get("perm") or [])
        return (order.index(axes[0]), order.index(axes[1])) if axes and order and order[0] == 0 else None


class Reshape(Rule):
    """Another form of the same values, in which the rows and the columns keep axes of their own."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        """Return where the rows and columns go, if they stay apart from everything else."""
        axes = _common(graph, node) if len(graph.activations(node)) == 1 else None
        return _axes_after_reshape(graph.shapes[node.inputs[0]], axes, graph.shapes[node.output]) if axes else None

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        _write_shaped("Reshape", builder, tile, batch=0)  # 0 keeps it


def _axes_after_reshape(before: Sequence[int], axes: Axes, after: Sequence[int]) -> Axes | None:
    """Return where a reshape puts rows and columns: as many values must lie before, between and behind them."""
    first, second = sorted(axes)
    pairs = list(combinations(range(1, len(after)), VECTOR_RANK))
    for row, col in sorted(pairs, key=lambda pair: len(after) != MAP_RANK or pair != NCHW):
        if (
            (after[row], after[col]) == (before[first], before[second])
            and prod(after[1:row]) == prod(before[1:first])
            and prod(after[row + 1 : col]) == prod(before[first + 1 : second])
        ):
            return (row, col) if axes[0] < axes[1] else (col, row)
    return None


def given_axes(graph: Graph, node: Node) -> Collection[int] | None:
    """Return the axes that an operator's second input names, None where that is computed or absent."""
    axes = integers(graph, node, 1)
    return {axis % rank(graph, node) for axis in axes} if axes else None


def attribute_axis(default: int) -> Along:
    return lambda graph, node: [int(node.attributes.get("axis", default)) % rank(graph, node)]


def axes_from(graph: Graph, node: Node) -> Collection[int]:
    """Return the axes that a layer normalisation acts on: its own and all after it."""
    count = rank(graph, node)
    return range(node.attributes.get("axis", -1) % count, count)


def joined(graph: Graph, node: Node) -> Collection[int] | None:
    """Return the axis of a concatenation; a constant among its operands would not have the batch's images."""
    return None if graph.constants(node) else [int(node.attributes["axis"]) % rank(graph, node)]


def parameters(along: Along) -> Along:
    """Return `along` for operators of which only the first input may be computed."""
    return lambda graph, node: along(graph, node) if graph.activations(node) == [node.inputs[0]] else None
