"""Operators of a stage to the ONNX graph of one tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serfer.core.geometry import Rect, Span
from serfer.core.plan import Padding
from splitter import operators
from splitter.graph import Graph, Node, Weights
from splitter.tiles import Regions, clipped_away, needed_input, whole_regions
from splitter.weights import Slice, WeightsFile
from splitter.windows import COL_AXIS, ROW_AXIS, average_scale

_IR_VERSION = 10


def input_name(number: int) -> str:
    """Return what a tile's graph calls its stage's input `number`."""
    return f"input{number}"


def output_name(number: int) -> str:
    """Return what a tile's graph calls its stage's output `number`."""
    return f"output{number}"


@dataclass(frozen=True)
class TileGraph:
    """One tile's operators, with what they read: the network's `weights`, whole or sliced, and `constants` of its own.

    Weights in `half` are stored in fp16.
    """

    nodes: tuple[onnx.NodeProto, ...]
    weights: Weights
    constants: Weights
    half: frozenset[str]
    inputs: tuple[onnx.ValueInfoProto, ...]
    outputs: tuple[onnx.ValueInfoProto, ...]
    opset: int

    def model(self, files: Mapping[str, WeightsFile]) -> onnx.ModelProto:
        """Write the ONNX model, with a free batch axis; large weights point into `files`, by relative path."""
        nodes: list[onnx.NodeProto] = []
        initializers = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        for name, value in self.weights.items():
            tensors, readers = _stored(name, value, files)
            initializers += tensors
            nodes += readers
        body = helper.make_graph([*nodes, *self.nodes], "tile", self.inputs, self.outputs, initializers)
        return helper.make_model(body, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=_IR_VERSION)


_Stored = tuple[list[TensorProto], list[onnx.NodeProto]]


def _stored(name: str, value: NDArray[Any], files: Mapping[str, WeightsFile]) -> _Stored:
    """Return the initializers of a weight, and the nodes that make of them what the operators read."""
    found = next(((location, file) for location, file in files.items() if name in file), None)
    if found:
        return _reference(found[1], name, found[0])
    parts = {part: (file, location) for location, file in files.items() for part in file.slices_of(name)}
    if not parts:
        return [numpy_helper.from_array(value, name)], []
    order = sorted(parts, key=lambda part: part.span)
    stored = [_reference(file, part.name, location) for part in order for file, location in [parts[part]]]
    join = helper.make_node("Concat", [part.name for part in order], [name], axis=order[0].axis)
    return [tensor for tensors, _ in stored for tensor in tensors], [
        *(cast for _, casts in stored for cast in casts),
        join,
    ]


def _reference(file: WeightsFile, key: str, location: str) -> _Stored:
    if not file.is_half(key):
        return [file.reference(key, key, location)], []
    half = f"{key}.half"
    cast = helper.make_node("Cast", [half], [key], to=TensorProto.FLOAT)
    return [file.reference(key, half, location)], [cast]


class _TileWriter:
    """Collects the nodes and constants of one tile's graph."""

    def __init__(self, graph: Graph, regions: Regions) -> None:
        self.graph = graph
        self.regions = regions
        self.nodes: list[onnx.NodeProto] = []
        self.weights: Weights = {}
        self.constants: Weights = {}
        self.half: set[str] = set()
        self._views: dict[tuple[str, Rect], str] = {}
        self._rules: dict[str, Callable[[Node, list[str], Rect], None]] = {
            "Conv": self._conv,
            "MaxPool": self._max_pool,
            "AveragePool": self._average_pool,
            "Pad": self._constant_pad,
            operators.TILE_POOL: self._tile_pool,
            operators.TILE_SUM: self._tile_sum,
        }

    def emit(self, node: Node) -> None:
        """Append the node as its region of the output needs it."""
        if not (operators.tileable(self.graph, node) or operators.by_columns(self.graph, node)):
            inputs = [self._weight(name) if name in self.graph.weights else name for name in node.inputs]
            self._append(node.kind, inputs, node.output, node.attributes)  # in one tile, all maps are whole
            return
        region = self.regions[node.output]
        inputs = [self._operand(node, name, region) for name in node.inputs]
        if operators.is_fully_connected(self.graph, node):
            self._fully_connected(node, inputs, region)
        elif node.kind == "MatMul" and not self.graph.shape(node.output).flat:
            self._matrix(node, inputs, region)
        elif node.kind in self._rules:
            self._rules[node.kind](node, inputs, region)
        else:
            self._append(node.kind, inputs, node.output, node.attributes)

    def view(self, name: str, need: Rect) -> str:
        """Return the part `need` of tensor `name`, cropping it where more of it was computed."""
        have = self.regions[name]
        if have == need:
            return name
        if (name, need) not in self._views:
            crop = need.within(have)
            view = f"{name}.view{len(self._views)}"
            spans = {1: crop.cols} if self.graph.shape(name).flat else {ROW_AXIS: crop.rows, COL_AXIS: crop.cols}
            starts = self._constant(f"{view}.starts", np.array([span.start for span in spans.values()]))
            stops = self._constant(f"{view}.stops", np.array([span.stop for span in spans.values()]))
            axes = self._constant(f"{view}.axes", np.array(list(spans)))
            self._views[name, need] = self._append("Slice", [name, starts, stops, axes], view)
        return self._views[name, need]

    def _operand(self, node: Node, name: str, region: Rect) -> str:
        """Return what stands for an input of the node: the part that its region needs."""
        if not name:
            return name
        if name not in self.graph.weights:
            return self.view(name, needed_input(self.graph, node, name, region))
        if node.kind in operators.BROADCAST:
            return self._broadcast(name, self.graph.shape(node.output).flat, region)
        return self._weight(name)

    def _append(self, kind: str, inputs: Sequence[str], output: str, attributes: dict[str, Any] | None = None) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **(attributes or {})))
        return output

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self.constants[name] = value
        return name

    def _weight(self, name: str) -> str:
        if name in self.graph.half:
            self.half.add(name)
        self.weights[name] = self.graph.weights[name]
        return name

    def _sliced(self, name: str, axis: int, span: Span) -> str:
        """Return a part of a weight, as a constant of its own."""
        value = self.graph.weights[name]
        if span == Span(0, value.shape[axis]):
            return self._weight(name)
        part = Slice(name, axis, span)
        if name in self.graph.half:
            self.half.add(part.name)
        self.weights[part.name] = part.of(value)
        return part.name

    def _broadcast(self, name: str, flat: bool, region: Rect) -> str:  # noqa: FBT001 - of the output
        """Return a constant operand, cut where it has the map's rows or columns (a vector's columns) itself."""
        value = self.graph.weights[name]
        if value.ndim == 1 and value.size > 1:
            return self._sliced(name, 0, region.cols)
        spans = (region.cols,) if flat else (region.rows, region.cols)
        index = [slice(None)] * value.ndim
        for axis, span in zip(range(value.ndim - 1, -1, -1), reversed(spans), strict=False):
            if value.shape[axis] > 1:
                index[axis] = slice(span.start, span.stop)
        part = value[tuple(index)]
        if part.shape == value.shape:
            return self._weight(name)
        return self._constant(f"{name}.part{len(self.constants)}", np.ascontiguousarray(part))

    def _fully_connected(self, node: Node, inputs: list[str], region: Rect) -> None:
        """Append the columns of a fully connected layer that the tile computes."""
        matrix = node.inputs[1]
        axis = 0 if node.attributes.get("transB", 0) else 1
        inputs[1] = self._sliced(matrix, axis, region.cols)
        if len(inputs) > 2 and inputs[2]:  # noqa: PLR2004 - the third input is the bias
            inputs[2] = self._broadcast(node.inputs[2], True, region)  # noqa: FBT003 - named above
        self._append(node.kind, inputs, node.output, node.attributes)

    def _tile_pool(self, node: Node, inputs: list[str], region: Rect) -> None:
        """Append the pooled value of one tile; a mean is weighted by the tile's share of the map."""
        if node.attributes["mode"] == "max":
            self._append("GlobalMaxPool", inputs, node.output)
            return
        share = needed_input(self.graph, node, node.inputs[0], region).area
        whole = self.graph.shape(node.inputs[0]).whole.area
        if share == whole:
            self._append("GlobalAveragePool", inputs, node.output)
            return
        mean = self._append("GlobalAveragePool", inputs, f"{node.output}.mean")
        scale = self._constant(f"{node.output}.share", np.array(share / whole, dtype=np.float32))
        self._append("Mul", [mean, scale], node.output)

    def _tile_sum(self, node: Node, inputs: list[str], _region: Rect) -> None:
        """Append what puts the tiles' pooled values together."""
        if self.graph.shape(node.inputs[0]).whole.area == 1:
            self._append("Identity", inputs, node.output)
            return
        axes = self._constant(f"{node.output}.axes", np.array([ROW_AXIS, COL_AXIS]))
        kind = "ReduceMax" if node.attributes["mode"] == "max" else "ReduceSum"
        self._append(kind, [*inputs, axes], node.output, {"keepdims": 1})

    def _conv(self, node: Node, inputs: list[str], region: Rect) -> None:
        padding = clipped_away(self.graph, node, region)
        pads = _pads(padding)
        if min(pads) < 0:
            inputs[0], pads = self._pad(inputs[0], f"{node.output}.padded", padding, ""), [0, 0, 0, 0]
        self._append("Conv", inputs, node.output, {**node.attributes, "pads": pads})

    def _max_pool(self, node: Node, inputs: list[str], region: Rect) -> None:
        self._pool(node, inputs[0], node.output, clipped_away(self.graph, node, region), -np.inf)

    def _pool(self, node: Node, source: str, output: str, padding: Padding, fill: float) -> None:
        """Append a pool; ONNX Runtime wants pads smaller than the kernel, so wider ones become a Pad of their own."""
        pads = _pads(padding)
        attributes: dict[str, Any] = {
            key: node.attributes[key] for key in ("kernel_shape", "strides", "dilations") if key in node.attributes
        }
        if node.kind == "AveragePool":
            attributes["count_include_pad"] = 1
        if any(not 0 <= pad < kernel for pad, kernel in zip(pads, attributes["kernel_shape"] * 2, strict=True)):
            value = self._constant(f"{node.output}.fill", np.array(fill, dtype=np.float32))
            source = self._pad(source, f"{node.output}.padded", padding, value, apart=True)
            pads = [0, 0, 0, 0]
        self._append(node.kind, [source], output, {**attributes, "pads": pads})

    def _average_pool(self, node: Node, inputs: list[str], region: Rect) -> None:
        """Append a mean over whole windows, rescaled where a window counts fewer positions than it has taps."""
        source, padding = inputs[0], clipped_away(self.graph, node, region)
        rows = average_scale(self.graph, node, ROW_AXIS, region.rows)
        cols = average_scale(self.graph, node, COL_AXIS, region.cols)
        scale = np.outer(rows, cols)[None, None]
        if np.all(scale == 1):
            self._pool(node, source, node.output, padding, 0.0)
            return
        mean = f"{node.output}.mean"
        self._pool(node, source, mean, padding, 0.0)
        self._append("Mul", [mean, self._constant(f"{node.output}.scale", scale)], node.output)

    def _constant_pad(self, node: Node, inputs: list[str], region: Rect) -> None:
        value = inputs[2] if len(inputs) > 2 else ""  # noqa: PLR2004 - the third input is the value
        pooled = any(node.output in other.inputs for other in self.graph.nodes if other.kind in operators.POOLS)
        self._pad(inputs[0], node.output, clipped_away(self.graph, node, region), value, apart=pooled)

    def _pad(self, source: str, output: str, padding: Padding, value: str, *, apart: bool = False) -> str:
        """Append a Pad, and a Slice after it where a side is negative: there, some of the padding is not read.

        `apart` keeps ONNX Runtime from merging it into a pool after it, which then refuses pads of its kernel's size:
        one row too many is padded and sliced off.
        """
        pads = np.array(_pads(padding))
        padded = np.maximum(pads, 0) + np.array([apart, 0, 0, 0])
        top, left, bottom, right = padded
        amounts = self._constant(f"{output}.pads", np.array([0, 0, top, left, 0, 0, bottom, right]))
        inputs = [source, amounts, value] if value else [source, amounts]
        extra = padded - pads
        if not extra.any():
            return self._append("Pad", inputs, output)
        whole = self._append("Pad", inputs, f"{output}.whole")
        starts = self._constant(f"{output}.starts", extra[:2])
        stops = self._constant(f"{output}.stops", np.where(extra[2:] > 0, -extra[2:], np.iinfo(np.int64).max))
        axes = self._constant(f"{output}.axes", np.array([ROW_AXIS, COL_AXIS]))
        return self._append("Slice", [whole, starts, stops, axes], output)

    def _matrix(self, node: Node, inputs: list[str], region: Rect) -> None:
        """Append the product of a map with the part of a constant matrix that the tile needs."""
        axis, name = operators.matrix_of(self.graph, node)
        need = needed_input(self.graph, node, self.graph.activations(node)[0], region)
        matrix = self.graph.weights[name]
        if axis == ROW_AXIS:
            part = matrix[slice(region.rows.start, region.rows.stop), slice(need.rows.start, need.rows.stop)]
        else:
            part = matrix[slice(need.cols.start, need.cols.stop), slice(region.cols.start, region.cols.stop)]
        index = node.inputs.index(name)
        inputs[index] = self._constant(f"{node.output}.matrix", np.ascontiguousarray(part))
        self._append("MatMul", inputs, node.output)


