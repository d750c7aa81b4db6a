"""The push driver: the return of a synchronous invocation is the completion of its task, so nothing is polled.

A query has two objects: the run machine (serfer/core/run_machine.py), which decides, and one shell, which carries out
what it decides and tells it what comes of that:

    PushRun.run ──▶ Run.start ──▶ actions ──┬── Invoke ──▶ _run_queued_tasks: a slot, the function ──┐
                                  ▲         ├── WakeAt ──▶ the clock ───────────────────────┤ event
                                  │         ├── Probe ───▶ the store ───────────────────────┤
                                  │         └── Finish ──▶ the answer                       │
                                  └───────────────── Run.handle ◀───────────────────────────┘

drivers/dispatching says when a task is invoked, and with which others. A query whose data the store has lost is run
again (drivers/driver.py), under another name, so that what still runs for the old one cannot interfere.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from serfer.core.errors import StoreError, StoreUnavailableError, UsageError
from serfer.core.hedging import LearntHedging
from serfer.core.inline_outputs import data_paths
from serfer.core.keys import ResultPlace, inbox_key, input_key, output_key, query_id, query_keys
from serfer.core.plan import Gang, Plan
from serfer.core.plan.answers import answer_arrays, verified_parts
from serfer.core.plan.borders import BORDER_HEADER, Member, members
from serfer.core.plan.gang_times import patience_s
from serfer.core.plan.sized_plan import sized_plan
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
from serfer.core.wire import Buffer, Crop, Membership, Report, Task
from serfer.drivers.batching import Batching
from serfer.drivers.clock import LOOP_CLOCK, Clock, Timer
from serfer.drivers.dispatching.dispatcher import Dispatcher, PendingTask, Timed
from serfer.drivers.dispatching.prewarming import Prewarming, WarmUps
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.driver import (
    NO_CONTEXT,
    Answer,
    Overheads,
    QueryDriver,
    QueryRequest,
    RequestContext,
    TaskWork,
    answer_bytes,
    check_report,
)
from serfer.drivers.invoker import Invoker, ThreadInvoker
from serfer.drivers.query_store import QueryStore, delete
from serfer.drivers.short_run import ShortRun
from serfer.storage.exchange import START, Exchange, Message
from serfer.storage.store import Store

_Result = TypeVar("_Result")
_LEAST_PATIENCE_S = 0.001
_PATHS = 1024
"""Pairs of a number of images and a size whose paths are known."""


class PushDriver(QueryDriver):
    """Takes queries through one plan, any number at once; its gangs run as such where the store has inboxes.

    A payload carries `inline_limit` bytes of tensors, an answer `answer_limit`; a larger crop, and a stage with a
    larger payload, goes through the store, crops of more than `crop_limit` already if the store takes them at once.
    `retry` is of tasks, of the store's calls, and of queries whose data the store has lost; a task may take
    `timeout_s`. Drivers may share `slots`. With `hedge`, a task that is later than others of its stage have been gets
    a duplicate. Raises UsageError for an invoker that cannot share invocations with `batching`, and for a gang with
    more members than `slots`. With `threads`, each task is the only one of its query, and runs in this process.
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
        slots: PrioritySemaphore | int = 1000,
        oldest_first: bool = True,
        hedge: bool = True,
        batching: Batching | None = None,
        clock: Clock = LOOP_CLOCK,
        gangs: bool = True,
        prewarming: Prewarming | None = None,
        results: Store | None = None,
    ) -> None:
        self.slots = slots = PrioritySemaphore(slots) if isinstance(slots, int) else slots
        self.timeout_s = timeout_s
        exchange = _open_exchange(plan, store, slots.limit) if gangs else None
        limit = inline_limit if answer_limit is None else min(inline_limit, answer_limit)
        self.plan, self.store, self.exchange, self.clock, self.retry = plan, store, exchange, clock, retry or Retry()
        self.paths = functools.lru_cache(_PATHS)(
            lambda batch, size: data_paths(sized_plan(plan, size), batch, limit, gangs=exchange is not None)
        )
        self.inline_limit = inline_limit
        self.crop_limit = inline_limit if crop_limit is None else min(crop_limit, inline_limit)
        self.hedging = LearntHedging() if hedge else None
        self.dispatcher = Dispatcher(
            invoker,
            [
                [plan.function(number, tile.function) for tile in stage.tiles]
                for number, stage in enumerate(plan.stages)
            ],
            timeout_s=timeout_s,
            slots=slots,
            oldest_first=oldest_first,
            batching=batching,
            tensor_bytes=inline_limit,
            clock=clock,
        )
        self.prewarmer = self.dispatcher.prewarm(plan, prewarming) if prewarming else None
        self._results = results
        first = plan.stages[0]
        one_task = len(plan.stages) == first.grid.tiles == len(first.tiles) == 1 and not self.prewarmer
        self._batched = batching is not None and 0 in batching.stages
        self.threads = invoker if one_task and isinstance(invoker, ThreadInvoker) else None
        self.function = plan.function(0, 0)
        super().__init__(self.retry)

    def run(
        self, crops: Sequence[Crop], batch: int, deadline_s: float, context: RequestContext = NO_CONTEXT
    ) -> Coroutine[Any, Any, Answer]:
        discard = self._discard(context.result) if context.result else None
        request = self._request(crops, batch, deadline_s, context)
        return self._until_answered(lambda: PushRun(self, request), discard)

    def is_short(self, batch: int, crop_bytes: int, context: RequestContext) -> bool:
        """Return whether `run_in_thread` takes a query of a crop of so many bytes."""
        ordinary = context.result or context.watch or context.statistics or context.window is not None
        waits = self._batched and self.slots.used >= self.slots.limit  # for a slot, with others
        fits = self.threads is not None and crop_bytes <= self.crop_limit and not waits
        return fits and not ordinary and self.paths(batch, context.size).by_value[0]

    def run_in_thread(
        self, work: TaskWork[_Result], batch: int, deadline_s: float, context: RequestContext = NO_CONTEXT
    ) -> Coroutine[Any, Any, _Result]:
        """Run a query as `run` does, and return what was made of its answer, in its task's thread if all goes well.

        Raises UsageError for a driver without `threads`.
        """
        if self.threads is None:
            raise UsageError("this driver's tasks do not run in threads of this process")
        return ShortRun(self, self.threads, self._request((), batch, deadline_s, context), work).run()

    def go_on(self, first: ShortRun[Any]) -> Coroutine[Any, Any, Answer]:
        """Take over from a short run; restarts take its query again."""
        runs = itertools.chain([first], itertools.repeat(None))
        return self._until_answered(lambda: PushRun(self, first.request, next(runs)))

    def give_up(self, first: ShortRun[Any]) -> None:
        """End a short run that nobody waits for any more, as the run machine ends its own."""
        run = PushRun(self, first.request, first)
        run.cancel()
        self._delete_later(run.clean_up())

    def _request(self, crops: Sequence[Crop], batch: int, deadline_s: float, context: RequestContext) -> QueryRequest:
        now = self.clock.time()
        age = self.dispatcher.next_age(background=context.background)
        return QueryRequest(crops, batch, now, now + deadline_s, age, context)

    def _discard(self, place: ResultPlace) -> Callable[[], Coroutine[Any, Any, None]]:
        if self._results is None:
            raise UsageError("there is no store of results: set SERFER_RESULTS to its URL, or pass --results")
        keys = place.keys(answer_arrays(self.plan, 1))  # of any number of images
        return functools.partial(delete, self._results, keys, self.retry, self.clock)

    async def close(self) -> None:
        await super().close()
        if self.prewarmer:
            await self.prewarmer.close()
        if self.exchange:
            self.exchange.close()


