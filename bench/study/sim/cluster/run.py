"""A policy on a cluster's loads: a decision each tick, and requests one by one, or by rates.

Each tick the policy sees the rates of the one before it (the first one sees its own, and what it launches is warm).
Then the tick's requests are divided among instances and go through their queues; where a load has more requests than
`Detail.requests`, that is done in its busiest and its median window alone, and elsewhere a tick is one sum: instances
that are ready answer what they take, and the rest is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from serfer.core.errors import UsageError
from serfer.core.units import MS_PER_S
from serfer.cost.loads.steps import Progress, silent
from serfer.cost.loads.trace import Floats, Trace
from serfer.cost.windows import HOUR_S, Window, windows_of
from serfer_bench.study.policies.infless.fleet import Assignment, ClusterPolicy, Instance, Step
from serfer_bench.study.policies.infless.policies import make_cluster_policy
from serfer_bench.study.policies.infless.profiles import Configuration, Part
from serfer_bench.study.policies.infless.scenario import ClusterScenario
from serfer_bench.study.sim.cluster.queues import Counters, FrontBuffer, Server, advance, offer
from serfer_bench.study.sim.time_series import integrated

Counts = NDArray[np.int64]
MAX_TICKS: Final = 4_000_000


def tick_counts(trace: Trace, period_s: float, ticks: int, rng: Generator) -> Counts:
    """Return whole requests of each tick, (ticks,): the load's own number, broken ones rounded up as often as they are.

    Drawing counts around a load that was counted would make it twice as noisy.
    """
    edges = np.arange(ticks + 1, dtype=np.float64) * period_s
    expected = integrated(trace.starts_s, trace.rates, edges)
    return np.floor(expected + rng.uniform(size=ticks)).astype(np.int64)


def ticks_of(traces: Sequence[Trace], period_s: float) -> int:
    """Return how many ticks the longest load has; raises UsageError for an invalid period, or too many."""
    if not period_s > 0:
        raise UsageError(f"--period-s is more than 0, not {period_s:g}")
    ticks = int(np.ceil(max(one.seconds for one in traces) / period_s - 1e-9))
    if ticks > MAX_TICKS:
        raise UsageError(f"--period-s {period_s:g} makes {ticks:,} steps, more than {MAX_TICKS:,}: give a longer one")
    return max(ticks, 1)


def times_within(count: int, begin_s: float, period_s: float, rng: Generator) -> Floats:
    return np.sort(rng.uniform(begin_s, begin_s + period_s, count))


def divided(times_s: Floats, rates: Sequence[float], rng: Generator) -> Iterator[tuple[int, list[float]]]:
    """Yield each instance's number and its requests: as its rate has it, and spread evenly among all requests.

    A dispatcher that keeps each instance within its bounds sends it every so-manyth request, not a random one. Counts
    are the rates' shares, rounded so that they add up, by one random offset.
    """
    weights = np.asarray(rates, dtype=np.float64)
    total = weights.sum()
    if not len(times_s) or total <= 0:
        return
    bounds = np.floor(np.concatenate(([0.0], np.cumsum(weights) / total)) * len(times_s) + rng.uniform())
    bounds[0], bounds[-1] = 0.0, len(times_s)
    counts = np.diff(bounds).astype(np.int64)
    who = np.repeat(np.arange(len(weights)), counts)
    begin = np.repeat(bounds[:-1], counts)
    phases = rng.uniform(size=len(weights))
    places = (np.arange(len(times_s)) - begin + phases[who]) / counts[who]
    of_time = np.empty(len(times_s), dtype=np.int64)  # the instance of each request, in order of time
    of_time[:] = who[np.argsort(places, kind="stable")]
    order = np.argsort(of_time, kind="stable")
    sorted_times = times_s[order].tolist()
    ends = np.cumsum(counts)
    for number in np.flatnonzero(counts):
        yield int(number), sorted_times[ends[number] - counts[number] : ends[number]]


_REPORTED: Final = 500  # ticks between two reports of progress


@dataclass(frozen=True)
class Detail:
    """Where requests are looked at one by one: everywhere up to so many, else in windows of so many seconds.

    Windows are halved until they have no more than `requests`; with 0 nothing is looked at.
    """

    requests: int = 20_000_000
    window_s: float = HOUR_S


@dataclass(frozen=True, eq=False)
class ClusterLoad:
    """Requests of each tick and function, (ticks, functions), and the ticks that are looked at one by one, (ticks,)."""

    counts: Counts
    period_s: float
    detailed: NDArray[np.bool_]
    windows: tuple[Window, ...]

    @property
    def ticks(self) -> int:
        return len(self.counts)

    @property
    def looked_at(self) -> int:
        return int(self.counts[self.detailed].sum())

    @property
    def seconds(self) -> float:
        return self.ticks * self.period_s


def cluster_load(traces: Sequence[Trace], period_s: float, seed: int, detail: Detail) -> ClusterLoad:
    """Return the requests of functions' loads; a load that ends before the others has none from then on."""
    ticks = ticks_of(traces, period_s)
    rng = np.random.default_rng((seed, 0))
    counts = np.stack([tick_counts(one, period_s, ticks, rng) for one in traces], axis=1)
    total = int(counts.sum())
    if total <= detail.requests:
        return ClusterLoad(counts, period_s, np.full(ticks, fill_value=True), ())
    if not detail.requests:
        return ClusterLoad(counts, period_s, np.zeros(ticks, dtype=bool), ())
    window_s = detail.window_s
    load = _in_windows(counts, period_s, window_s)
    while load.looked_at > detail.requests and window_s > period_s:
        window_s = max(window_s / 2, period_s)
        load = _in_windows(counts, period_s, window_s)
    return load


