"""The search for the plan whose first answer comes earliest where every environment is cold.

The environments of all stages start as the query starts, so a chain's first answer is a critical path
(serfer/core/costs/cold_starts.py): ended = max(ended before, ready) + warm. That never falls where the stage before
ends later, so of the chains to one state (see planning/search.py) with one number of environments only the earliest
matters, and dynamic programming finds, for each number of environments, the chain with the earliest first answer:
exactly. It is done twice, with each stage's fastest memory and with its cheapest one, since most stages are not what
the answer waits for. Of each chain that answers at most `slack` later than the earliest of all, the memories are then
chosen that cost least within that time, again exactly; the cheapest of them is the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from serfer.core.costs.cost_model import Floats, Platform, starting_usd
from serfer.splitter.planning.cold.share import ready
from serfer.splitter.planning.search import Chain, Edge, Search, Vertex
from serfer.splitter.planning.stage_prices import CandidateStage

_SAME = 1e-12  # relative: sums of the same numbers in another order differ by less
_State = tuple[Vertex, int, int]
"""A vertex, and the path and the grid of the tensors there."""


@dataclass(frozen=True)
class ColdChain:
    """A chain, the seconds of its first answer where everything is cold, its environments, and that query's dollars."""

    chain: Chain
    seconds: float
    environments: int
    usd: float


@dataclass(frozen=True)
class _ColdEdge:
    """A stage with the second at which its environments are ready, and their dollars for each memory."""

    edge: Edge
    ready: float
    environments: int
    starting_usd: Floats

    @classmethod
    def of(cls, edge: Edge, platform: Platform) -> _ColdEdge:
        candidate, functions = edge.stage, platform.functions
        assert isinstance(candidate, CandidateStage)  # noqa: S101 - what StageGraph put there: no gangs are searched
        count, billed_s = candidate.work.grid.tiles, candidate.fit.cold_start(platform).billed_seconds
        memory = np.array(candidate.memory_mb, dtype=float)
        usd = starting_usd(count, memory, billed_s, functions, first=edge.start[1] == 0)
        return cls(edge, float(ready(edge, platform)[0]), count, usd)

    @property
    def frugal_seconds(self) -> Floats:
        """What it takes with the memory that costs least, for each grid before it."""
        rows = (self.edge.usd + self.starting_usd[:, None]).argmin(axis=0)
        return np.asarray(np.take_along_axis(self.edge.seconds, rows[None], axis=0)[0])


@dataclass(frozen=True)
class _Earliest:
    """The earliest ends of chains to a state, for each number of environments, with their last stages and states."""

    seconds: Floats
    last: list[tuple[_ColdEdge, _State] | None]

    def better(self, seconds: Floats, each: _ColdEdge, state: _State) -> None:
        for count in np.flatnonzero(seconds < self.seconds):
            self.seconds[count], self.last[count] = seconds[count], (each, state)