class PushRun:
    """A run of a query under a name of its own: its events, its timers, its tasks, and its keys in the store.

    It takes over from the query's short run, if that was `first`.
    """

    def __init__(self, driver: PushDriver, request: QueryRequest, first: ShortRun[Any] | None = None) -> None:
        self._driver = driver
        self._first = first
        self._plan = sized_plan(driver.plan, request.context.size)
        self._request = request
        self._paths = driver.paths(request.batch, request.context.size)
        self._name = (first.name if first else "") or query_id(one_slot=self._paths.one_slot)
        self._gangs = {gang.start: gang.stop for gang in driver.plan.gangs} if driver.exchange else {}
        tiles = [1] if request.context.window is not None else [stage.grid.tiles for stage in driver.plan.stages]
        self._run = Run(tiles, request.deadline, secrets.randbits(32), driver.retry, driver.hedging, self._gangs)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._store = QueryStore(driver.store, driver.retry, request.deadline, driver.clock)
        self._tasks: dict[tuple[int, int, bool], Task] = {}  # each built once, however often it is tried
        self._stored_crops: frozenset[int] = frozenset()
        self._carried = False  # by payloads, since the store did not take them
        self._queued: dict[tuple[int, int, int], PendingTask] = {}
        self._timers: list[Timer] = []
        self._warm_ups: WarmUps | None = None

    @property
    def overheads(self) -> Overheads:
        warm_ups = tuple(self._warm_ups.records) if self._warm_ups else ()
        return Overheads(self._run.retries, self._run.hedges, 0, self._store.counts, warm_ups)

    async def run(self) -> Answer:
        if self._first:
            self._take_over(self._first)
        else:
            await self._store_crops()
            self._carry_out(self._run.start(self._driver.clock.time()))
        self._warm_ups = self._driver.prewarmer.start() if self._driver.prewarmer else None
        if self._request.context.watch:
            self._request.context.watch(self._run.stages)
        try:
            await self._ended
        except asyncio.CancelledError:
            self._handle(Cancelled())
            raise
        finally:
            if self._driver.prewarmer and self._warm_ups:
                self._warm_ups.end()
                self._driver.prewarmer.ended()
        outputs = await self._outputs()
        payload_bytes = [0] * len(self._run.stages)
        for task in self._tasks.values():
            payload_bytes[task.stage] += task.payload_bytes
        return Answer(
            query=self._name,
            started=self._request.started,
            ended=self._driver.clock.time(),
            stages=self._run.stages,
            outputs=outputs,
            payload_bytes=payload_bytes,
            overheads=self.overheads,
        )

    def _take_over(self, first: ShortRun[Any]) -> None:
        place, actions = (0, 0, 0), self._run.start(first.requested)
        if first.sent is not None:
            actions += self._run.handle(TaskStarted(*place), first.sent if first.began is None else first.began)
            settling = self._settle(place, first.invocation(), None)
            self._store.watch(asyncio.get_running_loop().create_task(settling))
        if self._request.crops and first.task:
            self._tasks[0, first.task.tile, False] = first.task
        self._carry_out([action for action in actions if not isinstance(action, Invoke)])

    def cancel(self) -> None:
        """End a run that has taken over, in place of its caller's wait for it."""
        if self._first:
            self._take_over(self._first)
        self._ended.cancel()  # which nobody awaits
        self._handle(Cancelled())

    async def clean_up(self) -> None:
        tiles = [stage.grid.tiles for stage in self._plan.stages]
        own = len(tiles) - (self._request.context.result is not None)  # the last one's is not the query's
        stored = [stage for stage in range(min(len(self._run.stages), own)) if not self._paths.by_value[stage]]
        gangs = {stage for stage, _, gang in self._tasks if gang}
        inboxes = [inbox for stage in sorted(gangs) for inbox in [*self._gang_inboxes(stage), self._gang_board(stage)]]
        await self._store.delete([*query_keys(self._name, tiles, stored, sorted(self._stored_crops)), *inboxes])

    async def _store_crops(self) -> None:
        crops = enumerate(self._request.crops, self._request.first)
        more = sum(map(len, self._statistics))
        large = {
            tile: crop.data for tile, crop in crops if crop.data and len(crop.data) + more > self._driver.crop_limit
        }
        self._stored_crops = frozenset(large)  # noted first: a put may fail halfway
        required = any(len(data) + more > self._driver.inline_limit for data in large.values())
        values = {input_key(self._name, tile): data for tile, data in large.items()}
        if large and not await self._store.put(values, self._request.ttl, once=not required):
            self._carried = True

    def _handle(self, event: Event) -> None:
        self._carry_out(self._run.handle(event, self._driver.clock.time()))

    def _carry_out(self, actions: Sequence[Action]) -> None:
        self._invoke([action for action in actions if isinstance(action, Invoke)])
        for action in actions:
            match action:
                case Invoke():
                    pass  # all together, above
                case Abort(stage):
                    self._store.start(self._abort(stage))
                case Probe(stage):
                    self._store.watch(asyncio.get_running_loop().create_task(self._report_progress(stage)))
                case Drop(stage, tile, attempt):
                    self._withdraw((stage, tile, attempt))
                case WakeAt(time):
                    self._timers.append(self._driver.clock.call_at(time, self._handle, TimePassed()))
                case Finish(error):
                    self._finish(error)

    def _invoke(self, requests: Sequence[Invoke]) -> None:
        tasks = [self._pending(request) for request in requests]
        gang_starts = any(pending.task.gang for pending in tasks) and not any(request.attempt for request in requests)
        for together in [tasks] if gang_starts else [[pending] for pending in tasks]:
            carrier = asyncio.get_running_loop().create_task(self._run_queued_tasks(together))
            self._store.watch(carrier)
            for pending in together:
                self._driver.dispatcher.enqueue(pending, carrier)
                self._queued[pending.place] = pending

    def _pending(self, request: Invoke) -> PendingTask:
        stage, tile = request.stage, request.tile
        task = self._task(stage, tile + self._request.first)
        return PendingTask(
            place=(stage, tile, request.attempt),
            task=task,
            age=self._request.age,
            deadline=self._request.deadline,
            answer_bytes=answer_bytes(self._plan, task),
            alone=task.gang is not None or task.size is not None or self._run.stages[stage].tiles[tile].alone,
        )

    async def _run_queued_tasks(self, together: Sequence[PendingTask]) -> None:
        invoke = self._driver.dispatcher.invoke
        try:
            await self._driver.dispatcher.admit(together)
            for pending in together:
                self._queued.pop(pending.place, None)
                self._handle(TaskStarted(*pending.place))
        except Exception as bug:  # noqa: BLE001 - as in _settle
            self._end_with_bug(bug)
            return
        settling = [self._settle(pending.place, invoke(pending), pending.task) for pending in together]
        if len(settling) == 1:
            await settling[0]
        else:
            await asyncio.gather(*settling)

    async def _settle(self, place: tuple[int, int, int], invocation: Awaitable[Timed], task: Task | None) -> None:
        try:
            result, took_s = await invocation
            if task and isinstance(result, Report):
                result = check_report(self._plan, task, result)
            if isinstance(result, Failure):
                self._request.context.failed(result.message)
                self._handle(TaskFailed(*place, result))
                return
            # A stage of a gang that runs by itself takes less than the gang did.
            if self._driver.hedging and ((task and task.gang) or place[0] not in self._gangs):
                self._driver.hedging.learn(place[0], took_s)
            self._handle(TaskDone(*place, result))
        except Exception as bug:  # noqa: BLE001 - invokers return failures, so this is a bug; the caller must see it
            self._end_with_bug(bug)

    def _withdraw(self, place: tuple[int, int, int]) -> None:
        if place in self._queued:
            self._driver.dispatcher.withdraw(self._queued.pop(place))

    def _end_with_bug(self, bug: Exception) -> None:
        self._finish(bug)
        self._handle(Cancelled())

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

    async def _outputs(self) -> Sequence[Sequence[Buffer]]:
        if self._request.context.result:
            return ()
        last = len(self._run.stages) - 1
        reports = self._run.stages[last].reports
        tiles = range(self._request.first, self._request.first + len(reports))
        keys = [output_key(self._name, last, tile) for tile in tiles]
        by_value = self._paths.by_value[last]
        values = [report.output or b"" for report in reports] if by_value else await self._store.get(keys)
        return [
            verified_parts(self._plan, tile, value, key, self._request.batch)
            for tile, value, key in zip(tiles, values, keys, strict=True)
        ]

    async def _abort(self, stage: int) -> None:
        if self._driver.exchange:
            messages = [Message(inbox, b"") for inbox in self._gang_inboxes(stage)]
            with suppress(StoreUnavailableError, StoreError):
                await asyncio.to_thread(self._driver.exchange.send, messages, self._request.ttl)

    async def _report_progress(self, stage: int) -> None:
        gang = self._plan.gang_of(stage)
        if self._driver.exchange and gang:
            at = await gang_progress(self._driver.exchange, self._gang_board(stage), self._plan, gang)
            self._handle(Progress(stage, at))

    def _gang_inboxes(self, stage: int) -> list[str]:
        return [inbox_key(self._name, stage, member) for member in range(len(self._plan.stages[stage].tiles))]

    def _gang_board(self, stage: int) -> str:
        return inbox_key(self._name, stage, len(self._plan.stages[stage].tiles))

    def _task(self, stage: int, tile: int) -> Task:
        stages = self._run.stages
        stop = stages[stage].gang_stop
        place = stage, tile, stop is not None
        if place not in self._tasks:
            end = stop or stage + 1
            result = self._request.context.result if end == len(self._plan.stages) else None
            self._tasks[place] = Task(
                plan=self._plan.digest,
                query=self._name,
                stage=stage,
                tile=tile,
                batch=self._request.batch,
                ttl=self._request.ttl,
                crop=self._crop(tile) if stage == 0 else None,
                inline=self._paths.by_value[end - 1] and result is None,
                parts=self._parts(stage, tile, gang=stop is not None) if stage else self._statistics,
                request=self._request.context.request,
                gang=Membership(stop, self._patience_s(stage)) if stop else None,
                result=result,
                size=self._request.context.size,
            )
        return self._tasks[place]

    @property
    def _statistics(self) -> tuple[bytes, ...]:
        statistics = self._request.context.statistics
        return (statistics,) if statistics else ()

    def _crop(self, tile: int) -> Crop:
        crop = self._request.crops[tile - self._request.first]
        return crop._replace(data=None) if tile in self._stored_crops and not self._carried else crop

    def _patience_s(self, stage: int) -> float:
        left_s = self._request.deadline - self._driver.clock.time()
        gang = self._plan.gang_of(stage)
        return max(_LEAST_PATIENCE_S, min(left_s, patience_s(gang)) if gang else 0.0)

    def _parts(self, stage: int, tile: int, *, gang: bool) -> tuple[Buffer | None, ...]:
        parts: list[Buffer | None] = []
        batch = self._request.batch
        known = self._plan.gang_of(stage) if gang else None
        before = Member(self._plan, known, tile).before if known else self._plan.stages[stage].tiles[tile].pieces
        for piece in before:
            if self._paths.by_value[piece.stage]:
                report = self._run.stages[piece.stage].tiles[piece.tile].report
                value = memoryview((report.output if report else None) or b"")
                places = [(part.start(batch), part.length(batch)) for part in piece.ranges]
                parts.extend(value[start : start + length] for start, length in places)
            else:
                parts.extend([None] * len(piece.ranges))
        return tuple(parts)


