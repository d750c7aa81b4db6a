"""Queries on Lambda task by task: the run machine of serfer/core/run_machine.py under a virtual clock.

    query ──> Run ──> Invoke ──> a driver's slot ──> an environment of the task's function, warm or new ──> TaskDone
               └──> late: a duplicate     └──> as many run as the account allows, or the function has gained as many as
                                               it may: throttled, and the run machine waits and tries again

A driver that has sent nothing for as long as environments stay starts those of a query's later stages with it, in free
slots, and their tasks wait for them, as drivers/dispatching/prewarming.py has it (there for ten seconds at most).

A gang is invoked as a whole: a member for which there is no room ends all of it, and its stages run one by one (as fast
as in the gang: what they would write and read is not simulated). Members start together, do each stage as slowly as the
slowest of them, and keep their environments until the last one has ended.

Queries go to the drivers in turn; of what waits for a driver's slots the oldest query's goes first. Members of a gang
are not duplicated, as none is ever behind the others.

Each query draws a row of its calibration: what the tasks of one measured query took. The whole level stands in for the
drawn times of serfer/cost/queries.py, which in turn come from samples of this one (`service_times`).
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

import numpy as np
from numpy.random import Generator

from serfer.control.router import SERVERLESS, Router
from serfer.control.scenario import LambdaTarget, Scenario
from serfer.core.errors import LambdaUnavailableError, SerferError, UsageError
from serfer.core.hedging import QUANTILE
from serfer.core.keys import StoreCounts
from serfer.core.run_machine import (
    Action,
    Drop,
    Event,
    Failure,
    FailureKind,
    Finish,
    Invoke,
    Run,
    TaskDone,
    TaskFailed,
    TaskStarted,
    TimePassed,
    WakeAt,
)
from serfer.core.wire import Report
from serfer.cost.driver_limits import DriverLimits, Growth, KnownHedging
from serfer.cost.fleet import Purchase, SpotLosses
from serfer.cost.loads.trace import Floats
from serfer.cost.queries import QueriesRun
from serfer.cost.service_times import Quantiles, ServiceTimes
from serfer_bench.study.sim.calibration import Calibration

DEADLINE_S: Final = 30.0
_MB_PER_GB: Final = 1024.0
_SAMPLES: Final = 2000
_APART_S: Final = 1e7  # between sampled queries, which do not meet
_UNBOUNDED: Final = 1_000_000_000
_BLOCK: Final = 4096  # draws at once
_WARM_REPORT: Final = Report("simulated", 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, StoreCounts())
_ABORTED_S: Final = 0.1  # until the members of a gang have seen that it was aborted
_ABORTED: Final = Failure(FailureKind.FAILED_IN_CODE, "GangAbortedError", "the driver aborted the gang")
_THROTTLED: Final = Failure(FailureKind.THROTTLED, "TooManyRequestsException", "the account's concurrency is used up")
_TIME: Final = TimePassed()


@dataclass(slots=True, eq=False)
class _Query:
    """A query on Lambda: when it came, its run, its driver, and the row of the calibration that says what it takes.

    Younger ones have a higher `age`; `queued` are those of its attempts that wait for a slot.
    """

    came: float
    age: int
    run: Run
    row: int
    driver: _Driver
    queued: set[_Place] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Driver:
    """A driver's free slots, and what waits for them: (its query's age, order, query, invoked together).

    `used` is when it last sent something, `warming` until when tasks (stage, tile) wait for their environments.
    """

    free: int
    waiting: list[tuple[int, int, _Query, Sequence[Invoke]]] = field(default_factory=list)
    used: float | None = None
    warming: dict[tuple[int, int], float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Function:
    """A function's idle environments: since when, the longest first; those that it may gain, and what starts take."""

    memory_gb: float
    growth: Growth
    cold_s: Iterator[float]
    idle: deque[float] = field(default_factory=deque)


_Place = tuple[int, int, int]  # of an attempt: stage, tile, number


