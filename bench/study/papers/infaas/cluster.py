"""A cluster of workers that hold variants, query by query, under a virtual clock: what INFaaS' figure 6 is redone on.

    queries ──► selector by states of the last 2 s ──► a queue for each variant at a worker ──► late or in time
                 ▲ signals, every 2 s                    ▲ load, unload, every second: a scaler for each network
                 └ StateTracker                          └ and workers, every 2 s, where the system adds some

A place serves its queries one after another at its saturation throughput, and each takes its latency at least. Copies
of a variant on one worker are one place. Nothing slows variants down that share hardware: the shares that they take of
it are all that they compete for, unless the system has a figure for `sharing` of that kind of hardware: then a place is
slower by how busy the other copies of its worker are, which is an assumed model of interference.
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
from serfer.control.selection.scaling.greedy import GreedyScaler
from serfer.control.selection.scaling.records import OPTIONS, InstanceCosts, LoadObservation, ScalingOptions
from serfer.control.selection.scaling.workers import WorkerObservation, plan_workers
from serfer.core.units import MS_PER_S
from serfer.core.variants import Objectives, Place, SelectionReason, Variant, VariantState

INFAAS: Final = "INFaaS"
"""The paper's letter: by headroom alone (4.2.2), a variant's least loaded place (4.1)."""
HEEDING: Final = "INFaaS, overload heeded"
"""Overloaded variants get more copies, too (4.1: the autoscaler assesses them)."""
PACKING: Final = "INFaaS, bin packing"
"""The letter, but queries are packed onto workers (4.2.3), which contradicts 4.1's least loaded place."""
SLOT_S: Final = 1.0
PERIOD_S: Final = 2.0
_RATE_S: Final = 2.0
"""Seconds over which the load is counted: constructed, the paper says "currently"."""
_PATIENCE_S: Final = 5.0
"""How long a query waits in a queue at most: constructed."""
_SETTLING: Final = 4
"""Periods after which a place admits all that it has room for, as what is loaded from the beginning does."""
_EMPTY_S: Final = 30.0
"""How long a worker that was added stays without a loaded copy: constructed, the paper has no rule."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Worker:
    """A machine of a type of hardware, its price, and when it has booted."""

    name: str
    kind: str
    usd_per_s: float = 0.0
    ready_s: float = -math.inf


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

    Where it `heeds` overloaded variants it scales for them, too (4.1), and not by headroom alone (4.2.2). Where it
    `packs`, a query goes to the fullest place of its variant that answers it in time: online bin packing, best fit
    (4.2.3); where none does, and without it, to the one that is selected (4.1). It adds workers of a kind up to `most`,
    which boot for `boot_s`. `sharing` is, by kind, how much longer a query takes for each other copy that is busy all
    the time on its worker; 1 shares the hardware by time.
    """

    name: str
    networks: tuple[Network, ...]
    workers: tuple[Worker, ...]
    scales: bool
    options: ScalingOptions = OPTIONS
    heeds: bool = False
    packs: bool = False
    most: Mapping[str, int] = field(default_factory=dict)
    boot_s: float = 30.0
    sharing: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Queue:
    """A variant at a worker: when each copy is loaded, when its queue is empty, and how long it was busy."""

    variant: Variant
    ready_s: list[float]
    empty_s: float = 0.0
    busy_s: float = 0.0
    share: float = 0.0
    """How busy it was in the last period."""
    slowdown: float = 1.0

    def copies(self, now_s: float = math.inf) -> int:
        return sum(ready_s <= now_s for ready_s in self.ready_s)

    def qps(self, now_s: float) -> float:
        """Return the throughput at a time; of one copy where it is yet to be loaded."""
        return self.variant.qps.value * max(1, self.copies(now_s))

    def begins_s(self, now_s: float) -> float:
        """Return when a query that comes now would begin; infinity where it would wait for too long, and gives up."""
        loaded_s = max(now_s, min(self.ready_s))
        return math.inf if self.empty_s > loaded_s + _PATIENCE_S else max(loaded_s, self.empty_s)

    def ends_s(self, begins_s: float) -> float:
        return begins_s + self.slowdown * max(1 / self.qps(begins_s), self.variant.latency_ms.value / MS_PER_S)

    def serve(self, now_s: float) -> float:
        begins_s = self.begins_s(now_s)
        if math.isfinite(begins_s):
            takes = self.slowdown / self.qps(begins_s)
            self.empty_s = begins_s + takes
            self.busy_s += takes
        return self.ends_s(begins_s)


