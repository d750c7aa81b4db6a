"""The short way of a query: one task, of a function in this process, with all that is done to its pixels in its thread.

    a slot ──▶ a thread: the crop, the pass, what is made of the answer ──▶ the answer

It does what has one outcome: a right answer to the first attempt, in time. Whatever else happens (a failure, an answer
that is not the plan's, a time at which a task is late or a query over, a cancellation) is an event for the run machine:
an ordinary run takes over, which is told of the attempt as if it had been there from its beginning, and decides.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Generic, Protocol, Self, TypeVar

from serfer.core.hedging import LearntHedging
from serfer.core.keys import output_key, query_id
from serfer.core.plan import Plan
from serfer.core.plan.answers import verified_parts
from serfer.core.plan.sized_plan import sized_plan
from serfer.core.run_machine import LOST, Attempt, Failure, StageRun, TileRun, TileState
from serfer.core.wire import Crop, Report, Task
from serfer.drivers.clock import Clock, timeout_at
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.driver import NO_OVERHEADS, Answer, QueryRequest, TaskWork, check_report
from serfer.drivers.invoker import ThreadInvoker, timed_out

_Result = TypeVar("_Result")


class ShortRunDriver(Protocol):
    """What a short run has of its driver."""

    plan: Plan
    clock: Clock
    slots: PrioritySemaphore
    hedging: LearntHedging | None
    timeout_s: float
    function: str
    running: set[asyncio.Future[Any]]

    async def go_on(self, first: ShortRun[Any]) -> Answer: ...

    def give_up(self, first: ShortRun[Any]) -> None: ...


class ShortRun(Generic[_Result]):
    """The first run of a query: by itself while all goes well, and then by an ordinary run.

    `requested`, `sent` and `began` are when its task was, on the driver's clock, in seconds: None before. The thread
    writes `crop` and `task` before `began`, and the `result` before `ended`.
    """

    def __init__(
        self, driver: ShortRunDriver, invoker: ThreadInvoker, request: QueryRequest, work: TaskWork[_Result]
    ) -> None:
        self.request = request
        self.requested = request.started
        self.sent: float | None = None
        self.began: float | None = None
        self.ended: float | None = None
        self.task: Task | None = None
        self.name = ""
        self.result: Report | Failure | None = None
        self._crop: Crop | None = None
        self._driver = driver
        self._invoker = invoker
        self._work = work
        self._made: list[_Result] = []
        self._error: BaseException | None = None
        self._left = False  # the thread
        self._gave_up = False  # since the attempt took too long: its slot is another's

    async def run(self) -> _Result:
        """Return what was made of the answer in the task's thread, or else of that of the run that took over."""
        driver, clock = self._driver, self._driver.clock
        if not driver.slots.try_acquire() and not await self._acquire():
            return await self._go_on()
        self.sent = clock.time()
        self._woken = woken = asyncio.get_running_loop().create_future()
        driver.running.add(woken)
        self._invoker.submit(self._compute, self._leave)
        self._timer = clock.call_at(self._next_time(self.sent), self._look_at_time)
        try:
            await woken
        except asyncio.CancelledError:
            driver.give_up(self._with_crop())
            raise
        finally:
            driver.running.discard(woken)
            self._timer.cancel()
        if self._left and self._error:
            error, self._error = self._error, None  # whose frames refer to this run
            raise error
        if not (self._left and self._made and self.began is not None and self.ended is not None):
            return await self._go_on()
        if driver.hedging:
            driver.hedging.learn(0, self.ended - self.began)
        return self._made.pop()

    async def _acquire(self) -> bool:
        driver, self._woken = self._driver, asyncio.get_running_loop().create_future()
        timer = driver.clock.call_at(self.request.deadline, self._give_up_turn)
        driver.running.add(turn := self._woken)
        try:
            return await driver.slots.acquire(self.request.age, 1, turn)
        finally:
            driver.running.discard(turn)
            timer.cancel()

    async def _go_on(self) -> _Result:
        answer = await self._driver.go_on(self._with_crop())
        return await asyncio.to_thread(self._work.make, answer)

    async def invocation(self) -> tuple[Report | Failure, float]:
        """Wait for the first attempt as an invoker does, and return its result and the seconds taken."""
        clock, timeout_s = self._driver.clock, self._driver.timeout_s
        since = self.sent or 0.0 if self.began is None else self.began
        if not self._left:
            self._woken = asyncio.get_running_loop().create_future()
            try:
                async with timeout_at(clock, since + timeout_s):
                    await self._woken
            except TimeoutError:
                pass
            if not self._left:  # it may have, just as the time was over
                self._gave_up = True
                self._driver.slots.release()
                return timed_out(self._driver.function, timeout_s), timeout_s
        if self.result is None:
            raise self._error or RuntimeError("a task's thread has ended without a result")
        return self.result, (self.ended or since) - since

    def _compute(self) -> None:
        driver, request = self._driver, self.request
        try:
            crop, plan = self._work.crop(), sized_plan(driver.plan, request.context.size)
            self.name = query_id(one_slot=True)
            self._crop, self.task = (
                crop,
                Task(
                    plan=plan.digest,
                    query=self.name,
                    stage=0,
                    tile=0,
                    batch=request.batch,
                    ttl=request.ttl,
                    crop=crop,
                    inline=True,
                    request=request.context.request,
                    size=request.context.size,
                ),
            )
            self.began = driver.clock.time()
            result = self._invoker.run(driver.function, self.task, driver.timeout_s)
            if isinstance(result, Report):
                result = check_report(plan, self.task, result)
            self.result, self.ended = result, driver.clock.time()
            if isinstance(result, Report) and (answer := self._answer(plan, result, self.task)):
                self._made = [self._work.make(answer)]
        except BaseException as error:  # noqa: BLE001 - for the query, as an executor does it
            self._error = error

    def _answer(self, plan: Plan, report: Report, task: Task) -> Answer | None:
        key = output_key(self.name, 0, 0)
        try:
            parts = verified_parts(plan, 0, report.output or b"", key, task.batch)
        except LOST:
            return None
        tile = TileRun([Attempt(0, self.requested, self.began, self.ended, report)], report, TileState.DONE)
        return Answer(
            query=self.name,
            started=self.requested,
            ended=self.ended or 0.0,
            stages=[StageRun(self.requested, [tile], self.ended)],
            outputs=[parts],
            payload_bytes=[task.payload_bytes],
            overheads=NO_OVERHEADS,
        )

    def _leave(self) -> None:
        self._left = True
        if not self._gave_up:
            self._driver.slots.release()
        if not self._woken.done():
            self._woken.set_result(True)

    def _give_up_turn(self) -> None:
        if not self._woken.done():
            self._gave_up = True
            self._woken.set_result(False)

    def _next_time(self, now: float) -> float:
        driver = self._driver
        if self.ended is not None:
            return self.request.deadline
        since = now if self.began is None else self.began
        late_after = driver.hedging.late_after(0) if driver.hedging else None
        return min(self.request.deadline, since + driver.timeout_s, since + (late_after or driver.timeout_s))

    def _look_at_time(self) -> None:
        now = self._driver.clock.time()
        when = self._next_time(now)
        if when > now:
            self._timer = self._driver.clock.call_at(when, self._look_at_time)
        elif not self._woken.done():
            self._woken.set_result(True)

    def _with_crop(self) -> Self:
        if self.began is not None and self._crop:
            self.request = replace(self.request, crops=[self._crop])
        return self
