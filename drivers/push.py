"""The push driver: a synchronous invoke's return says that a tile is done, so nothing is ever polled.

The run machine decides (serfer/core/run.py); this file carries its decisions out: it starts invocations, sets the
clock, and deletes what a query leaves in the store.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from drivers.invoker import Invoker
from serfer.core.counts import StoreCounts
from serfer.core.errors import StoreUnavailableError
from serfer.core.keys import input_key, output_key
from serfer.core.plan import Plan
from serfer.core.run import (
    Action,
    Cancelled,
    Event,
    Finish,
    Invoke,
    Run,
    StageRun,
    TaskDone,
    TaskFailed,
    TimePassed,
    WakeAt,
)
from serfer.core.wire import Crop, Report, Task
from storage.counting import CountingStore
from storage.store import Store

TTL_MARGIN_S = 60.0  # a task that outlives its query may still write; its keys go by themselves this long after
_STRAGGLER_S = 30.0


@dataclass(frozen=True)
class Answer:
    """A query's end: the last stage's reports and what is known of every stage."""

    query: str
    started: float
    ended: float
    stages: Sequence[StageRun]
    retries: int
    driver_counts: StoreCounts

    @property
    def outputs(self) -> list[bytes]:
        """What the last stage's tiles computed, in order: each some columns of (N, K) float32."""
        return [report.output or b"" for report in self.stages[-1].reports]


@dataclass(frozen=True)
class _Route:
    """What all queries of a driver share."""

    plan: Plan
    functions: Sequence[Sequence[str]]  # of each tile of each stage
    invoker: Invoker
    store: Store
    inline_limit: int
    timeout_s: float


class PushDriver:
    """Takes queries through one plan, any number at once.

    A crop of more than `inline_limit` bytes goes through the store; a task may take `timeout_s`.
    """

    def __init__(
        self, plan: Plan, invoker: Invoker, store: Store, *, inline_limit: int, timeout_s: float = 60.0
    ) -> None:
        functions = [
            [plan.function(number, tile.function) for tile in stage.tiles] for number, stage in enumerate(plan.stages)
        ]
        self._route = _Route(plan, functions, invoker, store, inline_limit, timeout_s)
        self._cleanups: set[asyncio.Task[None]] = set()

    async def run(self, crops: Sequence[Crop], batch: int, deadline_s: float) -> Answer:
        """Run one query of `batch` images, whose first-stage inputs are `crops`, one for each tile.

        Raises the error that the run ended with: TaskFailedError, DeadlineError, or what was unavailable.
        """
        query = _Query(self._route, secrets.token_hex(16), batch, deadline_s)
        try:
            return await query.run(crops)
        finally:
            self._clean_up_later(query)

    async def close(self) -> None:
        """Wait until what ended queries left behind is deleted."""
        await asyncio.gather(*self._cleanups)

    def _clean_up_later(self, query: _Query) -> None:
        """Delete a query's keys without making its answer wait."""
        cleanup = asyncio.get_running_loop().create_task(query.clean_up())
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)


class _Query:
    """One query's events, invocations and keys."""

    def __init__(self, route: _Route, name: str, batch: int, deadline_s: float) -> None:
        self._route = route
        self._name = name
        self._batch = batch
        self._ttl = deadline_s + TTL_MARGIN_S
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        tiles = [stage.grid.tiles for stage in route.plan.stages]
        self._run = Run(tiles, self._started + deadline_s, seed=secrets.randbits(32))
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._under_way: set[asyncio.Task[None]] = set()  # what may still write: invocations, and puts of crops
        self._timers: list[asyncio.TimerHandle] = []
        self._crops: Sequence[Crop] = ()
        self._counts = StoreCounts()

    async def run(self, crops: Sequence[Crop]) -> Answer:
        self._crops = crops
        await self._store_large_crops()
        self._carry_out(self._run.start(self._loop.time()))
        try:
            await self._ended
        except asyncio.CancelledError:
            self._handle(Cancelled())
            raise
        ended = self._loop.time()
        return Answer(self._name, self._started, ended, self._run.stages, self._run.retries, self._counts)

    def _handle(self, event: Event) -> None:
        self._carry_out(self._run.handle(event, self._loop.time()))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Invoke(stage, tile):
                    self._start(self._invoke(stage, tile))
                case WakeAt(time):
                    self._timers.append(self._loop.call_at(time, self._handle, TimePassed()))
                case Finish(error):
                    self._finish(error)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start what a query's end waits for before it deletes the query's keys."""
        task = self._loop.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    def _finish(self, error: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        if not self._ended.done():
            if error:
                self._ended.set_exception(error)
            else:
                self._ended.set_result(None)

    async def _invoke(self, stage: int, tile: int) -> None:
        route = self._route
        crop = self._crops[tile] if stage == 0 else None
        task = Task(route.plan.digest, self._name, stage, tile, self._batch, self._ttl, crop)
        try:
            result = await route.invoker.invoke(route.functions[stage][tile], task, route.timeout_s)
        except Exception as bug:  # noqa: BLE001 - invokers return failures, so this is a bug; whoever waits must see it
            self._finish(bug)
            self._handle(Cancelled())
            return
        if isinstance(result, Report):
            self._handle(TaskDone(stage, tile, result))
        else:
            self._handle(TaskFailed(stage, tile, result))

    async def _store_large_crops(self) -> None:
        """Put crops that no payload can carry into the store; the others ride along."""
        limit = self._route.inline_limit
        large = {number: crop.data for number, crop in enumerate(self._crops) if crop.data and len(crop.data) > limit}
        if not large:
            return
        store = CountingStore(self._route.store)

        def put() -> None:
            for number, data in large.items():
                store.put(input_key(self._name, number), data, self._ttl)

        # Said before it is true, so that cleaning up knows of keys whose put fails halfway or is not waited for.
        self._crops = [Crop(crop.dtype, None) if number in large else crop for number, crop in enumerate(self._crops)]
        await asyncio.shield(self._start(asyncio.to_thread(put)))
        self._counts = store.counts

    async def clean_up(self) -> None:
        """Delete the query's keys, after its last invocation where some are still on their way."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_STRAGGLER_S)
        keys = [input_key(self._name, number) for number, crop in enumerate(self._crops) if crop.data is None]
        for stage in range(len(self._run.stages)):
            if stage + 1 < len(self._route.plan.stages):
                keys.extend(output_key(self._name, stage, tile) for tile in range(len(self._run.stages[stage].tiles)))
        if keys:
            try:
                await asyncio.to_thread(self._route.store.delete, keys)
            except StoreUnavailableError:
                return  # a store that is gone keeps nothing; one that comes back lets the keys expire
