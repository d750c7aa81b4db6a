"""Instance and group normalisation as tiles see them: two global poolings, of which each tile computes its share.

    InstanceNormalization(x)    mean = pool(x), d = x - mean, d * (scale / sqrt(pool(d * d) + epsilon)) + bias

A group of channels has the mean of its channels' means, and so for squares of differences. The differences are squared,
not the values: that loses no digits where the mean is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from serfer.splitter.network.canonicalize import Rewriter
from serfer.splitter.network.graph import MAP_RANK, NCHW, Graph, Node

_EPSILON = 1e-5
_GROUPED_RANK = 3


@dataclass(frozen=True)
class _Norm:
    """A normalisation of map `source`, to be called `output`, in equal groups of channels; constants per channel."""

    node: Node
    source: str
    output: str
    groups: int
    scale: NDArray[np.float32]
    bias: NDArray[np.float32]


def with_pooled_norms(graph: Graph) -> Graph:
    """Write instance and group normalisations of maps as global poolings and arithmetic, where their weights are known.

    Of exporters' Reshape, InstanceNormalization, Reshape the first one goes, and so does the last.
    """
    norms = {norm.output: norm for node in graph.nodes if (norm := _norm_of(graph, node)) is not None}
    if not norms:
        return graph
    inner = {norm.node.output for norm in norms.values()} - norms.keys()
    folds = {norm.node.inputs[0] for norm in norms.values()} - {norm.source for norm in norms.values()}
    gone = inner | {name for name in folds if len(graph.readers[name]) == 1}
    writer = _Writer(graph)
    for node in graph.nodes:
        if node.output in norms:
            writer.write(norms[node.output])
        elif node.output not in gone:
            writer.nodes.append(node)
    return writer.done()


def _norm_of(graph: Graph, node: Node) -> _Norm | None:
    if node.kind == "Reshape":
        return _grouped(graph, node)
    if node.kind != "InstanceNormalization" or not _is_plain(graph, node, node.inputs[0]):
        return None
    return _norm(graph, node, node.inputs[0], node.output, graph.shapes[node.output][1])


def _grouped(graph: Graph, unfold: Node) -> _Norm | None:
    node = _maker(graph, unfold.inputs[0], "InstanceNormalization")
    fold = _maker(graph, node.inputs[0], "Reshape") if node else None
    if node is None or fold is None:
        return None
    shape, folded = graph.shapes[fold.inputs[0]], graph.shapes[fold.output]
    same = shape == graph.shapes[unfold.output] and len(folded) == _GROUPED_RANK and shape[1] % folded[1] == 0
    if not same or len(graph.readers[node.output]) > 1 or not _is_plain(graph, node, fold.inputs[0]):
        return None
    return _norm(graph, node, fold.inputs[0], unfold.output, folded[1])


def _maker(graph: Graph, tensor: str, kind: str) -> Node | None:
    return next((node for node in graph.nodes if node.output == tensor and node.kind == kind), None)


def _is_plain(graph: Graph, node: Node, source: str) -> bool:
    shape = graph.shapes.get(source, ())
    maps = len(shape) == MAP_RANK and graph.axes(source) == NCHW and prod(shape[2:]) > 1
    return maps and source not in graph.others and all(name in graph.weights for name in node.inputs[1:])


def _norm(graph: Graph, node: Node, source: str, output: str, groups: int) -> _Norm:
    channels = graph.shapes[source][1]
    scale, bias = (_per_channel(graph.weights[name], channels) for name in node.inputs[1:3])
    return _Norm(node, source, output, groups, scale, bias)


def _per_channel(values: NDArray[np.float32], channels: int) -> NDArray[np.float32]:
    return np.repeat(values.reshape(-1), channels // values.size)[:, None, None]


class _Writer(Rewriter):
    def write(self, norm: _Norm) -> None:
        shape, name = self.graph.shapes[norm.source], norm.output
        values = (1, shape[1], 1, 1)
        mean = self._pooled(norm, norm.source, "mean")
        apart = self._add(norm, "apart", "Sub", (norm.source, mean), shape)
        squares = self._add(norm, "squares", "Mul", (apart, apart), shape)
        variance = self._pooled(norm, squares, "variance")
        epsilon = np.float32(norm.node.attributes.get("epsilon", _EPSILON))
        above = self._add(norm, "above", "Add", (variance, self.constant(f"{name}.epsilon", epsilon)), values)
        spread = self._add(norm, "spread", "Sqrt", (above,), values)
        ratio = self._add(norm, "ratio", "Div", (self.constant(f"{name}.scale", norm.scale), spread), values)
        scaled = self._add(norm, "scaled", "Mul", (apart, ratio), shape)
        inputs = scaled, self.constant(f"{name}.bias", norm.bias)
        self.nodes.append(Node(norm.node.name, "Add", inputs, name))

    def _pooled(self, norm: _Norm, source: str, what: str) -> str:
        channels = self.graph.shapes[norm.source][1]
        pooled = self._add(norm, what, "GlobalAveragePool", (source,), (1, channels, 1, 1))
        if norm.groups == channels:
            return pooled
        each, form = (1, norm.groups, channels // norm.groups), f"{norm.output}.{what}"
        rows = self.constant(f"{form}.rows", [0, *each[1:]])
        grouped = self._add(norm, f"{what}.grouped", "Reshape", (pooled, rows), each)
        axes = self.constant(f"{form}.axes", [2])
        one = self._add(norm, f"{what}.one", "ReduceMean", (grouped, axes), (*each[:2], 1))
        again = self._add(norm, f"{what}.each", "Expand", (one, self.constant(f"{form}.size", each)), each)
        flat = self.constant(f"{form}.shape", [0, channels, 1, 1])
        return self._add(norm, f"{what}.channels", "Reshape", (again, flat), (1, channels, 1, 1))

    def _add(self, norm: _Norm, what: str, kind: str, inputs: tuple[str, ...], shape: tuple[int, ...]) -> str:
        return self.add(Node(f"{norm.node.name}.{what}", kind, inputs, f"{norm.output}.{what}"), shape)
