"""What of a network depends on where in the image a window is, and is computed from that all the same.

A resizing by a factor reads the same rows at every stride. One with aligned corners, to a size that is not in
proportion, or of a map that is as large for every image, does not: its weights follow from the position. So do those of
pooling into a few bins, which exporters write as rows @ map @ columns, two constant matrices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan import POSITION
from serfer.splitter.network.canonicalize import Rewriter
from serfer.splitter.network.graph import COL_AXIS, MAP_RANK, NCHW, ROW_AXIS, STATISTICS, Bins, Graph, Node
from serfer.splitter.network.interpolation import is_separable
from serfer.splitter.network.source import mean_matrix
from serfer.splitter.tiling.by_position import RATES, RESIZE_BY_POSITION, Growth, linear_resize
from serfer.splitter.tiling.resampling import matrix_of
from serfer.splitter.tiling.tiling_rule import extent
from serfer.splitter.windows.strides import rate

BINS = "serfer.Bins"
"""Pooling into bins, which its attribute of this name describes."""
_MOST_BINS = 32
_LINEAR = b"linear"
_ALIGNED = b"align_corners"
_HALF = frozenset({b"half_pixel", b"pytorch_half_pixel"})
_SAME = 1e-6


def may_depend(graph: Graph) -> bool:
    """Return whether something may depend on the position: then its growth, from another size, has to be known."""
    return any(_may_drift(graph, node) or _pooled(graph, node) for node in graph.nodes)


def with_positions(graph: Graph, other: Graph) -> Graph:
    """Return the graph with what depends on the position written as such; the same where nothing does.

    `other` is the network at an image of LONGER more, or fewer, rows and columns.
    """
    made, writer = {node.output: node for node in graph.nodes}, Rewriter(graph)
    for node in graph.nodes:
        writer.nodes.append(_resize(graph, other, node) or _bins(graph, other, node, made) or node)
    if all(written is node for written, node in zip(writer.nodes, graph.nodes, strict=True)):
        return graph
    writer.shapes[STATISTICS] = (1, 1)
    return writer.done()


def is_positioned(graph: Graph) -> bool:
    """Return whether windows of a graph without reductions (global_statistics.py) are told where they are."""
    statistics = max((statistic.values.stop for statistic in graph.statistics), default=0)
    return STATISTICS in graph.shapes and graph.shapes[STATISTICS][1] > statistics


def told_where(graph: Graph) -> Graph:
    """Return a graph without reductions whose windows are told where they are, as those of other sizes are."""
    if is_positioned(graph):
        return graph
    values = max((statistic.values.stop for statistic in graph.statistics), default=0) + POSITION
    return replace(graph, shapes={**graph.shapes, STATISTICS: (1, values)}, fixed=graph.fixed | {STATISTICS})


def does_not_grow(graph: Graph, other: Graph | None, node: Node) -> bool:
    """Return whether what a node makes is a map that is as large for every image."""
    growth = _growth(graph, other, node.output) if other is not None else None
    return growth is not None and not any(growth)


def _growth(graph: Graph, other: Graph, tensor: str) -> Growth | None:
    if tensor not in other.shapes or graph.axes(tensor) is None:
        return None
    rows, cols = (rate(abs(extent(other, tensor, axis) - extent(graph, tensor, axis))) for axis in NCHW)
    return rows, cols


def _may_drift(graph: Graph, node: Node) -> bool:
    if node.kind != "Resize" or node.attributes.get("mode") != _LINEAR or not is_separable(graph, node):
        return False
    pairs = [(extent(graph, node.output, axis), extent(graph, node.inputs[0], axis)) for axis in NCHW]
    return _is_aligned(node) or any(outputs % inputs for outputs, inputs in pairs)


def _is_aligned(node: Node) -> bool:
    return bool(node.attributes.get("coordinate_transformation_mode") == _ALIGNED)


def _resize(graph: Graph, other: Graph, node: Node) -> Node | None:
    if node.kind != "Resize" or node.attributes.get("mode") != _LINEAR or not is_separable(graph, node):
        return None
    aligned = _is_aligned(node)
    plain = node.attributes.get("coordinate_transformation_mode", b"half_pixel") in _HALF
    if not (aligned or plain) or node.attributes.get("antialias") or node.attributes.get("exclude_outside"):
        return None
    made, read = (_growth(graph, other, name) for name in (node.output, node.inputs[0]))
    if made is None or read is None or not all(made) or graph.shape(node.inputs[0]).whole.area == 1:
        return None
    sides = [linear_resize(graph, node, axis) for axis in NCHW]
    if not any(side.drifts(before / after) for side, before, after in zip(sides, read, made, strict=True)):
        return None
    attributes = {**node.attributes, RATES: (made, read)}
    return Node(node.name, RESIZE_BY_POSITION, (*node.inputs, STATISTICS), node.output, attributes)


def _pooled(graph: Graph, node: Node) -> tuple[int, NDArray[np.float32]] | None:
    if node.kind != "MatMul" or len(graph.shapes[node.output]) != MAP_RANK:
        return None
    product = matrix_of(graph, node)
    if product is None or product[0] not in NCHW:
        return None
    axis, name = product
    matrix = graph.weights[name] if node.inputs[0] == name else graph.weights[name].T
    count, size = matrix.shape
    if not 0 < count <= _MOST_BINS:
        return None
    return (axis, matrix) if np.allclose(matrix, mean_matrix(size, count), rtol=0, atol=_SAME) else None


def _bins(graph: Graph, other: Graph, node: Node, made: dict[str, Node]) -> Node | None:
    last = _pooled(graph, node)
    inner = made.get(graph.activations(node)[0]) if last else None
    first = _pooled(graph, inner) if inner else None
    if last is None or inner is None or first is None or {last[0], first[0]} != {ROW_AXIS, COL_AXIS}:
        return None
    source = graph.activations(inner)[0]
    growth = _growth(graph, other, source)
    if growth is None or not all(growth) or not does_not_grow(graph, other, node):
        return None
    (high, rows), (wide, cols) = (matrix.shape for _, matrix in sorted((last, first), key=lambda factor: factor[0]))
    return Node(node.name, BINS, (source,), node.output, {BINS: Bins((high, wide), (rows, cols), growth)})
