"""What every stage that a network allows would compute, read and write, on every grid that it can be spread over.

Rows and columns never mix: the rows that a tile needs follow from its rows alone. So the walk back from a cut is done
for each axis by itself, once for each number of parts, and a grid's tiles are the products of two such walks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serfer.core.costs.cost_model import Floats
from serfer.core.costs.operator_costs import Profiles
from serfer.core.geometry import Grid, Rect, Span, even_parts
from splitter.network.graph import COL_AXIS, ROW_AXIS, Graph
from splitter.planning.ort_kernels import Needs, handed_out, handing_on, likeness, tensor_likeness, work
from splitter.tiling import operators
from splitter.tiling.cuts import Cut
from splitter.tiling.global_pooling import with_grid
from splitter.tiling.grids import ONE
from splitter.tiling.receptive_field import Spans, spans_of
from splitter.tiling.regions import AxisNode, AxisWalk, axis_node, input_region
from splitter.tiling.rule import extent

_Sizes = NDArray[np.int64]
_Ends = tuple[int, int]
_Axis = NDArray[np.int64]
"""Along one axis, of each part (first axis): the rows of a tensor that a tile has, that each reader reads of them, and
that the tile gives out (second axis), as first row and last row plus one, relative to the first that the tile has."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What tiles read of one tensor: each grid row's rows of it, each grid column's columns."""

    tensor: str
    channels: int
    rows: Spans
    cols: Spans

    @cached_property
    def elements(self) -> Floats:
        """How many values each tile reads."""
        return self.channels * _products(self.rows[1] - self.rows[0], self.cols[1] - self.cols[0])

    def pieces(self, height: int, width: int, grids: Sequence[Grid]) -> Floats:
        """Return of how many tiles each tile reads a part, where the tensor, height x width, was written on a grid.

        There is a row for each grid.
        """
        down = {parts: _touched(self.rows, height, parts) for parts in {grid.rows for grid in grids}}
        across = {parts: _touched(self.cols, width, parts) for parts in {grid.cols for grid in grids}}
        ways = {key: _products(down[key[0]], across[key[1]]) for key in {(grid.rows, grid.cols) for grid in grids}}
        return np.array([ways[grid.rows, grid.cols] for grid in grids])


@dataclass(frozen=True, eq=False)
class _Views:
    """A tensor of a stage, by whom it is read there, whether it was given to the task and is given out by it."""

    tensor: str
    readers: tuple[int, ...]
    given: bool
    given_out: bool
    rows: _Axis
    cols: _Axis


@dataclass(frozen=True)
class Load:
    """A stage: nodes [start, stop) on a grid; arrays have a value for each tile.

    Seconds are on one vCPU, the part that more of them do not speed up and the part that they do; `written` counts
    values, `macs` multiply-accumulates of all tiles; `unspread` of those that the grid asked for could spread and this
    one does not.
    """

    start: int
    stop: int
    grid: Grid
    serial_s: Floats
    parallel_s: Floats
    readings: tuple[Reading, ...]
    written: Floats
    macs: int
    unspread: int = 0


def _products(rows: ArrayLike, cols: ArrayLike) -> Floats:
    """Return row times column for each tile, row by row."""
    return np.multiply.outer(rows, cols, dtype=np.float64).ravel()


def _touched(spans: Spans, size: int, parts: int) -> NDArray[np.int64]:
    """Count the even parts of `size` that each span overlaps; a map that is too small for so many was not cut."""
    if parts == 1 or size < parts:
        return np.ones_like(spans[0])
    starts = _starts(size, parts)
    first, last = starts.searchsorted(spans[0], "right"), starts.searchsorted(spans[1] - 1, "right")
    touched: NDArray[np.int64] = last - first + 1
    return touched


@lru_cache(maxsize=1 << 12)
def _starts(size: int, parts: int) -> NDArray[np.int64]:
    return np.array([part.start for part in even_parts(size, parts)])


