"""The exact search for the best chain of stages: a resource-constrained shortest path, by label setting.

A state is where the network has been cut, on which grid the tensors there were written, and whether they lie in a store
(and in which) or ride along in payloads: what the time and price of the next stage depend on, and nothing else
does. Stages are the edges between states, each with a choice of memory.

         stage [0, 5) on 2x2, 1769 MB              stage [5, 9) on 1, 3538 MB
    ● ─────────────────────────────────▶ ● cut 5, 2x2, stored ─────────────────▶ ● the end

Seconds and dollars both add up along a chain, so the best chain for any weighting of the two is a shortest path, found
by dynamic programming. Where a bound ties them together (the least dollars within so many milliseconds), labels, one
for each chain to a state, are extended cut by cut, and dropped when another label of the state dominates them, or when
even the fastest and the cheapest completion would not do (bounding): nothing that could be the best is lost. See Irnich
and Desaulniers, "Shortest Path Problems with Resource Constraints" (2005), and Dumitrescu and Boland, "Improved
preprocessing, labeling and scaling algorithms for the weight-constrained shortest path problem" (Networks 42, 2003).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from serfer.core.costs.cost_model import Floats

Vertex = tuple[int, int]
"""How many stages lie before a cut (0 where that makes no difference), and the cut's position."""
Prices = Callable[[float, float], float]
_SLACK = 1e-12  # relative: sums of the same numbers in another order differ by less
_MOST_HULL_CHAINS = 24


@dataclass(frozen=True)
class Edge:
    """A stage between two states: `seconds` and `usd` have a row for each memory, a column for each grid before it.

    `before` and `after` say how tensors come and go (an index into the paths), `grid` on which grid they are written;
    `stage` is the caller's. What is not possible with some memory after some grid takes infinitely long.
    `cold_usd` are, for each memory, those of the dollars that pay the cold starts of a share of the queries.
    """

    start: Vertex
    stop: Vertex
    before: int
    after: int
    grid: int
    seconds: Floats
    usd: Floats
    stage: object
    cold_usd: Floats | None = None


@dataclass(frozen=True)
class Chain:
    """A path from the image to the answer: its edges with the memory that each takes."""

    seconds: float
    usd: float
    steps: tuple[tuple[Edge, int], ...]


@dataclass(frozen=True)
class Goal:
    """An objective: the least `value`, which must not fall when seconds or dollars rise, within bounds.

    `most_cold_seconds` bounds the first answer where nothing is warm, which only a search with a share of cold queries
    knows (cold/share.py).
    """

    value: Prices
    most_seconds: float = float("inf")
    most_usd: float = float("inf")
    most_cold_seconds: float = float("inf")

    @property
    def has_no_limits(self) -> bool:
        return self.most_seconds == self.most_usd == self.most_cold_seconds == float("inf")

    def holds(self, seconds: float, usd: float) -> bool:
        return seconds <= self.most_seconds * (1 + _SLACK) and usd <= self.most_usd * (1 + _SLACK)


LATENCY = Goal(lambda seconds, _: seconds)
COST = Goal(lambda _, usd: usd)
BALANCED = Goal(lambda seconds, usd: seconds * usd)


