"""Locates a network's fully connected head and replaces it by global average pooling.

    image ─▶ trunk ─▶ map (C, H, W) ─▶ flatten ─▶ Gemm ─▶ Relu ─▶ ... ─▶ Gemm ─▶ logits ─▶ tail
                          │                                               ▲
                          └──▶ global average pooling ─▶ one Gemm ────────┘

The tail (for example a softmax) stays: the output means what it meant. SerFer, section 4.1.1, optimisation 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from serfer.splitter.network.graph import BROADCAST, POINTWISE, Graph, Node

_MAP_RANK, _VECTOR_RANK = 4, 2
_LINEAR = frozenset({"Gemm", "MatMul"})
_TAIL = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "Identity", "Dropout"})
_RESHAPING = frozenset({"Flatten", "Reshape", "Squeeze", "ReduceMean"})
_HEAD = _LINEAR | _TAIL | _RESHAPING | (POINTWISE - {"LRN"}) | BROADCAST
_AVERAGES = frozenset({"AveragePool", "GlobalAveragePool", "ReduceMean", "MatMul", "Identity", "Dropout"})


@dataclass(frozen=True)
class Head:
    """A fully connected head: the map (C, H, W) that it reads, its logits (K,), its constants' bytes, its layers."""

    trunk_end: str
    logits: str
    bytes: int
    layers: int


@dataclass(frozen=True)
class Linear:
    """One fully connected layer: `weight` (K, C), `bias` (K,), float32."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]

    @property
    def bytes(self) -> int:
        return self.weight.nbytes + self.bias.nbytes


def find_head(graph: Graph) -> Head | None:
    """Return the fully connected head that pooling can replace, or None.

    The trunk ends before any averaging that leads to the head (global pooling averages again), but after max pooling.
    A head of global pooling and one layer is what the replacement would be: None.
    """
    end = None if graph.answers else _trunk_end(graph)
    if end is None:
        return None
    trunk, after = split_at(graph, end)
    linear = [node for node in after if _is_linear(graph, node)]
    foreign = any(node.kind not in _HEAD and len(graph.shapes[node.output]) != _MAP_RANK for node in after)
    if foreign or not linear or not any(node.kind == "Conv" for node in trunk):
        return None
    if len(linear) == 1 and graph.shapes[graph.activations(linear[0])[0]][1] == graph.shapes[end][1]:
        return None
    logits = _logits(graph, after[after.index(linear[-1]) :])
    if logits is None:
        return None
    own = {name for node in after for name in graph.constants(node)}
    return Head(end, logits, sum(graph.weights[name].nbytes for name in own), len(linear))


def _trunk_end(graph: Graph) -> str | None:
    alone = _alone(graph)
    maps = [name for name in alone if len(graph.shapes[name]) == _MAP_RANK]
    if not maps:
        return None
    end = maps[-1]
    makers = {node.output: node for node in graph.nodes}
    _, after = split_at(graph, end)
    if any(node.kind == "Conv" for node in after):
        return None
    while (node := makers.get(end)) is not None and node.kind in _AVERAGES and node.inputs:
        source = graph.activations(node)[0]
        if source not in maps:
            break
        end = source
    return end


def _alone(graph: Graph) -> list[str]:
    alone = []
    longest = graph.last_use(graph.input)
    for index, node in enumerate(graph.nodes):
        if longest <= index:
            alone.append(node.output)
        longest = max(longest, graph.last_use(node.output), index)
    return alone


def split_at(graph: Graph, end: str) -> tuple[list[Node], list[Node]]:
    """Return the nodes up to the one that computes `end`, a tensor on every path, and those after it."""
    position = next(index for index, node in enumerate(graph.nodes) if node.output == end) + 1
    return list(graph.nodes[:position]), list(graph.nodes[position:])


def _is_linear(graph: Graph, node: Node) -> bool:
    on_vectors = all(len(graph.shapes[name]) == _VECTOR_RANK for name in (*graph.activations(node), node.output))
    return node.kind in _LINEAR and on_vectors and len(graph.activations(node)) == 1


def _logits(graph: Graph, nodes: Sequence[Node]) -> str | None:
    logits = nodes[0].output
    for position, node in enumerate(nodes[1:], 1):
        affine = node.kind in ("Add", "Sub", "Mul", "Div") and len(graph.activations(node)) == 1
        if not affine:
            return logits if all(other.kind in _TAIL for other in nodes[position:]) else None
        logits = node.output
    return logits


def with_linear_head(graph: Graph, head: Head, layer: Linear) -> Graph:
    trunk, after = split_at(graph, head.trunk_end)
    tail = after[next(index for index, node in enumerate(after) if node.output == head.logits) + 1 :]
    pooled, vector, weight, bias = (_fresh(graph, f"gap.{name}") for name in ("pooled", "vector", "weight", "bias"))
    replaced = (
        Node(pooled, "GlobalAveragePool", (head.trunk_end,), pooled),
        Node(vector, "Flatten", (pooled,), vector, {"axis": 1}),
        Node(_fresh(graph, "gap.classes"), "Gemm", (vector, weight, bias), head.logits, {"transB": 1}),
    )
    nodes = (*trunk, *replaced, *tail)
    constants = {**graph.weights, weight: layer.weight, bias: layer.bias}
    channels = graph.shapes[head.trunk_end][1]
    shapes = {**graph.shapes, pooled: (1, channels, 1, 1), vector: (1, channels)}
    used = {name for node in nodes for name in (*node.inputs, node.output)}
    return replace(
        graph,
        nodes=nodes,
        weights={name: value for name, value in constants.items() if name in used},
        shapes={name: shape for name, shape in shapes.items() if name in used},
    )


def _fresh(graph: Graph, name: str) -> str:
    taken = {*graph.shapes, *graph.weights, *(node.name for node in graph.nodes)}
    while name in taken:
        name += "_"
    return name
