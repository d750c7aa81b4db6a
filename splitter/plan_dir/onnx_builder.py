"""The ONNX nodes and constants of one tile, operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from serfer.core.geometry import Rect, Span
from serfer.core.plan import Padding
from splitter.network.graph import VECTOR_RANK, Axes, Graph, Node, Weights
from splitter.plan_dir.weights import Slice
from splitter.tiling import operators
from splitter.tiling.regions import Regions, clipped_away, needed_input


class TileWriter:
    """Collects the nodes and constants of one tile's graph; the operators' rules write through it."""

    def __init__(self, graph: Graph, regions: Regions) -> None:
        self.graph = graph
        self.regions = regions
        self.nodes: list[onnx.NodeProto] = []
        self.weights: Weights = {}
        self.constants: Weights = {}
        self.half: set[str] = set()
        self._views: dict[tuple[str, Rect], str] = {}

    def emit(self, node: Node) -> None:
        """Append the node as its region of the output needs it."""
        region = self.regions[node.output]
        inputs = [self._operand(node, name, region) for name in node.inputs]
        whole = operators.is_whole(self.graph, node) and node.kind != operators.TILE_SUM
        rule = None if whole else operators.rule_of(self.graph, node)
        if rule:
            rule.write(self, node, inputs, region)
        else:
            self.append(node.kind, inputs, node.output, node.attributes)

    def view(self, name: str, need: Rect) -> str:
        """Return the part `need` of tensor `name`, cropping it where more of it was computed."""
        have = self.regions[name]
        if have == need:
            return name
        if (name, need) not in self._views:
            view = f"{name}.view{len(self._views)}"
            self._views[name, need] = self.crop(name, need.within(have), self.graph.axes(name), view)
        return self._views[name, need]

    def crop(self, name: str, part: Rect, axes: Axes | None, output: str) -> str:
        """Append a Slice of a map's rows and columns, or of a vector's columns."""
        spans = {1: part.cols} if axes is None else {axes[0]: part.rows, axes[1]: part.cols}
        starts = self.constant(f"{output}.starts", np.array([span.start for span in spans.values()]))
        stops = self.constant(f"{output}.stops", np.array([span.stop for span in spans.values()]))
        along = self.constant(f"{output}.axes", np.array(list(spans)))
        return self.append("Slice", [name, starts, stops, along], output)

    def need(self, node: Node, source: str, region: Rect) -> Rect:
        """Return the rectangle of an input that a rectangle of the node's output reads."""
        return needed_input(self.graph, node, source, region)

    def padding(self, node: Node, region: Rect) -> Padding:
        """Return the padding of a windowed operator in this tile."""
        return clipped_away(self.graph, node, region)

    def _operand(self, node: Node, name: str, region: Rect) -> str:
        """Return what stands for an input of the node: the part that its region needs."""
        if not name:
            return name
        if name in self.graph.weights:
            return self._weight(name)
        return self.view(name, needed_input(self.graph, node, name, region))

    def append(self, kind: str, inputs: Sequence[str], output: str, attributes: dict[str, Any] | None = None) -> str:
        """Append an ONNX node and return its first output; others that it must have are read by nobody."""
        must = onnx.defs.get_schema(kind, self.graph.opset).min_output
        others = [self._own(f"{output}.output{number}") for number in range(1, must)]
        self.nodes.append(helper.make_node(kind, list(inputs), [output, *others], **(attributes or {})))
        return output

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a constant of the tile's own and return its name."""
        name = self._own(name)
        self.constants[name] = value
        return name

    def _own(self, name: str) -> str:
        """Return a name that no tensor of the network has."""
        while name in self.graph.weights or name in self.graph.shapes:
            name += ".tile"
        return name

    def _weight(self, name: str) -> str:
        if name in self.graph.half:
            self.half.add(name)
        self.weights[name] = self.graph.weights[name]
        return name

    def sliced(self, name: str, axis: int, span: Span) -> str:
        """Return a part of a weight, which is stored apart."""
        value = self.graph.weights[name]
        if span == Span(0, value.shape[axis]):
            return self._weight(name)
        part = Slice(name, axis, span)
        if name in self.graph.half:
            self.half.add(part.name)
        self.weights[part.name] = part.of(value)
        return part.name

    def broadcast(self, name: str, output: str, region: Rect) -> str:
        """Return a constant operand, cut where it has the map's rows or columns (a vector's columns) itself."""
        value, count = self.graph.weights[name], len(self.graph.shapes[output])
        axes = self.graph.axes(output)
        if axes is None:
            if count == VECTOR_RANK and value.ndim == 1 and value.size > 1:
                return self.sliced(name, 0, region.cols)
            spans = {1: region.cols} if count == VECTOR_RANK else {}
        else:
            spans = {axes[0]: region.rows, axes[1]: region.cols}
        index = [slice(None)] * value.ndim
        for axis, span in spans.items():
            own = axis - (count - value.ndim)
            if own >= 0 and value.shape[own] > 1:
                index[own] = slice(span.start, span.stop)
        part = value[tuple(index)]
        if part.shape == value.shape:
            return self._weight(name)
        return self.constant(f"{name}.part{len(self.constants)}", np.ascontiguousarray(part))
