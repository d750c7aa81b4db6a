"""The push driver: a synchronous invoke's return says that a tile is done, so nothing is ever polled.

The run machine decides (serfer/core/run.py); this file carries its decisions out: it starts invocations, as many at
once as the account allows and the oldest query's first, several queries' tasks as one where they may share it
(batching.py), sets the clock, and deletes what a query leaves in the store. A query whose pieces the store has lost
begins anew, under another name, so that whatever is still under way for the old one cannot meddle.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from drivers.batching import Batching, BatchQueue, Pending
from drivers.driver import NO_CONTEXT, TTL_MARGIN_S, Answer, Overheads, RequestContext
from drivers.invoker import Invoker, SharedInvoker
from drivers.lifecycle import ONE_SLOT, STRAGGLER_S, InFlight, delete, retry_store
from drivers.priority_semaphore import PrioritySemaphore
from serfer.core.checksum import protect, verified
from serfer.core.errors import UsageError
from serfer.core.hedging import LearntHedging
from serfer.core.inline import inline_stages
from serfer.core.keys import input_key, output_key, query_id
from serfer.core.plan import Plan
from serfer.core.report import StoreCounts
from serfer.core.run import (
    Action,
    Cancelled,
    Drop,
    Event,
    Failure,
    FailureKind,
    Finish,
    Invoke,
    Retry,
    Run,
    TaskDone,
    TaskFailed,
    TaskStarted,
    TimePassed,
    WakeAt,
)
from serfer.core.wire import Buffer, Crop, Report, Task
from storage.counting import CountingStore
from storage.store import Range, Store


@dataclass(frozen=True, eq=False)
class _Attempt(Pending):
    """A try of a query's task."""

    query: _Query
    number: int


@dataclass(frozen=True)
class _Together:
    """How attempts share invocations."""

    groups: BatchQueue[_Attempt]
    invoker: SharedInvoker


@dataclass(frozen=True)
class _Paths:
    """How a query's tensors travel: which stages' outputs ride along, and whether its keys belong on one slot."""

    inline: tuple[bool, ...]
    one_slot: bool


@dataclass(frozen=True)
class _Route:
    """What all queries of a driver share."""

    plan: Plan
    functions: Sequence[Sequence[str]]  # of each tile of each stage
    invoker: Invoker
    store: Store
    inline_limit: int
    paths: Callable[[int], _Paths]  # of a batch
    timeout_s: float
    retry: Retry
    slots: PrioritySemaphore
    oldest_first: bool
    hedging: LearntHedging | None
    together: _Together | None
    bundles: Sequence[int]  # how many tiles of each stage one invocation takes


class PushDriver:
    """Takes queries through one plan, any number at once.

    A crop of more than `inline_limit` bytes goes through the store, and so does a stage of which any payload would
    carry more, or any answer more than `answer_limit` (the same, unless given); a task may take `timeout_s`. At most
    `concurrency` invocations are under way at once; those of the oldest query start first, unless `oldest_first` is
    off. With `hedge`, a task that is later than the others of its stage have been gets a duplicate. With `batching`,
    tasks of several queries that wait for the same tile may go as one invocation, and so do tiles of one query where a
    stage has more of them than there are slots; raises UsageError where the invoker knows of no such thing.
    """

    def __init__(  # noqa: PLR0913 - what can be chosen, by name
        self,
        plan: Plan,
        invoker: Invoker,
        store: Store,
        *,
        inline_limit: int,
        answer_limit: int | None = None,
        retry: Retry | None = None,
        timeout_s: float = 60.0,
        concurrency: int = 1000,
        oldest_first: bool = True,
        hedge: bool = True,
        batching: Batching | None = None,
    ) -> None:
        functions = [
            [plan.function(number, tile.function) for tile in stage.tiles] for number, stage in enumerate(plan.stages)
        ]
        limit = inline_limit if answer_limit is None else min(inline_limit, answer_limit)
        paths = functools.cache(lambda batch: _paths(plan, batch, limit))
        slots, hedging = PrioritySemaphore(concurrency), LearntHedging() if hedge else None
        together = _together(invoker, batching, inline_limit) if batching else None
        bundles = batching.bundles if batching and batching.bundles else (1,) * len(plan.stages)
        self._route = _Route(
            *(plan, functions, invoker, store, inline_limit, paths, timeout_s, retry or Retry(), slots, oldest_first),
            *(hedging, together, bundles),
        )
        self._in_flight = InFlight(self._route.retry)
        self._arrivals = itertools.count()

    async def run(
        self, crops: Sequence[Crop], batch: int, deadline_s: float, context: RequestContext = NO_CONTEXT
    ) -> Answer:
        """Run one query of `batch` images, whose first-stage inputs are `crops`, one for each tile.

        Raises the error that the run ended with: TaskFailedError, DeadlineError, or what was unavailable.
        """
        age = next(self._arrivals) if self._route.oldest_first else 0
        started = asyncio.get_running_loop().time()
        times = started, started + deadline_s
        return await self._in_flight.run(
            self._in_flight.until_answered(lambda: _Query(self._route, crops, batch, times, age, context))
        )

    async def close(self) -> None:
        """Cancel the queries that are under way, and wait until what they and others left behind is deleted."""
        await self._in_flight.close()


