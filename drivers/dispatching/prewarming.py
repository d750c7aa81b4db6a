"""Warm-ups of a plan's later stages: their environments start while a query's first stage runs.

The stages of a query run one after the other, and so would their cold starts. A driver that has sent no query for as
long as environments are kept sends a warm-up request for every task of the later stages as the query starts. A task
then waits for one of its function's requests, which frees an environment: invoked before, it would start another one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from serfer.core.plan import Plan
from serfer.core.run_machine import Failure
from serfer.core.units import MS_PER_S
from serfer.core.wire import WarmUp, WarmUpAnswer
from serfer.drivers.clock import Clock, timeout_at
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.driver import WarmUpRecord
from serfer.drivers.invoker import Invoker


@runtime_checkable
class WarmingInvoker(Invoker, Protocol):
    """An invoker of functions that have environments to warm."""

    async def warm(self, function: str, request: WarmUp) -> WarmUpAnswer | Failure: ...


@dataclass(frozen=True)
class Prewarming:
    """When a driver warms functions: after `idle_s` s without a query. A task waits at most `patience_s` s for one."""

    idle_s: float
    patience_s: float


@dataclass(frozen=True)
class _Request:
    function: str
    memory_mb: int
    payload: WarmUp


class WarmUps:
    """The warm-up requests of one query, in flight or answered, until it has `ended`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.in_flight: dict[_Request, float] = {}  # since when
        self.ended = False
        self.records: list[WarmUpRecord] = []

    def end(self) -> None:
        """Stop waiting for requests; what has been sent is billed, and runs to its end."""
        self.ended = True
        for request in [*self.in_flight]:
            self.record(request, None)

    def record(self, request: _Request, result: WarmUpAnswer | None) -> None:
        since = self.in_flight.pop(request)
        ms = MS_PER_S * (self._clock.time() - since)
        self.records.append(WarmUpRecord(request.payload.stage, request.memory_mb, since, ms, result))


class Prewarmer:
    """Sends a driver's warm-up requests in slots that are free, and makes tasks wait for them."""

    def __init__(
        self, plan: Plan, invoker: WarmingInvoker, slots: PrioritySemaphore, terms: Prewarming, clock: Clock
    ) -> None:
        self._invoker = invoker
        self._slots = slots
        self._terms = terms
        self._clock = clock
        self._used = -math.inf
        self._requests = [*_requests(plan)]
        self._waiting: dict[tuple[str, int | None], asyncio.Task[None]] = {}
        self._running: set[asyncio.Task[None]] = set()

    def start(self) -> WarmUps:
        """Send the warm-up requests of a query that starts now, if the functions may have no environments."""
        warm_ups, now = WarmUps(self._clock), self._clock.time()
        idle, self._used = now - self._used > self._terms.idle_s, now
        if not idle:
            return warm_ups
        self._waiting.clear()  # requests of long ago
        for request in self._requests:
            task = asyncio.get_running_loop().create_task(self._warm(request, warm_ups))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            self._waiting[request.function, request.payload.tile] = task
        return warm_ups

    def ended(self) -> None:
        self._used = self._clock.time()

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait([*self._running])

    async def wait(self, function: str, tile: int, turn: asyncio.Future[bool]) -> None:
        """Wait for the warm-up request of a function's tile, if no other task has waited for it, or for `turn`."""
        task = self._waiting.pop((function, tile), None)
        if task:
            try:
                async with timeout_at(self._clock, self._clock.time() + self._terms.patience_s):
                    await asyncio.wait((task, turn), return_when=asyncio.FIRST_COMPLETED)
            except TimeoutError:
                return

    async def _warm(self, request: _Request, warm_ups: WarmUps) -> None:
        """It keeps its slot until it is answered, also where the query has ended: Lambda still runs it."""
        if warm_ups.ended or not self._slots.try_acquire():
            return
        warm_ups.in_flight[request] = self._clock.time()
        try:
            result = await self._invoker.warm(request.function, request.payload)
        finally:
            self._slots.release()
        if isinstance(result, Failure):  # which is not billed
            warm_ups.in_flight.pop(request, None)
        elif request in warm_ups.in_flight:
            warm_ups.record(request, result)


def _requests(plan: Plan) -> Iterator[_Request]:
    for start, part in plan.functions:
        gang = plan.gang_of(start)
        stages = [plan.stages[number] for number in (gang.stages if gang else [start])]
        for tile in range(max(len(stage.tiles) for stage in stages)):
            if start > 0 and any(tile < len(stage.tiles) and stage.tiles[tile].function == part for stage in stages):
                payload = WarmUp(plan.digest, start, part, hold_s=0.0, tile=tile)
                yield _Request(plan.function(start, part), stages[0].memory_mb, payload)
