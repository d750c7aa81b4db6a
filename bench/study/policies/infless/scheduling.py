"""Which instances to launch for a rate, and on which servers: Algorithm 1 of INFless (3.4).

It takes the largest batch that keeps the SLO and is filled by the rate that is left, and of its configurations and all
servers the pair with the highest efficiency (equation 10). Servers that have the same free are one candidate, so that a
launch costs a heap's pop, not a look at each server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from typing import Final, Protocol

from serfer_bench.study.policies.infless.options import Function, Option
from serfer_bench.study.policies.infless.servers import Placement, Servers, State, has_room

FULL_FIT: Final = 0.001
"""Added to the denominator of equation 10, which is 0 where an instance fills a server to the last unit."""
_SERVED: Final = 1e-9  # requests a second that count as none
_TIE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Launch:
    """An instance to start: its configuration and where."""

    option: Option
    placement: Placement


@dataclass(frozen=True)
class Schedule:
    """Instances to start, in order, and the rate that the cluster has no room for."""

    launches: tuple[Launch, ...]
    unplaced: float


class Chooser(Protocol):
    """Scores pairs of a configuration and a server's state: the largest wins, the earlier option of equals."""

    def score(self, option: Option, best: float, free: float) -> float:
        """Return the score; `best` is the highest efficiency of the function, `free` the server's free beta * C + G."""
        ...


@dataclass(frozen=True)
class Efficiency:
    """Equation 10: requests per resource, normalized to the function's best, over the fragment that is left."""

    full_fit: float = FULL_FIT

    def score(self, option: Option, best: float, free: float) -> float:
        """Return e_ij."""
        return option.efficiency / best / (1 - option.units / free + self.full_fit)


@dataclass(frozen=True)
class Throughput:
    """The ablation without resource scheduling (5.2): the configuration with the most requests a second.

    It goes to the server with the most free resources, as without Algorithm 1.
    """

    def score(self, option: Option, best: float, free: float) -> float:
        """Return r_up; what is free decides between equals."""
        del best
        return option.up + free * _TIE


def schedule(
    function: Function, rate: float, servers: Servers, chooser: Chooser | None = None, *, batch_first: bool = True
) -> Schedule:
    """Place instances for a rate: requests a second that no running instance takes. Occupies what it places.

    Without `batch_first` configurations of all batch sizes compete by their score, which is ours.
    """
    chooser = chooser or Efficiency()
    launches: list[Launch] = []
    groups = _by_batch(function.options) if batch_first else [list(function.options)]
    searches = [_Search(group, function, servers, chooser) for group in groups if group]
    while rate > _SERVED:
        found = next((each for search in searches if (each := search.next(rate)) is not None), None)
        if found is None:
            break
        launches.append(found)
        rate -= found.option.up
        for one in searches:
            one.entered(servers.after(found.placement))
    return Schedule(tuple(launches), max(rate, 0.0))


def _by_batch(options: Sequence[Option]) -> list[list[Option]]:
    return [[*group] for _, group in groupby(options, key=lambda one: one.configuration.batch)]


class _Search:
    """The best pair for one batch size: a heap over states for each set of configurations that the rate fills."""

    def __init__(self, options: list[Option], function: Function, servers: Servers, chooser: Chooser) -> None:
        self._options = sorted(options, key=lambda one: one.low)  # those that a rate fills are the first ones
        self._best = max(option.efficiency for option in function.options)
        self._servers, self._chooser = servers, chooser
        self._filled = 0
        self._heap: list[tuple[float, State, Option]] | None = None

    def next(self, rate: float) -> Launch | None:
        """Place the best configuration that the rate fills; None where there is none, or no server has room."""
        filled = sum(1 for one in self._options if one.low == 0 or rate > one.low)
        if self._heap is None or filled != self._filled:
            self._filled, self._heap = filled, []
            for state in self._servers.states:
                self.entered(state)
        while self._heap:
            _, state, option = self._heap[0]
            if self._servers.has(state):
                one = option.configuration
                return Launch(option, self._servers.place(state, one.cores, one.share))
            heappop(self._heap)
        return None

    def entered(self, state: State) -> None:
        if self._heap is None:
            return
        free, found, highest = self._servers.units(state), None, 0.0
        for option in self._options[: self._filled]:
            if has_room(state, option.configuration.cores, option.configuration.share):
                score = self._chooser.score(option, self._best, free)
                if found is None or score > highest:
                    found, highest = option, score
        if found is not None:
            heappush(self._heap, (-highest, state, found))


def spread(option: Option, servers: Servers) -> Placement | None:
    """Place an instance where most is free, as Kubernetes scores nodes unless told otherwise; None without room."""
    return _placed(option, servers, max)


def pack(option: Option, servers: Servers) -> Placement | None:
    """Place an instance where the least is left: what Algorithm 1 does with a single configuration (BATCH+RS, 5.3)."""
    return _placed(option, servers, min)


class _Pick(Protocol):
    def __call__(self, states: list[tuple[float, State]], /) -> tuple[float, State]: ...


def _placed(option: Option, servers: Servers, pick: _Pick) -> Placement | None:
    one = option.configuration
    fits = [(servers.units(state), state) for state in servers.states if has_room(state, one.cores, one.share)]
    return servers.place(pick(fits)[1], one.cores, one.share) if fits else None