def _pads(padding: Padding) -> list[int]:
    return [padding.top, padding.left, padding.bottom, padding.right]


def tile_graph(
    graph: Graph, nodes: Iterable[Node], regions: Regions, inputs: Sequence[str], outputs: Mapping[str, Rect]
) -> TileGraph:
    """Write the operators of one tile: `inputs` are the tensors that it is given, `outputs` what it has to compute.

    In the graph, they are called by `input_name` and `output_name`.
    """
    writer = _TileWriter(graph, regions)
    for node in nodes:
        writer.emit(node)
    targets = [writer.view(name, rect) for name, rect in outputs.items()]
    used = {name for node in writer.nodes for name in node.input}
    names = {name: input_name(number) for number, name in enumerate(inputs)}
    names |= {name: output_name(number) for number, name in enumerate(targets)}
    taken = {new: f"{new}.inner" for new in names.values()}  # whatever else had one of these names gives way
    return TileGraph(
        nodes=tuple(_renamed(node, {**taken, **names}) for node in writer.nodes),
        weights={taken.get(name, name): value for name, value in writer.weights.items() if name in used},
        constants={taken.get(name, name): value for name, value in writer.constants.items() if name in used},
        half=frozenset(taken.get(name, name) for name in writer.half & used),
        inputs=tuple(_value(graph, name, regions[name], input_name(number)) for number, name in enumerate(inputs)),
        outputs=tuple(
            _value(graph, name, rect, output_name(number)) for number, (name, rect) in enumerate(outputs.items())
        ),
        opset=graph.opset,
    )


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    for tensors in (node.input, node.output):
        tensors[:] = [names.get(name, name) for name in tensors]
    return node


def _value(graph: Graph, tensor: str, region: Rect, name: str) -> onnx.ValueInfoProto:
    shape = graph.shape(tensor).of(region, batch=1)
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape[1:]])


def in_one_piece(graph: Graph) -> TileGraph:
    """Write the whole network as one tile."""
    whole = {graph.output: graph.shape(graph.output).whole}
    return tile_graph(graph, graph.nodes, whole_regions(graph, graph.nodes), [graph.input], whole)