class Loads:
    """Finds the stages between the `cuts` of a network."""

    def __init__(self, graph: Graph, cuts: Sequence[Cut], profiles: Profiles) -> None:
        self._graph = graph
        self._cuts = tuple(cuts)
        self._profiles, self._run_s = profiles, profiles.run_s
        self._walks: dict[object, _StageAxis] = {}
        self._axis_nodes: dict[object, list[AxisNode]] = {}
        self._parts: dict[tuple[int, int, int], tuple[float, float, int]] = {}
        self._tiles: dict[tuple[int, bytes, bytes], tuple[Floats, int]] = {}
        self._handings: dict[object, Floats] = {}
        self._known_kinds: dict[object, int] = {}
        self._kinds: dict[Hashable, int] = {}
        self._pools: tuple[object, ...] = ()
        self._at_cut = {cut.position: cut for cut in cuts}

    def whole(self, left: Cut, right: Cut) -> Load:
        """Return the stage between two cuts as one task."""
        start, stop = left.position, right.position
        reads = [name for name in left.tensors if any(start <= at < stop for at in self._read_at.get(name, ()))]
        writes = [name for name in right.tensors if self._made_at[name] >= start]
        shapes = {name: self._graph.shape(name) for name in reads}
        takes = self._before[:, stop] - self._before[:, start]
        takes += sum(self._handed_whole(name, start, stop, given=True) for name in reads)
        everybody = len(self._graph.nodes)
        for name in writes:
            takes += self._handed_whole(name, start, stop, given_out=True) - self._handed_whole(name, 0, everybody)
        return Load(
            start,
            stop,
            ONE,
            self._run_s + takes[:1],
            takes[1:],
            tuple(
                Reading(name, shape.channels, spans_of([shape.whole.rows]), spans_of([shape.whole.cols]))
                for name, shape in shapes.items()
            ),
            np.array([float(sum(self._graph.shape(name).elements for name in writes))]),
            self.macs_before[stop] - self.macs_before[start],
        )

    def spread(self, grid: Grid, least: int = 1, *, maps: bool = True) -> Iterator[Load]:
        """Yield every stage that can be spread over `grid` with at least so many rows and columns of maps a tile.

        Without `maps`, a stage that is spread by columns begins where vectors do.
        """
        graph = with_grid(self._graph, grid)
        self._pools = tuple(node.attributes["grid"] for node in graph.nodes if node.kind == operators.TILE_POOL)
        able = [
            operators.column_splittable(graph, node) if grid.columns else operators.tileable(graph, node)
            for node in graph.nodes
        ]
        if grid.columns and not maps:
            able = [one and graph.shape(node.output).flat for one, node in zip(able, graph.nodes, strict=True)]
        for cut in self._cuts[1:]:
            targets = [name for name in cut.tensors if can_part(graph, name, grid, least)]
            if graph.nodes[cut.position - 1].output in targets:
                yield from self._walk(graph, able, cut, frozenset(targets), grid)

    def _walk(
        self, graph: Graph, able: Sequence[bool], cut: Cut, targets: frozenset[str], grid: Grid
    ) -> Iterator[Load]:
        """Yield the stage from every earlier cut to this one, the nearest first, for all tiles in step."""
        rows = self._axis(graph, cut, targets, ROW_AXIS, grid)
        cols = self._axis(graph, cut, targets, COL_AXIS, grid)
        takes, written, macs = np.zeros((2, grid.tiles)), np.zeros(grid.tiles), 0
        takes[0] = self._run_s
        for index in range(cut.position - 1, -1, -1):
            node = graph.nodes[index]
            late = node.output not in targets and (node.output in cut.tensors or node.kind == operators.TILE_POOL)
            if late or not able[index]:
                return
            if node.output in targets:
                areas = _products(rows.target(node.output), cols.target(node.output))
                written += graph.shape(node.output).channels * areas
            found, count = self._tiles_take(graph, index, rows.sizes(index), cols.sizes(index))
            takes, macs = takes + found, macs + count
            if rows.is_in_parts(node.output):
                takes += self._handed(graph, _views(rows, cols, node.output))
            if index in self._at_cut:
                readings = self._readings(graph, index, rows, cols)
                given = sum(self._handed(graph, _views(rows, cols, one.tensor, index)) for one in readings)
                serial, parallel = takes + given
                yield Load(index, cut.position, grid, serial, parallel, readings, written.copy(), macs)

    def _readings(self, graph: Graph, index: int, rows: _StageAxis, cols: _StageAxis) -> tuple[Reading, ...]:
        return tuple(
            Reading(name, graph.shape(name).channels, down, across)
            for name in self._at_cut[index].tensors
            if (down := rows.given(index, name)) is not None and (across := cols.given(index, name)) is not None
        )

    def _axis(self, graph: Graph, cut: Cut, targets: frozenset[str], axis: int, grid: Grid) -> _StageAxis:
        parts = grid.rows if axis == ROW_AXIS else grid.cols
        key = (cut.position, axis, parts, targets, grid.columns, self._pools)
        if key not in self._walks:
            wanted = {name: spans_of(even_parts(extent(graph, name, axis), parts)) for name in targets}
            nodes = self._along(graph, axis)[: cut.position]
            self._walks[key] = _StageAxis(AxisWalk(nodes, wanted), self._at_cut)
        return self._walks[key]

    def _along(self, graph: Graph, axis: int) -> list[AxisNode]:
        key = axis, self._pools
        if key not in self._axis_nodes:
            self._axis_nodes[key] = [axis_node(graph, node, axis) for node in graph.nodes]
        return self._axis_nodes[key]

    def _tiles_take(self, graph: Graph, index: int, rows: _Sizes, cols: _Sizes) -> tuple[Floats, int]:
        """Return what an operator takes each tile (see `_takes`), as an array (2, tiles), and all their macs."""
        key = (self._kind(graph, index), rows.tobytes(), cols.tobytes())
        if key not in self._tiles:
            sizes = product(rows.tolist(), cols.tolist())
            *takes, macs = zip(*(self._takes(graph, index, *size) for size in sizes), strict=True)
            self._tiles[key] = np.array(takes), sum(macs)
        return self._tiles[key]

    def _takes(self, graph: Graph, index: int, height: int, width: int) -> tuple[float, float, int]:
        """Return an operator's serial and parallel seconds and its multiply-accumulates on a region of this size.

        Where the region lies makes no difference here: at a border it reads a little less.
        """
        node = graph.nodes[index]
        key = (self._kind(graph, index), height, width)
        if key not in self._parts:
            found = work(graph, node, Rect(Span(0, height), Span(0, width)))
            parts = self._profiles.parts(found) if found else (0.0, 0.0)
            self._parts[key] = (*parts, operators.macs(graph, node, height * width))
        return self._parts[key]

    def _kind(self, graph: Graph, index: int) -> int:
        """Number a node so that nodes whose work is the same have the same number: networks repeat their blocks."""
        node = graph.nodes[index]
        tiles = graph.shapes[node.inputs[0]] if node.kind == operators.TILE_SUM else node.attributes.get("grid")
        key = index, tiles
        if key not in self._known_kinds:
            self._known_kinds[key] = self._kinds.setdefault(likeness(graph, graph.nodes[index]), len(self._kinds))
        return self._known_kinds[key]

    def _handed(self, graph: Graph, views: _Views) -> Floats:
        """Return what it takes each tile that others read parts of what it has of a tensor, as an array (2, tiles)."""
        known = (views.tensor, views.readers, self._pools)
        if known not in self._known_kinds:
            readers = tuple(self._kind(graph, reader) for reader in views.readers)
            alike = (tensor_likeness(graph, views.tensor), readers)
            self._known_kinds[known] = self._kinds.setdefault(alike, len(self._kinds))
        key = (self._known_kinds[known], views.given, views.given_out, views.rows.tobytes(), views.cols.tobytes())
        if key not in self._handings:
            tiles = product(views.rows, views.cols)
            self._handings[key] = np.array([self._handing(graph, views, key[:3], *tile) for tile in tiles]).T
        return self._handings[key]

    def _handing(self, graph: Graph, views: _Views, like: tuple[int, bool, bool], rows: _Axis, cols: _Axis) -> Floats:
        key = (*like, rows.tobytes(), cols.tobytes(), "tile")
        if key not in self._handings:
            self._handings[key] = self._handing_on(graph, views, rows.tolist(), cols.tolist())
        return self._handings[key]

    def _handing_on(self, graph: Graph, views: _Views, rows: list[_Ends], cols: list[_Ends]) -> Floats:
        have, *parts = (Rect(Span(*row), Span(*col)) for row, col in zip(rows, cols, strict=True))
        needs = [(graph.nodes[reader], part) for reader, part in zip(views.readers, parts, strict=False)]
        return self._moving(
            graph, views.tensor, have, needs, given=views.given, part=parts[-1] if views.given_out else None
        )

    def _moving(self, graph: Graph, tensor: str, have: Rect, needs: Needs, *, given: bool, part: Rect | None) -> Floats:
        """Return the serial and parallel seconds of handing a tensor on inside a task, and `part` of it out."""
        works = handing_on(graph, tensor, have, needs, given=given)
        if part:
            works += handed_out(graph, tensor, have, part)
        takes: Floats = np.array([(0.0, 0.0), *(self._profiles.parts(one) for one in works)]).sum(axis=0)
        return takes

    def _handed_whole(
        self, tensor: str, start: int, stop: int, *, given: bool = False, given_out: bool = False
    ) -> Floats:
        """Return what handing a tensor on takes the only tile of nodes [start, stop)."""
        graph = self._graph
        readers = tuple(index for index in self._read_at.get(tensor, ()) if start <= index < stop)
        key = (tensor, readers, given, given_out)
        if key not in self._handings:
            whole = graph.shape(tensor).whole
            nodes = [graph.nodes[index] for index in readers if not operators.is_replicated(graph, graph.nodes[index])]
            needs = [
                (node, input_region(graph, node, tensor, graph.shape(node.output).whole).clipped) for node in nodes
            ]
            part = whole if given_out else None
            self._handings[key] = self._moving(graph, tensor, whole, needs, given=given, part=part)
        return self._handings[key]

    @cached_property
    def _whole_parts(self) -> list[tuple[float, float, int]]:
        shapes = (self._graph.shape(node.output) for node in self._graph.nodes)
        return [self._takes(self._graph, index, shape.height, shape.width) for index, shape in enumerate(shapes)]

    @cached_property
    def _before(self) -> Floats:
        """Serial and parallel seconds of the first n nodes in one piece, for every n: an array (2, nodes + 1)."""
        everybody = len(self._graph.nodes)
        handed = [self._handed_whole(node.output, 0, everybody) for node in self._graph.nodes]
        takes = np.array([part[:2] for part in self._whole_parts]) + handed
        return np.concatenate([np.zeros((1, 2)), takes.cumsum(axis=0)]).T

    @cached_property
    def macs_before(self) -> list[int]:
        """Multiply-accumulates of the first n nodes in one piece, for every n."""
        return [0, *accumulate(macs for _, _, macs in self._whole_parts)]

    @cached_property
    def _made_at(self) -> dict[str, int]:
        return {node.output: index for index, node in enumerate(self._graph.nodes)}

    @cached_property
    def _read_at(self) -> dict[str, list[int]]:
        read: dict[str, list[int]] = {}
        for index, node in enumerate(self._graph.nodes):
            for name in self._graph.activations(node):
                read.setdefault(name, []).append(index)
        return read


