"""The search for the best chain of stages where a share S of the queries finds nothing warm.

    seconds = (1 - S) warm + S first answer, dollars = warm + S dollars of the starts

Dollars add up, and the edges of a search (planning/search.py) have both in them. The first answer is a critical path
(serfer/core/costs/cold_starts.py): ended = max(ended before, ready) + warm. It is monotone in the end of
the stage before, so a chain to a state dominates another one that is not faster warm, not faster cold and not cheaper.
Labels with these three figures are extended cut by cut. A label is dropped if another label of its state dominates it,
or if even its fastest, cheapest and earliest completions would not beat the best known chain; no optimum is lost. A
first pass compares expected seconds and dollars alone, and its result is the bound of the second pass, which compares
all three figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.cold_starts import critical_path
from serfer.core.costs.cost_model import Floats, Platform, ready_seconds
from serfer.splitter.planning.gang_prices import CandidateGang
from serfer.splitter.planning.search import Chain, Edge, Goal, Search, Vertex
from serfer.splitter.planning.stage_prices import CandidateStage

_SAME = 1e-12  # relative: sums of the same numbers in another order differ by less
_BLOCK = 256  # labels that are compared with one another at once

_State = tuple[int, int]
"""The path and the grid of the tensors at a vertex."""


def ready(edge: Edge, platform: Platform) -> Floats:
    candidate = edge.stage
    assert isinstance(candidate, CandidateStage | CandidateGang)  # noqa: S101 - what StageGraph put there
    cold_s, first, functions = candidate.fit.cold_start(platform).seconds, edge.start[1] == 0, platform.functions
    seconds = {tasks: ready_seconds(tasks, cold_s, functions, first=first) for tasks in set(candidate.tasks)}
    return np.array([seconds[tasks] for tasks in candidate.tasks])


def first_answer(chain: Chain, platform: Platform) -> float:
    steps, grid = list[tuple[float, float]](), 0
    for edge, memory in chain.steps:
        steps.append((float(ready(edge, platform)[memory]), float(edge.seconds[memory, grid])))
        grid = edge.grid
    return critical_path(steps)[-1].ended


def expected_seconds(warm_s: float, cold_s: float, platform: Platform) -> float:
    share = platform.cold_share
    if share in (0, 1):  # the other may be infinite
        return cold_s if share else warm_s
    return (1 - share) * warm_s + share * cold_s


def best_chain(search: Search, goal: Goal, platform: Platform) -> Chain | None:
    """Return the chain with the least value within the goal's bounds, or None where no chain keeps them.

    The value is of expected seconds and dollars, with the platform's share of cold queries; bounds are of warm seconds,
    of expected dollars and, where there is such a share, of the first answer where nothing is warm. The chain's own
    seconds are warm.
    """
    if not platform.cold_share:
        return search.best(goal)
    return _ShareSearch(search, goal, platform).best()


@dataclass(frozen=True)
class _Steps:
    """Edges from one vertex and path to another's state, a row for each of their memories.

    `seconds` and `usd` have a column for each grid before, `ready` says when environments are ready.
    """

    start: Vertex
    before: int
    after: _State
    edges: Sequence[Edge]
    edge: NDArray[np.int64]
    memory: NDArray[np.int64]
    seconds: Floats
    usd: Floats
    ready: Floats

    @classmethod
    def of(cls, edges: Sequence[Edge], ready_s: Sequence[Floats]) -> _Steps:
        first, counts = edges[0], [len(edge.seconds) for edge in edges]
        seconds, usd, starts = first.seconds, first.usd, ready_s[0]
        if len(edges) > 1:
            seconds, usd = (
                np.concatenate(figures) for figures in zip(*((edge.seconds, edge.usd) for edge in edges), strict=True)
            )
            starts = np.concatenate(ready_s)
        edge, memory = np.repeat(np.arange(len(edges)), counts), np.concatenate([*map(np.arange, counts)])
        return cls(first.start, first.before, (first.after, first.grid), edges, edge, memory, seconds, usd, starts)


@dataclass(frozen=True)
class _Labels:
    """Chains to one state, arrays with a value for each: seconds warm and cold, dollars, and how each came there.

    The last step of each is a row of one of the `steps`, after label number `parent` of the `parents` beside it.
    """

    warm: Floats
    ended: Floats
    usd: Floats
    came: Sequence[tuple[_Steps, _Labels]]
    by: NDArray[np.int64]
    row: NDArray[np.int64]
    parent: NDArray[np.int64]

    @classmethod
    def first(cls) -> _Labels:
        zero, none = np.zeros(1), np.zeros(1, int)
        return cls(zero, zero, zero, (), none, none, none)

    def extended(self, steps: _Steps, grid: int) -> _Labels:
        seconds, count = steps.seconds[:, grid, None], len(self.warm)
        none = np.zeros(len(steps.ready) * count, int)
        return _Labels(
            (self.warm + seconds).ravel(),
            (np.maximum(self.ended, steps.ready[:, None]) + seconds).ravel(),
            (self.usd + steps.usd[:, grid, None]).ravel(),
            ((steps, self),),
            none,
            np.repeat(np.arange(len(steps.ready)), count),
            np.tile(np.arange(count), len(steps.ready)),
        )

    def only(self, chosen: NDArray[np.int64]) -> _Labels:
        warm, ended, usd = self.warm[chosen], self.ended[chosen], self.usd[chosen]
        return _Labels(warm, ended, usd, self.came, self.by[chosen], self.row[chosen], self.parent[chosen])

    @classmethod
    def merged(cls, several: Sequence[_Labels]) -> _Labels:
        came = [way for labels in several for way in labels.came]  # one for each
        counts = [len(labels.warm) for labels in several]
        return cls(
            np.concatenate([labels.warm for labels in several]),
            np.concatenate([labels.ended for labels in several]),
            np.concatenate([labels.usd for labels in several]),
            came,
            np.repeat(np.arange(len(several)), counts),
            np.concatenate([labels.row for labels in several]),
            np.concatenate([labels.parent for labels in several]),
        )

    def chain(self, index: int) -> Chain:
        backwards, labels, at = list[tuple[Edge, int]](), self, index
        while labels.came:
            steps, before = labels.came[labels.by[at]]
            row = labels.row[at]
            backwards.append((steps.edges[steps.edge[row]], int(steps.memory[row])))
            labels, at = before, int(labels.parent[at])
        return Chain(float(self.warm[index]), float(self.usd[index]), tuple(reversed(backwards)))


class _ShareSearch:
    """Searches the chains of a search for a goal on a platform with a share of cold queries."""

    def __init__(self, search: Search, goal: Goal, platform: Platform) -> None:
        self._search, self._goal, self._platform = search, goal, platform
        self._first, self._last = search.ends
        grouped: dict[Vertex, dict[tuple[Vertex, int, int, int], list[Edge]]] = {}
        for edge in search.edges:  # by where they stop: what one extends is complete
            key = edge.start, edge.before, edge.after, edge.grid
            grouped.setdefault(edge.stop, {}).setdefault(key, []).append(edge)
        known: dict[int, Floats] = {}  # by candidate: its edges differ in the paths of their tensors

        def ready_s(edge: Edge) -> Floats:
            if id(edge.stage) not in known:
                known[id(edge.stage)] = ready(edge, platform)
            return known[id(edge.stage)]

        self._into = {
            stop: [_Steps.of(edges, [*map(ready_s, edges)]) for edges in groups.values()]
            for stop, groups in grouped.items()
        }

    def best(self) -> Chain | None:
        incumbent = min(map(self._rated, self._search.convex_hull), default=None, key=_figures)
        for exact in (False, True):
            bound = (incumbent[0] if incumbent else np.inf) * (1 + _SAME)
            found = [self._rated(chain) for chain in self._chains(bound, exact=exact)]
            incumbent = min([*found, *([incumbent] if incumbent else [])], default=None, key=_figures)
        return incumbent[-1] if incumbent and np.isfinite(incumbent[0]) else None

    def _rated(self, chain: Chain) -> tuple[float, float, float, Chain]:
        """Return a chain after its value, infinite where it breaks a bound, and what decides among equals."""
        cold_s = first_answer(chain, self._platform)
        in_time = cold_s <= self._goal.most_cold_seconds * (1 + _SAME)
        holds = in_time and self._goal.holds(chain.seconds, chain.usd)
        value = self._goal.value(expected_seconds(chain.seconds, cold_s, self._platform), chain.usd)
        return (value if holds else np.inf, chain.usd, cold_s, chain)

    def _chains(self, bound: float, *, exact: bool) -> Iterator[Chain]:
        """Yield the best chain to each end's state within a bound; an `exact` pass loses none that could be best."""
        labels: dict[Vertex, dict[_State, _Labels]] = {self._first: {(0, 0): _Labels.first()}}
        for vertex, arriving in self._into.items():
            labels[vertex] = self._arrived(vertex, arriving, labels, bound, exact=exact)
        for vertex in self._last:
            for state in labels.get(vertex, {}).values():
                yield state.chain(int(self._value(state.warm, state.ended, state.usd).argmin()))

    def _arrived(
        self,
        vertex: Vertex,
        arriving: Sequence[_Steps],
        labels: Mapping[Vertex, Mapping[_State, _Labels]],
        bound: float,
        *,
        exact: bool,
    ) -> dict[_State, _Labels]:
        """Return the chains to every state of a vertex that may still become the best."""
        found: dict[_State, list[_Labels]] = {}
        for steps in arriving:
            for (path, grid), before in labels.get(steps.start, {}).items():
                if path == steps.before:
                    longer = before.extended(steps, grid)
                    kept = longer.only(self._within(longer, vertex, steps.after, bound))
                    if len(kept.warm):
                        found.setdefault(steps.after, []).append(kept)
        merged = {state: _Labels.merged(several) for state, several in found.items()}
        return {state: several.only(self._undominated(several, exact=exact)) for state, several in merged.items()}

    def _within(self, labels: _Labels, vertex: Vertex, state: _State, bound: float) -> NDArray[np.int64]:
        warm_left, usd_left, earliest = (least[vertex][state] for least in self._least)
        warm, usd = labels.warm + warm_left, labels.usd + usd_left
        ended = np.maximum(labels.ended + warm_left, earliest)
        goal = self._goal
        kept = np.isfinite(warm) & (warm <= goal.most_seconds * (1 + _SAME)) & (usd <= goal.most_usd * (1 + _SAME))
        kept &= ended <= goal.most_cold_seconds * (1 + _SAME)
        return np.flatnonzero(kept & (self._value(warm, ended, usd) <= bound))

    def _value(self, warm: Floats, ended: Floats, usd: Floats) -> Floats:
        seconds = expected_seconds(warm, ended, self._platform)  # type: ignore[arg-type]  # works on arrays as on numbers
        return np.asarray(self._goal.value(seconds, usd))  # type: ignore[arg-type]  # same

    def _undominated(self, labels: _Labels, *, exact: bool) -> NDArray[np.int64]:
        """With a bound on the cold answer, labels are compared by warm seconds and by the seconds of a cold query."""
        mixed = (1 - self._platform.cold_share) * labels.warm + self._platform.cold_share * labels.ended
        warm = labels.warm if exact else np.zeros_like(mixed)
        if self._goal.most_cold_seconds < np.inf:
            warm, mixed = labels.warm, labels.ended
        elif self._goal.most_seconds < np.inf:
            warm = labels.warm
        order = np.lexsort((mixed, warm, labels.usd))
        warm, mixed = warm[order], mixed[order]
        kept = np.zeros(0, int)
        for start in range(0, len(order), _BLOCK):
            block = np.arange(start, min(start + _BLOCK, len(order)))
            others = np.concatenate([kept, block])
            beaten = (warm[others, None] <= warm[block]) & (mixed[others, None] <= mixed[block])
            beaten &= others[:, None] < block
            kept = np.concatenate([kept, block[~beaten.any(axis=0)]])
        return order[kept]

    @cached_property
    def _least(self) -> tuple[Mapping[Vertex, Floats], Mapping[Vertex, Floats], Mapping[Vertex, Floats]]:
        """The least warm seconds and dollars from every state to the end, and the earliest end of a cold query."""
        warm, usd = self._search.to_go(1.0, 0.0), self._search.to_go(0.0, 1.0)
        earliest = {vertex: np.full_like(least, np.inf) for vertex, least in warm.items()}
        for vertex in self._last:
            if vertex in earliest:
                earliest[vertex][:] = 0.0
        for stop in reversed([*self._into]):
            for steps in (edges for edges in self._into[stop] if edges.start in earliest):  # others have no beginning
                rest, ends = warm[stop][steps.after], earliest[stop][steps.after]
                ended = np.maximum(steps.ready[:, None] + steps.seconds + rest, ends).min(axis=0, initial=np.inf)
                row = earliest[steps.start][steps.before]
                np.minimum(row, ended, out=row)
        return warm, usd, earliest


def _figures(rated: tuple[float, float, float, Chain]) -> tuple[float, float, float]:
    return rated[:3]
