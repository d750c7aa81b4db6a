"""Queries on Lambda task by task: the run machine of serfer/core/run_machine.py under a virtual clock.

    query ──> Run ──> Invoke ──> an environment of the task's function: warm, or new ──> TaskDone ──> Run ──> ...
                       └──> as many run as the account allows: throttled, and the run machine waits and tries again

A gang is invoked as a whole: a member for which there is no room ends all of it, and its stages run one by one (as fast
as in the gang: what they would write and read is not simulated). Members start together, do each stage as slowly as the
slowest of them, and keep their environments until the last one has ended.

Each query draws a row of its calibration: what the tasks of one measured query took. The whole level stands in for the
drawn times of serfer/sim/queries.py, which in turn come from samples of this one (`service_times`).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

import numpy as np
from numpy.random import Generator

from serfer.control.router import SERVERLESS, Router
from serfer.control.scenario import LambdaTarget, Scenario
from serfer.core.errors import LambdaUnavailableError, SerferError
from serfer.core.keys import StoreCounts
from serfer.core.run_machine import (
    Action,
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
from serfer.sim.calibration import Calibration
from serfer.sim.fleet import Purchase, SpotLosses
from serfer.sim.queries import QueriesRun
from serfer.sim.service_times import Quantiles, ServiceTimes
from serfer.sim.traces import Floats

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
    """A query on Lambda: when it came, its run, and the row of the calibration that says what it takes."""

    came: float
    run: Run
    row: int


@dataclass(slots=True, eq=False)
class _Function:
    """A function's idle environments: since when, the longest first."""

    memory_gb: float
    idle: deque[float] = field(default_factory=deque)


class LambdaSimulator:
    """Lambda with a plan's functions, and a driver's runs; time passes by `advance`.

    `latencies_s` are those of answered queries that came at or after `since`; of the others `throttled` ones were
    refused by Lambda too often, and `failed` ones passed their deadline.
    """

    def __init__(
        self, calibration: Calibration, target: LambdaTarget, seed: int, deadline_s: float = DEADLINE_S
    ) -> None:
        rng = np.random.default_rng(seed)
        self._target, self._deadline_s = target, deadline_s
        self._tiles = calibration.tiles
        self._first = [sum(self._tiles[:stage]) for stage in range(len(self._tiles))]  # the number of its first task
        self._takes, self._driver = calibration.tasks_s.tolist(), [ms / 1000 for ms in calibration.driver_ms]
        self._gangs = dict(calibration.gangs)
        self._starting = {start: calibration.overhead_s(start).tolist() for start in self._gangs}
        self._inside = {start: calibration.inside_s(start, stop).tolist() for start, stop in calibration.gangs}
        self._functions = _functions(calibration)
        self._cold = calibration.cold.samples(rng)
        self._chosen, self._seeds = _turns(rng, len(self._takes)), _numbers(rng, 2**32)
        self._events: list[tuple[float, int, _Query, Event | None, _Function | None]] = []
        self._number = self._running = self._in_flight = 0
        self.count_from(0.0)

    def count_from(self, time: float) -> None:
        """Begin to count."""
        self.since = time
        self.latencies_s = array("d")
        self.failed = self.throttled = self.colds = self.tasks = self.retries = 0
        self.idle_gb_s = 0.0

    @property
    def in_flight(self) -> int:
        """The number of queries in flight."""
        return self._in_flight

    def start(self, now: float) -> None:
        """Start a query; the simulation must have been advanced to `now`."""
        run = Run(self._tiles, now + self._deadline_s, next(self._seeds), gangs=self._gangs)
        query = _Query(now, run, next(self._chosen))
        self._in_flight += 1
        self._carry_out(query, run.start(now), now)

    def advance(self, now: float) -> None:
        """Process all events that are due by a time."""
        events = self._events
        while events and events[0][0] <= now:
            time, _, query, event, function = heappop(events)
            if function is not None:
                self._running -= 1
                function.idle.append(time)
            if event is None:
                self._answered(query)
            elif not query.run.finished:
                self._carry_out(query, query.run.handle(event, time), time)

    def finish(self, end: float) -> None:
        """Process all remaining events, and count what environments were idle until `end`."""
        self.advance(float("inf"))
        for function in {id(one): one for one in self._functions.values()}.values():
            for since in function.idle:
                self._was_idle(function, since, min(end, since + self._target.keep_alive_s))

    def _carry_out(self, query: _Query, actions: Sequence[Action], now: float) -> None:
        invoked = [action for action in actions if isinstance(action, Invoke)]
        if invoked and query.run.stages[invoked[0].stage].gang_stop:
            self._invoke_gang(query, invoked, now)
            invoked = []
        for request in invoked:
            self._invoke(query, request, now)
        for action in actions:
            match action:
                case WakeAt(time):
                    self._later(time, query, _TIME)
                case Finish(error):
                    self.retries += query.run.retries
                    if error is None:
                        self._later(now + self._driver[query.row], query, None)
                    else:
                        self._failed(query, error)
                case _:  # abandoned tasks run to their end
                    pass

    def _invoke(self, query: _Query, request: Invoke, now: float) -> None:
        """Start a task, in a warm environment if there is one, or have it refused."""
        place = request.stage, request.tile, request.attempt
        query.run.handle(TaskStarted(*place), now)  # without hedging this asks for nothing
        if self._running >= self._target.concurrency:
            self._later(now, query, TaskFailed(*place, _THROTTLED))
            return
        takes = self._takes[query.row][self._first[request.stage] + request.tile]
        function, cold_s = self._environment(request, now)
        self._later(now + takes + cold_s, query, TaskDone(*place, _WARM_REPORT), function)

    def _invoke_gang(self, query: _Query, requests: Sequence[Invoke], now: float) -> None:
        """Start all members of a gang, or as many as there is room for, until they are aborted."""
        start = requests[0].stage
        room = max(0, self._target.concurrency - self._running)
        places = [(request.stage, request.tile, request.attempt) for request in requests]
        for place in places:
            query.run.handle(TaskStarted(*place), now)
        for place in places[room:]:
            self._later(now, query, TaskFailed(*place, _THROTTLED))
        started = [self._environment(request, now) for request in requests[:room]]
        if len(started) < len(requests):
            for place, (function, cold_s) in zip(places, started, strict=False):
                self._later(now + cold_s + _ABORTED_S, query, TaskFailed(*place, _ABORTED), function)
            return
        overheads = self._starting[start][query.row]
        ready = max(overheads[request.tile] + cold_s for request, (_, cold_s) in zip(requests, started, strict=True))
        end = now + ready + self._inside[start][query.row]
        for place, (function, _) in zip(places, started, strict=True):
            self._later(end, query, TaskDone(*place, self._member_report(start, place[1])), function)

    def _member_report(self, start: int, tile: int) -> Report:
        stages = sum(tile < tiles for tiles in self._tiles[start : self._gangs[start]])
        return replace(_WARM_REPORT, later=(_WARM_REPORT,) * (stages - 1))

    def _environment(self, request: Invoke, now: float) -> tuple[_Function, float]:
        """Take an environment for a task, and return its function and what starting it takes, where none was warm."""
        function, cold_s = self._functions[request.stage, request.tile], 0.0
        if not (function.idle and self._reuse(function, now)):
            cold_s = next(self._cold)
            self.colds += 1
        self.tasks += 1
        self._running += 1
        return function, cold_s

    def _later(self, time: float, query: _Query, event: Event | None, function: _Function | None = None) -> None:
        self._number += 1
        heappush(self._events, (time, self._number, query, event, function))

    def _answered(self, query: _Query) -> None:
        self._in_flight -= 1
        if query.came >= self.since:
            ended = query.run.stages[-1].ended or query.came
            self.latencies_s.append(ended + self._driver[query.row] - query.came)

    def _failed(self, query: _Query, error: SerferError) -> None:
        self._in_flight -= 1
        if query.came >= self.since:
            if isinstance(error, LambdaUnavailableError):
                self.throttled += 1
            else:
                self.failed += 1

    def _reuse(self, function: _Function, now: float) -> bool:
        """Take the environment that was used last, if one is left that was used lately."""
        keep, idle = self._target.keep_alive_s, function.idle
        while idle and idle[0] + keep <= now:
            self._was_idle(function, idle[0], idle.popleft() + keep)
        if not idle:
            return False
        self._was_idle(function, idle.pop(), now)
        return True

    def _was_idle(self, function: _Function, since: float, until: float) -> None:
        self.idle_gb_s += max(0.0, until - max(since, self.since)) * function.memory_gb