class LambdaSimulator:
    """Lambda with a plan's functions, and a driver's runs; time passes by `advance`.

    `latencies_s` are those of answered queries that came at or after `since`; of the others `throttled` ones were
    refused by Lambda too often, and `failed` ones passed their deadline. `queued` tasks waited for a slot, and `hedges`
    were duplicated, which cost as much as `duplicates` queries. Raises UsageError for a gang with more members than a
    driver has slots.
    """

    def __init__(
        self,
        calibration: Calibration,
        target: LambdaTarget,
        seed: int,
        deadline_s: float = DEADLINE_S,
        limits: DriverLimits | None = None,
    ) -> None:
        limits = limits or DriverLimits()
        rng = np.random.default_rng(seed)
        self._target, self._deadline_s = target, deadline_s
        self._tiles = calibration.tiles
        self._first = [sum(self._tiles[:stage]) for stage in range(len(self._tiles))]  # the number of its first task
        self._takes, self._driver_s = calibration.tasks_s.tolist(), [ms / 1000 for ms in calibration.driver_ms]
        self._gangs = dict(calibration.gangs)
        self._inside = {start: calibration.inside_s(start, stop).tolist() for start, stop in calibration.gangs}
        self._functions = _functions(calibration, limits.growth, rng)
        inner = {stage for start, stop in calibration.gangs for stage in range(start + 1, stop)}
        self._warmed = [place for place in self._functions if place[0] and place[0] not in inner]
        self._invoking = (np.array(calibration.overhead_ms) / 1000).tolist()
        slots = limits.slots_of_each(target.concurrency)
        self._drivers = [_Driver(slots) for _ in range(limits.drivers)]
        self._next_driver = itertools.cycle(self._drivers)
        _check_slots(calibration, slots)
        self._tasks_before = self.tasks = 0
        usual_s = [_usual_s(calibration, stage) for stage in range(len(self._tiles))]
        self._hedging = KnownHedging(usual_s, lambda: self._tasks_before + self.tasks) if limits.hedge else None
        self._share = _shares(calibration)
        self._others = _numbers(np.random.default_rng((seed, 1)), len(self._takes))
        self._chosen, self._seeds = _turns(rng, len(self._takes)), _numbers(rng, 2**32)
        self._events: list[tuple[float, int, _Query, Event | list[Invoke] | None, _Function | None]] = []
        self._number = self._running = self._in_flight = 0
        self.count_from(0.0)

    def count_from(self, time: float) -> None:
        self.since = time
        self.latencies_s = array("d")
        self._tasks_before += self.tasks
        self.failed = self.throttled = self.colds = self.tasks = self.retries = self.queued = self.hedges = 0
        self.idle_gb_s = self.duplicates = 0.0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def start(self, now: float) -> None:
        run = Run(self._tiles, now + self._deadline_s, next(self._seeds), hedging=self._hedging, gangs=self._gangs)
        self._number += 1
        query = _Query(now, self._number, run, next(self._chosen), next(self._next_driver))
        self._in_flight += 1
        self._carry_out(query, run.start(now), now)
        used, query.driver.used = query.driver.used, now
        if self._target.keep_alive_s and (used is None or now - used > self._target.keep_alive_s):
            self._prewarm(query, now)

    def _prewarm(self, query: _Query, now: float) -> None:
        query.driver.warming = {}
        for stage, tile in self._warmed[: query.driver.free]:
            if (found := self._environment(stage, tile, now)) is not None:
                function, cold_s = found
                ready = now + cold_s + self._invoking[next(self._others)][self._first[stage] + tile]
                query.driver.free -= 1
                query.driver.warming[stage, tile] = ready
                self._later(ready, query, _TIME, function)

    def advance(self, now: float) -> None:
        events = self._events
        while events and events[0][0] <= now:
            time, _, query, event, function = heappop(events)
            if function is not None:
                self._running -= 1
                function.idle.append(time)
                query.driver.free += 1
                if query.driver.waiting:
                    self._serve_waiting(query.driver, time)
            if event is None:
                self._answered(query)
            elif not query.run.finished:
                self._carry_out(query, event if isinstance(event, list) else query.run.handle(event, time), time)

    def keep_warm(self, count: int, now: float) -> int:
        """Start environments by pings until so many queries find warm ones; return for how many they were started.

        They are idle at once: pings are answered before the surge that they are sent for.
        """
        most = 0
        tasks = Counter(id(function) for function in self._functions.values())
        for function in {id(one): one for one in self._functions.values()}.values():
            while function.idle and function.idle[0] + self._target.keep_alive_s <= now:
                self._was_idle(function, function.idle[0], function.idle.popleft() + self._target.keep_alive_s)
            missing = max(0, (count - self._in_flight) * tasks[id(function)] - len(function.idle))
            started = sum(function.growth.take(now) for _ in range(missing))
            function.idle.extend([now] * started)
            most = max(most, -(-started // tasks[id(function)]))
        return most

    def finish(self, end: float) -> None:
        self.advance(float("inf"))
        for function in {id(one): one for one in self._functions.values()}.values():
            for since in function.idle:
                self._was_idle(function, since, min(end, since + self._target.keep_alive_s))

    def _carry_out(self, query: _Query, actions: Sequence[Action], now: float) -> None:
        invoked = self._await_warmed(query, [action for action in actions if isinstance(action, Invoke)], now)
        if invoked and query.run.stages[invoked[0].stage].gang_stop:
            self._request(query, invoked, now)
        elif invoked and query.driver.free >= len(invoked) and not query.driver.waiting:
            query.driver.free -= len(invoked)
            self._invoke(query, invoked, now)
        else:
            for request in invoked:
                self._request(query, [request], now)
        for action in actions:
            match action:
                case WakeAt(time):
                    self._later(time, query, _TIME)
                case Drop(stage, tile, attempt):
                    query.queued.discard((stage, tile, attempt))
                case Finish(error):
                    query.driver.used = now
                    self.retries += query.run.retries
                    query.queued.clear()
                    if error is None:
                        self._later(now + self._driver_s[query.row], query, None)
                    else:
                        self._failed(query, error)
                case _:  # abandoned tasks run to their end
                    pass

    def _await_warmed(self, query: _Query, invoked: list[Invoke], now: float) -> list[Invoke]:
        """Return what has not to wait for its environment; all else is invoked when that is ready, a gang together."""
        warming = query.driver.warming
        if not warming or not invoked:
            return invoked
        ready = [max(now, warming.pop((request.stage, request.tile), now)) for request in invoked]
        if query.run.stages[invoked[0].stage].gang_stop:
            ready = [max(ready)] * len(ready)
        for time in {time for time in ready if time > now}:
            self._later(time, query, [request for request, at in zip(invoked, ready, strict=True) if at == time])
        return [request for request, at in zip(invoked, ready, strict=True) if at == now]

    def _request(self, query: _Query, requests: Sequence[Invoke], now: float) -> None:
        query.queued |= {(one.stage, one.tile, one.attempt) for one in requests}
        self._number += 1
        heappush(query.driver.waiting, (query.age, self._number, query, requests))
        waiting = len(query.driver.waiting)
        self._serve_waiting(query.driver, now)
        self.queued += len(requests) * (len(query.driver.waiting) == waiting)

    def _serve_waiting(self, driver: _Driver, now: float) -> None:
        """Invoke what waits while there are slots; nobody passes what needs more of them than are free."""
        while driver.waiting:
            query, requests = driver.waiting[0][2:]
            wanted = [one for one in requests if (one.stage, one.tile, one.attempt) in query.queued]
            if len(wanted) > driver.free:
                return
            heappop(driver.waiting)
            if wanted:
                query.queued -= {(one.stage, one.tile, one.attempt) for one in wanted}
                driver.free -= len(wanted)
                start = self._invoke_gang if query.run.stages[wanted[0].stage].gang_stop else self._invoke
                start(query, wanted, now)

    def _invoke(self, query: _Query, requests: Sequence[Invoke], now: float) -> None:
        for request in requests:
            place = stage, tile, _ = request.stage, request.tile, request.attempt
            found = self._environment(stage, tile, now)
            if found is None:
                self._started(query, place, now, 0.0)
                self._refuse(query, place, now)
                continue
            function, cold_s = found
            self.tasks += 1
            task = self._first[stage] + tile
            if hedged := query.run.stages[stage].tiles[tile].hedged:
                self.hedges += 1
                self.duplicates += self._share[task]
            takes_s = cold_s + self._takes[next(self._others) if hedged else query.row][task]
            self._started(query, place, now, takes_s)
            self._later(now + takes_s, query, TaskDone(*place, _WARM_REPORT), function)

    def _started(self, query: _Query, place: _Place, now: float, takes_s: float) -> None:
        if self._hedging:
            self._hedging.ends_in_s = takes_s
        for action in query.run.handle(TaskStarted(*place), now):
            if isinstance(action, WakeAt):
                self._later(action.time, query, _TIME)
        if self._hedging:
            self._hedging.ends_in_s = math.inf

    def _invoke_gang(self, query: _Query, requests: Sequence[Invoke], now: float) -> None:
        start = requests[0].stage
        places = [(request.stage, request.tile, request.attempt) for request in requests]
        started: list[tuple[_Function, float]] = []
        for request, place in zip(requests, places, strict=True):
            query.run.handle(TaskStarted(*place), now)
            found = self._environment(start, request.tile, now) if len(started) == request.tile else None
            if found is not None:
                started.append(found)
                self.tasks += 1
            else:
                self._refuse(query, place, now)
        if len(started) < len(requests):
            for place, (function, cold_s) in zip(places, started, strict=False):
                self._later(now + cold_s + _ABORTED_S, query, TaskFailed(*place, _ABORTED), function)
            return
        overheads = self._invoking[query.row][self._first[start] :]
        ready = max(overheads[request.tile] + cold_s for request, (_, cold_s) in zip(requests, started, strict=True))
        end = now + ready + self._inside[start][query.row]
        for place, (function, _) in zip(places, started, strict=True):
            self._later(end, query, TaskDone(*place, self._member_report(start, place[1])), function)

    def _refuse(self, query: _Query, place: _Place, now: float) -> None:
        query.driver.free += 1
        self._later(now, query, TaskFailed(*place, _THROTTLED))

    def _member_report(self, start: int, tile: int) -> Report:
        stages = sum(tile < tiles for tiles in self._tiles[start : self._gangs[start]])
        return replace(_WARM_REPORT, later=(_WARM_REPORT,) * (stages - 1))

    def _environment(self, stage: int, tile: int, now: float) -> tuple[_Function, float] | None:
        """Take an environment for a task, and return its function and what starting it takes, where none was warm.

        None where Lambda refuses: as many run as the account allows, or the function may gain no more at once.
        """
        if self._running >= self._target.concurrency:
            return None
        function, cold_s = self._functions[stage, tile], 0.0
        if not (function.idle and self._reuse(function, now)):
            if not function.growth.take(now):
                return None
            cold_s = next(function.cold_s)
            self.colds += 1
        self._running += 1
        return function, cold_s

    def _later(
        self, time: float, query: _Query, event: Event | list[Invoke] | None, function: _Function | None = None
    ) -> None:
        self._number += 1
        heappush(self._events, (time, self._number, query, event, function))

    def _answered(self, query: _Query) -> None:
        self._in_flight -= 1
        if query.came >= self.since:
            ended = query.run.stages[-1].ended or query.came
            self.latencies_s.append(ended + self._driver_s[query.row] - query.came)

    def _failed(self, query: _Query, error: SerferError) -> None:
        self._in_flight -= 1
        if query.came >= self.since:
            if isinstance(error, LambdaUnavailableError):
                self.throttled += 1
            else:
                self.failed += 1

    def _reuse(self, function: _Function, now: float) -> bool:
        keep, idle = self._target.keep_alive_s, function.idle
        while idle and idle[0] + keep <= now:
            self._was_idle(function, idle[0], idle.popleft() + keep)
        if not idle:
            return False
        self._was_idle(function, idle.pop(), now)
        return True

    def _was_idle(self, function: _Function, since: float, until: float) -> None:
        self.idle_gb_s += max(0.0, until - max(since, self.since)) * function.memory_gb


def _usual_s(calibration: Calibration, stage: int) -> float:
    if any(start <= stage < stop for start, stop in calibration.gangs):
        return math.inf
    return float(np.quantile(calibration.service_s(stage) + calibration.overhead_s(stage), QUANTILE))


def _shares(calibration: Calibration) -> list[float]:
    """Return which share of a query's price each of its tasks has: its part of the memory times the seconds billed."""
    memory = np.repeat(calibration.memory_mb, calibration.tiles)
    billed = np.mean(calibration.service_ms, axis=0) * memory
    total = float(billed.sum())
    return (billed / total if total else np.full(len(billed), 1 / len(billed))).tolist()


def _check_slots(calibration: Calibration, slots: int) -> None:
    widest = max((calibration.tiles[start] for start, _ in calibration.gangs), default=0)
    if widest > slots:
        raise UsageError(
            f"a gang of the plan has {widest} members, and a driver {slots} slots: give more --driver-slots"
        )


def _functions(calibration: Calibration, growth: float, rng: Generator) -> dict[tuple[int, int], _Function]:
    made: dict[tuple[int, int], _Function] = {}
    functions: dict[tuple[int, int], _Function] = {}
    home = {stage: start for start, stop in calibration.gangs for stage in range(start, stop)}
    for stage, (numbers, memory_mb) in enumerate(zip(calibration.functions, calibration.memory_mb, strict=True)):
        cold_s = calibration.cold_s(stage).samples(rng)
        for tile, number in enumerate(numbers):
            functions[stage, tile] = made.setdefault(
                (home.get(stage, stage), number), _Function(memory_mb / _MB_PER_GB, Growth(growth), cold_s)
            )
    return functions


def _turns(rng: Generator, count: int) -> Iterator[int]:
    """Draw numbers from 0 on, each once before any comes again, so that rare ones are as rare as they were."""
    while True:
        yield from rng.permutation(count).tolist()


def _numbers(rng: Generator, below: int) -> Iterator[int]:
    while True:
        yield from rng.integers(0, below, _BLOCK).tolist()


class TasksRun(QueriesRun):
    """A run of queries whose Lambda is a `LambdaSimulator`."""

    def __init__(
        self,
        scenario: Scenario,
        router: Router,
        calibration: Calibration,
        launches: Sequence[tuple[float, Purchase]],
        seed: int,
        losses: SpotLosses | None = None,
        limits: DriverLimits | None = None,
    ) -> None:
        self._world = LambdaSimulator(calibration, scenario.serverless, seed, limits=limits)
        nothing = Quantiles.always(0.0)
        super().__init__(scenario, router, ServiceTimes(nothing, nothing, calibration.label), launches, seed, losses)

    def _count_from(self, time: float) -> None:
        super()._count_from(time)
        self._world.count_from(time)

    def _arrive(self, times: list[float]) -> None:
        world = self._world
        self._queries += len(times)
        for now in times:
            self._finish_batches(now)
            world.advance(now)
            decision = self._router.route(now, self._endpoints, world.in_flight)
            if not decision.targets:
                self._turn_away(decision.reason)
            elif decision.targets[0] == SERVERLESS:
                world.start(now)
            else:
                self._enqueue(self._named[decision.targets[0]], now)

    def _fall_back(self, came: float, now: float) -> None:
        del came  # its latency counts from here on
        self._world.start(now)

    def _keep_warm(self, count: int, now: float) -> None:
        self._pings += self._world.keep_warm(count, now)

    def _drain(self, now: float) -> None:
        super()._drain(now)
        world = self._world
        world.finish(now)
        self._latencies.extend(world.latencies_s)
        self._failed += world.failed
        self._throttled += world.throttled
        self._colds += world.colds
        self._retries += world.retries
        self._queued += world.queued
        self._hedges += world.hedges
        self._duplicates += world.duplicates
        self._idle_gb_s += world.idle_gb_s


def service_times(calibration: Calibration, target: LambdaTarget, seed: int = 0) -> ServiceTimes:
    """Return the times of queries that do not meet, sampled task by task: warm ones, and what an all-cold one adds."""
    warm = alone(calibration, replace(target, keep_alive_s=float("inf")), seed)[1:]  # the first one was cold
    cold = alone(calibration, replace(target, keep_alive_s=_APART_S / 2), seed)
    adds = np.maximum(cold - np.median(warm), 0.0)
    return ServiceTimes(Quantiles.of(warm), Quantiles.of(adds), calibration.label)


def alone(calibration: Calibration, target: LambdaTarget, seed: int, queries: int = _SAMPLES) -> Floats:
    world = LambdaSimulator(calibration, replace(target, concurrency=_UNBOUNDED), seed, _APART_S / 2)
    latencies = []
    for number in range(queries):
        world.start(number * _APART_S)
        world.advance((number + 1) * _APART_S)
        latencies.append(world.latencies_s[-1])
    return np.array(latencies)
