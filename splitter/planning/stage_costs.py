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
from splitter.network.graph import Graph, Node
from splitter.planning.ort_kernels import Needs, handed_out, handing_on, likeness, tensor_likeness, work
from splitter.tiling import operators
from splitter.tiling.cuts import Cut
from splitter.tiling.global_pooling import with_grid
from splitter.tiling.grids import ONE
from splitter.tiling.receptive_field import COL_AXIS, ROW_AXIS
from splitter.tiling.regions import input_region

_Sizes = NDArray[np.int64]
_Edges = tuple[_Sizes, _Sizes]
_Ends = tuple[int, int]
_Axis = NDArray[np.int64]
"""Along one axis, of each part (first axis): the rows of a tensor that a tile has, that each reader reads of them, and
that the tile gives out (second axis), as first row and last row plus one, relative to the first that the tile has."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What tiles read of one tensor: each grid row's rows of it, each grid column's columns."""

    tensor: str
    channels: int
    rows: _Edges
    cols: _Edges

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


def _touched(spans: _Edges, size: int, parts: int) -> NDArray[np.int64]:
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
        self._walks: dict[object, _AxisWalk] = {}
        self._reaches: dict[object, _Reach] = {}
        self._known_steps: dict[object, list[_Step]] = {}
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
                Reading(name, shape.channels, _edges([shape.whole.rows]), _edges([shape.whole.cols]))
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

    def _readings(self, graph: Graph, index: int, rows: _AxisWalk, cols: _AxisWalk) -> tuple[Reading, ...]:
        return tuple(
            Reading(name, graph.shape(name).channels, down, across)
            for name in self._at_cut[index].tensors
            if (down := rows.given(index, name)) and (across := cols.given(index, name))
        )

    def _axis(self, graph: Graph, cut: Cut, targets: frozenset[str], axis: int, grid: Grid) -> _AxisWalk:
        parts = grid.rows if axis == ROW_AXIS else grid.cols
        key = (cut.position, axis, parts, targets, grid.columns, self._pools)
        if key not in self._walks:
            wanted = {name: _edges(even_parts(_extent(graph, name, axis), parts)) for name in targets}
            self._walks[key] = _AxisWalk(self._steps(graph, axis)[: cut.position], wanted, parts, self._at_cut)
        return self._walks[key]

    def _steps(self, graph: Graph, axis: int) -> list[_Step]:
        """Return what every node reads along an axis."""
        key = axis, self._pools
        if key not in self._known_steps:
            self._known_steps[key] = [
                _Step(
                    node.output,
                    _extent(graph, node.output, axis) if operators.is_replicated(graph, node) else None,
                    tuple(
                        (source, self._reach(graph, index, number, axis))
                        for number, source in enumerate(graph.activations(node))
                    ),
                )
                for index, node in enumerate(graph.nodes)
            ]
        return self._known_steps[key]

    def _reach(self, graph: Graph, index: int, number: int, axis: int) -> _Reach:
        key = axis, self._kind(graph, index), number
        if key not in self._reaches:
            node = graph.nodes[index]
            self._reaches[key] = _Reach(graph, node, graph.activations(node)[number], axis)
        return self._reaches[key]

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
        key = index, graph.nodes[index].attributes.get("grid")
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
            needs = [(node, input_region(graph, node, tensor, graph.shape(node.output).whole)) for node in nodes]
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


def _views(rows: _AxisWalk, cols: _AxisWalk, tensor: str, cut: int | None = None) -> _Views:
    """Return how the parts of a stage read a tensor of it, or one that is given at the cut before a node."""
    down, across = rows.views(tensor, cut), cols.views(tensor, cut)
    return _Views(
        tensor, rows.readers(tensor, cut), cut is not None, cut is None and rows.is_target(tensor), down, across
    )


