"""Stage costs: the compute, reads and writes of every possible stage of a network on every grid.

Rows and columns never mix: the rows that a tile needs follow from its rows alone. So the walk back from a cut is done
for each axis by itself, once for each number of parts, and a grid's tiles are the products of two such walks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serfer.core.costs.cost_model import Floats
from serfer.core.costs.operator_costs import Profiles
from serfer.core.geometry import Grid, Rect, Span, even_parts
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph
from serfer.splitter.planning.ort_kernels import (
    Needs,
    conversion_work,
    cost_signature,
    layout_signature,
    operator_work,
    output_work,
)
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.cuts import Cut
from serfer.splitter.tiling.global_pooling import with_grid
from serfer.splitter.tiling.grids import ONE, can_part
from serfer.splitter.tiling.receptive_field import Spans, spans_of
from serfer.splitter.tiling.regions import AxisNode, AxisWalk, InternedSpans, axis_node, input_region
from serfer.splitter.tiling.tiling_rule import extent

_Sizes = NDArray[np.int64]
_Ends = tuple[int, int]
_Axis = NDArray[np.int64]
"""Along one axis, of each part (first axis): the rows of a tensor that a tile has, that each reader reads of them, and
that the tile outputs (second axis), as first row and last row plus one, relative to the first that the tile has."""


@dataclass(frozen=True, eq=False)
class InputAccess:
    """What the tiles of a stage read of one tensor: each grid row's rows of it, each grid column's columns."""

    tensor: str
    channels: int
    rows: Spans
    cols: Spans

    @cached_property
    def elements(self) -> Floats:
        return self.channels * _products(self.rows[1] - self.rows[0], self.cols[1] - self.cols[0])

    def pieces(self, height: int, width: int, grids: Sequence[Grid]) -> Floats:
        """Return of how many tiles each tile reads a part, where the tensor, height x width, was written on a grid.

        There is a row for each grid.
        """
        down = {parts: _touched(self.rows, height, parts) for parts in {grid.rows for grid in grids}}
        across = {parts: _touched(self.cols, width, parts) for parts in {grid.cols for grid in grids}}
        sizes = {(grid.rows, grid.cols) for grid in grids}
        counts = {size: _products(down[size[0]], across[size[1]]) for size in sizes}
        return np.array([counts[grid.rows, grid.cols] for grid in grids])


@dataclass(frozen=True, eq=False)
class _Views:
    """How a stage's operators read one tensor: its readers, and whether it is an input or an output of the tasks."""

    tensor: str
    readers: tuple[int, ...]
    is_input: bool
    is_output: bool
    rows: _Axis
    cols: _Axis


@dataclass(frozen=True)
class StageWork:
    """A stage: nodes [start, stop) on a grid; arrays have a value for each tile.

    Seconds are on one vCPU, the part that more of them do not speed up and the part that they do; `written` counts
    values, `macs` multiply-accumulates of all tiles; `untiled_macs` of those that the requested grid could
    spread and this one does not.
    """

    start: int
    stop: int
    grid: Grid
    serial_s: Floats
    parallel_s: Floats
    accesses: tuple[InputAccess, ...]
    written: Floats
    macs: int
    untiled_macs: int = 0


def _products(rows: ArrayLike, cols: ArrayLike) -> Floats:
    return np.multiply.outer(rows, cols, dtype=np.float64).ravel()


def _touched(spans: Spans, size: int, parts: int) -> NDArray[np.int64]:
    """Count the even parts of `size` that each span overlaps; a map that is too small for so many is not cut."""
    if parts == 1 or size < parts:
        return np.ones_like(spans[0])
    starts = _starts(size, parts)
    first, last = starts.searchsorted(spans[0], "right"), starts.searchsorted(spans[1] - 1, "right")
    touched: NDArray[np.int64] = last - first + 1
    return touched


@lru_cache(maxsize=1 << 12)
def _starts(size: int, parts: int) -> NDArray[np.int64]:
    return np.array([part.start for part in even_parts(size, parts)])