def _in_windows(counts: Counts, period_s: float, window_s: float) -> ClusterLoad:
    ticks = len(counts)
    windows = windows_of(Trace("all", np.full(ticks, period_s), counts.sum(axis=1) / period_s), window_s)
    detailed = np.zeros(ticks, dtype=bool)
    for one in windows:
        detailed[int(one.begin_s / period_s) : int(np.ceil(one.end_s / period_s))] = True
    return ClusterLoad(counts, period_s, detailed, windows)


@dataclass(eq=False)
class Timeline:
    """What was there in each tick: arrays (ticks,)."""

    units: Floats
    cores: Floats
    gpus: Floats
    instances: Floats
    fragments: Floats
    active_servers: Floats
    usd: Floats
    missed: Floats
    unplaced: Floats

    @classmethod
    def empty(cls, ticks: int) -> Timeline:
        return cls(*(np.zeros(ticks) for _ in range(9)))


@dataclass(eq=False)
class ClusterRun:
    """A policy's counts by function, and its timeline."""

    policy: str
    load: ClusterLoad
    counters: list[Counters]
    timeline: Timeline


def run_cluster(
    scenario: ClusterScenario, name: str, load: ClusterLoad, seed: int = 0, progress: Progress = silent
) -> ClusterRun:
    """Run a policy over a load; the same seed has the same arrivals for every policy."""
    simulation = _Simulation(scenario, make_cluster_policy(name, scenario), load, seed)
    for tick in range(load.ticks):
        if tick % _REPORTED == 0:
            progress(f"{name}: {tick / load.ticks:.0%}")
        simulation.tick(tick)
    simulation.finish()
    return ClusterRun(name, load, simulation.counters, simulation.timeline)


@dataclass
class _Function:
    network: Part
    slo_s: float
    cold_s: float
    servers: dict[int, Server] = field(default_factory=dict)
    buffer: FrontBuffer = field(default_factory=FrontBuffer)


@dataclass
class _Kind:
    """Ready instances of one configuration: one of them, the requests a second of each, and how many there are."""

    server: Server
    rate: float
    count: int = 0


