"""Rules of partial reductions: shares of a global pooling, and columns of a fully connected layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from serfer.core.geometry import even_parts
from serfer.splitter.network.graph import COL_AXIS, NCHW, ROW_AXIS, VECTOR_RANK, Axes, Graph, Node
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.receptive_field import ReceptiveField, all_rows, spans_of, tabulated
from serfer.splitter.tiling.tiling_rule import Rule, TileOperator, extent

TILE_POOL = "TilePool"
"""Each tile of a grid pooled apart: a (C, H, W) map becomes (C, rows, cols). Not an ONNX operator."""
TILE_SUM = "TileSum"
"""What tiles pooled, put together: (C, rows, cols) becomes (C, 1, 1). Not an ONNX operator."""


class TilePool(Rule):
    """The pooled value of each tile; a mean is weighted by the tile's share of the map, so that the shares add up."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        return graph.axes(node.inputs[0])

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        parts = spans_of(even_parts(extent(graph, source, axis), node.attributes["grid"][axis - ROW_AXIS]))
        return tabulated(*parts)

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        node, mode = tile.node, tile.node.attributes["mode"]
        share, whole = tile.read.clipped.area, tile.graph.shape(node.inputs[0]).whole.area
        if mode != "mean" or share == whole:
            _pool(builder, mode, tile.inputs, node.output)
            return
        mean = _pool(builder, mode, tile.inputs, f"{node.output}.mean")
        scale = builder.constant(f"{node.output}.share", np.array(share / whole, dtype=np.float32))
        builder.append("Mul", [mean, scale], node.output)


def _pool(builder: OnnxBuilder, mode: str, inputs: Sequence[str], output: str) -> str:
    if mode != "sum":
        return builder.append("GlobalMaxPool" if mode == "max" else "GlobalAveragePool", inputs, output)
    return builder.append("ReduceSum", [*inputs, builder.constant(f"{output}.axes", np.array(NCHW))], output)


class TileSum(Rule):
    """The sum of the shares, computed by every tile that reads the result."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        return NCHW

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        return all_rows(extent(graph, source, axis))

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        node = tile.node
        if tile.graph.shape(node.inputs[0]).whole.area == 1:
            builder.append("Identity", tile.inputs, node.output)
            return
        axes = builder.constant(f"{node.output}.axes", np.array([ROW_AXIS, COL_AXIS]))
        kind = "ReduceMax" if node.attributes["mode"] == "max" else "ReduceSum"
        builder.append(kind, [*tile.inputs, axes], node.output, {"keepdims": 1})


class FullyConnected(Rule):
    """Some columns of a vector times a constant matrix; they read the whole vector."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        return None

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        return all_rows(extent(graph, source, axis))

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        node, (source, _, *bias), region = tile.node, tile.inputs, tile.region
        axis = 0 if node.attributes.get("transB", 0) else 1
        operands = [source, builder.sliced(node.inputs[1], axis, region.cols), *bias]
        if bias and bias[0]:
            operands[2] = builder.broadcast(node.inputs[2], node.output, region)
        builder.append(node.kind, operands, node.output, node.attributes)


def is_fully_connected(graph: Graph, node: Node) -> bool:
    if node.kind not in ("Gemm", "MatMul") or len(node.inputs) < 2:  # noqa: PLR2004 - x and the matrix
        return False
    straight = not node.attributes.get("transA", 0) and node.inputs[1] in graph.weights
    constant_bias = all(name in graph.weights for name in node.inputs[2:] if name)
    return (
        straight
        and constant_bias
        and len(graph.shapes.get(node.inputs[0], ())) == VECTOR_RANK
        and graph.weights[node.inputs[1]].ndim == VECTOR_RANK
    )