def _functions(calibration: Calibration) -> dict[tuple[int, int], _Function]:
    """Return the function of each stage's tiles; a gang has one for all of its stages."""
    made: dict[tuple[int, int], _Function] = {}
    functions: dict[tuple[int, int], _Function] = {}
    home = {stage: start for start, stop in calibration.gangs for stage in range(start, stop)}
    for stage, (numbers, memory_mb) in enumerate(zip(calibration.functions, calibration.memory_mb, strict=True)):
        for tile, number in enumerate(numbers):
            functions[stage, tile] = made.setdefault(
                (home.get(stage, stage), number), _Function(memory_mb / _MB_PER_GB)
            )
    return functions


def _turns(rng: Generator, count: int) -> Iterator[int]:
    """Draw numbers from 0 on, each once before any comes again, so that rare ones are as rare as they were."""
    while True:
        yield from rng.permutation(count).tolist()


def _numbers(rng: Generator, below: int) -> Iterator[int]:
    """Draw numbers from 0 on, without end."""
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
    ) -> None:
        self._world = LambdaSimulator(calibration, scenario.serverless, seed)
        nothing = Quantiles.always(0.0)
        super().__init__(scenario, router, ServiceTimes(nothing, nothing, calibration.label), launches, seed, losses)

    def _count_from(self, time: float) -> None:
        super()._count_from(time)
        self._world.count_from(time)

    def _arrive(self, times: list[float]) -> None:
        """Route queries, in the order of their arrivals."""
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

    def _drain(self, now: float) -> None:
        super()._drain(now)
        world = self._world
        world.finish(now)
        self._latencies.extend(world.latencies_s)
        self._failed += world.failed
        self._throttled += world.throttled
        self._colds += world.colds
        self._idle_gb_s += world.idle_gb_s


def service_times(calibration: Calibration, target: LambdaTarget, seed: int = 0) -> ServiceTimes:
    """Return the times of queries that do not meet, sampled task by task: warm ones, and what an all-cold one adds."""
    warm = alone(calibration, replace(target, keep_alive_s=float("inf")), seed)[1:]  # the first one was cold
    cold = alone(calibration, replace(target, keep_alive_s=0.0), seed)
    adds = np.maximum(cold - np.median(warm), 0.0)
    return ServiceTimes(Quantiles.of(warm), Quantiles.of(adds), calibration.label)


def alone(calibration: Calibration, target: LambdaTarget, seed: int, queries: int = _SAMPLES) -> Floats:
    """Return the latencies of queries that do not meet, in seconds, in their order."""
    world = LambdaSimulator(calibration, replace(target, concurrency=_UNBOUNDED), seed, deadline_s=_APART_S / 2)
    latencies = []
    for number in range(queries):
        world.start(number * _APART_S)
        world.advance((number + 1) * _APART_S)
        latencies.append(world.latencies_s[-1])
    return np.array(latencies)
