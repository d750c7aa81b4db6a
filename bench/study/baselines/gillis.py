"""Gillis's latency-optimal planner (Yu et al., ICDCS 2021), with the cost model, tiles and limits of ours.

Element-wise operators join the layer before them and branching blocks are one layer, so the network is a chain. A group
of layers runs on one function or on a few, forked and joined by a master function, which holds every activation between
groups and may compute a group, or part 0 of it, itself:

    client ─▶ master ─┬─▶ worker: part 1 ─┬─▶ master ─▶ the next group
                      ├─▶ worker: part 2 ─┤
                      └── part 0, here ───┘

Workers answer synchronous invocations, with the activations inside the JSON payloads. The dynamic programme goes over
(first layer, last layer, master memory left); ties go to the cheaper. A group takes

    dispatch of n workers + all payloads / codec + max(slowest of n invocations + slowest worker, the master's part)

where a worker decodes, computes, encodes and moves bytes one after the other. That is `stage_price`'s sum with Gillis's
codec at both ends. Where its authors leave a choice, it is made in its favour: image tiles travel as bytes, the
master's link is no bottleneck, its part overlaps with the workers', and shares of a global pooling may be returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.cost_model import (
    CARRY_RATE,
    DISPATCH_SECONDS,
    Floats,
    StageLoad,
    billed_usd,
    invoke_seconds,
    task_seconds,
)
from serfer.core.costs.sessions import WORKER_MB
from serfer.core.geometry import Grid
from serfer.core.units import FLOAT_BYTES
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.limits import column_bytes, memory_needed
from serfer.splitter.planning.search import Edge, Goal, Search
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.planning.stage_costs import StageEnumerator, StageWork
from serfer.splitter.tiling.cuts import Cut, cut_points, weight_bytes
from serfer.splitter.tiling.grids import ONE

GRIDS = (ONE, Grid(1, 2), Grid(2, 2), Grid(2, 4), Grid(1, 2, columns=True), Grid(1, 4, columns=True))
"""The grids that a group may run on: tiles of maps, columns of fully connected layers."""
MEMORY_MB = (*range(200, 10_201, 100), 10_240)
CODEC_RATE = 25e6
"""Bytes of activations a second through Gillis's codec, at each end (BASELINES.md: 23 to 27 MB/s)."""
_BASE64 = 4 / 3
_MB = 1 << 20
_NS = 1e9
_WEIGHT_COPIES = 2  # of each weight in memory, as `memory_needed` counts them
_NEVER = 1 << 55

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Options:
    """The planner's options, and how fast payloads are encoded and decoded."""

    grids: tuple[Grid, ...] = GRIDS
    memory_mb: tuple[int, ...] = MEMORY_MB
    codec_rate: float = CODEC_RATE


@dataclass(frozen=True)
class Offer:
    """A way to run nodes [start, stop): `here` says that the master computes part 0, `held` its bytes of weights.

    `ns` is the group's time for each memory of the master (rows) and of the workers (columns), in whole nanoseconds so
    that ties are ties; `usd` are the workers' dollars for each memory of theirs. Without workers `usd` is empty, and
    `ns` has one column.
    """

    start: int
    stop: int
    grid: Grid
    here: bool
    held: int
    ns: Integers
    usd: Floats


@dataclass(frozen=True)
class Group:
    """A chosen offer with its workers' memory, None where it has no workers."""

    offer: Offer
    worker_mb: int | None


@dataclass(frozen=True)
class GillisPlan:
    """Groups with the master's memory; predicted seconds and dollars of a query."""

    seconds: float
    usd: float
    master_mb: int
    groups: tuple[Group, ...]

    def __str__(self) -> str:
        """Write the groups as `here`, or the grid, `+` where the master has part 0, and the workers' memory."""
        return f"master of {self.master_mb} MB: " + ", ".join(map(_written, self.groups))