@dataclass(frozen=True, slots=True)
class Outcome:
    """When a query of a network came, and when it was answered: infinity where it was not."""

    network: str
    came_s: float
    answered_s: float
    late: bool


@dataclass(slots=True)
class Measured:
    """What a run measured: dollars of copies and of workers while they were there, and what became of each query."""

    system: str
    seconds: float
    usd: float = 0.0
    workers_usd: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def qps(self) -> float:
        return sum(each.answered_s < self.seconds for each in self.outcomes) / self.seconds

    @property
    def late_share(self) -> float:
        """The share of queries that were answered past their SLO, or not at all."""
        return sum(each.late for each in self.outcomes) / max(1, len(self.outcomes))


class Cluster:
    """A system with what it has loaded where."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._workers = list(system.workers)
        self._now_s = -math.inf
        self._emptied: dict[str, float] = {}
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
        queue = self._queues.get((chosen.variant, chosen.place))
        was_inactive = chosen.reason not in (SelectionReason.ACTIVE, SelectionReason.BUSY)
        if queue is None and was_inactive and chosen.place and self.system.scales:
            self._load(chosen.variant, 1, now_s)
            queue = self._queues.get((chosen.variant, chosen.place)) or self._any(chosen.variant)
        packed = self._fullest(chosen.variant, now_s, network.slo_ms) if self.system.packs else None
        queue = packed or queue or self._any(chosen.variant)
        ended_s = math.inf if queue is None else queue.serve(now_s)
        late = (ended_s - now_s) * MS_PER_S > network.slo_ms * (1 + _ROUNDING)
        measured.outcomes.append(Outcome(network.name, now_s, ended_s, late))

    def _any(self, variant: str) -> _Queue | None:
        places = [queue for (name, _), queue in self._queues.items() if name == variant]
        return min(places, key=lambda queue: queue.empty_s, default=None)

    def _fullest(self, variant: str, now_s: float, slo_ms: float) -> _Queue | None:
        """Return the place that answers a query last and yet in time; None where none does."""
        ends = [(queue.ends_s(queue.begins_s(now_s)), key) for key, queue in self._items() if key[0] == variant]
        in_time = [each for each in ends if (each[0] - now_s) * MS_PER_S <= slo_ms]
        return self._queues[max(in_time)[1]] if in_time else None

    def _tick(self, now_s: float, measured: Measured) -> None:
        self._now_s = now_s
        measured.workers_usd += SLOT_S * sum(worker.usd_per_s for worker in self._workers)
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
            if self.system.most:
                self._add_workers(now_s)
                self._stop_workers(now_s)

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
        free: dict[str, float] = {}
        for worker in self._workers:
            free[worker.kind] = free.get(worker.kind, 0.0) + self._room(worker)
        return free

    def _room(self, worker: Worker) -> float:
        if worker.ready_s > self._now_s:
            return 0.0
        return 1.0 - sum(
            self._costs[name].resources.get(worker.kind, 0.0) * queue.copies()
            for (name, at), queue in self._items()
            if at == worker.name
        )

    def _load(self, name: str, copies: int, now_s: float) -> None:
        cost = self._costs[name]
        for _ in range(copies):
            able = [each for each in self._workers if each.kind in cost.resources and self._helps(name, each)]
            worker = max(able, key=self._room, default=None)
            if worker is None or not self._load_at(name, worker, now_s):
                return

    def _helps(self, name: str, worker: Worker) -> bool:
        """Whether one more copy of a variant would help there: on hardware that is shared by time, only the first."""
        return not self.system.sharing.get(worker.kind) or (name, worker.name) not in self._queues

    def _load_at(self, name: str, worker: Worker, now_s: float) -> bool:
        cost = self._costs[name]
        if self._room(worker) + _ROUNDING < cost.resources[worker.kind]:
            return False
        queue = self._queues.setdefault((name, worker.name), _Queue(self._variants[name], []))
        queue.ready_s.append(now_s + cost.load_s)
        return True

    def _unload(self, name: str) -> None:
        places = [(queue.copies(), -queue.ready_s[-1], key) for key, queue in self._items() if key[0] == name]
        if not places:
            return
        *_, key = min(places)
        self._queues[key].ready_s.pop()
        if not self._queues[key].ready_s:
            del self._queues[key]

    def _watch(self, now_s: float) -> None:
        signals = self._hosts() if self.system.scales else {}
        busy: dict[str, float] = {}
        for key, queue in self._items():
            backlog_s = max(0.0, queue.empty_s - max(now_s, min(queue.ready_s)))
            queue.share = min(1.0, max(0.0, queue.busy_s - backlog_s) / PERIOD_S)
            queue.busy_s = min(queue.busy_s, backlog_s)
            waiting = backlog_s * queue.qps(now_s) / queue.variant.batch
            ratio = queue.slowdown if queue.share else None
            signals[key] = VariantSignals(
                Place.INSTANCE, queue.copies(now_s), queue.share, waiting, latency_ratio=ratio
            )
            busy[key[1]] = busy.get(key[1], 0.0) + queue.share * max(1, queue.copies(now_s))
        for (_, worker), queue in self._items():
            queue.slowdown = 1.0 + self.system.sharing.get(queue.variant.kind, 0.0) * (busy[worker] - queue.share)
        self._states = self._tracker.observe(signals)

    def _add_workers(self, now_s: float) -> None:
        for worker in self._workers:
            if now_s - PERIOD_S < worker.ready_s <= now_s:
                for name in self._disturbed(worker.kind):
                    if self._helps(name, worker):
                        self._load_at(name, worker, now_s)
        for kind in plan_workers([self._observed(worker, now_s) for worker in self._workers]):
            mine = [worker for worker in self._workers if worker.kind == kind]
            if len(mine) < self.system.most.get(kind, 0):
                name = f"{kind} added at {now_s:g} s"
                self._workers.append(Worker(name, kind, mine[0].usd_per_s, now_s + self.system.boot_s))

    def _disturbed(self, kind: str) -> list[str]:
        kinds = {worker.name: worker.kind for worker in self._workers}
        states = (VariantState.INTERFERED, VariantState.OVERLOADED)
        return sorted(
            {key[0] for key, _ in self._items() if kinds[key[1]] == kind and self._tracker.state(*key) in states}
        )

    def _observed(self, worker: Worker, now_s: float) -> WorkerObservation:
        mine = [(name, queue) for (name, at), queue in self._items() if at == worker.name]
        states = {name: self._tracker.state(name, worker.name) for name, _ in mine}
        used = min(1.0, sum(queue.share for _, queue in mine))
        return WorkerObservation(worker.name, worker.kind, {"device": used}, states, boots=worker.ready_s > now_s)

    def _stop_workers(self, now_s: float) -> None:
        holding = {at for (_, at), _ in self._items()}
        for worker in [each for each in self._workers if each.ready_s <= now_s]:
            if worker.name in holding:
                self._emptied.pop(worker.name, None)
                continue
            since = self._emptied.setdefault(worker.name, now_s)
            others = [each for each in self._workers if each.kind == worker.kind and each is not worker]
            if others and now_s - since >= _EMPTY_S:
                self._workers.remove(worker)

    def _hosts(self) -> dict[tuple[str, str], VariantSignals]:
        hosts: dict[tuple[str, str], VariantSignals] = {}
        for worker in self._workers:
            room = self._room(worker)
            for name, cost in self._costs.items():
                if cost.resources.get(worker.kind, math.inf) <= room + _ROUNDING:
                    hosts[name, worker.name] = VariantSignals(Place.INSTANCE, 0, 1.0 - room)
        return hosts

    def _items(self) -> Sequence[tuple[tuple[str, str], _Queue]]:
        return [*self._queues.items()]
