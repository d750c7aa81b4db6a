"""Operators of a stage to the ONNX graph of one tile, its large constants kept in the stage's one weights file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serfer.core.geometry import Rect
from serfer.core.plan import Padding
from splitter import operators
from splitter.graph import Graph, Node, Weights
from splitter.tiles import Regions, clipped_away, needed_input

INPUT, OUTPUT = "input", "output"
_INLINE_BYTES = 1024  # smaller constants stay in the graph, where ONNX Runtime folds them
_ALIGNMENT = 64
_IR_VERSION = 10


class WeightsFile:
    """Where each large constant of a stage lies in the stage's weights file."""

    def __init__(self, weights: Weights, names: Sequence[str]) -> None:
        self._weights = {name: weights[name] for name in names if weights[name].nbytes > _INLINE_BYTES}
        self._offsets: dict[str, int] = {}
        end = 0
        for name, value in self._weights.items():
            self._offsets[name] = end
            end += -(-value.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.bytes = end

    def write(self, path: Path) -> None:
        """Write the constants, little endian, one after the other."""
        with path.open("wb") as file:
            for value in self._weights.values():
                file.write(np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False).data)
                file.write(bytes(-file.tell() % _ALIGNMENT))

    def reference(self, name: str, location: str) -> TensorProto | None:
        """Return an initializer that points into the file at `location`, or None for a constant not kept there."""
        if name not in self._weights:
            return None
        value = self._weights[name]
        tensor = TensorProto(
            name=name,
            dims=value.shape,
            data_type=helper.np_dtype_to_tensor_dtype(value.dtype),
            data_location=TensorProto.EXTERNAL,
        )
        for key, entry in (("location", location), ("offset", self._offsets[name]), ("length", value.nbytes)):
            tensor.external_data.add(key=key, value=str(entry))
        return tensor


class _TileWriter:
    """Collects the nodes and constants of one tile's graph."""

    def __init__(self, graph: Graph, regions: Regions) -> None:
        self.graph = graph
        self.regions = regions
        self.nodes: list[onnx.NodeProto] = []
        self.constants: Weights = {}
        self._views: dict[tuple[str, Rect], str] = {}

    def emit(self, node: Node) -> None:
        """Append the node as its region of the output needs it."""
        if not operators.tileable(self.graph, node):
            self._append(node.kind, node.inputs, node.output, node.attributes)
            return
        region = self.regions[node.output]
        need = needed_input(self.graph, node, region)
        inputs = [self._view(name, need) if name and name not in self.graph.weights else name for name in node.inputs]
        padding = clipped_away(self.graph, node, region)
        if node.kind == "Conv":
            self._conv(node, inputs, padding)
        elif node.kind == "MaxPool":
            self._pool(node, inputs[0], node.output, padding, -np.inf)
        elif node.kind == "AveragePool":
            self._average_pool(node, inputs[0], region, padding)
        elif node.kind == "Pad":
            value = inputs[2] if len(inputs) > 2 else ""  # noqa: PLR2004 - the third input is the value
            pooled = any(node.output in other.inputs for other in self.graph.nodes if other.kind in operators.POOLS)
            self._pad(inputs[0], node.output, padding, value, apart=pooled)
        elif node.kind == "MatMul":
            self._matrix(node, inputs, region, need)
        else:
            self._append(node.kind, inputs, node.output, node.attributes)

    def _append(self, kind: str, inputs: Sequence[str], output: str, attributes: dict[str, Any] | None = None) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **(attributes or {})))
        return output

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        self.constants[name] = value
        return name

    def _view(self, name: str, need: Rect) -> str:
        """Return the part `need` of tensor `name`, cropping it where more of it was computed."""
        have = self.regions[name]
        if have == need:
            return name
        if (name, need) not in self._views:
            crop = need.within(have)
            view = f"{name}.view{len(self._views)}"
            starts = self._constant(f"{view}.starts", np.array([crop.rows.start, crop.cols.start]))
            stops = self._constant(f"{view}.stops", np.array([crop.rows.stop, crop.cols.stop]))
            axes = self._constant(f"{view}.axes", np.array([operators.ROW_AXIS, operators.COL_AXIS]))
            self._views[name, need] = self._append("Slice", [name, starts, stops, axes], view)
        return self._views[name, need]

    def _conv(self, node: Node, inputs: list[str], padding: Padding) -> None:
        pads = _pads(padding)
        if min(pads) < 0:
            inputs[0], pads = self._pad(inputs[0], f"{node.output}.padded", padding, ""), [0, 0, 0, 0]
        self._append("Conv", inputs, node.output, {**node.attributes, "pads": pads})

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

    def _average_pool(self, node: Node, source: str, region: Rect, padding: Padding) -> None:
        """Append a mean over whole windows, rescaled where a window counts fewer positions than it has taps."""
        rows = operators.average_scale(self.graph, node, operators.ROW_AXIS, region.rows)
        cols = operators.average_scale(self.graph, node, operators.COL_AXIS, region.cols)
        scale = np.outer(rows, cols)[None, None]
        if np.all(scale == 1):
            self._pool(node, source, node.output, padding, 0.0)
            return
        mean = f"{node.output}.mean"
        self._pool(node, source, mean, padding, 0.0)
        self._append("Mul", [mean, self._constant(f"{node.output}.scale", scale)], node.output)

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
        axes = self._constant(f"{output}.axes", np.array([operators.ROW_AXIS, operators.COL_AXIS]))
        return self._append("Slice", [whole, starts, stops, axes], output)

    def _matrix(self, node: Node, inputs: list[str], region: Rect, need: Rect) -> None:
        axis, name = operators.matrix_of(self.graph, node)
        matrix = self.graph.weights[name]
        if axis == operators.ROW_AXIS:
            part = matrix[slice(region.rows.start, region.rows.stop), slice(need.rows.start, need.rows.stop)]
        else:
            part = matrix[slice(need.cols.start, need.cols.stop), slice(region.cols.start, region.cols.stop)]
        inputs[inputs.index(name)] = self._constant(f"{node.output}.matrix", np.ascontiguousarray(part))
        self._append("MatMul", inputs, node.output)


