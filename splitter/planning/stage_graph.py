"""The graph that is searched: an edge for every stage and gang that a network allows and its functions hold.

`stage_costs.py` lists the work of stages, `limits.py` how functions hold them, `stage_prices.py` what they cost,
`gang_candidates.py` and `gang_prices.py` have the gangs. What cannot be in the best chain by the lower bounds of
`bounds.py` is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

from serfer.core.geometry import Grid
from serfer.core.plan import PATHS, ZIP
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.bounds import OneFunction, StepBounds
from serfer.splitter.planning.gang_candidates import GangCandidates, exchange_points, gang_grids
from serfer.splitter.planning.gang_prices import CandidateGang, GangPrices, unbeaten, with_one_gang
from serfer.splitter.planning.limits import FunctionLimits, WeightStorage
from serfer.splitter.planning.optional import optional
from serfer.splitter.planning.search import Edge, Goal, Search, Vertex
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.planning.stage_costs import StageEnumerator, StageWork
from serfer.splitter.planning.stage_prices import CandidateStage, StagePrices
from serfer.splitter.tiling.cuts import Cut
from serfer.splitter.tiling.grids import ONE, GridChoice

LEAST_SIDE = 3
"""Rows and columns that a tile has at least where the planner chooses the grid: smaller ones are nearly all halo."""

_Candidate = CandidateStage | CandidateGang
_Layered = list[tuple[int, _Candidate]]
"""Stages and gangs, each with the number of stages up to its end: 0 where any number will do."""
_Span = tuple[int, int]
"""The first node of a stage or gang, and the one after its last."""


@dataclass(frozen=True)
class StageGraph:
    """Builds the graph that is searched: `stages` is their number, None for any, `gang` and `goal` as in `prepare`."""

    graph: Graph
    cuts: tuple[Cut, ...]
    grids: GridChoice
    stages: int | None
    budget: Budget
    storage: WeightStorage
    least_work: bool
    gang: str = "never"
    goal: Goal | None = None

    @cached_property
    def search(self) -> Search:
        """The network of states and stages, without the stages that lose more precision than they must."""
        stages = [candidate for work in self._stage_works() if (candidate := self._candidate(work))]
        gangs = self._gang_edges(stages) if self._gang_grids else []
        by_gang = {id(edge.stage): edge for edge in gangs}
        candidates = self._best_ranked([*stages, *(edge.stage for edge in gangs)])  # type: ignore[list-item]
        distinct = {id(candidate): candidate for _, candidate in candidates}
        kept = [candidate for candidate in distinct.values() if isinstance(candidate, CandidateStage)]
        object_cuts = self._object_cuts(kept)
        priced = {id(candidate): list(self._prices.edges(candidate, object_cuts)) for candidate in kept}
        rivals = [edge for several in priced.values() for edge in several if self.gang != "always"]
        left = [edge for number, edge in by_gang.items() if number in distinct]
        priced |= {number: [edge] for number, edge in unbeaten(left, rivals)}
        edges: Iterator[Edge] = (
            replace(edge, start=(layer - 1, edge.start[1]), stop=(layer, edge.stop[1])) if layer else edge
            for layer, candidate in candidates
            for edge in priced.get(id(candidate), ())
        )
        last = [(self.stages or 0, len(self.graph.nodes))]
        if self.gang == "always":
            edges, last = with_one_gang(edges), [(1, len(self.graph.nodes))]
        return Search(edges, (0, 0), last, len(PATHS), len(self._known_grids))

    @cached_property
    def _gangs(self) -> GangCandidates:
        memory_mb, platform = self.budget.memory_mb, self.budget.platform
        return GangCandidates(self.graph, self.cuts, self._gang_grids, memory_mb, platform, self._gang_spans)

    @cached_property
    def _enumerator(self) -> StageEnumerator:
        points = exchange_points(self.graph) if self._gang_grids else ()
        every = {cut.position: cut for cut in (*points, *self.cuts)}
        return StageEnumerator(self.graph, [every[position] for position in sorted(every)], self.budget.profiles)

    @cached_property
    def _spans(self) -> dict[Grid, frozenset[_Span]]:
        """The stages on each grid that may be in the best chain: those that one function does not beat by bounds."""
        spans = [*combinations([cut.position for cut in self.cuts], 2)]
        return {grid: self._unbeaten(spans, grid, gangs=False) for grid in self._stage_grids}

    @cached_property
    def _gang_spans(self) -> dict[Grid, frozenset[_Span]]:
        spans = [*combinations([cut.position for cut in self.cuts if len(cut.tensors) == 1], 2)]
        return {grid: self._unbeaten(spans, grid, gangs=True) for grid in self._gang_grids}

    def _unbeaten(self, spans: Sequence[_Span], grid: Grid, *, gangs: bool) -> frozenset[_Span]:
        def left() -> frozenset[_Span]:
            if self._one_function is None or not spans:
                return frozenset(spans)
            seconds, usd = (self._bounds.gangs if gangs else self._bounds.stages)(spans, grid)
            beaten = self._one_function.beats(seconds, usd).tolist()  # with each memory
            whole = {(0, len(self.graph.nodes))} if grid == ONE else set[_Span]()
            return frozenset(span for span, without in zip(spans, beaten, strict=True) if not all(without)) | whole

        return optional("a bound of the search", left, lambda: frozenset(spans))

    @cached_property
    def _bounds(self) -> StepBounds:
        budget, counts = self.budget, {grid.tiles for grid in (*self._stage_grids, *self._gang_grids)}
        return StepBounds(self.graph, budget.profiles, budget.platform, budget.memory_mb, counts)

    @cached_property
    def _one_function(self) -> OneFunction | None:
        """The whole network on one tile, None where it may not be that, or where stages have ranks to compare.

        Its seconds include those that the platform's share of cold queries waits longer for its weights than for none:
        bounds are of warm seconds. None as well where the first answer has a bound, which it may break.
        """
        fixed = self.gang == "always" or self.stages or self.grids.per_stage or self.grids.requested
        if self.goal is None or fixed or self.least_work or ONE not in self._stage_grids:
            return None
        if self.goal.most_cold_seconds < float("inf"):
            return None
        candidate = self._candidate(self._enumerator.whole(self.cuts[0], self.cuts[-1]))
        if candidate is None or any(candidate.rank):
            return None
        (edge,) = self._prices.edges(candidate, ())
        platform = self.budget.platform
        empty = replace(candidate.fit, weight_bytes=0, weights_in=ZIP)
        later = candidate.fit.cold_start(platform).seconds - empty.cold_start(platform).seconds
        seconds = edge.seconds[:, 0] + platform.cold_share * later
        return OneFunction(seconds, edge.usd[:, 0], convex=self.goal.has_no_limits)

    @cached_property
    def _limits(self) -> FunctionLimits:
        return FunctionLimits(self.graph, self.budget, self.storage)

    @cached_property
    def _prices(self) -> StagePrices:
        return StagePrices(self.graph, self.budget.platform, self._known_grids)

    @cached_property
    def _stage_grids(self) -> tuple[Grid, ...]:
        return self._allowed((ONE, *(self.grids.per_stage or self.grids.options), *self.grids.for_large))

    @cached_property
    def _gang_grids(self) -> tuple[Grid, ...]:
        if self.gang == "never" or self.least_work or self.stages:
            return ()
        return self._allowed(gang_grids(self.grids.requested, self.budget.gang_width))

    def _allowed(self, grids: Iterable[Grid]) -> tuple[Grid, ...]:
        most = self.budget.most_tiles(chosen=not (self.grids.requested or self.grids.per_stage))
        return tuple(grid for grid in dict.fromkeys(grids) if grid.tiles <= most or grid == ONE)

    @cached_property
    def _known_grids(self) -> dict[Grid, int]:
        return {grid: number for number, grid in enumerate(dict.fromkeys((*self._stage_grids, *self._gang_grids)))}

    def _stage_works(self) -> Iterator[StageWork]:
        """Where one grid is given for all stages, one on one tile knows how much of its work that grid could spread."""
        enumerator = self._enumerator
        wanted = self.grids.requested
        links: set[tuple[int, int]] = set()
        neighbours = {(left.position, right.position) for left, right in pairwise(self.cuts)}
        for grid in self._known_grids:
            if grid != ONE:
                least = 1 if wanted or self.grids.per_stage else LEAST_SIDE
                for work in self._works_on(grid, enumerator, least):
                    if grid == wanted and (work.start, work.stop) in neighbours:
                        links.add((work.start, work.stop))
                    yield work
        self._gangs.add_tails(enumerator, links)
        if wanted or ONE in (self.grids.per_stage or self.grids.options):
            for number, left in enumerate(self.cuts):
                for right in self.cuts[number + 1 :]:
                    if (left.position, right.position) not in self._spans[ONE]:
                        continue
                    inside = [link for link in links if left.position <= link[0] and link[1] <= right.position]
                    untiled_macs = sum(
                        enumerator.macs_before[end] - enumerator.macs_before[begin] for begin, end in inside
                    )
                    yield replace(enumerator.whole(left, right), untiled_macs=untiled_macs)

    def _works_on(self, grid: Grid, enumerator: StageEnumerator, least: int) -> Iterator[StageWork]:
        spans = self._spans.get(grid, frozenset())
        inner, begins = self._gangs.positions(grid), dict[int, set[int]]()
        for start, stop in spans:
            begins.setdefault(stop, set()).add(start)

        def starts(stop: int) -> set[int]:
            return begins.get(stop, set()) | (inner if stop in inner else set())

        walks = enumerator.walks(grid, least, maps=not self.grids.requested, starts=starts)
        for stop, walk in walks.items():
            of_use = stop in inner
            for work in walk:
                if (work.start, stop) in spans:
                    yield work
                of_use = of_use and self._gangs.takes(work)
                if not (of_use or stop in begins):
                    break

    def _candidate(self, work: StageWork) -> CandidateStage | None:
        fit = self._limits.of_stage(work)
        macs = work.macs if self.least_work else 0
        return CandidateStage(work, fit, (fit.lost, work.untiled_macs, macs)) if fit else None

    def _object_cuts(self, candidates: Sequence[CandidateStage]) -> frozenset[int]:
        return self._prices.object_cuts(candidates, [cut.position for cut in self.cuts[1:-1]])

    def _gang_edges(self, candidates: Sequence[CandidateStage]) -> list[Edge]:
        whole = [candidate for candidate in candidates if candidate.work.grid == ONE and not any(candidate.rank)]
        prices = GangPrices(self.graph, self._gangs, self.budget.memory_mb, self._limits, self._prices)
        return prices.edges(whole if self.gang != "always" else (), self._object_cuts(candidates))

    def _best_ranked(self, candidates: Sequence[_Candidate]) -> _Layered:
        """Ranks are whole numbers, so a chain's is exact; the number of stages is 0 where any number will do."""
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

    def _belongs(self, layer: int, candidate: _Candidate) -> bool:
        wanted = self.grids.per_stage
        return not wanted or (isinstance(candidate, CandidateStage) and candidate.work.grid == wanted[layer - 1])


def _cheapest_only(layered: _Layered, place: int, last: Vertex) -> _Layered:
    """Keep the stages that lie on some chain with the least sum of one of their ranks."""
    far = sys.maxsize
    if not any(candidate.rank[place] for _, candidate in layered):
        return layered
    spans = [
        ((layer and layer - 1, candidate.start), (layer, candidate.stop), candidate.rank[place])
        for layer, candidate in layered
    ]
    so_far, to_go = {(0, 0): 0}, {last: 0}
    for start, stop, rank in sorted(spans, key=lambda span: span[1][1]):
        so_far[stop] = min(so_far.get(stop, far), so_far.get(start, far) + rank)
    for start, stop, rank in sorted(spans, key=lambda span: -span[0][1]):
        to_go[start] = min(to_go.get(start, far), rank + to_go.get(stop, far))
    least = to_go.get((0, 0), far)
    return [
        layers
        for layers, (start, stop, rank) in zip(layered, spans, strict=True)
        if so_far.get(start, far) + rank + to_go.get(stop, far) == least < far
    ]
