"""Rules of sliding windows: convolution and pooling (see receptive_field.py), and padding with a constant."""

from __future__ import annotations

from typing import Any

import numpy as np

from serfer.core.plan import Padding
from serfer.splitter.network.graph import COL_AXIS, MAP_RANK, NCHW, POOLS, ROW_AXIS, Axes, Graph, Node
from serfer.splitter.network.sliding_window import average_scale, window
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.receptive_field import ReceptiveField, under
from serfer.splitter.tiling.tiling_rule import Rule, TileOperator


def works_on_maps(graph: Graph, node: Node) -> bool:
    computed = graph.activations(node) == [node.inputs[0]]
    return computed and all(
        len(graph.shapes[name]) == MAP_RANK and graph.axes(name) == NCHW for name in (node.inputs[0], node.output)
    )


class _Sliding(Rule):
    def axes(self, graph: Graph, node: Node) -> Axes | None:
        return NCHW if works_on_maps(graph, node) else None

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        return under(window(node, axis))


class Convolution(_Sliding):
    """Grouped, strided, dilated, padded: all but the padding stays as it is."""

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        node, (source, *weights), padding = tile.node, tile.inputs, tile.read.padding
        pads = _pads(padding)
        if min(pads) < 0:
            source, pads = _pad(builder, source, f"{node.output}.padded", padding, ""), [0, 0, 0, 0]
        builder.append("Conv", [source, *weights], node.output, {**node.attributes, "pads": pads})


class MaxPool(_Sliding):
    """Maxima; what lies outside the map is minus infinity."""

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        _pool(builder, tile, tile.node.output, -np.inf)


class AveragePool(_Sliding):
    """Means over whole windows, rescaled where a window counts fewer positions than it has taps."""

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        output, region = tile.node.output, tile.region
        rows = average_scale(tile.graph, tile.node, ROW_AXIS, region.rows)
        cols = average_scale(tile.graph, tile.node, COL_AXIS, region.cols)
        scale = np.outer(rows, cols)[None, None]
        if np.all(scale == 1):
            _pool(builder, tile, output, 0.0)
            return
        mean = f"{output}.mean"
        _pool(builder, tile, mean, 0.0)
        builder.append("Mul", [mean, builder.constant(f"{output}.scale", scale)], output)


class ConstantPad(Rule):
    """Padding with a constant; any other mode is written as a selection of rows and columns (see canonicalize.py)."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        constant = node.attributes.get("mode", b"constant") == b"constant"
        if not constant or not works_on_maps(graph, node):
            return None
        pads = pad_amounts(graph, node)
        plain = pads[0] == 0 == pads[MAP_RANK] and min(pads) >= 0
        return NCHW if plain else None

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        before = pad_amounts(graph, node)[axis]
        return lambda out: out - before

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        graph, node, inputs = tile.graph, tile.node, tile.inputs
        value = inputs[2] if len(inputs) > 2 else ""  # noqa: PLR2004 - the third input is the value
        pooled = any(node.output in other.inputs for other in graph.nodes if other.kind in POOLS)
        amounts = pad_amounts(graph, node)
        channels = amounts[1], amounts[1 + MAP_RANK]
        _pad(builder, inputs[0], node.output, tile.read.padding, value, channels, apart=pooled)


def pad_amounts(graph: Graph, node: Node) -> list[int]:
    given = [int(value) for value in graph.weights[node.inputs[1]]]
    if len(node.inputs) < 4 or not node.inputs[3]:  # noqa: PLR2004 - the fourth input names the axes
        return given
    axes = [int(axis) % MAP_RANK for axis in graph.weights[node.inputs[3]]]
    amounts = [0] * (2 * MAP_RANK)
    for index, axis in enumerate(axes):
        amounts[axis], amounts[axis + MAP_RANK] = given[index], given[index + len(axes)]
    return amounts


def _pool(builder: OnnxBuilder, tile: TileOperator, output: str, fill: float) -> None:
    node, source, padding = tile.node, tile.inputs[0], tile.read.padding
    pads = _pads(padding)
    attributes: dict[str, Any] = {
        key: node.attributes[key] for key in ("kernel_shape", "strides", "dilations") if key in node.attributes
    }
    if node.kind == "AveragePool":
        attributes["count_include_pad"] = 1
    if any(not 0 <= pad < kernel for pad, kernel in zip(pads, attributes["kernel_shape"] * 2, strict=True)):
        value = builder.constant(f"{node.output}.fill", np.array(fill, dtype=np.float32))
        source = _pad(builder, source, f"{node.output}.padded", padding, value, apart=True)
        pads = [0, 0, 0, 0]
    builder.append(node.kind, [source], output, {**attributes, "pads": pads})


def _pad(
    builder: OnnxBuilder,
    source: str,
    output: str,
    padding: Padding,
    value: str,
    channels: tuple[int, int] = (0, 0),
    *,
    apart: bool = False,
) -> str:
    """Append a Pad, and a Slice after it where a side is negative: there, some of the padding is not read.

    `apart` keeps ONNX Runtime from merging it into a pool after it, which then refuses pads of its kernel's size:
    one row too many is padded and sliced off.
    """
    pads = np.array(_pads(padding))
    padded = np.maximum(pads, 0) + np.array([apart, 0, 0, 0])
    top, left, bottom, right = padded
    amounts = builder.constant(f"{output}.pads", np.array([0, channels[0], top, left, 0, channels[1], bottom, right]))
    inputs = [source, amounts, value] if value else [source, amounts]
    extra = padded - pads
    if not extra.any():
        return builder.append("Pad", inputs, output)
    whole = builder.append("Pad", inputs, f"{output}.whole")
    starts = builder.constant(f"{output}.starts", extra[:2])
    stops = builder.constant(f"{output}.stops", np.where(extra[2:] > 0, -extra[2:], np.iinfo(np.int64).max))
    axes = builder.constant(f"{output}.axes", np.array([ROW_AXIS, COL_AXIS]))
    return builder.append("Slice", [whole, starts, stops, axes], output)


def _pads(padding: Padding) -> list[int]:
    return [padding.top, padding.left, padding.bottom, padding.right]