class StageEnumerator:
    """Enumerates the stages between the `cuts` of a network, each with the compute, reads and writes of its tiles."""

    def __init__(self, graph: Graph, cuts: Sequence[Cut], profiles: Profiles) -> None:
        self._graph = graph
        self._cuts = tuple(cuts)
        self._profiles, self._run_s = profiles, profiles.run_s
        self._walks: dict[object, _StageAxis] = {}
        self._axis_nodes: dict[object, list[AxisNode]] = {}
        self._parts: dict[tuple[int, int, int], tuple[float, float, int]] = {}
        self._tiles: dict[tuple[int, int, int], tuple[Floats, int]] = {}
        self._interned = InternedSpans()
        self._known_layout_costs: dict[object, Floats] = {}
        self._known_signatures: dict[object, int] = {}
        self._signature_numbers: dict[Hashable, int] = {}
        self._pools: tuple[tuple[int, tuple[int, int]], ...] = ()
        self._at_cut = {cut.position: cut for cut in cuts}

    def whole(self, left: Cut, right: Cut) -> StageWork:
        start, stop = left.position, right.position
        reads = [name for name in left.tensors if any(start <= at < stop for at in self._graph.readers.get(name, ()))]
        writes = [name for name in right.tensors if self._made_at[name] >= start]
        shapes = {name: self._graph.shape(name) for name in reads}
        costs = self._before[:, stop] - self._before[:, start]
        costs += sum(self._whole_layout_cost(name, start, stop, is_input=True) for name in reads)
        count = len(self._graph.nodes)
        for name in writes:
            costs += self._whole_layout_cost(name, start, stop, is_output=True) - self._whole_layout_cost(
                name, 0, count
            )
        return StageWork(
            start,
            stop,
            ONE,
            self._run_s + costs[:1],
            costs[1:],
            tuple(
                InputAccess(name, shape.channels, spans_of([shape.whole.rows]), spans_of([shape.whole.cols]))
                for name, shape in shapes.items()
            ),
            np.array([float(sum(self._graph.shape(name).elements for name in writes))]),
            self.macs_before[stop] - self.macs_before[start],
        )

    def tiled(self, grid: Grid, least: int = 1, *, maps: bool = True) -> Iterator[StageWork]:
        """Yield every stage that can be tiled by `grid`, with at least `least` rows and columns of maps in each tile.

        Without `maps`, a stage that is split by columns begins at a vector.
        """
        for walk in self.walks(grid, least, maps=maps).values():
            yield from walk

    def walks(
        self, grid: Grid, least: int = 1, *, maps: bool = True, starts: Callable[[int], Collection[int]] | None = None
    ) -> dict[int, Iterator[StageWork]]:
        """Return the same stages by where they stop, the shortest first; all are read before those of another grid.

        `starts` says at which cuts the stages to a stop may begin: at all of them without it.
        """
        graph = with_grid(self._graph, grid)
        self._pools = tuple(
            (index, node.attributes["grid"])
            for index, node in enumerate(graph.nodes)
            if node.kind == operators.TILE_POOL
        )
        able = [
            operators.column_splittable(graph, node) if grid.columns else operators.tileable(graph, node)
            for node in graph.nodes
        ]
        if grid.columns and not maps:
            able = [is_able and graph.shape(node.output).flat for is_able, node in zip(able, graph.nodes, strict=True)]
        walks = {}
        for cut in self._cuts[1:]:
            targets = [name for name in cut.tensors if can_part(graph, name, grid, least)]
            begins = starts(cut.position) if starts else self._at_cut
            if begins and graph.nodes[cut.position - 1].output in targets:
                walks[cut.position] = self._walk(graph, able, cut, frozenset(targets), grid, begins)
        return walks

    def _walk(
        self, graph: Graph, able: Sequence[bool], cut: Cut, targets: frozenset[str], grid: Grid, starts: Collection[int]
    ) -> Iterator[StageWork]:
        rows = self._axis(graph, cut, targets, ROW_AXIS, grid)
        cols = self._axis(graph, cut, targets, COL_AXIS, grid)
        costs, written, macs = np.zeros((2, grid.tiles)), np.zeros(grid.tiles), 0
        costs[0] = self._run_s
        for index in range(cut.position - 1, min(starts) - 1, -1):
            node = graph.nodes[index]
            late = node.output not in targets and (node.output in cut.tensors or node.kind == operators.TILE_POOL)
            if late or not able[index]:
                return
            if node.output in targets:
                areas = _products(rows.target(node.output), cols.target(node.output))
                written += graph.shape(node.output).channels * areas
            operator_costs, count = self._tile_costs(graph, index, rows.sizes(index), cols.sizes(index))
            costs, macs = costs + operator_costs, macs + count
            if rows.is_in_parts(node.output):
                costs += self._layout_costs(graph, _views(rows, cols, node.output))
            if index in starts:
                accesses = self._accesses(graph, index, rows, cols)
                given = sum(self._layout_costs(graph, _views(rows, cols, access.tensor, index)) for access in accesses)
                serial, parallel = costs + given
                yield StageWork(index, cut.position, grid, serial, parallel, accesses, written.copy(), macs)

    def _accesses(self, graph: Graph, index: int, rows: _StageAxis, cols: _StageAxis) -> tuple[InputAccess, ...]:
        return tuple(
            InputAccess(name, graph.shape(name).channels, down, across)
            for name in self._at_cut[index].tensors
            if (down := rows.given(index, name)) is not None and (across := cols.given(index, name)) is not None
        )

    def _axis(self, graph: Graph, cut: Cut, targets: frozenset[str], axis: int, grid: Grid) -> _StageAxis:
        parts = grid.rows if axis == ROW_AXIS else grid.cols
        key = (cut.position, axis, parts, targets, grid.columns, self._pool_parts(axis, cut.position))
        if key not in self._walks:
            wanted = {name: spans_of(even_parts(extent(graph, name, axis), parts)) for name in targets}
            nodes = self._along(graph, axis)[: cut.position]
            walk = AxisWalk(nodes, wanted, interned=self._interned)
            self._walks[key] = _StageAxis(walk, self._at_cut, self._interned)
        return self._walks[key]

    def _pool_parts(self, axis: int, stop: int) -> tuple[int, ...]:
        """Return into how many parts each pool before a position has been cut along an axis: all that grids change."""
        return tuple(grid[axis - ROW_AXIS] for index, grid in self._pools if index < stop)

    def _along(self, graph: Graph, axis: int) -> list[AxisNode]:
        key = axis, self._pool_parts(axis, len(graph.nodes))
        if key not in self._axis_nodes:
            self._axis_nodes[key] = [axis_node(graph, node, axis) for node in graph.nodes]
        return self._axis_nodes[key]

    def _tile_costs(self, graph: Graph, index: int, rows: _Sizes, cols: _Sizes) -> tuple[Floats, int]:
        """Return an operator's cost in each tile (see `_operator_cost`), as an array (2, tiles), and all their macs."""
        key = (self._signature_number(graph, index), id(rows), id(cols))
        if key not in self._tiles:
            sizes = product(rows.tolist(), cols.tolist())
            *costs, macs = zip(*(self._operator_cost(graph, index, *size) for size in sizes), strict=True)
            self._tiles[key] = np.array(costs), sum(macs)
        return self._tiles[key]

    def _operator_cost(self, graph: Graph, index: int, height: int, width: int) -> tuple[float, float, int]:
        """Return serial and parallel seconds and macs of a region of this size, wherever it lies."""
        node = graph.nodes[index]
        key = (self._signature_number(graph, index), height, width)
        if key not in self._parts:
            work = operator_work(graph, node, Rect(Span(0, height), Span(0, width)))
            parts = self._profiles.parts(work) if work else (0.0, 0.0)
            self._parts[key] = (*parts, operators.macs(graph, node, height * width))
        return self._parts[key]

    def _signature_number(self, graph: Graph, index: int) -> int:
        node = graph.nodes[index]
        tiles = graph.shapes[node.inputs[0]] if node.kind == operators.TILE_SUM else node.attributes.get("grid")
        key = index, tiles
        if key not in self._known_signatures:
            self._known_signatures[key] = self._number(cost_signature(graph, node))
        return self._known_signatures[key]

    def _number(self, signature: Hashable) -> int:
        return self._signature_numbers.setdefault(signature, len(self._signature_numbers))

    def _layout_costs(self, graph: Graph, views: _Views) -> Floats:
        known = (views.tensor, views.readers, self._pools)
        if known not in self._known_signatures:
            readers = tuple(self._signature_number(graph, reader) for reader in views.readers)
            alike = (layout_signature(graph, views.tensor), readers)
            self._known_signatures[known] = self._number(alike)
        key = (self._known_signatures[known], views.is_input, views.is_output, id(views.rows), id(views.cols))
        if key not in self._known_layout_costs:
            tiles = product(views.rows, views.cols)
            self._known_layout_costs[key] = np.array(
                [self._layout_cost(graph, views, key[:3], *tile) for tile in tiles]
            ).T
        return self._known_layout_costs[key]

    def _layout_cost(
        self, graph: Graph, views: _Views, like: tuple[int, bool, bool], rows: _Axis, cols: _Axis
    ) -> Floats:
        key = (*like, rows.tobytes(), cols.tobytes(), "tile")
        if key not in self._known_layout_costs:
            self._known_layout_costs[key] = self._layout_cost_of(graph, views, rows.tolist(), cols.tolist())
        return self._known_layout_costs[key]

    def _layout_cost_of(self, graph: Graph, views: _Views, rows: list[_Ends], cols: list[_Ends]) -> Floats:
        have, *parts = (Rect(Span(*row), Span(*col)) for row, col in zip(rows, cols, strict=True))
        needs = [(graph.nodes[reader], part) for reader, part in zip(views.readers, parts, strict=False)]
        return self._conversion_cost(
            graph, views.tensor, have, needs, is_input=views.is_input, part=parts[-1] if views.is_output else None
        )

    def _conversion_cost(
        self, graph: Graph, tensor: str, have: Rect, needs: Needs, *, is_input: bool, part: Rect | None
    ) -> Floats:
        works = conversion_work(graph, tensor, have, needs, is_input=is_input)
        if part:
            works += output_work(graph, tensor, have, part)
        costs: Floats = np.array([(0.0, 0.0), *(self._profiles.parts(work) for work in works)]).sum(axis=0)
        return costs

    def _whole_layout_cost(
        self, tensor: str, start: int, stop: int, *, is_input: bool = False, is_output: bool = False
    ) -> Floats:
        graph = self._graph
        readers = tuple(index for index in self._graph.readers.get(tensor, ()) if start <= index < stop)
        key = (tensor, readers, is_input, is_output)
        if key not in self._known_layout_costs:
            whole = graph.shape(tensor).whole
            nodes = [graph.nodes[index] for index in readers if not operators.is_replicated(graph, graph.nodes[index])]
            needs = [
                (node, input_region(graph, node, tensor, graph.shape(node.output).whole).clipped) for node in nodes
            ]
            part = whole if is_output else None
            self._known_layout_costs[key] = self._conversion_cost(
                graph, tensor, whole, needs, is_input=is_input, part=part
            )
        return self._known_layout_costs[key]

    @cached_property
    def _whole_parts(self) -> list[tuple[float, float, int]]:
        shapes = (self._graph.shape(node.output) for node in self._graph.nodes)
        return [
            self._operator_cost(self._graph, index, shape.height, shape.width) for index, shape in enumerate(shapes)
        ]

    @cached_property
    def _before(self) -> Floats:
        count = len(self._graph.nodes)
        handed = [self._whole_layout_cost(node.output, 0, count) for node in self._graph.nodes]
        costs = np.array([part[:2] for part in self._whole_parts]) + handed
        return np.concatenate([np.zeros((1, 2)), costs.cumsum(axis=0)]).T

    @cached_property
    def macs_before(self) -> list[int]:
        """Multiply-accumulates of the first n nodes in one piece, for every n."""
        return [0, *accumulate(macs for _, _, macs in self._whole_parts)]

    @cached_property
    def _made_at(self) -> dict[str, int]:
        return {node.output: index for index, node in enumerate(self._graph.nodes)}


