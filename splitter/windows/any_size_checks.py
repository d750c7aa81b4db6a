"""Whether images of all sizes have the windows that rules say: the shortest ones compared with large ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ModelError
from serfer.core.geometry import Rect, Span
from serfer.core.plan import AxisEnd, AxisRule, AxisWindows
from serfer.core.plan.windows import Ending, at_least
from serfer.splitter.network.graph import MAP_RANK, Graph
from serfer.splitter.network.ingest import simplified
from serfer.splitter.network.unsupported import refuse
from serfer.splitter.plan_dir.emit import TileGraph
from serfer.splitter.tiling.receptive_field import spans_of
from serfer.splitter.windows.any_size_network import ONE_A_SIZE, SMALLER, AnySizeNetwork, check_extents, shortened
from serfer.splitter.windows.axis_rules import NetworkAxis, RuledAxis, WindowKind
from serfer.splitter.windows.map_plan import WindowTile
from serfer.splitter.windows.pass_windows import PassTile
from serfer.splitter.windows.same_windows import check_alike, check_equal, weights_by_size
from serfer.splitter.windows.size_values import BOTH, HEIGHT, WIDTH, Number, straying
from serfer.splitter.windows.wanted_sizes import MOST_PIXELS
from serfer.splitter.windows.window_kinds import AxisSpans

_MOST_AT_ONCE = 1 << 16
_Pair = tuple[tuple[int, Mapping[str, tuple[int, ...]]], ...]
"""Two lengths of a side, and the shapes of a network's tensors at these."""


