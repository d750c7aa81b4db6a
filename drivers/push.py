"""The push driver: the return of a synchronous invocation is the completion of its task, so nothing is polled.

The run machine decides (serfer/core/run_machine.py); this file passes events to it and carries out its actions:
attempts to the dispatcher (drivers/dispatching/dispatcher.py), timers to the clock. drivers/tasks.py makes the tasks,
drivers/lifecycle.py restarts a query whose data the store has lost, under another name, so that what still runs for the
old one cannot interfere.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from drivers.batching import Batching
from drivers.clock import LOOP_CLOCK, Clock, Timer
from drivers.dispatching.dispatcher import Attempt, Dispatcher
from drivers.dispatching.prewarming import Prewarmer, Prewarming, WarmUps
from drivers.dispatching.priority_semaphore import PrioritySemaphore
from drivers.driver import NO_CONTEXT, Answer, Overheads, RequestContext
from drivers.gangs import Gangs, open_gangs
from drivers.invoker import Invoker
from drivers.lifecycle import InFlight
from drivers.query_store import QueryStore, delete
from drivers.tasks import DataPaths, QueryRequest, QueryTasks, data_paths
from serfer.core.errors import UsageError
from serfer.core.hedging import LearntHedging
from serfer.core.keys import ResultPlace, output_key, query_id
from serfer.core.plan import Plan
from serfer.core.plan.answers import answer_arrays, verified_parts
from serfer.core.run_machine import (
    Abort,
    Action,
    Cancelled,
    Drop,
    Event,
    Failure,
    Finish,
    Invoke,
    Probe,
    Progress,
    Retry,
    Run,
    TaskDone,
    TaskFailed,
    TaskStarted,
    TimePassed,
    WakeAt,
)
from serfer.core.wire import Buffer, Crop, Report
from storage.store import Store


@dataclass(frozen=True)
class _Route:
    """State that all queries of a driver share."""

    plan: Plan
    store: Store
    dispatcher: Dispatcher
    paths: Callable[[int], DataPaths]  # of a batch
    inline_limit: int
    crop_limit: int
    retry: Retry
    hedging: LearntHedging | None
    clock: Clock
    gangs: Gangs | None
    prewarmer: Prewarmer | None


class PushDriver:
    """Takes queries through one plan, any number at once.

    A crop of more than `inline_limit` bytes goes through the store, and so does a stage of which any payload would
    carry more, or any answer more than `answer_limit` (the same, unless given). A crop of more than `crop_limit` does
    too while the store takes it at once; without, payloads carry crops. A task may take `timeout_s`. At most
    `concurrency` invocations run at once, with those of other drivers that have the same `slots`; those of the oldest
    query start first, unless `oldest_first` is off. With `hedge`, a task that is later than others of its stage have
    been gets a duplicate. With `batching`, tasks of several queries that wait for the same tile may be one invocation,
    and so may tiles of one query if a stage has more of them than there are slots; raises UsageError
    if the invoker cannot share invocations. The plan's gangs run as such where
    the store has inboxes, unless `gangs` is off, and else stage by stage; raises UsageError for a gang with more
    members than `concurrency`. With `prewarming`, the functions of later stages are warmed when a query comes after a
    time without any, if the invoker can warm them. Answers may be kept in the store `results`, by the workers.
    """

    def __init__(  # noqa: PLR0913 - what can be chosen, by name
        self,
        plan: Plan,
        invoker: Invoker,
        store: Store,
        *,
        inline_limit: int,
        answer_limit: int | None = None,
        crop_limit: int | None = None,
        retry: Retry | None = None,
        timeout_s: float = 60.0,
        concurrency: int = 1000,
        slots: PrioritySemaphore | None = None,
        oldest_first: bool = True,
        hedge: bool = True,
        batching: Batching | None = None,
        clock: Clock = LOOP_CLOCK,
        gangs: bool = True,
        prewarming: Prewarming | None = None,
        results: Store | None = None,
    ) -> None:
        running = open_gangs(plan, store, concurrency) if gangs else None
        limit = inline_limit if answer_limit is None else min(inline_limit, answer_limit)
        self._dispatcher = Dispatcher(
            invoker,
            [
                [plan.function(number, tile.function) for tile in stage.tiles]
                for number, stage in enumerate(plan.stages)
            ],
            timeout_s=timeout_s,
            slots=slots or PrioritySemaphore(concurrency),
            oldest_first=oldest_first,
            batching=batching,
            tensor_bytes=inline_limit,
            clock=clock,
        )
        self._route = _Route(
            plan=plan,
            store=store,
            dispatcher=self._dispatcher,
            paths=functools.cache(lambda batch: data_paths(plan, batch, limit, gangs=running is not None)),
            inline_limit=inline_limit,
            crop_limit=inline_limit if crop_limit is None else min(crop_limit, inline_limit),
            retry=retry or Retry(),
            hedging=LearntHedging() if hedge else None,
            clock=clock,
            gangs=running,
            prewarmer=self._dispatcher.prewarm(plan, prewarming) if prewarming else None,
        )
        self._in_flight = InFlight(self._route.retry)
        self._results = results

    async def run(
        self, crops: Sequence[Crop], batch: int, deadline_s: float, context: RequestContext = NO_CONTEXT
    ) -> Answer:
        """Run one query of `batch` images, whose first-stage inputs are `crops`, one for each tile.

        Raises the error that the run ended with: TaskFailedError, DeadlineError, or what was unavailable; UsageError
        for a result of a driver that has no store of results.
        """
        discard = self._discard(context.result) if context.result else None
        now = self._route.clock.time()
        age = self._dispatcher.next_age(background=context.background)
        request = QueryRequest(crops, batch, now, now + deadline_s, age, context)
        begin = functools.partial(_Query, self._route, request)
        return await self._in_flight.run(self._in_flight.until_answered(begin, discard))

    def _discard(self, place: ResultPlace) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return what deletes the chunks of a result whose query has failed; raises UsageError without a store."""
        if self._results is None:
            raise UsageError("there is no store of results: set SERFER_RESULTS to its URL, or pass --results")
        keys = place.keys(answer_arrays(self._route.plan, 1))  # of any number of images
        return functools.partial(delete, self._results, keys, self._route.retry, self._route.clock)

    async def close(self) -> None:
        """Cancel the queries that run, and wait until what they and others left behind is deleted."""
        await self._in_flight.close()
        if self._route.prewarmer:
            await self._route.prewarmer.close()
        if self._route.gangs:
            self._route.gangs.close()


