"""The network with its reductions over the whole image cut out: what is left looks at neighbourhoods.

    map ─▶ GlobalAveragePool ─▶ gate      becomes      map ─▶ (a statistic of pass k)
                                                       STATISTICS ─▶ Slice ─▶ Reshape ─▶ gate

What a statistic makes (the gates of squeeze-and-excite, scale and shift of a norm) is so small that every window
computes it again. The mean of squares of differences from anything small, (x - m)^2, is that of the differences from
the mean plus (mean - m)^2: so a norm takes one pass, not two, and no digits are lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from serfer.core.plan import POSITION, MapStatistics
from serfer.core.plan.statistics import KINDS, MAX, MEAN, MIN, SUM, VARIANCE
from serfer.splitter.network.canonicalize import Rewriter
from serfer.splitter.network.graph import (
    MAP_RANK,
    NCHW,
    STATISTICS,
    VECTOR_RANK,
    Axes,
    Bins,
    Graph,
    Node,
    Statistic,
    needed_for,
)
from serfer.splitter.tiling.elementwise import given_axes
from serfer.splitter.tiling.normalization import with_pooled_norms
from serfer.splitter.windows.positions import BINS, does_not_grow, with_positions
from serfer.splitter.windows.sections import Section

_POOLS = {"GlobalAveragePool": MEAN, "GlobalMaxPool": MAX, "AveragePool": MEAN, "MaxPool": MAX}
_REDUCTIONS = {"ReduceMean": MEAN, "ReduceSum": SUM, "ReduceMax": MAX, "ReduceMin": MIN}
_AGAIN = {MEAN: "ReduceMean", SUM: "ReduceSum", MAX: "ReduceMax", MIN: "ReduceMin"}
_OF_SUMS = {"ReduceL1": "Abs", "ReduceL2": "Mul", "ReduceSumSquare": "Mul"}
"""Reductions that are sums of what an operator makes of the values."""
_UNCUT = Section()


def with_statistics(graph: Graph, other: Graph | None = None) -> Graph:
    """Return the graph without reductions over the whole image; itself where it has none.

    Its operators make the outputs, and the sources of `statistics`. `other` is the network at a larger image, or at a
    smaller one: with it, pooling into bins is cut out as well, and resizing may depend on the position (positions.py).
    """
    plainer = _with_sums(with_pooled_norms(graph))
    if other is not None:
        plainer = with_positions(plainer, other)
    if STATISTICS not in plainer.shapes and not any(_reduced(plainer, node) for node in plainer.nodes):
        return graph
    cut = _Cut(plainer, other)
    for node in plainer.nodes:
        cut.write(node)
    return cut.done()


def passes_of(graph: Graph) -> int:
    return max((statistic.number + 1 for statistic in graph.statistics), default=0)


def part_of(graph: Graph, number: int | None, section: Section = _UNCUT) -> Graph:
    """Return the part of a graph that pass `number` computes: the sources of its statistics; None for the map.

    Behind the sources it has the maps that its section keeps.
    """
    if not graph.statistics:
        return graph
    sources = dict.fromkeys(statistic.source for statistic in graph.statistics if statistic.number == number)
    outputs = graph.outputs if number is None else (*dict.fromkeys((*sources, *section.keeps)),)
    nodes = needed_for(graph.nodes, outputs, section.reads)
    used = {name for node in nodes for name in node.inputs}
    weights = {name: value for name, value in graph.weights.items() if name in used}
    return replace(graph, nodes=nodes, outputs=outputs, weights=weights)


def _with_sums(graph: Graph) -> Graph:
    """Write norms over the image (as in ConvNeXt V2) as sums of absolute values or squares."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.kind not in _OF_SUMS or not _spatial(graph, node):
            rewriter.nodes.append(node)
            continue
        source, kind = node.inputs[0], _OF_SUMS[node.kind]
        inputs = (source,) if kind == "Abs" else (source, source)
        shape = graph.shapes[source]
        parts = rewriter.add(Node(f"{node.name}.parts", kind, inputs, f"{node.output}.parts"), shape, source)
        summed = node.output if node.kind != "ReduceL2" else f"{node.output}.sum"
        total = replace(node, kind="ReduceSum", inputs=(parts, *node.inputs[1:]), output=summed)
        rewriter.add(total, graph.shapes[node.output], source)
        if summed != node.output:
            rewriter.nodes.append(Node(f"{node.name}.root", "Sqrt", (summed,), node.output))
    return rewriter.done()