async def gang_progress(exchange: Exchange, board: str, plan: Plan, gang: Gang) -> tuple[int, ...]:
    """Return the stage that each member of a gang is at, the first whose borders it has not sent, from its board.

    Nothing was sent as far as anybody knows where the store does not answer.
    """
    try:
        received = await asyncio.to_thread(exchange.receive, board, START, 0.0)
    except (StoreUnavailableError, StoreError):
        received = []
    sent = {BORDER_HEADER.unpack(value) for _, value in received if len(value) == BORDER_HEADER.size}
    return tuple(
        next((stage for stage in Member(plan, gang, member).stages if (stage, member) not in sent), gang.stop)
        for member in range(members(plan, gang))
    )


def _open_exchange(plan: Plan, store: Store, slots: int) -> Exchange | None:
    """None where the plan has no gangs, or the store no inboxes; UsageError for a gang of more than `slots`."""
    exchange = store.exchange() if plan.gangs else None
    if exchange is None:
        return None
    widest = max(plan.gangs, key=lambda gang: members(plan, gang))
    if members(plan, widest) > slots:
        exchange.close()
        raise UsageError(
            f"the gang of stages {widest.start} to {widest.stop - 1} needs {members(plan, widest)} invocations at "
            f"once, {slots} are allowed: allow more (SERFER_LOCAL_CONCURRENCY), or split with fewer tiles or "
            "--set gang=never"
        )
    return exchange
