"""The backward walk: from rectangles of a stage's outputs back to everything that its tiles must compute.

`AxisWalk` does it along one axis, for all tiles at once (see receptive_field.py); a rectangle is the product of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect, Span
from serfer.core.plan import Padding
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph, Node
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.receptive_field import ReceptiveField, Spans, all_rows, clipped, hull, spans_of
from serfer.splitter.tiling.tiling_rule import InputRegion, extent

Regions = dict[str, Rect]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class AxisInput:
    """One input of an operator along one axis: its extent, and which of its rows the operator reads."""

    size: int
    field: ReceptiveField

    def read_by(self, span: Span) -> tuple[Span, Span]:
        if span not in self._cache:
            rows = self.field(spans_of([span]))
            full, inside = (Span(*spans[:, 0].tolist()) for spans in (rows, clipped(rows, self.size)))
            self._cache[span] = full, inside
        return self._cache[span]

    @cached_property
    def _cache(self) -> dict[Span, tuple[Span, Span]]:
        return {}


@dataclass(frozen=True)
class AxisNode:
    """An operator along one axis; `size` is its output's extent, all of which every tile computes if `replicated`."""

    output: str
    size: int
    replicated: bool
    inputs: Mapping[str, AxisInput]


def axis_node(graph: Graph, node: Node, axis: int) -> AxisNode:
    return graph.once(_axis_node, node, axis)


def _axis_node(graph: Graph, node: Node, axis: int) -> AxisNode:
    return AxisNode(
        node.output,
        extent(graph, node.output, axis),
        operators.is_replicated(graph, node),
        {
            source: AxisInput(extent(graph, source, axis), operators.receptive_field(graph, node, source, axis))
            for source in graph.activations(node)
        },
    )


class AxisWalk:
    """The backward walk along one axis, one operator at a time: which rows of every tensor each tile has to have.

    `spans` holds them, as far as the walk went: where several operators read a tensor, the hull of what they read.
    `reads` holds, for each tensor, its readers (by their positions, the last first) and the rows that each reads, but
    for those that every tile computes whole. Rows are clipped to the map unless `clip` is false. Walks that share
    `interned` compute equal spans once.
    """

    def __init__(
        self,
        nodes: Sequence[AxisNode],
        targets: Mapping[str, Spans],
        *,
        clip: bool = True,
        interned: InternedSpans | None = None,
    ) -> None:
        self._nodes, self._clip, self._interned = nodes, clip, interned or InternedSpans()
        self.targets = {name: self._interned.one(rows) for name, rows in targets.items()}
        self.position = len(nodes)
        self.spans: dict[str, Spans] = {}
        self.reads: dict[str, list[tuple[int, Spans]]] = {}

    def step(self) -> Spans:
        """Walk over the operator before `position`; return the rows of its output that each tile computes."""
        self.position -= 1
        node = self._nodes[self.position]
        if node.output in self.targets:
            self._add(node.output, self.targets[node.output])
        if node.replicated:
            self.spans[node.output] = self._whole(node.size)
        out = self.spans[node.output]
        for source, read in node.inputs.items():
            rows = self._interned.read(read.field, read.size if self._clip else None, out)
            self._add(source, rows)
            if not node.replicated:
                self.reads.setdefault(source, []).append((self.position, rows))
        return out

    def to_image(self) -> dict[str, Spans]:
        """Walk over all operators that are left; return the rows of every tensor."""
        while self.position:
            self.step()
        return self.spans

    def _whole(self, size: int) -> Spans:
        return self._interned.read(all_rows(size), None, next(iter(self.targets.values())))

    def _add(self, tensor: str, rows: Spans) -> None:
        before = self.spans.get(tensor)
        self.spans[tensor] = rows if before is None else self._interned.hull(before, rows)


def infer_regions(graph: Graph, nodes: Sequence[Node], tiles: Sequence[Mapping[str, Rect]]) -> list[Regions]:
    """Return, for each tile, the rectangle of every tensor of a stage that rectangles of its outputs depend on.

    `tiles` has each tile's rectangles of the stage's outputs; every tile has the same outputs.
    """
    return _walked(graph, nodes, tiles, clip=True)