def _views(rows: _StageAxis, cols: _StageAxis, tensor: str, cut: int | None = None) -> _Views:
    """Return how the parts of a stage read a tensor of it, or one that is given at the cut before a node."""
    down, across = rows.views(tensor, cut), cols.views(tensor, cut)
    return _Views(
        tensor, rows.readers(tensor, cut), cut is not None, cut is None and rows.is_target(tensor), down, across
    )


class _StageAxis:
    """The backward walk from a cut along one axis, as far as it was needed, and how tiles read what it passed."""

    def __init__(self, walk: AxisWalk, cuts: Mapping[int, Cut]) -> None:
        self._walk, self._cuts = walk, cuts
        self._sizes: dict[int, _Sizes] = {}
        self._at_cut: dict[int, dict[str, Spans]] = {}
        self._known_views: dict[tuple[str, int], _Axis] = {}

    def sizes(self, index: int) -> _Sizes:
        """Return how many rows of a node's output each part needs."""
        while self._walk.position > index:
            first, last = self._walk.step()
            at, spans = self._walk.position, self._walk.spans
            self._sizes[at] = last - first
            if at in self._cuts:
                self._at_cut[at] = {name: spans[name] for name in self._cuts[at].tensors if name in spans}
        return self._sizes[index]

    def given(self, index: int, tensor: str) -> Spans | None:
        """Return the rows of a tensor that are read at a cut before node `index`; None where it is not read."""
        return self._at_cut[index].get(tensor)

    def target(self, tensor: str) -> _Sizes:
        """Return how many rows of one of the stage's outputs each part writes."""
        first, last = self._walk.targets[tensor]
        sizes: _Sizes = last - first
        return sizes

    def is_target(self, tensor: str) -> bool:
        """Say whether a tensor is one of the stage's outputs."""
        return tensor in self._walk.targets

    def is_in_parts(self, tensor: str) -> bool:
        """Say whether different readers may have asked for different parts of a tensor that the stage makes."""
        return self.is_target(tensor) or len(self._walk.reads.get(tensor, ())) > 1

    def readers(self, tensor: str, cut: int | None) -> tuple[int, ...]:
        """Return the nodes, from `cut` on, that read parts of a tensor."""
        return tuple(reader for reader, _ in self._walk.reads.get(tensor, ()) if reader >= (cut or 0))

    def views(self, tensor: str, cut: int | None) -> _Axis:
        """Return each part's view of a tensor that nodes after it read; of a cut's tensor, nodes after the cut."""
        key = tensor, -1 if cut is None else cut
        if key not in self._known_views:
            have = self._walk.spans[tensor] if cut is None else self._at_cut[cut][tensor]
            needs = [need for reader, need in self._walk.reads.get(tensor, ()) if reader >= (cut or 0)]
            targets = [self._walk.targets[tensor]] if cut is None and self.is_target(tensor) else []
            edges = np.array([have, *needs, *targets]) - have[0]
            self._known_views[key] = edges.transpose(2, 0, 1)
        return self._known_views[key]


def can_part(graph: Graph, tensor: str, grid: Grid, least: int = 1) -> bool:
    """Say whether a tensor can be cut like that: maps into rows and columns (`least` each), vectors into columns.

    What tiles pool of a map is one value each.
    """
    shape = graph.shape(tensor)
    pooled = (shape.height, shape.width) == (grid.rows, grid.cols)
    side = 1 if grid.columns or pooled else least
    return shape.flat == grid.columns and shape.height >= side * grid.rows and shape.width >= side * grid.cols
