"""A stretch of a load query by query: the real router under a virtual clock.

    arrivals (rows', seeded) ──> Router.route ──> an instance's queue ──> batches, as soon as it is free
                                            └──> Lambda: a driver's slot, a warm environment, or a new one; a time
                                                 is drawn; throttled: again after a while; late: a duplicate
    every period ──> Router.tick with what came ──> instances launched, which serve after their boot, and stopped

A tick sees the latencies of the queries that were sent to Lambda or began to be computed since the one before: at most
a batch or an invocation before they are answered. An instance that is stopped finishes what waits at it; a burstable
one computes at its baseline when its CPU credits are used up. Lambda reuses the environment that was used last, and
drops one that was idle for `keep_alive_s`. What a driver has to do later (retries, duplicates, queries that wait for a
slot) is in a heap of its own, so that it costs nothing where there is none of it.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

import numpy as np

from serfer.control.policy import NO_QUERIES, LatencyWindow, Observation, ProvisioningPlan
from serfer.control.router import SERVERLESS, Endpoint, Reason, Router
from serfer.control.scenario import Scenario
from serfer.core.errors import UsageError
from serfer.core.hedging import QUANTILE
from serfer.core.run_machine import Retry
from serfer.cost.driver_limits import DriverLimits, Growth, KnownHedging
from serfer.cost.fleet import CreditBalance, Fleet, Instance, Purchase, SpotLosses, interruptions_of
from serfer.cost.loads.arrivals import arrivals_in_steps
from serfer.cost.loads.steps import Progress, Steps, silent
from serfer.cost.loads.trace import Floats
from serfer.cost.service_times import ServiceTimes
from serfer.cost.windows import Window

MAX_QUERIES: Final = 50_000_000
_LONGEST_LEAD_S: Final = 900.0
_CHUNK: Final = 200  # steps between two reports of progress
_MS: Final = 1000.0
_RETRY: Final = Retry()


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A query that is to be invoked: when it came, how often it was throttled.

    Of a duplicate, `done` is when the first attempt answers.
    """

    came: float
    throttles: int = 0
    done: float = math.inf


@dataclass(slots=True, eq=False)
class SimulatedInstance:
    """An instance: the arrivals that wait at it, and how many images it computes now."""

    name: str
    kind: int  # its type's place in the scenario
    ready_s: float
    launched: Instance
    most: int  # images in a batch
    window_s: float = 0.0  # for which it waits for a full one
    queue: deque[float] = field(default_factory=deque)
    computing: int = 0
    next_s: float = math.inf  # when its batch is done, or its window over
    batch: int = 0  # as the plan set it
    place: int = -1  # its place among those that serve, -1 for none
    on: bool = True
    credits: CreditBalance | None = None  # of a burstable one