def _walked(graph: Graph, nodes: Sequence[Node], tiles: Sequence[Mapping[str, Rect]], *, clip: bool) -> list[Regions]:
    spans = []
    for axis, side in ((ROW_AXIS, "rows"), (COL_AXIS, "cols")):
        targets = {name: spans_of([getattr(tile[name], side) for tile in tiles]) for name in tiles[0]}
        found = AxisWalk([axis_node(graph, node, axis) for node in nodes], targets, clip=clip).to_image()
        spans.append({name: [Span(*span) for span in rows.T.tolist()] for name, rows in found.items()})
    rows, cols = spans
    return [{name: Rect(rows[name][tile], cols[name][tile]) for name in rows} for tile in range(len(tiles))]


def input_paddings(
    graph: Graph, nodes: Sequence[Node], inputs: Sequence[str], tiles: Sequence[Mapping[str, Rect]]
) -> list[tuple[Padding, ...]]:
    """Return, for each tile, how far the receptive field of its outputs leaves the map of each of a stage's `inputs`.

    That is the padding of all its operators together: nothing is clipped on the way.
    """
    fields = _walked(graph, nodes, tiles, clip=False)
    return [tuple(_outside(field[name], graph.shape(name).whole) for name in inputs) for field in fields]


def _outside(field: Rect, whole: Rect) -> Padding:
    return Padding(
        top=max(0, -field.rows.start),
        left=max(0, -field.cols.start),
        bottom=max(0, field.rows.stop - whole.rows.stop),
        right=max(0, field.cols.stop - whole.cols.stop),
    )


def input_region(graph: Graph, node: Node, source: str, region: Rect) -> InputRegion:
    """Return what `region` of an operator's output reads of its input `source`, with and without the padding."""
    rows = axis_node(graph, node, ROW_AXIS).inputs[source].read_by(region.rows)
    cols = axis_node(graph, node, COL_AXIS).inputs[source].read_by(region.cols)
    full, inside = (Rect(*spans) for spans in zip(rows, cols, strict=True))
    return InputRegion(full, inside)


def whole_regions(graph: Graph, nodes: Iterable[Node]) -> Regions:
    names = {name for node in nodes for name in (node.output, *graph.activations(node))}
    return {name: graph.shape(name).whole for name in names}


def tile_macs(graph: Graph, nodes: Iterable[Node], regions: Regions) -> int:
    return sum(operators.macs(graph, node, regions[node.output].area) for node in nodes)


class InternedSpans:
    """Returns the same array for equal spans, sizes and views; arguments are arrays that it has returned."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[tuple[int, ...], bytes], Integers] = {}
        self._read: dict[tuple[ReceptiveField, int | None, int], Spans] = {}
        self._hulls: dict[tuple[int, int], Spans] = {}
        self._sizes: dict[int, Integers] = {}
        self._views: dict[tuple[int, ...], Integers] = {}

    def one(self, array: Integers) -> Integers:
        """Return the array that stands for all equal ones; it stays alive with this object."""
        return self._arrays.setdefault((array.shape, array.tobytes()), array)

    def read(self, field: ReceptiveField, size: int | None, out: Spans) -> Spans:
        """Return what spans of an operator's output read of an input, clipped to `size` rows, None for all."""
        key = field, size, id(out)
        known = self._read.get(key)
        if known is None:
            rows = field(out)
            known = self._read[key] = self.one(rows if size is None else clipped(rows, size))
        return known

    def hull(self, one: Spans, other: Spans) -> Spans:
        if one is other:
            return one
        key = id(one), id(other)
        known = self._hulls.get(key)
        if known is None:
            known = self._hulls[key] = self.one(hull(one, other))
        return known

    def sizes(self, spans: Spans) -> Integers:
        known = self._sizes.get(id(spans))
        if known is None:
            known = self._sizes[id(spans)] = self.one(spans[1] - spans[0])
        return known

    def views(self, several: Sequence[Spans]) -> Integers:
        """Return several spans of each tile, relative to its first one's first row: an array (tiles, spans, 2)."""
        key = tuple(map(id, several))
        known = self._views.get(key)
        if known is None:
            relative = np.array(several) - several[0][0]
            known = self._views[key] = self.one(np.ascontiguousarray(relative.transpose(2, 0, 1)))
        return known
