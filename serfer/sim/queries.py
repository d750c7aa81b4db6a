"""A stretch of a load query by query: the real router under a virtual clock.

    arrivals (Poisson, seeded) ──> Router.route ──> an instance's queue ──> batches, as soon as it is free
                                              └──> Lambda: a warm environment, or a new one; a time is drawn
    every period ──> Router.tick with what came ──> instances launched, which serve after their boot, and stopped

An instance that is stopped finishes what waits at it. Lambda reuses the environment that was used last, and drops one
that was idle for `keep_alive_s`. The heaps hold only numbers: a million queries take about half a minute.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

import numpy as np

from serfer.control.policy import Observation
from serfer.control.router import SERVERLESS, Endpoint, Reason, Router
from serfer.control.scenario import Scenario
from serfer.core.errors import UsageError
from serfer.sim.fleet import Fleet, Instance, Purchase, SpotLosses, interruptions_of
from serfer.sim.hours import Window
from serfer.sim.rates import Progress, Steps, silent
from serfer.sim.service_times import ServiceTimes
from serfer.sim.traces import Floats

MAX_QUERIES: Final = 50_000_000
_LONGEST_LEAD_S: Final = 900.0
_CHUNK: Final = 200  # steps between two reports of progress
_MS: Final = 1000.0


@dataclass(slots=True, eq=False)
class _Instance:
    """An instance: the arrivals that wait at it, and how many images it computes now."""

    name: str
    kind: int  # its type's place in the scenario
    ready_s: float
    queue: deque[float] = field(default_factory=deque)
    computing: int = 0
    place: int = -1  # its place among those that serve, -1 for none
    on: bool = True


@dataclass(frozen=True, eq=False)
class QueriesResult:
    """The outcome of a window's queries: each was answered, refused (429), throttled by a full Lambda, or failed.

    They fail past their deadline, only in simulations task by task. `latencies_s` are those of the answered queries,
    `idle_gb_s` is the memory of environments that were warm and idle, `instances_usd` the price of instances.
    """

    window: Window
    queries: int
    refused: int
    throttled: int
    failed: int
    on_instances: int
    latencies_s: Floats
    cold_starts: int
    idle_gb_s: float
    batches: int
    launches: int
    instances_usd: float

    @property
    def on_serverless(self) -> int:
        """The number of queries that Lambda was paid for; those that failed there too."""
        return self.queries - self.refused - self.throttled - self.on_instances

    def usd(self, scenario: Scenario) -> float:
        """Price the window as the router spent it: Lambda's queries, and instances from their launches on."""
        return self.on_serverless * scenario.serverless.usd_per_query + self.instances_usd


def warm_up_s(scenario: Scenario) -> float:
    """Return how many seconds before a window a simulation should begin for its environments to be as warm."""
    return min(scenario.serverless.keep_alive_s, _LONGEST_LEAD_S)


