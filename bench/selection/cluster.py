"""A cluster of workers that hold variants, query by query, under a virtual clock: what INFaaS' figure 6 is redone on.

    queries ──► selector by states of the last 2 s ──► a queue for each variant at a worker ──► late or in time
                 ▲ signals, every 2 s                    ▲ load, unload, every second: a scaler for each network
                 └ StateTracker                          └ and workers, every 2 s, where the system adds some

A place serves its queries one after another at its saturation throughput, and each takes its latency at least. Copies
of a variant on one worker are one place. Nothing slows variants down that share hardware: the shares that they take of
it are all that they compete for.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from serfer.control.selection import (
    Catalogue,
    InfaasSelector,
    States,
    StateTracker,
    VariantSignals,
    draw_of,
)
from serfer.control.selection.scaling import (
    OPTIONS,
    GreedyScaler,
    InstanceCosts,
    LoadObservation,
    ScalingOptions,
)
from serfer.core.units import MS_PER_S
from serfer.core.variants import Objectives, Place, Variant, VariantState

SLOT_S: Final = 1.0
PERIOD_S: Final = 2.0
_RATE_S: Final = 2.0
"""Seconds over which the load is counted: constructed, the paper says "currently"."""
_PATIENCE_S: Final = 5.0
"""How long a query waits in a queue at most: constructed."""
_SETTLING: Final = 4
"""Periods after which a place admits all that it has room for, as what is loaded from the beginning does."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Worker:
    """A machine of a type of hardware."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Network:
    """A network's variants that a system may use, and its SLO."""

    name: str
    variants: tuple[Variant, ...]
    costs: tuple[InstanceCosts, ...]
    slo_ms: float
    first: Mapping[str, int] = field(default_factory=dict)
    """Copies that are loaded from the beginning."""


@dataclass(frozen=True, slots=True)
class System:
    """How a cluster is run, and whether it `scales` copies.

    Where it `heeds` overloaded variants it scales for them, too (4.1), and not by headroom alone (4.2.2).
    """

    name: str
    networks: tuple[Network, ...]
    workers: tuple[Worker, ...]
    scales: bool
    options: ScalingOptions = OPTIONS
    heeds: bool = False


@dataclass(slots=True)
class _Queue:
    """A variant at a worker: when each copy is loaded, when its queue is empty, and how long it was busy."""

    variant: Variant
    ready_s: list[float]
    empty_s: float = 0.0
    busy_s: float = 0.0

    def copies(self, now_s: float = math.inf) -> int:
        """Return how many copies are loaded by a time."""
        return sum(ready_s <= now_s for ready_s in self.ready_s)

    def qps(self, now_s: float) -> float:
        """Return the throughput at a time; of one copy where it is yet to be loaded."""
        return self.variant.qps.value * max(1, self.copies(now_s))

    def serve(self, now_s: float) -> float:
        """Return when a query that comes now is answered; infinity where it would wait for too long, and gives up."""
        begins = max(now_s, min(self.ready_s), self.empty_s)
        if begins > max(now_s, min(self.ready_s)) + _PATIENCE_S:
            return math.inf
        takes = 1 / self.qps(begins)
        self.empty_s = begins + takes
        self.busy_s += takes
        return begins + max(takes, self.variant.latency_ms.value / MS_PER_S)


@dataclass(slots=True)
class Measured:
    """What a run measured: queries by the second of their answer, late ones, and dollars of copies (see `run`)."""

    system: str
    seconds: float
    queries: int = 0
    late: int = 0
    answered: Counter[int] = field(default_factory=Counter)
    usd: float = 0.0

    @property
    def qps(self) -> float:
        """Answers a second within the time of the load."""
        return sum(count for second, count in self.answered.items() if second < self.seconds) / self.seconds

    @property
    def late_share(self) -> float:
        """The share of queries that were answered past their SLO, or not at all."""
        return self.late / max(1, self.queries)