class Search:
    """Searches a network of `edges`, in any order, from `first` to one of the `last` vertices."""

    def __init__(self, edges: Iterable[Edge], first: Vertex, last: Sequence[Vertex], paths: int, grids: int) -> None:
        self._first, self._last = first, tuple(last)
        self._shape = (paths, grids)
        self._into: dict[Vertex, list[Edge]] = {}
        self._from: dict[Vertex, list[Edge]] = {}
        for edge in edges:
            self._into.setdefault(edge.stop, []).append(edge)
            self._from.setdefault(edge.start, []).append(edge)

    @property
    def edges(self) -> Iterator[Edge]:
        return (edge for vertex in self._vertices for edge in self._into.get(vertex, ()))

    def only(self, allowed: Callable[[Edge], bool]) -> Search:
        return Search(filter(allowed, self.edges), self._first, self._last, *self._shape)

    @property
    def ends(self) -> tuple[Vertex, tuple[Vertex, ...]]:
        return self._first, self._last

    @cached_property
    def _vertices(self) -> list[Vertex]:
        return sorted({self._first, *self._into}, key=lambda vertex: (vertex[1], vertex[0]))

    def shortest(self, per_second: float, per_usd: float) -> Chain | None:
        """Return the shortest path for a weighting of seconds and dollars, or None where no chain reaches the end."""
        to_go = self.to_go(per_second, per_usd)
        if not np.isfinite(to_go[self._first][0, 0]):
            return None
        steps, vertex, path, grid, seconds, usd = [], self._first, 0, 0, 0.0, 0.0
        while vertex not in self._last:
            batch = self._batches[vertex][path]
            rest = np.array([to_go[edge.stop][edge.after, edge.grid] for edge in batch.edges])
            each_s, each_usd = batch.seconds[:, :, grid], batch.usd[:, :, grid]
            weighted = _weighted(per_second, each_s, per_usd, each_usd) + rest[:, None]
            number, memory = map(int, np.unravel_index(weighted.argmin(), weighted.shape))
            edge = batch.edges[number]
            seconds, usd = seconds + edge.seconds[memory, grid], usd + edge.usd[memory, grid]
            steps.append((edge, memory))
            vertex, path, grid = edge.stop, edge.after, edge.grid
        return Chain(float(seconds), float(usd), tuple(steps))

    def to_go(self, per_second: float, per_usd: float) -> Mapping[Vertex, Floats]:
        """Return the least weighted sum from every state to the end, as an array (paths, grids) for each vertex."""
        least = {vertex: np.full(self._shape, np.inf) for vertex in self._vertices}
        for vertex in self._last:
            if vertex in least:
                least[vertex][:] = 0.0
        for vertex in reversed(self._vertices):
            if vertex in self._last:
                continue
            for path, batch in self._batches.get(vertex, {}).items():
                rest = np.array([least[edge.stop][edge.after, edge.grid] for edge in batch.edges])
                weighted = _weighted(per_second, batch.seconds, per_usd, batch.usd).min(axis=1) + rest[:, None]
                least[vertex][path] = weighted.min(axis=0)
        return least

    @cached_property
    def _batches(self) -> dict[Vertex, dict[int, _EdgeBatch]]:
        by_path: dict[Vertex, dict[int, list[Edge]]] = {}
        for vertex, edges in self._from.items():
            for edge in edges:
                by_path.setdefault(vertex, {}).setdefault(edge.before, []).append(edge)
        return {
            vertex: {path: _EdgeBatch.of(edges) for path, edges in paths.items()} for vertex, paths in by_path.items()
        }

    @cached_property
    def fastest(self) -> Chain | None:
        return self.shortest(1.0, 0.0)

    @cached_property
    def cheapest(self) -> Chain | None:
        return self.shortest(0.0, 1.0)

    @cached_property
    def convex_hull(self) -> list[Chain]:
        """The chains that are best for some weighting of seconds and dollars, the fastest first: the frontier's hull.

        Between two neighbours, the chain is searched that is best in the direction of both (Aneja and Nair, 1979), at
        most 24 chains in all.
        """
        if self.fastest is None or self.cheapest is None:
            return []
        chains = [self.fastest, self.cheapest]
        gaps = [(self.fastest, self.cheapest)]
        while gaps and len(chains) < _MOST_HULL_CHAINS:
            left, right = gaps.pop(0)
            down, across = left.usd - right.usd, right.seconds - left.seconds
            if down <= 0 or across <= 0:
                continue
            between = self.shortest(down, across)
            weight = down * left.seconds + across * left.usd
            if between and down * between.seconds + across * between.usd < weight * (1 - 1e-9):
                chains.append(between)
                gaps += [(left, between), (between, right)]
        return _frontier(chains)

    def best(self, goal: Goal) -> Chain | None:
        """Return the chain with the least value within the goal's bounds, or None where no chain keeps them."""
        incumbent = self._incumbent(goal)
        bound = (_value(goal, incumbent) if incumbent else np.inf) * (1 + _SLACK)
        labels = {self._first: [_Labels.first()]}
        for vertex in self._vertices[1:]:
            labels[vertex] = self._extended(vertex, labels, goal, bound)
        ends = [chain for vertex in self._last for chain in self._finished(vertex, labels)]
        chains = [*ends, incumbent] if incumbent else ends
        fitting = [chain for chain in chains if goal.holds(chain.seconds, chain.usd)]
        return min(fitting, key=lambda chain: (_value(goal, chain), chain.usd, chain.seconds), default=None)

    def _incumbent(self, goal: Goal) -> Chain | None:
        fitting = [chain for chain in self.convex_hull if goal.holds(chain.seconds, chain.usd)]
        return min(fitting, key=lambda chain: _value(goal, chain), default=None)

    @cached_property
    def _bounds(self) -> tuple[Mapping[Vertex, Floats], Mapping[Vertex, Floats]]:
        return self.to_go(1.0, 0.0), self.to_go(0.0, 1.0)

    def _extended(
        self, vertex: Vertex, labels: Mapping[Vertex, list[_Labels]], goal: Goal, bound: float
    ) -> list[_Labels]:
        by_state: dict[tuple[int, int], list[_Labels]] = {}
        seconds_left, usd_left = (left[vertex] for left in self._bounds)
        for edge in self._into[vertex]:
            state = (edge.after, edge.grid)
            for before in labels.get(edge.start, ()):
                if before.path == edge.before:
                    longer = before.extended(edge)
                    kept = longer.within(goal, bound, seconds_left[state], usd_left[state])
                    if len(kept.seconds):
                        by_state.setdefault(state, []).append(kept)
        return [_undominated(several) for several in by_state.values()]

    def _finished(self, vertex: Vertex, labels: Mapping[Vertex, list[_Labels]]) -> Iterator[Chain]:
        for state in labels.get(vertex, ()):
            for index in range(len(state.seconds)):
                yield state.chain(index)