def _views(rows: _StageAxis, cols: _StageAxis, tensor: str, cut: int | None = None) -> _Views:
    down, across = rows.views(tensor, cut), cols.views(tensor, cut)
    return _Views(
        tensor, rows.readers(tensor, cut), cut is not None, cut is None and rows.is_target(tensor), down, across
    )


class _StageAxis:
    """The backward walk from a cut along one axis, as far as it was needed, and how tiles read what it passed."""

    def __init__(self, walk: AxisWalk, cuts: Mapping[int, Cut], interned: InternedSpans) -> None:
        self._walk, self._cuts, self._interned = walk, cuts, interned
        self._sizes: dict[int, _Sizes] = {}
        self._at_cut: dict[int, dict[str, Spans]] = {}
        self._known_views: dict[tuple[str, int], _Axis] = {}

    def sizes(self, index: int) -> _Sizes:
        while self._walk.position > index:
            out = self._walk.step()
            at, spans = self._walk.position, self._walk.spans
            self._sizes[at] = self._interned.sizes(out)
            if at in self._cuts:
                self._at_cut[at] = {name: spans[name] for name in self._cuts[at].tensors if name in spans}
        return self._sizes[index]

    def given(self, index: int, tensor: str) -> Spans | None:
        """Return the rows of a tensor that are read at a cut before node `index`; None where it is not read."""
        return self._at_cut[index].get(tensor)

    def target(self, tensor: str) -> _Sizes:
        return self._interned.sizes(self._walk.targets[tensor])

    def is_target(self, tensor: str) -> bool:
        return tensor in self._walk.targets

    def is_in_parts(self, tensor: str) -> bool:
        """Return whether readers may need different parts of a tensor that the stage computes."""
        return self.is_target(tensor) or len(self._walk.reads.get(tensor, ())) > 1

    def readers(self, tensor: str, cut: int | None) -> tuple[int, ...]:
        return tuple(reader for reader, _ in self._walk.reads.get(tensor, ()) if reader >= (cut or 0))

    def views(self, tensor: str, cut: int | None) -> _Axis:
        """Return each part's view of a tensor that nodes after it read; for a cut's tensor, nodes after the cut."""
        key = tensor, -1 if cut is None else cut
        if key not in self._known_views:
            have = self._walk.spans[tensor] if cut is None else self._at_cut[cut][tensor]
            needs = [need for reader, need in self._walk.reads.get(tensor, ()) if reader >= (cut or 0)]
            targets = [self._walk.targets[tensor]] if cut is None and self.is_target(tensor) else []
            self._known_views[key] = self._interned.views([have, *needs, *targets])
        return self._known_views[key]