def _pads(padding: Padding) -> list[int]:
    return [padding.top, padding.left, padding.bottom, padding.right]


def tile_model(graph: Graph, nodes: Sequence[Node], regions: Regions, files: dict[str, WeightsFile]) -> onnx.ModelProto:
    """Write the ONNX model of one tile; `files` maps the weights files it may point into, by relative path.

    Input and output are named INPUT and OUTPUT, with a free batch axis.
    """
    source = next(name for name in graph.activations(nodes[0]))
    target = nodes[-1].output
    writer = _TileWriter(graph, regions)
    for node in nodes:
        writer.emit(node)
    used = {name for proto in writer.nodes for name in proto.input}
    initializers = [numpy_helper.from_array(value, name) for name, value in writer.constants.items()]
    for name in (name for name in graph.weights if name in used):
        references = (file.reference(name, location) for location, file in files.items())
        external = next((tensor for tensor in references if tensor is not None), None)
        initializers.append(external or numpy_helper.from_array(graph.weights[name], name))
    _rename(writer.nodes, initializers, source, target)
    body = helper.make_graph(
        writer.nodes,
        "tile",
        [_value(graph, source, regions, INPUT)],
        [_value(graph, target, regions, OUTPUT)],
        initializers,
    )
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", graph.opset)], ir_version=_IR_VERSION)


def _rename(nodes: Sequence[onnx.NodeProto], constants: Sequence[TensorProto], source: str, target: str) -> None:
    """Call `source` INPUT and `target` OUTPUT; whatever else had one of these names gives way."""
    names = {INPUT: f"{INPUT}.inner", OUTPUT: f"{OUTPUT}.inner", source: INPUT, target: OUTPUT}
    for node in nodes:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
    for constant in constants:
        constant.name = names.get(constant.name, constant.name)


def _value(graph: Graph, tensor: str, regions: Regions, name: str) -> onnx.ValueInfoProto:
    shape = graph.shape(tensor).of(regions[tensor], batch=1)
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *shape[1:]])