class Cluster:
    """A system with what it has loaded where."""

    def __init__(self, system: System) -> None:
        """Load what is there from the beginning."""
        self.system = system
        self._workers = system.workers
        self._costs = {cost.name: cost for network in system.networks for cost in network.costs}
        self._variants = {each.name: each for network in system.networks for each in network.variants}
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._tracker, self._states = StateTracker(), States({})
        self._catalogue = Catalogue(self._variants.values())
        self._selector = InfaasSelector()
        self._scalers = [GreedyScaler(network.costs, system.options) for network in system.networks]
        self._leaving: list[tuple[float, str]] = []
        self._recent: list[deque[float]] = [deque() for _ in system.networks]
        for network in system.networks:
            for name, copies in network.first.items():
                self._load(name, copies, -math.inf)
        for _ in range(_SETTLING):
            self._watch(0.0)

    def run(self, queries: Iterator[tuple[float, int]], seconds: float) -> Measured:
        """Answer queries (time, network); `usd` counts the copies' price a second while they are loaded."""
        measured = Measured(self.system.name, seconds)
        tick = 0
        for number, (now_s, which) in enumerate(queries):
            while tick * SLOT_S <= now_s:
                self._tick(tick * SLOT_S, measured)
                tick += 1
            self._recent[which].append(now_s)
            self._answer(self.system.networks[which], f"query-{number}", now_s, measured)
        return measured

    def _answer(self, network: Network, query: str, now_s: float, measured: Measured) -> None:
        asked = Objectives(latency_ms=network.slo_ms, network=network.name)
        chosen = self._selector.get_variant(asked, self._catalogue, self._states, draw_of(query))
        measured.queries += 1
        queue = self._queues.get((chosen.variant, chosen.place))
        if queue is None and chosen.place and self.system.scales:
            self._load(chosen.variant, 1, now_s)  # inactive: this query loads it
            queue = self._queues.get((chosen.variant, chosen.place)) or self._any(chosen.variant)
        queue = queue or self._any(chosen.variant)
        if queue is None:
            measured.late += 1
            return
        ended_s = queue.serve(now_s)
        if ended_s < math.inf:
            measured.answered[int(ended_s)] += 1
        measured.late += (ended_s - now_s) * MS_PER_S > network.slo_ms * (1 + _ROUNDING)

    def _any(self, variant: str) -> _Queue | None:
        """Return the emptiest place of a variant: states may name one that is gone."""
        places = [queue for (name, _), queue in self._queues.items() if name == variant]
        return min(places, key=lambda queue: queue.empty_s, default=None)

    def _tick(self, now_s: float, measured: Measured) -> None:
        """Pay for the slot, scale, and every second slot look at states."""
        measured.usd += SLOT_S * sum(self._costs[name].usd_per_s * each.copies() for (name, _), each in self._items())
        for each in [each for each in self._leaving if each[0] <= now_s]:
            self._leaving.remove(each)
            self._unload(each[1])
        if self.system.scales:
            for network, scaler, recent in zip(self.system.networks, self._scalers, self._recent, strict=True):
                while recent and recent[0] < now_s - _RATE_S:
                    recent.popleft()
                if now_s >= _RATE_S:
                    self._scale(network, scaler, len(recent) / _RATE_S, now_s)
        if now_s % PERIOD_S == 0:
            self._watch(now_s)

    def _scale(self, network: Network, scaler: GreedyScaler, rate: float, now_s: float) -> None:
        running: Counter[str] = Counter()
        for (name, _), queue in self._items():
            running[name] += queue.copies()
        running.subtract(name for _, name in self._leaving)
        mine = {cost.name: running[cost.name] for cost in network.costs if running[cost.name]}
        available = self._free()
        for cost in network.costs:
            for kind, share in cost.resources.items():
                available[kind] = available.get(kind, 0.0) + share * running[cost.name]
        overloaded = frozenset(name for name in mine if self.system.heeds and self._is_overloaded(name))
        plan = scaler.observe(LoadObservation(rate, network.slo_ms, mine, available, overloaded))
        loaded_s = now_s
        for name, change in sorted(plan.changes.items(), key=lambda each: -each[1]):
            if change > 0:
                self._load(name, change, now_s)
                loaded_s = now_s + self._costs[name].load_s
            else:  # once what replaces it is loaded
                self._leaving += [(loaded_s, name)] * -change

    def _is_overloaded(self, name: str) -> bool:
        states = [self._tracker.state(*key) for key, _ in self._items() if key[0] == name]
        return all(state == VariantState.OVERLOADED for state in states)

    def _free(self) -> dict[str, float]:
        """Return what is free of each type of hardware, in machines."""
        free: dict[str, float] = {}
        for worker in self._workers:
            free[worker.kind] = free.get(worker.kind, 0.0) + self._room(worker)
        return free

    def _room(self, worker: Worker) -> float:
        return 1.0 - sum(
            self._costs[name].resources.get(worker.kind, 0.0) * queue.copies()
            for (name, at), queue in self._items()
            if at == worker.name
        )

    def _load(self, name: str, copies: int, now_s: float) -> None:
        """Load copies one by one at the worker with the most room; what has none is left out."""
        cost = self._costs[name]
        for _ in range(copies):
            able = [each for each in self._workers if each.kind in cost.resources]
            worker = max(able, key=self._room, default=None)
            if worker is None or self._room(worker) + _ROUNDING < cost.resources[worker.kind]:
                return
            queue = self._queues.setdefault((name, worker.name), _Queue(self._variants[name], []))
            queue.ready_s.append(now_s + cost.load_s)

    def _unload(self, name: str) -> None:
        """Unload a copy, the one that was loaded last, where there are the fewest."""
        places = [(queue.copies(), key) for key, queue in self._items() if key[0] == name]
        if not places:
            return
        _, key = min(places)
        self._queues[key].ready_s.pop()
        if not self._queues[key].ready_s:
            del self._queues[key]

    def _watch(self, now_s: float) -> None:
        """Take signals of all places, and of workers that could load a variant."""
        signals = self._hosts() if self.system.scales else {}
        for key, queue in self._items():
            backlog_s = max(0.0, queue.empty_s - max(now_s, min(queue.ready_s)))
            share = min(1.0, max(0.0, queue.busy_s - backlog_s) / PERIOD_S)
            queue.busy_s = min(queue.busy_s, backlog_s)
            waiting = backlog_s * queue.qps(now_s) / queue.variant.batch
            signals[key] = VariantSignals(Place.INSTANCE, queue.copies(now_s), share, waiting)
        self._states = self._tracker.observe(signals)

    def _hosts(self) -> dict[tuple[str, str], VariantSignals]:
        """Return the signals of workers with room for variants that they have not loaded."""
        hosts: dict[tuple[str, str], VariantSignals] = {}
        for worker in self._workers:
            room = self._room(worker)
            for name, cost in self._costs.items():
                if cost.resources.get(worker.kind, math.inf) <= room + _ROUNDING:
                    hosts[name, worker.name] = VariantSignals(Place.INSTANCE, 0, 1.0 - room)
        return hosts

    def _items(self) -> Sequence[tuple[tuple[str, str], _Queue]]:
        return [*self._queues.items()]