def _written(group: Group) -> str:
    if group.worker_mb is None:
        return "here"
    return f"{group.offer.grid}{'+' if group.offer.here else ''} at {group.worker_mb} MB"


def layers(graph: Graph, budget: Budget) -> list[Cut]:
    """Return the ends of the chain's layers: the cuts that one tensor crosses, none before a pointwise operator."""
    return [cut for cut in cut_points(graph, budget.limit.room) if len(cut.tensors) == 1]


class Gillis:
    """The planner for one network."""

    def __init__(self, graph: Graph, budget: Budget, options: Options | None = None) -> None:
        self._graph, self._budget, self._options = graph, budget, options or Options()
        self._cuts = layers(graph, budget)
        self.offers = list(self._offers())

    @property
    def positions(self) -> list[int]:
        return [cut.position for cut in self._cuts]

    def best(self, master_mb: Sequence[int] | None = None, worker_mb: Sequence[int] | None = None) -> GillisPlan | None:
        """Return the fastest plan, and of those the cheapest, perhaps of some of the memories alone; None for none."""
        known = self._options.memory_mb
        workers = np.array([known.index(size) for size in worker_mb or known])
        plans = [self._fastest(known.index(size), workers) for size in master_mb or known]
        return min(
            (plan for plan in plans if plan), key=lambda plan: (round(plan.seconds * _NS), plan.usd), default=None
        )

    def capacity(self, memory_mb: int) -> int:
        """Return how many bytes of weights a function holds: what its package and its memory leave for them."""
        return min(self._budget.limit.room, (memory_mb - WORKER_MB) * _MB // _WEIGHT_COPIES)

    def cheapest(
        self, groups: Sequence[tuple[int, int, Grid, bool]], most_seconds: float = float("inf")
    ) -> GillisPlan | None:
        """Return the cheapest plan of given groups (start, stop, grid, here) within a time: memories are free.

        A group that would end before a pointwise operator ends after it. Returns None where no memory does, or where a
        group is not among the offers.
        """
        known = {(offer.start, offer.stop, offer.grid, offer.here): offer for offer in self.offers}
        after = {stop: min(end for end in self.positions if end >= stop) for _, stop, _, _ in groups}
        ends = [0, *(after[stop] for _, stop, _, _ in groups)]
        keys = [
            (start, stop, grid, here)
            for (start, stop), (_, _, grid, here) in zip(pairwise(ends), groups, strict=True)
            if start < stop
        ]
        if any(key not in known for key in keys):
            return None
        plans = [
            self._cheapest(row, [known[key] for key in keys], most_seconds)
            for row in range(len(self._options.memory_mb))
        ]
        return min((plan for plan in plans if plan), key=lambda plan: (plan.usd, plan.seconds), default=None)

    def _cheapest(self, master: int, offers: Sequence[Offer], most_seconds: float) -> GillisPlan | None:
        memory = self._options.memory_mb[master]
        if sum(offer.held for offer in offers) > self.capacity(memory):
            return None
        edges = []
        for offer in offers:
            seconds = np.where(offer.ns[master] < _NEVER, offer.ns[master] / _NS, np.inf)
            usd = np.where(np.isfinite(seconds), offer.usd if len(offer.usd) else 0.0, np.inf)
            edges.append(Edge((0, offer.start), (0, offer.stop), 0, 0, 0, seconds[:, None], usd[:, None], offer))
        besides = self.priced(memory, 0, 0.0)[0]
        goal = Goal(lambda seconds, usd: self._priced(memory, seconds, usd)[1], most_seconds - besides)  # type: ignore[arg-type,return-value]  # arrays, too
        chain = Search(edges, (0, 0), [(0, offers[-1].stop)], 1, 1).best(goal)
        if chain is None:
            return None
        groups = [
            Group(offer, self._options.memory_mb[row] if len(offer.usd) else None)
            for offer, (_, row) in zip(offers, chain.steps, strict=True)
        ]
        prices = self.priced(memory, round(chain.seconds * _NS), chain.usd)
        return GillisPlan(*prices, memory, tuple(groups))

    def priced(self, master_mb: int, ns: int, workers_usd: float) -> tuple[float, float]:
        """Return a plan's seconds and dollars from what its groups take and what its workers cost.

        The client sends the image's bytes to the master and gets the answer; the master is billed for all that time.
        """
        seconds, usd = self._priced(master_mb, np.asarray(ns / _NS), np.asarray(workers_usd))
        return float(seconds), float(usd)

    def _priced(self, master_mb: int, grouped: Floats, workers_usd: Floats) -> tuple[Floats, Floats]:
        functions = self._budget.platform.functions
        image, answer = (self._graph.shape(name).elements for name in (self._graph.input, self._graph.output))
        carried = image + FLOAT_BYTES * answer
        moving = carried / self._options.codec_rate + _BASE64 * carried / functions.bandwidth
        billed = grouped + moving + task_seconds(_computing(0.0, 0.0), master_mb, self._budget.platform)[0]
        seconds = DISPATCH_SECONDS + carried / CARRY_RATE + invoke_seconds(1, functions) + billed
        return seconds, workers_usd + functions.price_request + billed_usd(master_mb, billed, functions)

    def _fastest(self, master: int, workers: Integers) -> GillisPlan | None:
        memory = self._options.memory_mb[master]
        room = self.capacity(memory)
        into: dict[int, list[_Option]] = {}
        for offer in self.offers:
            if offer.held <= room and (option := _Option.of(offer, master, workers)):
                into.setdefault(offer.stop, []).append(option)
        ends = self._programme(into, room)
        if not ends:
            return None
        end = min(ends, key=lambda label: (label.ns, label.usd))
        return GillisPlan(*self.priced(memory, end.ns, end.usd), memory, tuple(self._groups(end)))

    def _programme(self, into: Mapping[int, Sequence[_Option]], room: int) -> Sequence[_Label]:
        """Return the best ways to the end, for each amount of memory that the master may have left."""
        labels = {0: [_Label(0, 0.0, room, None, None)]}
        for stop in self.positions[1:]:
            still = weight_bytes(self._graph, stop, len(self._graph.nodes))
            longer = (
                label.extended(option, still)
                for option in into.get(stop, ())
                for label in labels[option.offer.start]
                if label.left >= option.offer.held
            )
            labels[stop] = _undominated(longer)
        return labels[len(self._graph.nodes)]

    def _groups(self, end: _Label) -> Iterator[Group]:
        groups, label = [], end
        while label.option and label.before:
            option = label.option
            groups.append(
                Group(option.offer, None if option.worker is None else self._options.memory_mb[option.worker])
            )
            label = label.before
        return reversed(groups)

    def _offers(self) -> Iterator[Offer]:
        stages = StageEnumerator(self._graph, self._cuts, self._budget.profiles)
        for left, right in combinations(self._cuts, 2):
            work = stages.whole(left, right)
            yield self._alone(work)
            yield from self._forked(work, here=False)
        for grid in self._options.grids:
            if grid != ONE:
                for work in stages.tiled(grid):
                    for here in (False, True):
                        yield from self._forked(work, here=here)

    def _alone(self, work: StageWork) -> Offer:
        held = self._held(work)
        ns = np.where(self._suffices(work, held), _nanoseconds(self._computed(work)), _NEVER)[:, None]
        return Offer(work.start, work.stop, ONE, here=True, held=held, ns=ns, usd=np.zeros(0))

    def _forked(self, work: StageWork, *, here: bool) -> Iterator[Offer]:
        first = 1 if here else 0
        elements = np.sum([reading.elements for reading in work.accesses], axis=0)[first:]
        read, written = elements * (FLOAT_BYTES if work.start else 1), work.written[first:] * FLOAT_BYTES
        functions = self._budget.platform.functions
        if _BASE64 * max(read.max(), written.max()) > functions.sync_payload_limit:
            return
        held, carried, codec = self._held(work), read + written, self._options.codec_rate
        worker = self._tasks(work)[:, first:] + carried / codec + _BASE64 * carried / functions.bandwidth
        memory = np.array(self._options.memory_mb)
        usd = (billed_usd(memory[:, None], worker, functions) + functions.price_request).sum(axis=1)
        waiting = invoke_seconds(len(carried), functions) + worker.max(axis=1)
        mine = self._computed(work) if here else np.zeros(len(memory))
        seconds = len(carried) * DISPATCH_SECONDS + carried.sum() / codec + np.maximum(mine[:, None], waiting)
        enough = self._suffices(work, held)
        able = enough & (enough[:, None] if here else True)
        ns = np.where(able, _nanoseconds(seconds), _NEVER)
        yield Offer(work.start, work.stop, work.grid, here, held if here else 0, ns, usd)

    def _tasks(self, work: StageWork) -> Floats:
        memory = np.array(self._options.memory_mb, dtype=float)[:, None]
        return task_seconds(_computing(work.serial_s, work.parallel_s), memory, self._budget.platform)

    def _computed(self, work: StageWork) -> Floats:
        bare = task_seconds(_computing(0.0, 0.0), 1.0, self._budget.platform)
        return np.asarray(self._tasks(work)[:, 0] - bare)

    def _suffices(self, work: StageWork, held: int) -> NDArray[np.bool_]:
        """Return for each memory whether a function of it can run a part with `held` bytes of weights, as ours must."""
        need = memory_needed(self._graph, work.start, work.stop, held)
        return np.array([size >= need and held <= self.capacity(size) for size in self._options.memory_mb])

    def _held(self, work: StageWork) -> int:
        """Return the bytes of weights that a part needs: all, or its columns'. The first part has the most columns."""
        if not work.grid.columns:
            return weight_bytes(self._graph, work.start, work.stop)
        return column_bytes(self._graph, self._graph.nodes[work.start : work.stop], work.grid)


@dataclass(frozen=True)
class _Option:
    """An offer for one memory of the master, with the workers' memory that is fastest, and of those cheapest."""

    offer: Offer
    ns: int
    usd: float
    worker: int | None

    @classmethod
    def of(cls, offer: Offer, master: int, workers: Integers) -> _Option | None:
        if not len(offer.usd):
            alone = int(offer.ns[master, 0])
            return cls(offer, alone, 0.0, None) if alone < _NEVER else None
        ns = offer.ns[master, workers]
        least = int(ns.min())
        usd = np.where(ns == least, offer.usd[workers], np.inf)
        cheapest = int(usd.argmin())
        return cls(offer, least, float(usd[cheapest]), int(workers[cheapest])) if least < _NEVER else None


@dataclass(frozen=True)
class _Label:
    """A way from the image to a layer: `left` is what the master has left for weights."""

    ns: int
    usd: float
    left: int
    option: _Option | None
    before: _Label | None

    def extended(self, option: _Option, still: int) -> _Label:
        """Return the way with one more group; more memory than `still`, what all later weights take, is no use."""
        left = min(self.left - option.offer.held, still)
        return _Label(self.ns + option.ns, self.usd + option.usd, left, option, self)


def _undominated(labels: Iterator[_Label]) -> list[_Label]:
    """Keep the ways that are faster, or as fast and cheaper, than all that leave the master as much memory."""
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda label: (label.ns, label.usd, -label.left)):
        if not kept or label.left > kept[-1].left:
            kept.append(label)
    return kept


def _computing(serial_s: Floats | float, parallel_s: Floats | float) -> StageLoad:
    none = np.zeros(1)
    return StageLoad(np.atleast_1d(serial_s), np.atleast_1d(parallel_s), none, none, none, none, none)


def _nanoseconds(seconds: Floats) -> Integers:
    return np.rint(seconds * _NS).astype(np.int64)
