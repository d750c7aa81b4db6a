"""The choice of cuts, grids, memory and data paths: every possible stage is priced, and the search is exact.

`stage_costs.py` lists the work of a stage, `serfer/core/costs` its time and price, `data_path.py` where an object
store may pay, `search.py` finds the best chain.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise, product

import numpy as np

from serfer.core.costs.cost_model import Floats, StageLoad, Traffic, stage_price
from serfer.core.errors import UsageError
from serfer.core.geometry import Grid, Rect, grid_rects
from serfer.core.plan import CACHE, INLINE, OBJECTS, PATHS, PackageLimit
from serfer.core.units import FLOAT_BYTES, MIB
from splitter.network.graph import Graph, Node
from splitter.planning.data_path import ObjectStoreTradeoff
from splitter.planning.options import Budget
from splitter.planning.search import LATENCY, Chain, Edge, Goal, Search, Vertex
from splitter.planning.stage_costs import StageEnumerator, StageWork, can_part
from splitter.tiling import operators
from splitter.tiling.cuts import Cut, weight_bytes
from splitter.tiling.grids import ONE, GridChoice
from splitter.tiling.regions import infer_regions

MAX_STAGES = 16
INLINE_MOST = MIB
"""Bytes between two stages that may ride along with the driver: what is larger goes through the store (DESIGN.md)."""
LEAST_SIDE = 3
"""Rows and columns that a tile has at least where the planner chooses the grid: smaller ones are nearly all halo."""
WORKER_MB = 120
"""What a worker takes of its memory before it has any weights: interpreter, numpy, ONNX Runtime. Measured."""
_WEIGHT_COPIES = 2  # the file's pages, and the session's own layout
_LIVE_MAPS = 3  # an operator's input and output, and what it works in
_CACHE, _INLINE, _OBJECTS = (PATHS.index(path) for path in (CACHE, INLINE, OBJECTS))


@dataclass(frozen=True)
class WeightStorage:
    """How weights may be stored: those in `half` in fp16, `always` or where a stage would not fit otherwise.

    With `spread`, the columns of a fully connected layer may go to several functions.
    """

    half: frozenset[str] = frozenset()
    always: bool = False
    spread: bool = False


@dataclass(frozen=True)
class Choice:
    """A stage: nodes [start, stop) of the graph on a grid, each task with `memory_mb`; `seconds`, `usd` are predicted.

    `half`: its weights are stored in fp16 where they can be, `path` is how what it hands on travels (Stage).
    """

    start: int
    stop: int
    grid: Grid
    memory_mb: int
    seconds: float
    usd: float
    half: bool = False
    path: str = CACHE

    @property
    def inline(self) -> bool:
        """Whether its outputs travel inline, with the driver."""
        return self.path == INLINE


def choose(
    graph: Graph,
    cuts: Sequence[Cut],
    grids: GridChoice,
    stages: int | None,
    budget: Budget,
    storage: WeightStorage | None = None,
    goal: Goal = LATENCY,
    *,
    least_work: bool = False,
) -> list[Choice] | None:
    """Return the best chain of stages between `cuts` for a goal, or None where no chain keeps the limits.

    With `least_work` it is the best of those with the fewest multiply-accumulates over all tiles. Raises UsageError for
    numbers that contradict each other.
    """
    search = prepare(graph, cuts, grids, stages, budget, storage, least_work=least_work)
    chain = search.best(goal)
    return choices_of(chain) if chain else None


def prepare(
    graph: Graph,
    cuts: Sequence[Cut],
    grids: GridChoice,
    stages: int | None,
    budget: Budget,
    storage: WeightStorage | None = None,
    *,
    least_work: bool = False,
) -> Search:
    """Return the search over every chain of stages that keeps the limits and loses least precision."""
    stages = _stage_count(grids, stages)
    if stages is not None and stages > len(cuts) - 1:
        raise UsageError(f"the network can be cut into {len(cuts) - 1} stages at most, not {stages}")
    stages_graph = _StageGraph(graph, tuple(cuts), grids, stages, budget, storage or WeightStorage(), least_work)
    return stages_graph.search


def choices_of(chain: Chain) -> list[Choice]:
    """Return a chain's stages, each with its memory and predictions."""
    grid, choices = 0, []
    for edge, memory in chain.steps:
        candidate = edge.stage
        assert isinstance(candidate, _CandidateStage)  # noqa: S101 - what _StageGraph put there
        choices.append(
            Choice(
                candidate.work.start,
                candidate.work.stop,
                candidate.work.grid,
                candidate.memory_mb[memory],
                seconds=float(edge.seconds[memory, grid]),
                usd=float(edge.usd[memory, grid]),
                half=candidate.half,
                path=PATHS[edge.after],
            )
        )
        grid = edge.grid
    return choices