class _Simulation:
    def __init__(self, scenario: ClusterScenario, policy: ClusterPolicy, load: ClusterLoad, seed: int) -> None:
        self._scenario, self._policy, self._load, self._seed = scenario, policy, load, seed
        self._functions = [
            _Function(known.network, known.slo_s, spec.cold_ms / MS_PER_S)
            for known, spec in zip(policy.functions, scenario.functions, strict=True)
        ]
        self.counters = [Counters(one.slo_s) for one in self._functions]
        self.timeline = Timeline.empty(load.ticks)
        self._errors = [_Errors(scenario, (seed, 1, at)) for at in range(len(self._functions))]
        self._units = self._cores = self._gpus = 0.0
        self._usd: list[float] = scenario.server_usd_per_hour
        self._on: dict[int, int] = {}  # instances of each server that has one
        self._server_usd = 0.0

    def tick(self, tick: int) -> None:
        load = self._load
        begin_s, counts = tick * load.period_s, load.counts[tick]
        rates = load.counts[max(tick - 1, 0)] / load.period_s
        step = self._policy.step(begin_s, rates.tolist())
        self._apply(step, begin_s, warm=tick == 0)
        before = sum(one.late + one.dropped for one in self.counters)
        for function, count in enumerate(counts.tolist()):
            self.counters[function].requests += count
            if load.detailed[tick]:
                self._requests(function, count, begin_s, tick)
            else:
                self._rates(function, count, begin_s)
        self._record(tick, step, sum(one.late + one.dropped for one in self.counters) - before)

    def finish(self) -> None:
        for function in range(len(self._functions)):
            self._advance(function, float("inf"))

    def _apply(self, step: Step, now_s: float, *, warm: bool) -> None:
        for one in step.stopped:
            function = self._functions[one.function]
            server = function.servers.pop(one.number)
            advance(server, float("inf"), self._timeout_s(server), self.counters[one.function])
            self._occupy(one, -1)
        for one in step.launched:
            self.counters[one.function].launches += not warm
        for one in (*step.launched, *step.prewarmed):
            function = self._functions[one.function]
            free_s = now_s if warm else now_s + function.cold_s
            exec_s = self._errors[one.function].times(function.network, one.option.configuration)
            function.servers[one.number] = Server(one, free_s, exec_s.__getitem__, one.option.units)
            self._occupy(one, 1)

    def _occupy(self, one: Instance, sign: int) -> None:
        placement = one.placement
        self._units += sign * one.option.units
        self._cores += sign * placement.cores
        self._gpus += sign * placement.share / 100
        before = self._on.get(placement.server, 0)
        self._on[placement.server] = before + sign
        if 0 in (before, before + sign):
            self._server_usd += sign * self._usd[placement.server]

    def _timeout_s(self, server: Server) -> float:
        """Return how long a batch may wait for others: its execution, as it is predicted, still keeps the SLO."""
        slo_s = self._functions[server.instance.function].slo_s
        return max(slo_s - server.instance.option.exec_s, 0.0)

    def _requests(self, function: int, count: int, begin_s: float, tick: int) -> None:
        counters, known = self.counters[function], self._functions[function]
        rng = np.random.default_rng((self._seed, 2, tick, function))
        times = times_within(count, begin_s, self._load.period_s, rng)
        assigned = self._policy.assigned(function, count / self._load.period_s)
        servers = [known.servers[one.instance.number] for one in assigned]
        front = self._policy.front(function)
        if front is not None:
            known.buffer.offer(times.tolist(), front, servers, counters)
        elif not servers:
            counters.dropped += count
        else:
            for number, part in divided(times, _ready_first(assigned, servers, begin_s), rng):
                offer(servers[number], part, self._timeout_s(servers[number]), counters)
        self._advance(function, begin_s + self._load.period_s)

    def _advance(self, function: int, until_s: float) -> None:
        counters, known = self.counters[function], self._functions[function]
        front = self._policy.front(function)
        if front is not None:
            known.buffer.advance(until_s, front, [*known.servers.values()], counters)
            return
        for server in known.servers.values():
            if server.pending:
                advance(server, until_s, self._timeout_s(server), counters)

    def _rates(self, function: int, count: int, begin_s: float) -> None:
        """Answer what ready instances take, in full batches where the rate fills them; drop the rest."""
        counters, known = self.counters[function], self._functions[function]
        left, period_s = float(count), self._load.period_s
        kinds: dict[int, _Kind] = {}  # by the identity of their option, which all instances of it share
        for one in self._policy.assigned(function, count / period_s):
            server = known.servers[one.instance.number]
            if server.free_s <= begin_s:
                kind = kinds.get(id(one.instance.option))
                if kind is None:
                    kinds[id(one.instance.option)] = kind = _Kind(server, one.rate)
                kind.count += 1
        for kind in kinds.values():
            option = kind.server.instance.option
            batch = option.configuration.batch
            filled = batch if kind.rate >= option.low else int(kind.rate * self._timeout_s(kind.server))
            filled = max(1, min(filled, batch))
            seconds = kind.server.exec_s(filled)
            taken = min(left, kind.count * period_s * min(kind.rate, filled / seconds))
            left -= taken
            counters.busy_unit_s += taken / filled * seconds * option.units
            counters.batches[filled] += round(taken)
        answered = count - round(left)
        counters.met += answered
        counters.dropped += count - answered

    def _record(self, tick: int, step: Step, missed: int) -> None:
        timeline = self.timeline
        timeline.units[tick], timeline.cores[tick], timeline.gpus[tick] = self._units, self._cores, self._gpus
        timeline.instances[tick] = sum(len(one.servers) for one in self._functions)
        timeline.fragments[tick] = self._policy.servers.fragments
        timeline.active_servers[tick] = self._policy.servers.active
        timeline.usd[tick], timeline.missed[tick], timeline.unplaced[tick] = self._server_usd, missed, step.unplaced


def _ready_first(assigned: Sequence[Assignment], servers: Sequence[Server], now_s: float) -> list[float]:
    """Return rates by which those that are ready get as much as they take, and those that start the rest."""
    rates = [one.rate for one in assigned]
    starting = [server.free_s > now_s + server.instance.option.exec_s for server in servers]
    if not any(starting) or all(starting):
        return rates
    total = sum(rates)
    up = [one.instance.option.up * (not later) for one, later in zip(assigned, starting, strict=True)]
    rest = max(total - sum(up), 0.0)
    scale = min(1.0, total / sum(up))
    late = sum(rate for rate, later in zip(rates, starting, strict=True) if later)
    return [
        rest * rate / late if later and late else most * scale
        for rate, most, later in zip(rates, up, starting, strict=True)
    ]


class _Errors:
    """Execution times as they are: the profile's, times a factor for each configuration that no profile knows of."""

    def __init__(self, scenario: ClusterScenario, seed: tuple[int, ...]) -> None:
        self._most, self._seed = scenario.policy.exec_error, seed
        self._sizes = range(max(scenario.cluster.batches) + 1)  # a buffer's batch may exceed an older instance's
        self._known: dict[Configuration, list[float]] = {}

    def times(self, network: Part, one: Configuration) -> list[float]:
        """Return seconds by batch size, from 0; the same for every policy."""
        if one not in self._known:
            rng = np.random.default_rng((*self._seed, one.batch, one.cores, one.share))
            factor = 1 + self._most * rng.uniform(-1, 1)
            self._known[one] = [
                factor * network.ms(Configuration(size, one.cores, one.share)) / MS_PER_S for size in self._sizes
            ]
        return self._known[one]