@dataclass(frozen=True)
class _Reduced:
    kind: str
    source: str
    others: tuple[int, ...]


def _reduced(graph: Graph, node: Node) -> _Reduced | None:
    kind = _POOLS.get(node.kind) or _REDUCTIONS.get(node.kind)
    if kind is None or node.inputs[0] in graph.weights:
        return None
    axes = _spatial(graph, node)
    if axes is None or graph.shape(node.inputs[0]).whole.area == 1:
        return None
    return _Reduced(kind, node.inputs[0], tuple(sorted({*(_axes(graph, node) or ())} - {*axes})))


def _spatial(graph: Graph, node: Node) -> Axes | None:
    axes, gone = graph.axes(node.inputs[0]) if node.inputs[0] in graph.shapes else None, _axes(graph, node)
    return axes if axes and gone and {*axes} <= {*gone} and 0 not in gone else None


def _axes(graph: Graph, node: Node) -> Iterable[int] | None:
    if node.kind.startswith("Reduce"):
        return given_axes(graph, node)
    before, after = graph.shapes[node.inputs[0]], graph.shapes[node.output]
    if len(before) != MAP_RANK:
        return None
    whole = list(before[2:]) == list(node.attributes.get("kernel_shape", ())) and not any(
        node.attributes.get("pads", ())
    )
    return NCHW if node.kind.startswith("Global") or (whole and after[2:] == (1, 1)) else None