class _Query:
    """One query's events, timers and attempts."""

    def __init__(self, route: _Route, request: QueryRequest) -> None:
        paths = route.paths(request.batch)
        name = query_id(secrets.token_hex(16), one_slot=paths.one_slot)
        is_window = request.context.window is not None
        tiles = [1] if is_window else [stage.grid.tiles for stage in route.plan.stages]
        self._route = route
        self._request = request
        self._gangs = {gang.start: gang.stop for gang in route.plan.gangs} if route.gangs else {}
        self._tasks = QueryTasks(route.plan, name, request, paths, route.clock)
        self._run = Run(tiles, request.deadline, secrets.randbits(32), route.retry, route.hedging, self._gangs)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._store = QueryStore(route.store, route.retry, request.deadline, route.clock)
        self._queued: dict[tuple[int, int, int], Attempt] = {}
        self._timers: list[Timer] = []
        self._warm_ups: WarmUps | None = None

    @property
    def overheads(self) -> Overheads:
        """The overheads so far."""
        warm_ups = tuple(self._warm_ups.records) if self._warm_ups else ()
        return Overheads(self._run.retries, self._run.hedges, 0, self._store.counts, warm_ups)

    async def run(self) -> Answer:
        """Run the query to its end; raises one of LOST where some of its pieces were lost or altered."""
        await self._store_crops()
        self._carry_out(self._run.start(self._route.clock.time()))
        self._warm_ups = self._route.prewarmer.start() if self._route.prewarmer else None
        if self._request.context.watch:
            self._request.context.watch(self._run.stages)
        try:
            await self._ended
        except asyncio.CancelledError:
            self._handle(Cancelled())
            raise
        finally:
            if self._route.prewarmer and self._warm_ups:
                self._warm_ups.end()
                self._route.prewarmer.ended()
        outputs = await self._outputs()
        return Answer(
            query=self._tasks.name,
            started=self._request.started,
            ended=self._route.clock.time(),
            stages=self._run.stages,
            outputs=outputs,
            payload_bytes=self._tasks.payload_bytes(len(self._run.stages)),
            overheads=self.overheads,
        )

    async def _store_crops(self) -> None:
        """Put large crops into the store; those that payloads can carry as well are tried once."""
        crops = self._tasks.store_crops(self._route.crop_limit)  # noted first: a put may fail halfway
        required = any(len(data) > self._route.inline_limit for data in crops.values())
        if crops and not await self._store.put(crops, self._request.ttl, once=not required):
            self._tasks.carry_crops()

    def _handle(self, event: Event) -> None:
        self._carry_out(self._run.handle(event, self._route.clock.time()))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        self._invoke([action for action in actions if isinstance(action, Invoke)])
        for action in actions:
            match action:
                case Invoke():
                    pass  # all together, above
                case Abort(stage):
                    self._abort(stage)
                case Probe(stage):
                    self._store.watch(asyncio.get_running_loop().create_task(self._probe(stage)))
                case Drop(stage, tile, attempt):
                    self._withdraw((stage, tile, attempt))
                case WakeAt(time):
                    self._timers.append(self._route.clock.call_at(time, self._handle, TimePassed()))
                case Finish(error):
                    self._finish(error)

    def _invoke(self, requested: Sequence[Invoke]) -> None:
        """Queue attempts: the members of a gang that are requested together as one."""
        attempts = [self._attempt(one.stage, one.tile, one.attempt) for one in requested]
        self._queued |= {attempt.place: attempt for attempt in attempts}
        if attempts and attempts[0].task.gang:
            self._store.watch(self._route.dispatcher.start_gang(attempts))
            return
        for attempt in attempts:
            self._store.watch(self._route.dispatcher.start(attempt))

    def _attempt(self, stage: int, tile: int, number: int) -> Attempt:
        task = self._tasks.task(stage, tile, self._run.stages)
        return Attempt(
            owner=self,
            place=(stage, tile, number),
            task=task,
            age=self._request.age,
            deadline=self._request.deadline,
            answer_bytes=self._tasks.answer_bytes(task),
            alone=task.gang is not None or self._run.stages[stage].tiles[tile].alone,
        )

    def _abort(self, stage: int) -> None:
        if self._route.gangs:
            self._store.watch(self._store.start(self._route.gangs.abort(self._tasks.inboxes(stage), self._request.ttl)))

    async def _probe(self, stage: int) -> None:
        """Tell the run machine how far the members of a gang are."""
        gang = self._route.plan.gang_of(stage)
        if self._route.gangs and gang:
            at = await self._route.gangs.progress(self._tasks.board(stage), self._route.plan, gang)
            self._handle(Progress(stage, at))

    def _withdraw(self, place: tuple[int, int, int]) -> None:
        """Take an attempt out of the queue; one that was sent runs to its end, which cleaning up waits for."""
        if place in self._queued:
            self._route.dispatcher.withdraw(self._queued.pop(place))

    def _finish(self, error: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        for place in [*self._queued]:
            self._withdraw(place)
        if not self._ended.done():
            if error:
                self._ended.set_exception(error)
            else:
                self._ended.set_result(None)

    def sent(self, attempt: Attempt, carrier: asyncio.Task[None]) -> None:
        """Take note that an attempt has left the queue, and which asyncio task invokes it."""
        del self._queued[attempt.place]
        if carrier is not attempt.carrier:
            self._store.watch(carrier)
        self._handle(TaskStarted(*attempt.place))

    def ended(self, attempt: Attempt, result: Report | Failure, took_s: float) -> None:
        """Hand an attempt's result to the run machine."""
        result = self._tasks.checked(attempt.task, result)
        if isinstance(result, Failure):
            self._handle(TaskFailed(*attempt.place, result))
            return
        task = attempt.task
        if self._route.hedging and (task.gang or task.stage not in self._gangs):  # a stage takes less than its gang
            self._route.hedging.learn(task.stage, took_s)
        self._handle(TaskDone(*attempt.place, result))

    def broken(self, bug: Exception) -> None:
        """End the query with a bug of ours."""
        self._finish(bug)
        self._handle(Cancelled())

    async def _outputs(self) -> Sequence[Sequence[Buffer]]:
        """Return what the last stage's tiles computed, from the store where no answer could carry it.

        What they wrote as a result is not read.
        """
        if self._request.context.result:
            return ()
        last = len(self._run.stages) - 1
        reports = self._run.stages[last].reports
        tiles = range(self._request.first, self._request.first + len(reports))
        keys = [output_key(self._tasks.name, last, tile) for tile in tiles]
        by_value = self._tasks.paths.by_value[last]
        values = [report.output or b"" for report in reports] if by_value else await self._store.get(keys)
        return [
            verified_parts(self._route.plan, tile, value, key, self._request.batch)
            for tile, value, key in zip(tiles, values, keys, strict=True)
        ]

    async def clean_up(self) -> None:
        """Delete the query's keys, after its last invocation where some still run."""
        await self._store.delete(self._tasks.keys(len(self._run.stages)))