@dataclass(frozen=True)
class SizeGraphs:
    """The graphs of images of which tiles are made: those of the endings of rows and of columns that meet.

    `axes` are rows and columns by how they end, of large images; `refused` says why there are not all endings. Tiles
    are made of shorter images, whose `lengths` are by endings, too: ONNX Runtime rounds coordinates less there.
    """

    network: AnySizeNetwork
    axes: tuple[Mapping[Ending, NetworkAxis], Mapping[Ending, NetworkAxis]]
    refused: str
    lengths: tuple[Mapping[Ending, int], Mapping[Ending, int]] = ({}, {})
    made: list[Graph] = field(default_factory=list)

    def with_lengths(self, sides: Sequence[tuple[RuledAxis, RuledAxis]]) -> SizeGraphs:
        """Return graphs of the shortest images that have the largest windows, and so all others."""
        rows, cols = ({end.ending: end.least for end in side.rule.ends} for side in sides[0])
        return replace(self, lengths=(rows, cols))

    @property
    def first(self) -> tuple[NetworkAxis, NetworkAxis]:
        rows, cols = (next(iter(axes.values())) for axes in self.axes)
        return rows, cols

    def of(self, size: tuple[int, int]) -> Graph:
        graph = self.network.checked(size)
        if not any(graph is made_graph for made_graph in self.made):
            self.made.append(graph)
        return graph

    def at(self, past: Sequence[Ending]) -> Graph:
        """Return the graph of an image of these residues; raises ModelError where one side depends on the other."""
        rows, cols = (lengths[past_number] for lengths, past_number in zip(self.lengths, past, strict=True))
        graph = self.of((rows, cols))
        for axes, past_number, length in zip(self.axes, past, (rows, cols), strict=True):
            axis = axes[past_number]
            check_extents(graph, axis, (length - axis.size) // axis.known.stride)
        return graph

    def tile(
        self, row: WindowKind, col: WindowKind, past: tuple[Ending, Ending] | None = None
    ) -> WindowTile | PassTile:
        residues, found = [], []
        for number, (kind, axes) in enumerate(zip((row, col), self.axes, strict=True)):
            residues.append(kind.past if kind.past is not None else past[number] if past else next(iter(axes)))
            axis = axes[residues[-1]]
            shift = 0 if kind.past is None else (self.lengths[number][kind.past] - axis.size) // axis.known.stride
            found.append(kind.at(kind.units + shift, axis.known))
        return self.tile_of(self.at(residues), *found)

    def tile_of(self, graph: Graph, row: WindowKind, col: WindowKind) -> WindowTile | PassTile:
        regions = {name: Rect(span, col.rows[name]) for name, span in row.rows.items()}
        made = {name: Rect(span, col.made[name]) for name, span in row.made.items()}
        number = self.network.network.number
        if number is None:
            return WindowTile(graph, regions, tuple(made.values()))
        return PassTile(graph, regions, made, number, units=self.network.known)


def check_middle(graphs: SizeGraphs, sides: Sequence[tuple[RuledAxis, RuledAxis]]) -> None:
    """Compare windows in the middle of large images with one another, and ask of other sizes for other ways."""
    network, (rows, cols) = graphs.network, graphs.first
    graph = graphs.of((rows.size, cols.size))
    rows, cols = replace(rows, graph=graph), replace(cols, graph=graph)
    for side in sides:
        down, across = _spans(rows, side[0].rule), _spans(cols, side[1].rule)
        check_alike(graph, *down, across[0], rows=True)
        check_alike(graph, *across, down[0], rows=False)
    network.check_ways([axis_side.rule for axis_side in sides[-1]])


def check_numbers(graphs: SizeGraphs, rules: Sequence[AxisRule]) -> None:
    """Refuse an operator that takes numbers which do not follow the size of all images that there are rules for."""
    if graphs.network.network.number is not None:
        return  # a pass has those of the map
    base = graphs.network.base + graphs.network.past
    nodes = simplified(graphs.network.network.branched((base, base))[0]).proto.graph
    pairs = [[_given_shapes(graphs, number, end, rule.unit) for end in rule.ends] for number, rule in enumerate(rules)]
    for number, rule in enumerate(rules):
        for pair, end in zip(pairs[number], rule.ends, strict=True):
            lengths = _lengths(end, rule.unit)
            for start in range(0, len(lengths), _MOST_AT_ONCE):
                part = np.concatenate([lengths[:2], lengths[start : start + _MOST_AT_ONCE]])
                shapes = partial(_extents, part, pair, (pairs[0][0], pairs[1][0]))
                if node := straying(nodes, shapes, part, rule.unit):
                    raise refuse(node.name, node.op_type, ONE_A_SIZE)


def _given_shapes(graphs: SizeGraphs, number: int, end: AxisEnd, unit: int) -> _Pair:
    network = graphs.network
    other, large = network.base + network.past, graphs.axes[number][end.ending].size
    found = []
    for length in (large, at_least(network.base // SMALLER, end.ending, unit) or end.least):
        graph = network.network.at(*((other, length) if number else (length, other)))
        found.append((length, graph.given_shapes))
    return found[0], found[1]


def _extents(lengths: NDArray[np.int64], pair: _Pair, firsts: tuple[_Pair, _Pair], name: str) -> list[Number]:
    read = [shapes.get(name, ()) for several in (pair, *firsts) for _, shapes in several]
    if len({len(sizes) for sizes in read}) > 1 or min(min(sizes, default=-1) for sizes in read) < 0:
        return [Number(lengths, BOTH)] * MAP_RANK  # unknown
    (longest, _), (shortest, _) = pair
    return [
        Number(
            large + (lengths - longest) * (large - small) // max(1, longest - shortest),
            HEIGHT * (high != low) | WIDTH * (wide != narrow),
        )
        for large, small, high, low, wide, narrow in zip(*read, strict=True)
    ]


def _lengths(end: AxisEnd, unit: int) -> NDArray[np.int64]:
    lengths = np.arange(end.least, MOST_PIXELS + 1, unit)
    spans = np.array([(span.start, span.stop) for span in end.sizes or (Span(0, MOST_PIXELS + 1),)])
    fitting: NDArray[np.int64] = lengths[lengths < spans[np.searchsorted(spans[:, 0], lengths, "right") - 1, 1]]
    return fitting


def _spans(axis: NetworkAxis, rule: AxisRule) -> tuple[AxisSpans, AxisWindows]:
    windows = rule.at(axis.size)
    assert windows is not None  # noqa: S101 - the rule is made of such axes
    kinds = axis.ruled(windows)
    rows = {name: spans_of([kind.rows[name] for kind in kinds]) for name in kinds[0].rows}
    return AxisSpans(axis.size, rows, axis.graph.outputs, axis.graph.input, ((),) * len(kinds)), windows


def following(graphs: SizeGraphs, sides: Sequence[tuple[RuledAxis, RuledAxis]]) -> SizeGraphs:
    """Return the graphs without the residues whose small images have other windows than their large ones.

    Raises ModelError, that names an operator whose size or constants do not follow the image's, where the first has.
    """
    dropped: list[set[Ending]] = [set(), set()]
    refused = graphs.refused
    for number, axes in enumerate(graphs.axes):
        for place, residue in enumerate(axes):
            try:
                for side in sides:
                    _check_residue(graphs, side, number, place)
            except ModelError as error:
                if place == 0:
                    raise
                dropped[number].add(residue)
                refused = refused or shortened(error)
    if not any(dropped):
        return graphs
    rows, cols = (
        {residue: axis for residue, axis in axes.items() if residue not in out}
        for axes, out in zip(graphs.axes, dropped, strict=True)
    )
    return replace(graphs, axes=(rows, cols), refused=refused)


def _check_residue(graphs: SizeGraphs, sides: tuple[RuledAxis, RuledAxis], number: int, place: int) -> None:
    rows, cols = (side.rule.ends[place if axis == number else 0] for axis, side in enumerate(sides))
    for size in (
        (rows.least, cols.least),
        (graphs.axes[0][rows.ending].size, graphs.axes[1][cols.ending].size),
    ):
        _check_size(graphs, sides, size, (rows.ending, cols.ending))
    down, across = (side.kinds[: len(side.rule.first) + 1] for side in sides)  # which all residues have
    for row, col in [*((row, across[-1]) for row in down), *((down[-1], col) for col in across[:-1])]:
        _compare(graphs.tile(row, col), graphs.tile(row, col, (rows.ending, cols.ending)), graphs.network.base)


def _check_size(
    graphs: SizeGraphs, sides: tuple[RuledAxis, RuledAxis], size: tuple[int, int], past: tuple[Ending, Ending]
) -> None:
    network = graphs.network
    graph = graphs.of(size)
    found: list[list[tuple[WindowKind, WindowKind]]] = []
    for number, side in enumerate(sides):
        large = graphs.axes[number][past[number]]
        axis = replace(large, graph=graph)
        check_extents(graph, large, (axis.size - large.size) // large.known.stride)
        windows = side.rule.at(axis.size)
        assert windows is not None  # noqa: S101 - the rule is for this size
        chosen = {window.kind: window for window in windows.windows}
        kinds = axis.ruled(replace(windows, windows=tuple(chosen.values())))
        offset = side.rule.first[0].kind
        pairs = [(kind, side.kinds[number - offset]) for number, kind in zip(chosen, kinds, strict=True)]
        for here, known in pairs:
            wanted = replace(known.at(here.units, large.known), past=None)
            if wanted != here:
                moved = {name for name, span in here.rows.items() if wanted.rows.get(name) != span}
                causes = (node for node in graph.nodes if node.output not in moved and moved & {*node.inputs})
                node = next(causes, graph.nodes[-1])
                raise refuse(node.name, node.kind, ONE_A_SIZE)
        found.append(pairs)
    rows, cols = found
    for number in range(max(len(rows), len(cols))):
        (row, known_row), (col, known_col) = rows[number % len(rows)], cols[number % len(cols)]
        _compare(graphs.tile(known_row, known_col, past), graphs.tile_of(graph, row, col), network.base)


def _compare(one: WindowTile | PassTile, other: WindowTile | PassTile, size: int) -> None:
    if one.graph is other.graph:
        return
    own = weights_by_size((one.graph, other.graph))
    written: list[TileGraph] = [replace(tile, own=own).write() for tile in (one, other)]
    check_equal(one.graph.nodes, iter(written), size, ONE_A_SIZE)