class QueriesRun:
    """A run over steps, from a router that has seen what came before and the launches of the instances that are on."""

    def __init__(
        self,
        scenario: Scenario,
        router: Router,
        services: ServiceTimes,
        launches: Sequence[tuple[float, Purchase]],
        seed: int,
        losses: SpotLosses | None = None,
    ) -> None:
        self._scenario, self._router = scenario, router
        self._kinds = {kind.name: place for place, kind in enumerate(scenario.instances)}
        self._batch_s = [
            [kind.batch_ms(images) / _MS for images in range(kind.max_batch + 1)] for kind in scenario.instances
        ]
        self._rng = np.random.default_rng(seed)
        self._warm, self._cold = services.warm_s.samples(self._rng), services.cold_s.samples(self._rng)
        self._number = 0
        self._fleet = Fleet(scenario, losses)
        self._instances: dict[Instance, _Instance] = {}
        self._booting: list[tuple[float, int, _Instance]] = []  # a heap: when they serve
        self._endpoints: list[Endpoint] = []
        self._named: dict[str, _Instance] = {}
        self._computing: list[tuple[float, int, _Instance]] = []  # a heap: when batches are done
        self._busy: list[float] = []  # a heap: when Lambda's environments are free
        self._idle: deque[float] = deque()  # since when others are, the longest first
        for instance in self._fleet.resume(launches):
            self._launch(instance)
        self._count_from(0.0)

    def _count_from(self, time: float) -> None:
        """Begin to count."""
        self._since = time
        self._queries = self._refused = self._throttled = self._failed = 0
        self._on_instances = self._colds = self._batches = self._launches = 0
        self._idle_gb_s = self._instances_usd = 0.0
        self._latencies = array("d")

    def over(self, steps: Steps, begin_s: float, window: Window, progress: Progress = silent) -> QueriesResult:
        """Run over steps, the first of which begins at `begin_s`, and count from the window's beginning on."""
        expected = float(steps.durations_s @ steps.rates)
        if expected > MAX_QUERIES:
            raise UsageError(f"{expected:,.0f} queries are too many for --level queries: give a shorter --window-s")
        now, counting, seen = begin_s, False, 0
        for number, (seconds, rate) in enumerate(zip(steps.durations_s.tolist(), steps.rates.tolist(), strict=True)):
            if not counting and now >= window.begin_s - 1e-9:
                self._count_from(now)
                counting = True
            if number % _CHUNK == 0:
                progress(f"{self._router.policy.name}, {window.name} hour: {seen / max(expected, 1):.0%}")
            times = np.sort(self._rng.random(self._rng.poisson(rate * seconds))) * seconds + now
            now += seconds
            seen += len(times)
            self._step(times.tolist(), now, seconds)
        self._drain(now)
        return self._result(window)

    def _step(self, times: list[float], end: float, seconds: float) -> None:
        """Simulate arrivals and boots up to the step's end, where the router decides."""
        begin = 0
        self._instances_usd += seconds * self._fleet.usd_per_s
        while self._booting and self._booting[0][0] <= end:
            _, _, ready = heappop(self._booting)
            if not ready.on:
                continue
            until = bisect_left(times, ready.ready_s, begin)
            self._arrive(times[begin:until])
            begin = until
            self._serve(ready)
        self._arrive(times[begin:] if begin else times)
        self._finish_batches(end)
        lost = self._fleet.lose(end)
        for instance in lost:
            self._lose(self._instances.pop(instance), end)
        seen = Observation(
            end, seconds, len(times) / seconds, self._fleet.groups(end), interruptions=interruptions_of(lost)
        )
        launched, stopped = self._fleet.carry_out(end, self._router.tick(seen).instances)
        for instance in launched:
            self._launch(instance)
        self._launches += len(launched)
        for instance in stopped:
            self._stop(self._instances.pop(instance))

    def _arrive(self, times: list[float]) -> None:
        """Route queries in the order of their arrivals: the hot loop."""
        route, endpoints, busy, idle, named = self._router.route, self._endpoints, self._busy, self._idle, self._named
        computing, latencies, warm = self._computing, self._latencies, self._warm
        self._queries += len(times)
        for now in times:
            if computing and computing[0][0] <= now:
                self._finish_batches(now)
            while busy and busy[0] <= now:
                idle.append(heappop(busy))
            decision = route(now, endpoints, len(busy))
            targets = decision.targets
            if not targets:
                self._turn_away(decision.reason)
            elif targets[0] == SERVERLESS:
                took = next(warm) if idle and self._reuse(now) else self._cold_start()
                latencies.append(took)
                heappush(busy, now + took)
            else:
                self._enqueue(named[targets[0]], now)

    def _enqueue(self, instance: _Instance, now: float) -> None:
        """Queue a query at an instance that serves."""
        instance.queue.append(now)
        if instance.computing:
            self._endpoints[instance.place] = Endpoint(
                instance.name, len(instance.queue) + instance.computing, instance.kind
            )
        else:
            self._compute(instance, now)

    def _turn_away(self, reason: Reason) -> None:
        if reason is Reason.LAMBDA_FULL:
            self._throttled += 1
        else:
            self._refused += 1

    def _reuse(self, now: float) -> bool:
        """Take the environment that was used last, if one is left that was used lately."""
        keep, idle = self._scenario.serverless.keep_alive_s, self._idle
        while idle and idle[0] + keep <= now:
            self._was_idle(idle[0], idle.popleft() + keep)
        if not idle:
            return False
        self._was_idle(idle.pop(), now)
        return True

    def _was_idle(self, since: float, until: float) -> None:
        self._idle_gb_s += max(0.0, until - max(since, self._since)) * self._scenario.serverless.memory_gb

    def _cold_start(self) -> float:
        self._colds += 1
        return next(self._warm) + next(self._cold)

    def _compute(self, instance: _Instance, now: float) -> None:
        """Start a batch of what waits, as large as batches are, or let the instance rest."""
        queue, batch_s = instance.queue, self._batch_s[instance.kind]
        instance.computing = images = min(len(queue), len(batch_s) - 1)
        if images:
            done = now + batch_s[images]
            came = [queue.popleft() for _ in range(images)]
            if came[-1] >= self._since:
                counted = [done - time for time in came if time >= self._since]
                self._latencies.extend(counted)
                self._on_instances += len(counted)
                self._batches += 1
            self._number += 1
            heappush(self._computing, (done, self._number, instance))
        if instance.place >= 0:
            self._endpoints[instance.place] = Endpoint(instance.name, len(queue) + images, instance.kind)

    def _finish_batches(self, now: float) -> None:
        computing = self._computing
        while computing and computing[0][0] <= now:
            done, _, instance = heappop(computing)
            self._compute(instance, done)

    def _launch(self, launched: Instance) -> None:
        self._number += 1
        instance = _Instance(f"i{self._number}", self._kinds[launched.kind.name], launched.ready_s)
        self._instances[launched] = instance
        heappush(self._booting, (instance.ready_s, self._number, instance))

    def _serve(self, instance: _Instance) -> None:
        instance.place = len(self._endpoints)
        self._endpoints.append(Endpoint(instance.name, 0, instance.kind))
        self._named[instance.name] = instance

    def _stop(self, instance: _Instance) -> None:
        """Send no more queries to an instance; what waits at it is still computed."""
        instance.on = False
        if instance.place < 0:
            return
        last = self._endpoints.pop()
        if last.name != instance.name:  # the last one takes its place
            self._endpoints[instance.place] = last
            self._named[last.name].place = instance.place
        self._named.pop(instance.name)
        instance.place = -1

    def _lose(self, instance: _Instance, now: float) -> None:
        """Take an instance away: what waits at it is sent to Lambda; a batch that it computes counts as computed.

        Instances are warned two minutes before they end, far longer than a batch takes.
        """
        self._stop(instance)
        waiting, instance.queue = instance.queue, deque()
        for came in waiting:
            self._fall_back(came, now)

    def _fall_back(self, came: float, now: float) -> None:
        """Run a query on Lambda that waited at an instance since it came."""
        took = next(self._warm) if self._idle and self._reuse(now) else self._cold_start()
        heappush(self._busy, now + took)
        if came >= self._since:
            self._latencies.append(now + took - came)

    def _drain(self, now: float) -> None:
        """Compute what still waits after the last arrival, and count what environments were idle until then."""
        while self._computing:
            self._finish_batches(self._computing[0][0])
        while self._busy and self._busy[0] <= now:
            self._idle.append(heappop(self._busy))
        for since in self._idle:
            self._was_idle(since, min(now, since + self._scenario.serverless.keep_alive_s))

    def _result(self, window: Window) -> QueriesResult:
        return QueriesResult(
            window=window,
            queries=self._queries,
            refused=self._refused,
            throttled=self._throttled,
            failed=self._failed,
            on_instances=self._on_instances,
            latencies_s=np.frombuffer(self._latencies, dtype=np.float64) if self._latencies else np.empty(0),
            cold_starts=self._colds,
            idle_gb_s=self._idle_gb_s,
            batches=self._batches,
            launches=self._launches,
            instances_usd=self._instances_usd,
        )
