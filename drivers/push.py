"""The push driver: a synchronous invoke's return says that a tile is done, so nothing is ever polled.

The run machine decides (serfer/core/run.py); this file carries its decisions out: it starts invocations, as many at
once as the account allows and the oldest query's first, sets the clock, and deletes what a query leaves in the store.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from drivers.invoker import Invoker
from drivers.slots import Slots
from serfer.core.counts import StoreCounts
from serfer.core.errors import StoreUnavailableError
from serfer.core.hedging import LearntHedging
from serfer.core.inline import FLOAT_BYTES, inline_stages
from serfer.core.keys import input_key, output_key
from serfer.core.plan import Plan
from serfer.core.run import (
    Action,
    Cancelled,
    Drop,
    Event,
    Failure,
    FailureKind,
    Finish,
    Invoke,
    Run,
    StageRun,
    TaskDone,
    TaskFailed,
    TaskStarted,
    TimePassed,
    WakeAt,
)
from serfer.core.wire import Buffer, Crop, Report, Task
from storage.counting import CountingStore
from storage.store import Range, Store

TTL_MARGIN_S = 60.0  # a task that outlives its query may still write; its keys go by themselves this long after
_STRAGGLER_S = 30.0


@dataclass(frozen=True)
class Answer:
    """A query's end, and what is known of every stage.

    `outputs` is what the last stage's tiles computed, in order: each some columns of (N, K) float32. `carried` are the
    bytes of tensors that rode along to each stage's tasks, those of a retried one once.
    """

    query: str
    started: float
    ended: float
    stages: Sequence[StageRun]
    outputs: Sequence[Buffer]
    carried: Sequence[int]
    retries: int
    hedges: int
    driver_counts: StoreCounts


@dataclass(frozen=True)
class _Route:
    """What all queries of a driver share."""

    plan: Plan
    functions: Sequence[Sequence[str]]  # of each tile of each stage
    invoker: Invoker
    store: Store
    inline_limit: int
    inline: Callable[[int], tuple[bool, ...]]  # of a batch: which stages' outputs ride along
    timeout_s: float
    slots: Slots
    oldest_first: bool
    hedging: LearntHedging | None


class PushDriver:
    """Takes queries through one plan, any number at once.

    A crop of more than `inline_limit` bytes goes through the store, and so does a stage of which any answer or payload
    would carry more; a task may take `timeout_s`. At most `concurrency` invocations are under way at once; those of the
    oldest query start first, unless `oldest_first` is off. With `hedge`, a task that is later than the others of its
    stage have been gets a duplicate.
    """

    def __init__(
        self,
        plan: Plan,
        invoker: Invoker,
        store: Store,
        *,
        inline_limit: int,
        timeout_s: float = 60.0,
        concurrency: int = 1000,
        oldest_first: bool = True,
        hedge: bool = True,
    ) -> None:
        functions = [
            [plan.function(number, tile.function) for tile in stage.tiles] for number, stage in enumerate(plan.stages)
        ]
        inline = functools.cache(lambda batch: inline_stages(plan, batch, inline_limit))
        slots, hedging = Slots(concurrency), LearntHedging() if hedge else None
        self._route = _Route(
            plan, functions, invoker, store, inline_limit, inline, timeout_s, slots, oldest_first, hedging
        )
        self._cleanups: set[asyncio.Task[None]] = set()
        self._arrivals = itertools.count()

    async def run(self, crops: Sequence[Crop], batch: int, deadline_s: float) -> Answer:
        """Run one query of `batch` images, whose first-stage inputs are `crops`, one for each tile.

        Raises the error that the run ended with: TaskFailedError, DeadlineError, or what was unavailable.
        """
        age = next(self._arrivals) if self._route.oldest_first else 0
        query = _Query(self._route, secrets.token_hex(16), batch, deadline_s, age)
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

    def __init__(self, route: _Route, name: str, batch: int, deadline_s: float, age: int) -> None:
        self._route = route
        self._name = name
        self._age = age
        self._batch = batch
        self._ttl = deadline_s + TTL_MARGIN_S
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        tiles = [stage.grid.tiles for stage in route.plan.stages]
        self._run = Run(tiles, self._started + deadline_s, seed=secrets.randbits(32), hedging=route.hedging)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._under_way: set[asyncio.Task[None]] = set()  # what may still write: invocations, and puts of crops
        self._queued: dict[tuple[int, int, int], asyncio.Task[None]] = {}  # attempts that wait for a slot
        self._timers: list[asyncio.TimerHandle] = []
        self._crops: Sequence[Crop] = ()
        self._inline = route.inline(batch)
        self._tasks: dict[tuple[int, int], Task] = {}
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
        outputs = await self._outputs()
        carried = [0] * len(self._run.stages)
        for task in self._tasks.values():
            carried[task.stage] += task.carried
        return Answer(
            query=self._name,
            started=self._started,
            ended=self._loop.time(),
            stages=self._run.stages,
            outputs=outputs,
            carried=carried,
            retries=self._run.retries,
            hedges=self._run.hedges,
            driver_counts=self._counts,
        )

    def _handle(self, event: Event) -> None:
        self._carry_out(self._run.handle(event, self._loop.time()))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Invoke(stage, tile, attempt):
                    self._queued[stage, tile, attempt] = self._start(self._invoke(stage, tile, attempt))
                case Drop(stage, tile, attempt):
                    self._give_up((stage, tile, attempt))
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
        for attempt in [*self._queued]:
            self._give_up(attempt)
        if not self._ended.done():
            if error:
                self._ended.set_exception(error)
            else:
                self._ended.set_result(None)

    def _give_up(self, attempt: tuple[int, int, int]) -> None:
        """Take an attempt out of the queue; one on its way runs to its end, which cleaning up waits for."""
        if attempt in self._queued:
            self._queued.pop(attempt).cancel()

    async def _invoke(self, stage: int, tile: int, attempt: int) -> None:
        route = self._route
        await route.slots.take(self._age)
        self._queued.pop((stage, tile, attempt), None)
        try:
            started = self._loop.time()
            self._handle(TaskStarted(stage, tile, attempt))
            task = self._task(stage, tile)
            answer = await route.invoker.invoke(route.functions[stage][tile], task, route.timeout_s)
            result = self._checked(task, answer)
        except Exception as bug:  # noqa: BLE001 - invokers return failures, so this is a bug; whoever waits must see it
            self._finish(bug)
            self._handle(Cancelled())
            return
        finally:
            route.slots.give()
        if isinstance(result, Failure):
            self._handle(TaskFailed(stage, tile, attempt, result))
            return
        if route.hedging:
            route.hedging.learn(stage, self._loop.time() - started)
        self._handle(TaskDone(stage, tile, attempt, result))

    def _task(self, stage: int, tile: int) -> Task:
        """Return a tile's task, the same one however often it is tried."""
        task = self._tasks.get((stage, tile))
        if task is None:
            crop = self._crops[tile] if stage == 0 else None
            rides = self._inline[stage], self._parts(stage, tile)
            task = Task(self._route.plan.digest, self._name, stage, tile, self._batch, self._ttl, crop, *rides)
            self._tasks[stage, tile] = task
        return task

    def _parts(self, stage: int, tile: int) -> tuple[Buffer | None, ...]:
        """Cut what a tile reads of inline stages out of their answers, without copying it."""
        scale = FLOAT_BYTES * self._batch
        parts: list[Buffer | None] = []
        for piece in self._route.plan.stages[stage].tiles[tile].pieces:
            if self._inline[piece.stage]:
                value = memoryview(self._run.stages[piece.stage].reports[piece.tile].output or b"")
                parts.extend(value[scale * part.offset :][: scale * part.elements] for part in piece.ranges)
            else:
                parts.extend([None] * len(piece.ranges))
        return tuple(parts)

    def _checked(self, task: Task, result: Report | Failure) -> Report | Failure:
        """Take a report of an inline task that lacks its output, or some of it, for the failure that it is."""
        if not task.inline or isinstance(result, Failure):
            return result
        stage = self._route.plan.stages[task.stage]
        wanted = FLOAT_BYTES * self._batch * stage.written(stage.tiles[task.tile])
        found = len(result.output or b"")
        if found == wanted:
            return result
        return Failure(FailureKind.FAILED_IN_CODE, "PlanError", f"answered with {found} bytes, the plan says {wanted}")

    async def _outputs(self) -> list[Buffer]:
        """Return what the last stage's tiles computed, from the store where no answer could carry it."""
        last = len(self._inline) - 1
        reports = self._run.stages[last].reports
        if self._inline[last]:
            return [report.output or b"" for report in reports]
        store = CountingStore(self._route.store)
        asked = [Range(output_key(self._name, last, tile)) for tile in range(len(reports))]
        values = await asyncio.to_thread(store.get_many, asked)
        self._counts += store.counts
        return [*values]

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
        for number, stage in enumerate(self._run.stages):
            if not self._inline[number]:
                keys.extend(output_key(self._name, number, tile) for tile in range(len(stage.tiles)))
        if keys:
            try:
                await asyncio.to_thread(self._route.store.delete, keys)
            except StoreUnavailableError:
                return  # a store that is gone keeps nothing; one that comes back lets the keys expire