@dataclass(frozen=True)
class _EdgeBatch:
    """Edges side by side: seconds and dollars as (edges, memories, grids).

    An edge with fewer memories than others repeats its last one, which then never comes first among its best.
    """

    edges: Sequence[Edge]
    seconds: Floats
    usd: Floats

    @classmethod
    def of(cls, edges: Sequence[Edge]) -> _EdgeBatch:
        most = max(len(edge.seconds) for edge in edges)
        rows = [np.minimum(np.arange(most), len(edge.seconds) - 1) for edge in edges]
        seconds = [edge.seconds[row] for edge, row in zip(edges, rows, strict=True)]
        usd = [edge.usd[row] for edge, row in zip(edges, rows, strict=True)]
        return cls(edges, np.array(seconds), np.array(usd))


@dataclass(frozen=True)
class _Labels:
    """Chains to one state: arrays with a value for each. Each came by an edge, with a memory, from another's label."""

    path: int
    grid: int
    seconds: Floats
    usd: Floats
    edges: Sequence[Edge | None]
    edge: np.ndarray
    memory: np.ndarray
    parents: Sequence[_Labels]
    parent: np.ndarray

    @classmethod
    def first(cls) -> _Labels:
        zero, none = np.zeros(1), np.zeros(1, int)
        return cls(0, 0, zero, zero, [None], none, none, [], none)

    def extended(self, edge: Edge) -> _Labels:
        count, memories = len(self.seconds), len(edge.usd)
        seconds = (self.seconds + edge.seconds[:, self.grid, None]).ravel()
        usd = (self.usd + edge.usd[:, self.grid, None]).ravel()
        memory, parent = np.repeat(np.arange(memories), count), np.tile(np.arange(count), memories)
        return _Labels(edge.after, edge.grid, seconds, usd, [edge], np.zeros_like(memory), memory, [self], parent)

    def within(self, goal: Goal, bound: float, seconds_left: float, usd_left: float) -> _Labels:
        """Drop what cannot become better than `bound`, even on the fastest and on the cheapest path to the end."""
        seconds, usd = self.seconds + seconds_left, self.usd + usd_left
        kept = (
            np.isfinite(seconds)
            & (seconds <= goal.most_seconds * (1 + _SLACK))
            & (usd <= goal.most_usd * (1 + _SLACK))
            & (goal.value(seconds, usd) <= bound)  # type: ignore[arg-type]  # works on arrays as on numbers
        )
        return self.only(np.flatnonzero(kept))

    def only(self, chosen: np.ndarray) -> _Labels:
        seconds, usd, edge = self.seconds[chosen], self.usd[chosen], self.edge[chosen]
        memory, parent = self.memory[chosen], self.parent[chosen]
        return replace(self, seconds=seconds, usd=usd, edge=edge, memory=memory, parent=parent)

    def chain(self, index: int) -> Chain:
        steps, labels, at = [], self, index
        while (edge := labels.edges[labels.edge[at]]) is not None:
            steps.append((edge, int(labels.memory[at])))
            labels, at = labels.parents[labels.edge[at]], int(labels.parent[at])
        return Chain(float(self.seconds[index]), float(self.usd[index]), tuple(reversed(steps)))


def _undominated(several: Sequence[_Labels]) -> _Labels:
    """Merge chains to one state and keep those that no other beats in both seconds and dollars."""
    merged = _Labels(
        several[0].path,
        several[0].grid,
        np.concatenate([chains.seconds for chains in several]),
        np.concatenate([chains.usd for chains in several]),
        [chains.edges[0] for chains in several],
        np.repeat(np.arange(len(several)), [len(chains.seconds) for chains in several]),
        np.concatenate([chains.memory for chains in several]),
        [chains.parents[0] for chains in several],
        np.concatenate([chains.parent for chains in several]),
    )
    order = np.lexsort((merged.usd, merged.seconds))
    usd = merged.usd[order]
    least_before = np.minimum.accumulate(np.concatenate([[np.inf], usd[:-1]]))
    return merged.only(order[usd < least_before])


def _weighted(per_second: float, seconds: Floats, per_usd: float, usd: Floats) -> Floats:
    if not (per_second and per_usd):
        return per_second * seconds if per_second else per_usd * usd
    return per_second * seconds + per_usd * usd


def _value(goal: Goal, chain: Chain) -> float:
    return goal.value(chain.seconds, chain.usd)


def _frontier(chains: Iterable[Chain]) -> list[Chain]:
    kept: list[Chain] = []
    for chain in sorted(chains, key=lambda chain: (chain.seconds, chain.usd)):
        if not kept or chain.usd < kept[-1].usd:
            kept.append(chain)
    return kept