class _AxisWalk:
    """The rows (or columns) of every tensor that parts of some tensors need, found as far back as somebody asks.

    Spans of all parts are two arrays, first rows and last rows plus one: the first row that is read follows from the
    first row wanted alone, the last from the last.
    """

    def __init__(
        self, steps: Sequence[_Step], targets: Mapping[str, _Edges], parts: int, cuts: Mapping[int, Cut]
    ) -> None:
        self._steps, self._targets, self._parts, self._cuts = steps, targets, parts, cuts
        self._spans: dict[str, _Edges] = {}
        self._needs: dict[str, list[tuple[int, _Edges]]] = {}
        self._next = len(steps) - 1
        self._sizes: dict[int, _Sizes] = {}
        self._at_cut: dict[int, dict[str, _Edges]] = {}
        self._known_views: dict[tuple[str, int], _Axis] = {}

    def sizes(self, index: int) -> _Sizes:
        """Return how many rows of a node's output each part needs."""
        while self._next >= index:
            self._step()
        return self._sizes[index]

    def given(self, index: int, tensor: str) -> _Edges | None:
        """Return the rows of a tensor that are read at a cut before node `index`; None where it is not read."""
        return self._at_cut[index].get(tensor)

    def target(self, tensor: str) -> _Sizes:
        """Return how many rows of one of the stage's outputs each part writes."""
        first, last = self._targets[tensor]
        return last - first

    def is_target(self, tensor: str) -> bool:
        """Say whether a tensor is one of the stage's outputs."""
        return tensor in self._targets

    def is_in_parts(self, tensor: str) -> bool:
        """Say whether different readers may have asked for different parts of a tensor that the stage makes."""
        return self.is_target(tensor) or len(self._needs.get(tensor, ())) > 1

    def readers(self, tensor: str, cut: int | None) -> tuple[int, ...]:
        """Return the nodes, from `cut` on, that read parts of a tensor."""
        return tuple(reader for reader, _ in self._needs.get(tensor, ()) if reader >= (cut or 0))

    def views(self, tensor: str, cut: int | None) -> _Axis:
        """Return each part's view of a tensor that nodes after it read; of a cut's tensor, nodes after the cut."""
        key = tensor, -1 if cut is None else cut
        if key not in self._known_views:
            have = self._spans[tensor] if cut is None else self._at_cut[cut][tensor]
            needs = [need for reader, need in self._needs.get(tensor, ()) if reader >= (cut or 0)]
            targets = [self._targets[tensor]] if cut is None and self.is_target(tensor) else []
            edges = np.array([have, *needs, *targets]) - have[0]
            self._known_views[key] = edges.transpose(2, 0, 1)
        return self._known_views[key]

    def _step(self) -> None:
        index, step = self._next, self._steps[self._next]
        if step.output in self._targets:
            self._add(step.output, self._targets[step.output])
        if step.whole:
            self._spans[step.output] = _edges([Span(0, step.whole)] * self._parts)
        mine = self._spans[step.output]
        for source, reach in step.reads:
            need = reach.of(mine)
            self._add(source, need)
            if not step.whole:
                self._needs.setdefault(source, []).append((index, need))
        self._sizes[index] = mine[1] - mine[0]
        if index in self._cuts:
            names = self._cuts[index].tensors
            self._at_cut[index] = {name: self._spans[name] for name in names if name in self._spans}
        self._next -= 1

    def _add(self, tensor: str, spans: _Edges) -> None:
        before = self._spans.get(tensor)
        if before is not None:
            spans = np.minimum(before[0], spans[0]), np.maximum(before[1], spans[1])
        self._spans[tensor] = spans


class _Reach:
    """What an operator reads of one input along one axis, for every row that may be the first or the last wanted."""

    def __init__(self, graph: Graph, node: Node, source: str, axis: int) -> None:
        size = _extent(graph, source, axis)
        rows = range(_extent(graph, node.output, axis))
        needs = [operators.input_span(graph, node, source, axis, Span(row, row + 1)) for row in rows]
        self._first = np.array([min(max(need.start, 0), size - 1) for need in needs])
        self._last = np.array([max(0, min(need.stop, size)) for need in needs])

    def of(self, wanted: _Edges) -> _Edges:
        """Return the rows that are read for some spans of the output, clipped to the map (see Span.clip)."""
        first = self._first[wanted[0]]
        return first, np.maximum(self._last[wanted[1] - 1], first + 1)


@dataclass(frozen=True)
class _Step:
    """A node along one axis: what it reads, and its output's extent where only the whole of that can be computed."""

    output: str
    whole: int | None
    reads: tuple[tuple[str, _Reach], ...]


def _edges(spans: Sequence[Span]) -> _Edges:
    return np.array([span.start for span in spans]), np.array([span.stop for span in spans])


def _extent(graph: Graph, tensor: str, axis: int) -> int:
    shape = graph.shape(tensor)
    return shape.height if axis == ROW_AXIS else shape.width


def can_part(graph: Graph, tensor: str, grid: Grid, least: int = 1) -> bool:
    """Say whether a tensor can be cut like that: maps into rows and columns (`least` each), vectors into columns.

    What tiles pool of a map is one value each.
    """
    shape = graph.shape(tensor)
    pooled = (shape.height, shape.width) == (grid.rows, grid.cols)
    side = 1 if grid.columns or pooled else least
    return shape.flat == grid.columns and shape.height >= side * grid.rows and shape.width >= side * grid.cols