class _Cut:
    def __init__(self, graph: Graph, other: Graph | None) -> None:
        self._graph, self._other, self._to = graph, other, Rewriter(graph)
        self._made = {node.output: node for node in graph.nodes}
        self._fixed = {STATISTICS}
        self._passes = {graph.input: 0, STATISTICS: 0}
        """Of each tensor, how many passes come before it is known."""
        self._kinds: dict[tuple[str, Bins | None], list[str]] = {}
        """Of each map that statistics are of, or of its bins, which."""

    def write(self, node: Node) -> None:
        graph = self._graph
        inputs = graph.activations(node)
        fixed = all(name in self._fixed for name in inputs)
        if node.kind == BINS:
            self._write_bins(node)
            return
        found = None if fixed else _reduced(graph, node)
        if found:
            self._write_reduction(node, found)
            return
        axes = graph.axes(node.output)
        small = axes is None or graph.shape(node.output).whole.area == 1 or does_not_grow(graph, self._other, node)
        if fixed and not small and node.kind == "Resize" and self._graph.shape(node.inputs[0]).whole.area == 1:
            node = self._expanded(node)
        self._to.nodes.append(node)
        self._passes[node.output] = max(self._passes[name] for name in inputs)
        if fixed and small:
            self._fixed.add(node.output)

    def _expanded(self, node: Node) -> Node:
        size = self._to.constant(f"{node.output}.size", [1, *self._graph.shapes[node.output][1:]])
        return Node(node.name, "Expand", (node.inputs[0], size), node.output)

    def _write_bins(self, node: Node) -> None:
        value, _ = self._statistic(node.inputs[0], SUM, node.attributes[BINS])
        self._add(Node(node.name, "Identity", (value,), node.output), self._graph.shapes[node.output])

    def _write_reduction(self, node: Node, found: _Reduced) -> None:
        value, shape = self._whole(found)
        if found.others:
            axes = self._to.constant(f"{node.output}.axes", [*found.others])
            shape = tuple(1 if axis in found.others else size for axis, size in enumerate(shape))
            more = Node(f"{node.name}.others", _AGAIN[found.kind], (value, axes), f"{node.output}.others")
            value = self._add(more, shape, like=found.source)
        form = self._to.constant(f"{node.output}.form", [0, *self._graph.shapes[node.output][1:]])
        reshaped = Node(node.name, "Reshape", (value, form), node.output)
        self._add(reshaped, self._graph.shapes[node.output], like=node.output)

    def _whole(self, found: _Reduced) -> tuple[str, tuple[int, ...]]:
        squares = self._squares(found.source) if found.kind in (MEAN, SUM) else None
        if squares is None:
            return self._statistic(found.source, found.kind)
        source, middle = squares
        (mean, shape), (variance, _) = self._statistic(source, MEAN), self._statistic(source, VARIANCE)
        name = f"{found.source}.from"
        off = self._add(Node(name, "Sub", (mean, middle), name), shape, like=source)
        off = self._add(Node(f"{name}.square", "Mul", (off, off), f"{name}.square"), shape, like=source)
        value = self._add(Node(f"{name}.mean", "Add", (variance, off), f"{name}.mean"), shape, like=source)
        if found.kind == MEAN:
            return value, shape
        area = self._to.constant(f"{name}.area", np.float32(self._graph.shape(source).whole.area))
        return self._add(Node(f"{name}.sum", "Mul", (value, area), f"{name}.sum"), shape, like=source), shape

    def _squares(self, tensor: str) -> tuple[str, str] | None:
        square = self._made.get(tensor)
        if square is None or not self._is_square(square):
            return None
        less = self._made.get(square.inputs[0])
        if less is None or less.kind != "Sub":
            return None
        small = [name for name in less.inputs if name in self._fixed]
        maps = [name for name in less.inputs if name in self._passes and name not in self._fixed]
        if len(small) != 1 or len(maps) != 1 or self._graph.axes(maps[0]) != self._graph.axes(tensor):
            return None
        plain = self._graph.shapes[maps[0]] == self._graph.shapes[tensor]
        return (maps[0], small[0]) if plain else None

    def _is_square(self, node: Node) -> bool:
        if node.kind == "Pow":
            exponent = self._graph.weights.get(node.inputs[1])
            return exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == VECTOR_RANK
        return node.kind == "Mul" and node.inputs[0] == node.inputs[1]

    def _statistic(self, source: str, kind: str, bins: Bins | None = None) -> tuple[str, tuple[int, ...]]:
        graph = self._graph
        rows, cols = graph.axes(source) or NCHW
        high, wide = bins.counts if bins else (1, 1)
        shape = tuple({rows: high, cols: wide}.get(axis, size) for axis, size in enumerate(graph.shapes[source]))
        name = _name_of(source, kind, bins)
        kinds = self._kinds.setdefault((source, bins), [])
        if kind not in kinds:
            kinds.append(kind)
            number = self._passes[source] + 1
            places = tuple(self._to.constant(f"{name}.{what}", [1]) for what in ("start", "stop", "axis"))
            flat = Node(f"{name}.vector", "Slice", (STATISTICS, *places), f"{name}.vector")
            self._add(flat, (1, prod(shape[1:])), number)
            form = self._to.constant(f"{name}.form", [0, *shape[1:]])
            self._add(Node(name, "Reshape", (f"{name}.vector", form), name), shape, number, source)
        return name, shape

    def _add(self, node: Node, shape: tuple[int, ...], passes: int | None = None, like: str | None = None) -> str:
        before = [self._passes[name] for name in node.inputs if name in self._passes]
        self._passes[node.output] = passes or max(before)
        self._fixed.add(node.output)
        return self._to.add(node, shape, like)

    def done(self) -> Graph:
        statistics, start = list[Statistic](), 0
        for source, bins in sorted(self._kinds, key=lambda known: self._passes[known[0]]):
            kinds = tuple(kind for kind in KINDS if kind in self._kinds[source, bins])
            channels = self._graph.shape(source).channels * (prod(bins.counts) if bins else 1)
            values = MapStatistics(start, channels, kinds)
            for number, kind in enumerate(kinds):
                first, name = start + number * channels, _name_of(source, kind, bins)
                self._to.constant(f"{name}.start", [first])
                self._to.constant(f"{name}.stop", [first + channels])
            statistics.append(Statistic(self._source(source), self._passes[source], values, bins))
            start = values.stop
        positioned = STATISTICS in self._graph.shapes
        self._to.shapes[STATISTICS] = (1, start + POSITION * positioned)
        graph = self._to.done()
        outputs = (*graph.outputs, *(statistic.source for statistic in statistics))
        cut = replace(graph, nodes=needed_for(graph.nodes, outputs), statistics=tuple(statistics))
        return replace(cut, fixed=frozenset(self._fixed))

    def _source(self, tensor: str) -> str:
        copy = f"{tensor}.whole"
        if tensor != self._graph.input or copy in self._to.shapes:
            return tensor if tensor != self._graph.input else copy
        return self._to.add(Node(copy, "Identity", (tensor,), copy), self._graph.shapes[tensor])


def _name_of(source: str, kind: str, bins: Bins | None) -> str:
    of = f"bins{bins.counts[0]}x{bins.counts[1]}" if bins else "whole"
    return f"{source}.{of}.{kind}"