@dataclass(frozen=True, eq=False)
class QueriesResult:
    """The outcome of a window's queries: each was answered, refused (429), throttled by a full Lambda, or failed.

    They fail past their deadline, only in simulations task by task. `latencies_s` are those of the answered queries,
    `idle_gb_s` is the memory of environments that were warm and idle, `instances_usd` the price of instances. There
    were `retries` after Lambda had throttled, `queued` invocations waited for a driver's slot, and `hedges` duplicated
    what was late, at the price of `duplicates` queries. Lambda is paid for each of `pings`, which start environments
    that a plan wants warm, as for a query.
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
    retries: int
    queued: int
    hedges: int
    duplicates: float
    pings: int = 0

    @property
    def on_serverless(self) -> int:
        """The number of queries that Lambda was paid for; those that failed there too."""
        return self.queries - self.refused - self.throttled - self.on_instances

    def usd(self, scenario: Scenario) -> float:
        lambdas = self.on_serverless + self.duplicates + self.pings
        return lambdas * scenario.serverless.usd_per_query + self.instances_usd


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
        limits: DriverLimits | None = None,
    ) -> None:
        self._scenario, self._router = scenario, router
        self._kinds = {kind.name: place for place, kind in enumerate(scenario.instances)}
        self._batch_s = [
            [kind.batch_ms(images) / _MS for images in range(kind.max_batch + 1)] for kind in scenario.instances
        ]
        self._rng = np.random.default_rng(seed)
        self._busy: list[float] = []  # a heap: when Lambda's environments are free
        self._warm, self._cold = services.draws(self._rng, self._busy)
        self._number = 0
        self._fleet = Fleet(scenario, losses)
        self._instances: dict[Instance, SimulatedInstance] = {}
        self._booting: list[tuple[float, int, SimulatedInstance]] = []  # a heap: when they serve
        self._endpoints: list[Endpoint] = []
        self._named: dict[str, SimulatedInstance] = {}
        self._plan = ProvisioningPlan((), "nothing is planned yet")
        self._computing: list[tuple[float, int, SimulatedInstance]] = []  # a heap: when batches are done
        self._limits = limits or DriverLimits()
        self._idle = deque([0.0] * self._limits.provisioned)  # since when others are, the longest first
        self._slots = self._limits.drivers * self._limits.slots_of_each(scenario.serverless.concurrency)
        self._growth = Growth(self._limits.growth)
        usual_s = services.warm_s.at(QUANTILE) if self._limits.hedge and services.one_task else math.inf
        self._answered_before = 0
        self._latencies, self._on_instances = array("d"), 0
        self._hedging = KnownHedging([usual_s], self._answered)
        self._late_after_s = self._hedging.late_after(0) or math.inf
        self._due: list[tuple[float, int, _Attempt | None]] = []  # a heap of attempts; None: a slot may be free
        self._waiting: list[tuple[float, int, _Attempt]] = []  # a heap of those for which there is no slot, by age
        self._unsent = 0  # queries that wait for a slot, or to be tried again
        self._jitter = np.random.default_rng((seed, 1))
        for instance in self._fleet.resume(launches):
            self._launch(instance)
        self._count_from(0.0)

    def _count_from(self, time: float) -> None:
        self._since = time
        self._answered_before = self._answered()
        self._retries = self._queued = self._hedges = 0
        self._duplicates = 0.0
        self._queries = self._refused = self._throttled = self._failed = self._pings = 0
        self._on_instances = self._colds = self._batches = self._launches = 0
        self._idle_gb_s = self._instances_usd = 0.0
        self._latencies = array("d")
        self._seen = 0  # of those, by the policy

    def _answered(self) -> int:
        return self._answered_before + len(self._latencies) - self._on_instances

    def over(self, steps: Steps, begin_s: float, window: Window, progress: Progress = silent) -> QueriesResult:
        """Run over steps, the first of which begins at `begin_s`, and count from the window's beginning on."""
        expected = float(steps.durations_s @ steps.rates)
        if expected > MAX_QUERIES:
            raise UsageError(f"{expected:,.0f} queries are too many for --level queries: give a shorter --window-s")
        now, counting, seen = begin_s, False, 0
        counts = arrivals_in_steps(steps, self._rng).tolist()
        for number, (seconds, count) in enumerate(zip(steps.durations_s.tolist(), counts, strict=True)):
            if not counting and now >= window.begin_s - 1e-9:
                self._count_from(now)
                counting = True
            if number % _CHUNK == 0:
                progress(f"{self._router.policy.name}, {window.name} hour: {seen / max(expected, 1):.0%}")
            times = np.sort(self._rng.random(count)) * seconds + now
            now += seconds
            seen += len(times)
            self._step(times.tolist(), now, seconds)
        self._drain(now)
        return self._result(window)

    def through(self, times: Floats, begin_s: float, window: Window, period_s: float = math.inf) -> QueriesResult:
        """Run queries that come at these times, ascending, from `begin_s` on, with the instances as they are.

        The policy decides at the window's beginning, from which on queries count, every `period_s` seconds of it, and
        at its end.
        """
        done = int(np.searchsorted(times, window.begin_s))
        if window.begin_s > begin_s:
            self._step(times[:done].tolist(), window.begin_s, window.begin_s - begin_s)
            self._count_from(window.begin_s)
        now = window.begin_s
        while now < window.end_s:
            until = min(now + period_s, window.end_s)
            before, done = done, len(times) if until == window.end_s else int(np.searchsorted(times, until))
            self._step(times[before:done].tolist(), until, until - now)
            now = until
        self._drain(window.end_s)
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
        self._invoke_due(end)
        self._finish_batches(end)
        lost = self._fleet.lose(end)
        for instance in lost:
            self._lose(self._instances.pop(instance), end)
        groups, rate = self._fleet.groups(end), len(times) / seconds
        seen = Observation(end, seconds, rate, groups, self._new_latencies(), interruptions_of(lost))
        plan = self._plan = self._router.tick(seen)
        launched, stopped = self._fleet.carry_out(end, plan)
        before = self._pings
        self._keep_warm(plan.warm, end)
        pings_usd = (self._pings - before) * self._scenario.serverless.usd_per_query
        self._router.budget_limiter.pay(end, pings_usd)
        for known in self._instances.values():
            if known.launched.batch != known.batch:
                self._set_batch(known)
                self._note(known)
        for instance in launched:
            self._launch(instance)
        self._launches += len(launched)
        for instance in stopped:
            self._stop(self._instances.pop(instance))

    def _new_latencies(self) -> LatencyWindow:
        new_ms = np.array(self._latencies[self._seen :]) * _MS
        if not new_ms.size:
            return NO_QUERIES
        self._seen += new_ms.size
        late = int((new_ms > self._scenario.slo_ms).sum())
        return LatencyWindow(new_ms.size, late, float(np.quantile(new_ms, 0.99, method="inverted_cdf")))

    def _arrive(self, times: list[float]) -> None:
        """Route queries in the order of their arrivals: the hot loop."""
        route, endpoints, busy, idle, named = self._router.route, self._endpoints, self._busy, self._idle, self._named
        computing, latencies, warm, due = self._computing, self._latencies, self._warm, self._due
        slots, late_after_s = self._slots, self._late_after_s
        self._queries += len(times)
        for now in times:
            if computing and computing[0][0] <= now:
                self._finish_batches(now)
            if due:
                self._invoke_due(now)
            while busy and busy[0] <= now:
                idle.append(heappop(busy))
            in_flight = len(busy) + self._unsent if due else len(busy)
            decision = route(now, endpoints, in_flight)
            targets = decision.targets
            if not targets:
                self._turn_away(decision.reason)
            elif targets[0] == SERVERLESS:
                if idle and in_flight < slots and self._reuse(now):
                    took = next(warm)
                    heappush(busy, now + took)
                    if took <= late_after_s:
                        latencies.append(took)
                    else:
                        self._later(now + late_after_s, _Attempt(now, done=now + took))
                else:
                    self._invoke(_Attempt(now), now)
            else:
                self._enqueue(named[targets[0]], now)

    def _enqueue(self, instance: SimulatedInstance, now: float) -> None:
        instance.queue.append(now)
        if instance.computing:
            self._note(instance)
        else:
            self._compute(instance, now)

    def _turn_away(self, reason: Reason) -> None:
        if reason is Reason.LAMBDA_FULL:
            self._throttled += 1
        else:
            self._refused += 1

    def _reuse(self, now: float) -> bool:
        keep, idle = self._scenario.serverless.keep_alive_s, self._idle
        stays = self._limits.provisioned - len(self._busy)
        while idle and idle[0] + keep <= now and len(idle) > stays:
            self._was_idle(idle[0], idle.popleft() + keep)
        if not idle:
            return False
        self._was_idle(idle.pop(), now)
        return True

    def _keep_warm(self, count: int, now: float) -> None:
        """Ping as many new environments as are missing to so many, as Lambda allows; each is busy starting first."""
        keep, idle, busy = self._scenario.serverless.keep_alive_s, self._idle, self._busy
        while busy and busy[0] <= now:
            idle.append(heappop(busy))
        while idle and idle[0] + keep <= now:
            self._was_idle(idle[0], idle.popleft() + keep)
        for _ in range(min(count, self._scenario.serverless.concurrency) - len(busy) - len(idle)):
            if not self._growth.take(now):
                break
            heappush(busy, now + next(self._warm) + next(self._cold))
            self._pings += 1

    def _was_idle(self, since: float, until: float) -> None:
        self._idle_gb_s += max(0.0, until - max(since, self._since)) * self._scenario.serverless.memory_gb

    def _later(self, time: float, attempt: _Attempt | None) -> None:
        self._number += 1
        heappush(self._due, (time, self._number, attempt))

    def _invoke_due(self, until: float) -> None:
        due, busy = self._due, self._busy
        while due and due[0][0] <= until:
            now, _, attempt = heappop(due)
            while busy and busy[0] <= now:
                self._idle.append(heappop(busy))
            if attempt is not None:
                self._unsent -= attempt.throttles > 0
                self._invoke(attempt, now)
                continue
            while self._waiting and len(busy) < self._slots:
                attempt = heappop(self._waiting)[2]
                self._unsent -= attempt.done == math.inf
                self._send(attempt, now)
            if self._waiting:
                self._later(busy[0], None)

    def _invoke(self, attempt: _Attempt, now: float) -> None:
        if len(self._busy) < self._slots:
            self._send(attempt, now)
            return
        if not self._waiting:
            self._later(self._busy[0], None)
        self._queued += attempt.came >= self._since
        self._unsent += attempt.done == math.inf
        self._number += 1
        heappush(self._waiting, (attempt.came, self._number, attempt))

    def _send(self, attempt: _Attempt, now: float) -> None:
        """Have an environment compute a query; without one it is tried again later."""
        is_duplicate = attempt.done < math.inf
        if is_duplicate and (attempt.done <= now or not self._hedging.spend()):
            self._answer(attempt.came, attempt.done)
            return
        took = self._environment_s(now)
        if took is None:
            if is_duplicate:
                self._answer(attempt.came, attempt.done)
            else:
                self._throttle(attempt, now)
            return
        done = now + took
        heappush(self._busy, done)
        if is_duplicate:
            counts = attempt.came >= self._since
            self._hedges += counts
            self._duplicates += counts
            self._answer(attempt.came, min(done, attempt.done))
        elif took > self._late_after_s:
            self._later(now + self._late_after_s, _Attempt(attempt.came, done=done))
        else:
            self._answer(attempt.came, done)

    def _environment_s(self, now: float) -> float | None:
        if len(self._busy) >= self._scenario.serverless.concurrency:
            return None
        if self._idle and self._reuse(now):
            return next(self._warm)
        if not self._growth.take(now):
            return None
        self._colds += 1
        return next(self._warm) + next(self._cold)

    def _throttle(self, attempt: _Attempt, now: float) -> None:
        throttles, counts = attempt.throttles + 1, attempt.came >= self._since
        if throttles >= _RETRY.throttled_attempts:
            self._throttled += counts
            return
        self._retries += counts
        self._unsent += 1
        wait_s = _RETRY.backoff.wait(throttles, self._jitter.random())
        self._later(now + wait_s, _Attempt(attempt.came, throttles))

    def _answer(self, came: float, done: float) -> None:
        if came >= self._since:
            self._latencies.append(done - came)

    def _compute(self, instance: SimulatedInstance, now: float) -> None:
        queue = instance.queue
        images = min(len(queue), instance.most)
        if instance.window_s and 0 < images < instance.most and queue[0] + instance.window_s > now:
            instance.computing = 0
            self._look(instance, queue[0] + instance.window_s)
            self._note(instance)
            return
        instance.computing, instance.next_s = images, math.inf
        if images:
            took = self._batch_seconds(instance, images)
            done = now + (instance.credits.compute(now, took) if instance.credits else took)
            came = [queue.popleft() for _ in range(images)]
            if came[-1] >= self._since:
                counted = [done - time for time in came if time >= self._since]
                self._latencies.extend(counted)
                self._on_instances += len(counted)
                self._batches += 1
            self._look(instance, done)
        self._note(instance)

    def _batch_seconds(self, instance: SimulatedInstance, images: int) -> float:
        return self._batch_s[instance.kind][images]

    def _look(self, instance: SimulatedInstance, time: float) -> None:
        """Look at an instance again at a time, and at none that was set before."""
        if instance.next_s != time:
            instance.next_s = time
            self._number += 1
            heappush(self._computing, (time, self._number, instance))

    def _note(self, instance: SimulatedInstance) -> None:
        if instance.place >= 0:
            waiting = len(instance.queue) + instance.computing
            self._endpoints[instance.place] = Endpoint(instance.name, waiting, instance.kind, instance.launched.batch)

    def _finish_batches(self, now: float) -> None:
        computing = self._computing
        while computing and computing[0][0] <= now:
            done, _, instance = heappop(computing)
            if instance.next_s == done:
                instance.next_s = math.inf
                self._compute(instance, done)

    def _launch(self, launched: Instance) -> None:
        self._number += 1
        name, kind = f"i{self._number}", self._kinds[launched.kind.name]
        instance = SimulatedInstance(name, kind, launched.ready_s, launched, launched.kind.max_batch)
        if launched.kind.credits is not None:
            instance.credits = CreditBalance(launched.kind.credits, launched.launched_s)
        self._set_batch(instance)
        self._instances[launched] = instance
        heappush(self._booting, (instance.ready_s, self._number, instance))

    def _set_batch(self, instance: SimulatedInstance) -> None:
        """Take over the batch size that the plan has set, and its window; a batch that runs or fills up ends first."""
        kind, batch = instance.launched.kind, instance.launched.batch
        instance.batch, instance.most = batch, min(batch, kind.max_batch) or kind.max_batch
        instance.window_s = self._plan.window_s(kind, batch, self._scenario.slo_ms)

    def _serve(self, instance: SimulatedInstance) -> None:
        instance.place = len(self._endpoints)
        self._endpoints.append(Endpoint(instance.name, 0, instance.kind, instance.launched.batch))
        self._named[instance.name] = instance

    def _stop(self, instance: SimulatedInstance) -> None:
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

    def _lose(self, instance: SimulatedInstance, now: float) -> None:
        """A batch that it computes counts as computed: notice comes two minutes before the end."""
        self._stop(instance)
        waiting, instance.queue = instance.queue, deque()
        for came in waiting:
            self._fall_back(came, now)

    def _fall_back(self, came: float, now: float) -> None:
        self._invoke(_Attempt(came), now)

    def _drain(self, now: float) -> None:
        while self._computing:
            self._finish_batches(self._computing[0][0])
        self._invoke_due(math.inf)
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
            retries=self._retries,
            queued=self._queued,
            hedges=self._hedges,
            duplicates=self._duplicates,
            pings=self._pings,
        )