class ColdSearch:
    """Searches the chains of a search that have at most `most` environments, priced on a `platform` without colds."""

    def __init__(self, search: Search, platform: Platform, most: int) -> None:
        self._first, self._last = search.ends
        priced = (_ColdEdge.of(edge, platform) for edge in search.edges)
        self._edges = [edge for edge in priced if edge.environments <= most]
        self._most = most

    def best(self, slack: float) -> ColdChain | None:
        """Return the cheapest of the chains whose first answer comes at most this share later than the earliest.

        None where no chain has so few environments.
        """
        limit = self.earliest * (1 + slack) * (1 + _SAME)
        chains = [
            _cheapest(self._path(found, state, int(count)), limit)
            for found in (self._fastest, self._frugal)
            for state, labels in found.items()
            for count in (np.flatnonzero(labels.seconds <= limit) if state[0] in self._last else ())
        ]
        return min(chains, key=lambda chain: (chain.usd, chain.seconds, chain.environments), default=None)

    @property
    def earliest(self) -> float:
        ends = (labels.seconds.min() for state, labels in self._fastest.items() if state[0] in self._last)
        least = float(min(ends, default=np.inf))
        return least if np.isfinite(least) else -1.0

    @cached_property
    def _fastest(self) -> Mapping[_State, _Earliest]:
        return self._earliest([edge.edge.seconds.min(axis=0) for edge in self._edges])

    @cached_property
    def _frugal(self) -> Mapping[_State, _Earliest]:
        return self._earliest([edge.frugal_seconds for edge in self._edges])

    def _earliest(self, warm: Sequence[Floats]) -> Mapping[_State, _Earliest]:
        """Return the earliest ends in every state where stages take `warm` seconds, for each grid before them."""
        found = {(self._first, 0, 0): self._none()}
        found[self._first, 0, 0].seconds[0] = 0.0
        grids: dict[tuple[Vertex, int], set[int]] = {(self._first, 0): {0}}
        for last, warm_s in zip(self._edges, warm, strict=True):  # by where they stop: what one extends is complete
            edge, count = last.edge, last.environments
            for grid in tuple(grids.get((edge.start, edge.before), ())):
                before, state = (edge.start, edge.before, grid), (edge.stop, edge.after, edge.grid)
                seconds = np.full(self._most + 1, np.inf)
                ended = found[before].seconds[: self._most + 1 - count]
                seconds[count:] = np.maximum(ended, last.ready) + warm_s[grid]
                if np.isfinite(seconds).any():
                    found.setdefault(state, self._none()).better(seconds, last, before)
                    grids.setdefault((edge.stop, edge.after), set()).add(edge.grid)
        return found

    def _none(self) -> _Earliest:
        return _Earliest(np.full(self._most + 1, np.inf), [None] * (self._most + 1))

    def _path(self, found: Mapping[_State, _Earliest], state: _State, count: int) -> list[tuple[_ColdEdge, int]]:
        steps: list[tuple[_ColdEdge, int]] = []
        while (last := found[state].last[count]) is not None:
            each, state = last
            count -= each.environments
            steps.append((each, state[2]))
        return steps[::-1]


def _cheapest(stages: Sequence[tuple[_ColdEdge, int]], limit: float) -> ColdChain:
    """Return stages with the memories that cost least of those with which they answer within `limit` seconds."""
    choices: list[tuple[float, float, tuple[int, ...]]] = [(0.0, 0.0, ())]
    for number, (stage, grid) in enumerate(stages):
        left = sum(float(later.edge.seconds[:, before].min()) for later, before in stages[number + 1 :])
        seconds, usd = stage.edge.seconds[:, grid], stage.edge.usd[:, grid] + stage.starting_usd
        longer = (
            (max(ended, stage.ready) + float(seconds[memory]), paid + float(usd[memory]), (*memories, memory))
            for ended, paid, memories in choices
            for memory in range(len(usd))
        )
        choices = _undominated(choice for choice in longer if choice[0] + left <= limit)
    ended, paid, memories = min(choices, key=lambda choice: (choice[1], choice[0]))
    steps = [(stage.edge, memory, grid) for (stage, grid), memory in zip(stages, memories, strict=True)]
    warm_s = sum(float(edge.seconds[memory, grid]) for edge, memory, grid in steps)
    warm_usd = sum(float(edge.usd[memory, grid]) for edge, memory, grid in steps)
    chain = Chain(warm_s, warm_usd, tuple((edge, memory) for edge, memory, _ in steps))
    return ColdChain(chain, ended, sum(stage.environments for stage, _ in stages), paid)


def _undominated(choices: Iterator[tuple[float, float, tuple[int, ...]]]) -> list[tuple[float, float, tuple[int, ...]]]:
    kept: list[tuple[float, float, tuple[int, ...]]] = []
    for choice in sorted(choices):
        if not kept or choice[1] < kept[-1][1]:
            kept.append(choice)
    return kept