def _paths(plan: Plan, batch: int, limit: int) -> _Paths:
    inline = inline_stages(plan, batch, limit)
    stored = sum(
        stage.written(tile, batch)
        for stage, rides in zip(plan.stages, inline, strict=True)
        for tile in stage.tiles
        if not rides
    )
    return _Paths(inline, one_slot=stored <= ONE_SLOT)


def _together(invoker: Invoker, batching: Batching, limit: int) -> _Together:
    if not isinstance(invoker, SharedInvoker):
        raise UsageError(f"{type(invoker).__name__} cannot run several queries' tasks as one: leave `batching` out")
    return _Together(BatchQueue(batching, limit), invoker)


class _Query:
    """One query's events, invocations and keys; `times` are when it started and its deadline."""

    def __init__(
        self,
        route: _Route,
        crops: Sequence[Crop],
        batch: int,
        times: tuple[float, float],
        age: int,
        context: RequestContext,
    ) -> None:
        paths = route.paths(batch)
        self._route = route
        self._name = query_id(secrets.token_hex(16), one_slot=paths.one_slot)
        self._age = age
        self._asker = context
        self._batch = batch
        self._started, self._deadline = times
        self._ttl = self._deadline - self._started + TTL_MARGIN_S
        self._loop = asyncio.get_running_loop()
        tiles = [stage.grid.tiles for stage in route.plan.stages]
        self._run = Run(tiles, self._deadline, secrets.randbits(32), route.retry, route.hedging)
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._in_flight: set[asyncio.Task[None]] = set()  # what may still write: invocations, and puts of crops
        self._queued: dict[tuple[int, int, int], asyncio.Task[None]] = {}  # attempts that wait for a slot
        self._timers: list[asyncio.TimerHandle] = []
        self._crops = crops
        self._inline = paths.inline
        self._tasks: dict[tuple[int, int], Task] = {}
        self._counts = StoreCounts()

    @property
    def overheads(self) -> Overheads:
        """What it took so far."""
        return Overheads(self._run.retries, self._run.hedges, 0, self._counts)

    async def run(self) -> Answer:
        """Run the query to its end; raises one of LOST where some of its pieces were lost or altered."""
        await self._store_large_crops()
        self._carry_out(self._run.start(self._loop.time()))
        if self._asker.watch:
            self._asker.watch(self._run.stages)
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
            overheads=self.overheads,
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
        self._watch(task)
        return task

    def _watch(self, task: asyncio.Task[None]) -> None:
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

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

    def _give_up(self, place: tuple[int, int, int]) -> None:
        """Take an attempt out of the queue; one on its way runs to its end, which cleaning up waits for."""
        if place in self._queued:
            self._queued.pop(place).cancel()
            if self._route.together:
                self._route.together.groups.leave(*place[:2], self._name)

    async def _invoke(self, stage: int, tile: int, number: int) -> None:
        """Wait for a slot, run an attempt with those that share its invocation, and tell each one's query."""
        route, together = self._route, self._may_share(stage, tile)
        members: list[_Attempt] = []
        try:
            first = self._attempt(stage, tile, number)
            await route.slots.acquire(self._turn(first, together) if together else self._age)
            try:
                started = self._loop.time()
                members = together.groups.take(first, started) if together else self._bundle(first)
                carrier = self._queued[stage, tile, number]
                for member in members:
                    member.query.set_out(member, carrier)
                results = await self._results(members)
            finally:
                route.slots.release()
            took = self._loop.time() - started
            for member, result in zip(members, results, strict=True):
                member.query.settle(member, result, took)
        except Exception as bug:  # noqa: BLE001 - invokers return failures, so this is a bug; whoever waits must see it
            for query in {self, *(member.query for member in members)}:
                query.break_off(bug)

    def _bundle(self, first: _Attempt) -> list[_Attempt]:
        """Return who shares a tile's invocation: tiles of its stage that would wait for its slot anyway, itself first.

        A stage of more tiles than there are slots takes as few invocations as there are slots.
        """
        route, stage = self._route, first.task.stage
        most, bundle = route.bundles[stage], [first]
        if first.number or most == 1:
            return bundle
        function = route.functions[stage][first.task.tile]
        carried, answered = first.task.carried, first.answered
        for waiting, tile, number in self._queued:
            if len(bundle) == most:
                break
            if waiting != stage or number or tile == first.task.tile or route.functions[stage][tile] != function:
                continue
            other = self._attempt(stage, tile, number)
            carried, answered = carried + other.task.carried, answered + other.answered
            if max(carried, answered) > route.inline_limit:
                break
            bundle.append(other)
        return bundle

    def _may_share(self, stage: int, tile: int) -> _Together | None:
        """Say how an attempt may share its invocation; one that failed or is late has to go alone."""
        together, known = self._route.together, self._run.stages[stage].tiles[tile]
        if together is None or stage not in together.groups.batching.stages or known.alone:
            return None
        return together

    def _attempt(self, stage: int, tile: int, number: int) -> _Attempt:
        task = self._task(stage, tile)
        answered = self._written(task) if task.inline else 0
        return _Attempt(self._age, task, answered, self._deadline, self, number)

    def _turn(self, attempt: _Attempt, together: _Together) -> int:
        """Let an attempt be found by others, and return the age at which it waits for its own slot."""
        together.groups.enter(attempt)
        if not self._route.oldest_first:
            return self._age
        left_s = self._deadline - self._loop.time()
        return self._age + together.groups.batching.max_queue_jumps(attempt.task.stage, self._batch, left_s)

    def set_out(self, attempt: _Attempt, carrier: asyncio.Task[None]) -> None:
        """Take an attempt out of the queue: `carrier` runs it, its own asyncio task or another query's."""
        place = attempt.task.stage, attempt.task.tile, attempt.number
        waiting = self._queued.pop(place)
        if waiting is not carrier:
            waiting.cancel()
            self._watch(carrier)
        self._handle(TaskStarted(*place))

    async def _results(self, members: Sequence[_Attempt]) -> list[Report | Failure]:
        """Invoke a function for one task, or once for several, and return what became of each."""
        route, tasks = self._route, [member.task for member in members]
        function = route.functions[tasks[0].stage][tasks[0].tile]
        if route.together and len(tasks) > 1:
            answers = await route.together.invoker.invoke_shared(function, tasks, route.timeout_s)
        else:
            answers = [await route.invoker.invoke(function, tasks[0], route.timeout_s)]
        return [member.query.checked(member.task, answer) for member, answer in zip(members, answers, strict=True)]

    def settle(self, attempt: _Attempt, result: Report | Failure, took_s: float) -> None:
        """Tell the run machine how an attempt ended."""
        place = attempt.task.stage, attempt.task.tile, attempt.number
        if isinstance(result, Failure):
            self._handle(TaskFailed(*place, result))
            return
        if self._route.hedging:
            self._route.hedging.learn(attempt.task.stage, took_s)
        self._handle(TaskDone(*place, result))

    def break_off(self, bug: Exception) -> None:
        """End the query with a bug of ours."""
        self._finish(bug)
        self._handle(Cancelled())

    def _task(self, stage: int, tile: int) -> Task:
        """Return a tile's task, the same one however often it is tried."""
        task = self._tasks.get((stage, tile))
        if task is None:
            crop = self._crops[tile] if stage == 0 else None
            task = Task(
                *(self._route.plan.digest, self._name, stage, tile, self._batch, self._ttl, crop),
                inline=self._inline[stage],
                parts=self._parts(stage, tile),
                request=self._asker.request,
            )
            self._tasks[stage, tile] = task
        return task

    def _parts(self, stage: int, tile: int) -> tuple[Buffer | None, ...]:
        """Cut what a tile reads of inline stages out of their answers, without copying it."""
        parts: list[Buffer | None] = []
        for piece in self._route.plan.stages[stage].tiles[tile].pieces:
            if self._inline[piece.stage]:
                value = memoryview(self._run.stages[piece.stage].reports[piece.tile].output or b"")
                places = [(part.start(self._batch), part.length(self._batch)) for part in piece.ranges]
                parts.extend(value[start : start + length] for start, length in places)
            else:
                parts.extend([None] * len(piece.ranges))
        return tuple(parts)

    def checked(self, task: Task, result: Report | Failure) -> Report | Failure:
        """Take a report of an inline task that lacks its output, or some of it, for the failure that it is."""
        if not task.inline or isinstance(result, Failure):
            return result
        wanted = self._written(task)
        found = len(result.output or b"")
        if found == wanted:
            return result
        return Failure(FailureKind.FAILED_IN_CODE, "PlanError", f"answered with {found} bytes, the plan says {wanted}")

    def _written(self, task: Task) -> int:
        """Return how many bytes a task writes, or answers with."""
        stage = self._route.plan.stages[task.stage]
        return stage.written(stage.tiles[task.tile], task.batch)

    async def _outputs(self) -> list[Buffer]:
        """Return what the last stage's tiles computed, from the store where no answer could carry it."""
        last = len(self._inline) - 1
        reports = self._run.stages[last].reports
        keys = [output_key(self._name, last, tile) for tile in range(len(reports))]
        values: list[Buffer] = [report.output or b"" for report in reports]
        if not self._inline[last]:
            store = CountingStore(self._route.store)
            asked = [Range(key) for key in keys]
            values = [*await retry_store(lambda: store.get_many(asked), self._route.retry, self._deadline)]
            self._counts += store.counts
        return [verified(value, key) for value, key in zip(values, keys, strict=True)]

    async def _store_large_crops(self) -> None:
        """Put crops that no payload can carry into the store; the others ride along."""
        limit = self._route.inline_limit
        large = {number: crop.data for number, crop in enumerate(self._crops) if crop.data and len(crop.data) > limit}
        if not large:
            return
        store = CountingStore(self._route.store)

        def put() -> None:
            for number, data in large.items():
                key = input_key(self._name, number)
                store.put(key, protect(data, key), self._ttl)

        # Said before it is true, so that cleaning up knows of keys whose put fails halfway or is not waited for.
        self._crops = [Crop(crop.dtype, None) if number in large else crop for number, crop in enumerate(self._crops)]
        await asyncio.shield(self._start(retry_store(put, self._route.retry, self._deadline)))
        self._counts = store.counts

    async def clean_up(self) -> None:
        """Delete the query's keys, after its last invocation where some are still on their way."""
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=STRAGGLER_S)
        keys = [input_key(self._name, number) for number, crop in enumerate(self._crops) if crop.data is None]
        for number, stage in enumerate(self._run.stages):
            if not self._inline[number]:
                keys.extend(output_key(self._name, number, tile) for tile in range(len(stage.tiles)))
        if keys:
            await delete(self._route.store, keys, self._route.retry)
