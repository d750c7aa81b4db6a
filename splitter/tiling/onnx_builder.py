"""The ONNX nodes and constants of one tile's graph; operators write themselves through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from serfer.core.geometry import Rect, Span
from serfer.splitter.network.graph import VECTOR_RANK, Axes, Graph, Weights

_MARK = "|"


@dataclass(frozen=True)
class Slice:
    """Rows (axis 0) or columns (axis 1) of a constant."""

    base: str
    axis: int
    span: Span

    @property
    def name(self) -> str:
        return _MARK.join((self.base, str(self.axis), str(self.span.start), str(self.span.stop)))

    def of(self, value: NDArray[Any]) -> NDArray[Any]:
        part = slice(self.span.start, self.span.stop)
        return value[part] if self.axis == 0 else value[:, part]

    @classmethod
    def parse(cls, name: str) -> Slice | None:
        """Return the slice that a constant's name stands for, or None for a whole constant's."""
        parts = name.rsplit(_MARK, 3)
        if len(parts) != 4 or not all(part.isdecimal() for part in parts[1:]):  # noqa: PLR2004 - as `name` writes it
            return None
        return cls(parts[0], int(parts[1]), Span(int(parts[2]), int(parts[3])))


class OnnxBuilder:
    """Collects ONNX nodes, the network's weights that they read, whole or sliced, and constants of the tile's own.

    `inside` has the weights that lie in the body of a node, by its name, `domains` the versions of operator sets
    besides ONNX's own.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.nodes: list[onnx.NodeProto] = []
        self.weights: Weights = {}
        self.constants: Weights = {}
        self.half: set[str] = set()
        self.inside: dict[str, tuple[str, ...]] = {}
        self.domains: dict[str, int] = {}

    def crop(self, name: str, part: Rect, axes: Axes | None, output: str) -> str:
        spans = {1: part.cols} if axes is None else {axes[0]: part.rows, axes[1]: part.cols}
        starts = self.constant(f"{output}.starts", np.array([span.start for span in spans.values()]))
        stops = self.constant(f"{output}.stops", np.array([span.stop for span in spans.values()]))
        along = self.constant(f"{output}.axes", np.array(list(spans)))
        return self.append("Slice", [name, starts, stops, along], output)

    def append(self, kind: str, inputs: Sequence[str], output: str, attributes: dict[str, Any] | None = None) -> str:
        """Append an ONNX node and return its first output; other required outputs are never read."""
        must = onnx.defs.get_schema(kind, self._graph.opset).min_output
        others = [self.own_name(f"{output}.output{number}") for number in range(1, must)]
        self.nodes.append(helper.make_node(kind, list(inputs), [output, *others], **(attributes or {})))
        return output

    def constant(self, name: str, value: NDArray[Any]) -> str:
        name = self.own_name(name)
        self.constants[name] = value
        return name

    def own_name(self, name: str) -> str:
        while name in self._graph.weights or name in self._graph.shapes:
            name += ".tile"
        return name

    def weight(self, name: str) -> str:
        if name in self._graph.half:
            self.half.add(name)
        self.weights[name] = self._graph.weights[name]
        return name

    def sliced(self, name: str, axis: int, span: Span) -> str:
        value = self._graph.weights[name]
        if span == Span(0, value.shape[axis]):
            return self.weight(name)
        part = Slice(name, axis, span)
        if name in self._graph.half:
            self.half.add(part.name)
        self.weights[part.name] = part.of(value)
        return part.name

    def broadcast(self, name: str, output: str, region: Rect) -> str:
        """Return a constant operand, cut where it has the map's rows or columns (a vector's columns) itself."""
        value, count = self._graph.weights[name], len(self._graph.shapes[output])
        axes = self._graph.axes(output)
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
            return self.weight(name)
        return self.constant(f"{name}.part{len(self.constants)}", np.ascontiguousarray(part))