def _stage_count(grids: GridChoice, stages: int | None) -> int | None:
    if stages is not None and not 1 <= stages <= MAX_STAGES:
        raise UsageError(f"stages must be between 1 and {MAX_STAGES}, not {stages}")
    if not grids.per_stage:
        return stages
    if stages not in (None, len(grids.per_stage)) or len(grids.per_stage) > MAX_STAGES:
        raise UsageError(f"{len(grids.per_stage)} grids do not fit {stages or f'at most {MAX_STAGES}'} stages")
    return len(grids.per_stage)


@dataclass(frozen=True)
class _CandidateStage:
    """A stage that fits its functions, and its ranks, which precede time and money: integers, less is better."""

    work: StageWork
    memory_mb: tuple[int, ...]
    half: bool
    rank: tuple[int, int, int]


_Layered = list[tuple[int, _CandidateStage]]
"""Stages, each with the number of stages up to its end: 0 where any number will do."""


@dataclass(frozen=True)
class _StageGraph:
    """Builds the graph that is searched: every stage that a network allows, with its seconds and dollars."""

    graph: Graph
    cuts: tuple[Cut, ...]
    grids: GridChoice
    stages: int | None
    budget: Budget
    storage: WeightStorage
    least_work: bool

    @cached_property
    def search(self) -> Search:
        """The network of states and stages, without the stages that lose more precision than they must."""
        candidates = self._best_ranked(
            [candidate for work in self._stage_works() if (candidate := self._candidate(work))]
        )
        distinct = {id(candidate): candidate for _, candidate in candidates}
        object_cuts = self._object_cuts([*distinct.values()])
        priced = {number: list(self._edges(candidate, object_cuts)) for number, candidate in distinct.items()}
        edges = (
            replace(edge, start=(layer - 1, edge.start[1]), stop=(layer, edge.stop[1])) if layer else edge
            for layer, candidate in candidates
            for edge in priced[id(candidate)]
        )
        last = [(self.stages or 0, len(self.graph.nodes))]
        return Search(edges, (0, 0), last, len(PATHS), len(self._known_grids))

    @cached_property
    def _known_grids(self) -> dict[Grid, int]:
        grids = (*(self.grids.per_stage or self.grids.options), *self.grids.for_large)
        most = self.budget.max_tiles or sys.maxsize
        allowed = [grid for grid in grids if grid.tiles <= most]
        return {grid: number for number, grid in enumerate(dict.fromkeys((ONE, *allowed)))}

    def _stage_works(self) -> Iterator[StageWork]:
        """Yield every stage on every grid that it may have.

        Where one grid is given for all stages, a stage on one tile knows how much of its work that grid could spread.
        """
        enumerator = StageEnumerator(self.graph, self.cuts, self.budget.profiles)
        wanted = self.grids.requested
        links: set[tuple[int, int]] = set()
        neighbours = {(left.position, right.position) for left, right in pairwise(self.cuts)}
        for grid in self._known_grids:
            if grid != ONE:
                least = 1 if wanted or self.grids.per_stage else LEAST_SIDE
                for work in enumerator.tiled(grid, least, maps=not wanted):
                    if grid == wanted and (work.start, work.stop) in neighbours:
                        links.add((work.start, work.stop))
                    yield work
        grids = self.grids.per_stage or self.grids.options
        if wanted or ONE in grids:
            for number, left in enumerate(self.cuts):
                for right in self.cuts[number + 1 :]:
                    inside = [link for link in links if left.position <= link[0] and link[1] <= right.position]
                    untiled_macs = sum(
                        enumerator.macs_before[end] - enumerator.macs_before[begin] for begin, end in inside
                    )
                    yield replace(enumerator.whole(left, right), untiled_macs=untiled_macs)

    def _candidate(self, work: StageWork) -> _CandidateStage | None:
        """Return a stage as it can be stored, or None where it cannot."""
        macs = work.macs if self.least_work else 0
        full = self._weight_bytes(work.start, work.stop)
        memory = self._memory_for(work, full)
        if not memory:
            return None
        if not self.storage.always and self._has_room(work, full, ()):
            return _CandidateStage(work, memory, half=False, rank=(0, work.untiled_macs, macs))
        less = self._weight_bytes(work.start, work.stop, half=True)
        if (self.storage.half or self.storage.always) and self._has_room(work, less, self.storage.half):
            lost = 0 if self.storage.always else less
            return _CandidateStage(work, memory, half=True, rank=(lost, work.untiled_macs, macs))
        return None

    def _memory_for(self, work: StageWork, weights: int) -> tuple[int, ...]:
        """Return the memory sizes of a stage's functions: enough for its weights and its largest maps."""
        share = work.grid.tiles if work.grid.columns else 1
        need = memory_needed(self.graph, work.start, work.stop, weights // share)
        return tuple(size for size in self.budget.memory_mb if size >= need)

    def _weight_bytes(self, start: int, stop: int, *, half: bool = False) -> int:
        key = (start, stop, half)
        if key not in self._known_bytes:
            self._known_bytes[key] = weight_bytes(self.graph, start, stop, self.storage.half if half else ())
        return self._known_bytes[key]

    @cached_property
    def _known_bytes(self) -> dict[tuple[int, int, bool], int]:
        return {}

    def _has_room(self, work: StageWork, size: int, half: Container[str]) -> bool:
        """Return whether each function of a stage with `size` bytes of weights fits, spread by columns if needed."""
        room = self.budget.limit.room
        if size <= room or not (self.storage.spread and work.grid.columns):
            return size <= room
        return column_bytes(self.graph, self.graph.nodes[work.start : work.stop], work.grid, half) <= room

    def _best_ranked(self, candidates: Sequence[_CandidateStage]) -> _Layered:
        """Return the stages that some chain of the best rank has, each with the number of stages up to its end.

        Ranks are whole numbers, so a chain's is exact; the number is 0 where any number of stages will do.
        """
        layered = [
            (layer, candidate)
            for layer in self._layers()
            for candidate in candidates
            if self._belongs(layer, candidate)
        ]
        for place in range(3):
            layered = _cheapest_only(layered, place, (self.stages or 0, len(self.graph.nodes)))
        return layered

    def _layers(self) -> Sequence[int]:
        return range(1, self.stages + 1) if self.stages else (0,)

    def _belongs(self, layer: int, candidate: _CandidateStage) -> bool:
        """Return whether a stage has the grid requested for its position."""
        wanted = self.grids.per_stage
        return not wanted or candidate.work.grid == wanted[layer - 1]

    def _object_cuts(self, candidates: Sequence[_CandidateStage]) -> frozenset[int]:
        """Return the positions of the cuts whose tensors may be worth sending through an object store."""
        inner = [cut.position for cut in self.cuts[1:-1]]
        tradeoff = ObjectStoreTradeoff.on(self.budget.platform)
        if tradeoff is None:
            return frozenset()
        if not tradeoff.bounded:
            return frozenset(inner)
        writing, reading = dict.fromkeys(inner, -math.inf), dict.fromkeys(inner, -math.inf)
        for candidate in candidates:
            work, least_mb = candidate.work, min(candidate.memory_mb)
            tasks, read, written = work.grid.tiles, _bytes_read(work).sum(), FLOAT_BYTES * work.written.sum()
            if work.stop in writing:
                saved = tradeoff.most_saved_writing(tasks, float(written), least_mb)
                writing[work.stop] = max(writing[work.stop], saved)
            if work.start in reading:
                saved = tradeoff.most_saved_reading(tasks, len(work.accesses), float(read), least_mb)
                reading[work.start] = max(reading[work.start], saved)
        return frozenset(position for position in inner if writing[position] + reading[position] > 0)

    def _edges(self, candidate: _CandidateStage, object_cuts: Container[int]) -> Iterator[Edge]:
        """Yield a stage for every pair of paths of its tensors in and out, all priced at once."""
        pairs = self._data_paths(candidate.work, object_cuts)
        memory = np.array(candidate.memory_mb, dtype=float)[:, None, None]
        seconds, usd = stage_price(self._stage_load(candidate, pairs), memory, self.budget.platform)
        shape = (len(pairs), len(candidate.memory_mb), len(self._known_grids))
        every = zip(pairs, np.broadcast_to(seconds, shape), np.broadcast_to(usd, shape), strict=True)
        for (before, after), each_s, each_usd in every:
            yield Edge(
                (0, candidate.work.start),
                (0, candidate.work.stop),
                before,
                after,
                self._known_grids[candidate.work.grid],
                each_s,
                each_usd,
                candidate,
            )

    def _data_paths(self, work: StageWork, object_cuts: Container[int]) -> list[tuple[int, int]]:
        """Return the pairs of data paths of a stage's inputs and outputs: a store, or inline where they are small.

        The object store is for the cuts at `object_cuts`. The image and the answer travel inline.
        """

        def at(position: int, size: float) -> list[int]:
            inline = [_INLINE] if size <= INLINE_MOST else []
            return [_CACHE, *inline, *([_OBJECTS] if position in object_cuts else [])]

        before = at(work.start, float(_bytes_read(work).sum())) if work.start else [_CACHE]
        last = work.stop == len(self.graph.nodes)
        return list(product(before, [_INLINE] if last else at(work.stop, FLOAT_BYTES * float(work.written.sum()))))

    def _stage_load(self, candidate: _CandidateStage, pairs: Sequence[tuple[int, int]]) -> StageLoad:
        """Return the load of a stage's tasks: pairs of paths as the first axis, then memories, grids before it, tasks.

        The image comes as 8-bit pixels inside the first stage's payloads.
        """
        work = candidate.work
        come, go = np.array(pairs).T[:, :, None, None, None]
        if not work.start:
            come = np.full_like(come, _INLINE)
        read, written = _bytes_read(work) if work.start else _values_read(work), work.written * FLOAT_BYTES
        ranges = self._ranges(work) if work.start else np.zeros(1)

        def through(path: int) -> Traffic:
            return Traffic((come == path) * read, (come == path) * ranges, (go == path) * written)

        cache = through(_CACHE)
        return StageLoad(
            work.serial_s,
            work.parallel_s,
            cache.bytes_read,
            cache.ranges,
            cache.bytes_written,
            carried_in=(come == _INLINE) * read,
            carried_out=(go == _INLINE) * written,
            weight_bytes=self._weight_bytes(work.start, work.stop, half=candidate.half),
            objects=through(_OBJECTS) if any(_OBJECTS in pair for pair in pairs) else None,
        )

    def _ranges(self, work: StageWork) -> Floats:
        """Return how many pieces each task reads, a row for each grid on which they may have been written."""
        pieces: Floats = np.zeros((len(self._known_grids), work.grid.tiles))
        for reading in work.accesses:
            shape = self.graph.shape(reading.tensor)
            grids = [grid if shape.flat == grid.columns else ONE for grid in self._known_grids]
            pieces += reading.pieces(shape.height, shape.width, grids)
        return pieces


def _values_read(work: StageWork) -> Floats:
    return np.asarray(sum(reading.elements for reading in work.accesses))


def _bytes_read(work: StageWork) -> Floats:
    return FLOAT_BYTES * _values_read(work)


def _cheapest_only(
    layered: list[tuple[int, _CandidateStage]], place: int, last: Vertex
) -> list[tuple[int, _CandidateStage]]:
    """Keep the stages that lie on some chain with the least sum of one of their ranks."""
    far = sys.maxsize
    if not any(candidate.rank[place] for _, candidate in layered):
        return layered
    spans = [
        ((layer and layer - 1, candidate.work.start), (layer, candidate.work.stop), candidate.rank[place])
        for layer, candidate in layered
    ]
    so_far, to_go = {(0, 0): 0}, {last: 0}
    for start, stop, rank in sorted(spans, key=lambda span: span[1][1]):
        so_far[stop] = min(so_far.get(stop, far), so_far.get(start, far) + rank)
    for start, stop, rank in sorted(spans, key=lambda span: -span[0][1]):
        to_go[start] = min(to_go.get(start, far), rank + to_go.get(stop, far))
    least = to_go.get((0, 0), far)
    return [
        each
        for each, (start, stop, rank) in zip(layered, spans, strict=True)
        if so_far.get(start, far) + rank + to_go.get(stop, far) == least < far
    ]


def column_bytes(graph: Graph, nodes: Sequence[Node], grid: Grid, half: Container[str] = ()) -> int:
    """Return the bytes of weights that the first (and largest) of a grid's groups of columns needs.

    Layers before the last fully connected one are computed whole by every group.
    """
    target = nodes[-1].output
    (regions,) = infer_regions(graph, nodes, [{target: tile_rects(graph, target, grid)[0]}])
    sizes: dict[str, int] = {}
    for node in nodes:
        area, whole = regions[node.output].area, graph.shape(node.output).whole.area
        for name in graph.constants(node):
            size = graph.weights[name].nbytes // (2 if name in half else 1)
            sizes[name] = max(sizes.get(name, 0), -(-size * area // whole))
    return sum(sizes.values())


def tile_rects(graph: Graph, tensor: str, grid: Grid) -> list[Rect]:
    """Return each tile's part of a tensor on a grid; none where it cannot be cut like that."""
    shape = graph.shape(tensor)
    if grid == ONE:
        return [shape.whole]
    if not can_part(graph, tensor, grid):
        return []
    return grid_rects(shape.height, shape.width, grid)


def memory_needed(graph: Graph, start: int, stop: int, weights: int) -> int:
    """Estimate the MB that running nodes [start, stop) in one piece takes, with so many bytes of fp32 weights."""
    key = ("largest map", str(start))
    if key not in graph.memo:
        sizes = (graph.shape(node.output).elements for node in graph.nodes[start:])
        graph.memo[key] = list(accumulate(sizes, max))
    largest: int = graph.memo[key][stop - start - 1]
    return WORKER_MB + (_WEIGHT_COPIES * weights + _LIVE_MAPS * FLOAT_BYTES * largest) // MIB


def why_nothing_fits(
    graph: Graph, cuts: Sequence[Cut], grids: GridChoice, stages: int | None, budget: Budget, storage: WeightStorage
) -> str:
    """Explain in one line which bound the request violates, and by how much."""
    facts = budget.facts.functions
    endless = replace(budget, limit=PackageLimit(sys.maxsize, 0), memory_mb=(facts.memory_max,))
    choices = choose(graph, cuts, grids, stages, endless)
    if choices is None:
        return _why_no_chain(graph, cuts, grids, stages, budget)
    spans = [(choice.start, choice.stop) for choice in choices]
    free = stages is None and not grids.per_stage
    if free:  # only indivisible parts count: the others could still be cut
        spans = [(left.position, right.position) for left, right in pairwise(cuts)]
    needs = [memory_needed(graph, *span, weight_bytes(graph, *span)) for span in spans]
    if max(needs) > max(budget.memory_mb):
        return (
            f"a stage needs about {max(needs):,} MB of memory, --memory allows {max(budget.memory_mb):,}: allow more, "
            "or more stages"
        )
    sizes = [weight_bytes(graph, *span, storage.half) for span in spans]
    size = max(sizes)
    worst, limit = sizes.index(size), budget.limit
    nodes = graph.nodes[slice(*spans[worst])]
    heaviest = max(nodes, key=lambda node: sum(graph.weights[name].nbytes for name in graph.constants(node)))
    what = "a part that no cut divides" if free else f"stage {worst} of {len(spans)}"
    return (
        f"{what}, with operator {heaviest.name!r} ({heaviest.kind}), cannot be deployed: it has {size:,} bytes of "
        f"weights{' in fp16' if storage.half else ''}, a function has room for {limit.room:,} ({limit.package:,} less "
        f"{limit.dependencies:,} of dependencies), {size - limit.room:,} too few ({(size - limit.room) / MIB:.1f} MB); "
        f"{_advice(graph, heaviest, storage, free=free)}"
    )


def _advice(graph: Graph, heaviest: Node, storage: WeightStorage, *, free: bool) -> str:
    """List remedies for a part that is too large: only those that were not tried and apply to it."""
    remedies = [] if free else ["allow more stages"]
    if not storage.half:
        remedies.append("allow --precision fp16")
    if operators.is_fully_connected(graph, heaviest):
        remedies.append("allow columns (col4), or a pooled head (--gap always)")
    return ", or ".join([*remedies, "raise --limit-mb, for workers on this machine only"])


def _why_no_chain(graph: Graph, cuts: Sequence[Cut], grids: GridChoice, stages: int | None, budget: Budget) -> str:
    too_fine = [grid for grid in grids.per_stage if grid.tiles > (budget.max_tiles or grid.tiles)]
    if too_fine:
        return f"the grid {too_fine[0]} has {too_fine[0].tiles} tiles, --max-tiles allows {budget.max_tiles}"
    blocked = next((node for node in graph.nodes if not operators.tileable(graph, node)), None)
    parts = f"{stages} stages" if stages else "any number of stages"
    wanted = ",".join(str(grid) for grid in grids.per_stage) or "any grid"
    reason = f"; from operator {blocked.name!r} ({blocked.kind}) on, stages have no tiles" if blocked else ""
    return f"the network has no chain of {parts} with grids {wanted} ({len(cuts) - 2} cuts){reason}"
