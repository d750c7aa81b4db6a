"""The contract of a driver: what takes queries through a plan, and what it answers; and what all drivers do alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar

from serfer.core.errors import StoreUnavailableError
from serfer.core.keys import ResultPlace, StoreCounts
from serfer.core.plan import Plan
from serfer.core.plan.preprocess import Levels
from serfer.core.run_machine import LOST, WRONG_ANSWER, Failure, FailureKind, Retry, StageRun
from serfer.core.wire import Buffer, Crop, Report, Task, WarmUpAnswer

_Made_co = TypeVar("_Made_co", covariant=True)
TTL_MARGIN_S = 60.0  # a task that outlives its query may still write; its keys expire this long after


@dataclass(frozen=True)
class RequestContext:
    """The request of a query: its id, for workers' logs, and a callback that watches its stages.

    `window` is the tile of a map plan that the query computes, and `statistics` what is known of the whole image,
    float32 (serfer/core/plan/statistics.py), where that plan has such; `size` the rows and columns of its images where
    a plan takes many sizes; other plans' queries have none. A query in the
    `background` starts its tasks when no other query of the same slots waits for one.

    With a `result`, the last stage's tiles write their outputs there, in the store of results, and the answer has none:
    what lies there is not a part of the query, and is deleted with it only where the query fails. Drivers that cannot
    do that raise UsageError.

    With `levels`, which image pixels of bytes become numbers by in place of the plan's, the query is not for an
    instance: workers alone are told of them.

    `watch` is called on the driver's loop when the query starts, and again when it restarts, with the stages as they
    run: a list that grows, of records that change. An engine that knows nothing of its stages before they end never
    calls it. `failed` is called with why a task has failed, which may be tried again.
    """

    request: str = ""
    watch: Callable[[Sequence[StageRun]], None] | None = None
    failed: Callable[[str], object] = str  # which does nothing
    window: int | None = None
    background: bool = False
    result: ResultPlace | None = None
    size: tuple[int, int] | None = None
    statistics: bytes = b""
    levels: Levels | None = None


NO_CONTEXT = RequestContext()


@dataclass(frozen=True)
class QueryRequest:
    """The input of a query: `batch` images in the `crops` of the first stage's tiles, between two times of the clock.

    The lowest `age` is that of the oldest query.
    """

    crops: Sequence[Crop]
    batch: int
    started: float
    deadline: float
    age: int
    context: RequestContext

    @property
    def first(self) -> int:
        """The tile of the plan that the query's first one is: 0, or a window's."""
        return self.context.window or 0

    @property
    def ttl(self) -> float:
        return self.deadline - self.started + TTL_MARGIN_S


@dataclass(frozen=True)
class WarmUpRecord:
    """A warm-up request of the function of a stage, or of the gang that begins with it, with `memory_mb` MB.

    It was sent at `started` on the driver's clock and took `ms` milliseconds; `result` is None where the query ended
    before the response came. `plan` is the digest of the plan that it warms, where that is not the query's; what was
    still in flight then has the `ms` that it was predicted to take, if that is more than it had taken.
    """

    stage: int
    memory_mb: int
    started: float
    ms: float
    result: WarmUpAnswer | None
    plan: str = ""

    @property
    def cold(self) -> bool:
        return self.result is not None and self.result.init_ms > 0


@dataclass(frozen=True)
class Overheads:
    """Overheads of a query besides its tasks: retries, hedges, restarts, the driver's own store traffic, warm-ups."""

    retries: int = 0
    hedges: int = 0
    restarts: int = 0
    counts: StoreCounts = field(default_factory=StoreCounts)
    warm_ups: tuple[WarmUpRecord, ...] = ()

    def __add__(self, other: Overheads) -> Overheads:
        return Overheads(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))


NO_OVERHEADS = Overheads()


@dataclass(frozen=True)
class Answer:
    """A query's end, and what is known of every stage, since the last restart if there was one.

    `outputs` is what the last stage's tiles computed, in order: of each output its part, float32; nothing where they
    wrote a result. `payload_bytes`
    are the bytes of tensors in the payloads of each stage's tasks, those of a retried one once.
    """

    query: str
    started: float
    ended: float
    stages: Sequence[StageRun]
    outputs: Sequence[Sequence[Buffer]]
    payload_bytes: Sequence[int]
    overheads: Overheads


class Driver(Protocol):
    """Takes queries through one plan, any number at once, on one event loop."""

    async def run(
        self, crops: Sequence[Crop], batch: int, deadline_s: float, context: RequestContext = NO_CONTEXT
    ) -> Answer:
        """Run one query of `batch` images, whose first-stage inputs are `crops`, one for each tile.

        Raises the error that the run ended with: TaskFailedError, DeadlineError, or what was unavailable. However it
        ends, the query's keys are deleted, if need be after it has.
        """
        ...

    async def close(self) -> None:
        """Cancel the queries in flight, and wait until all queries' remains in the store are deleted."""
        ...


class TaskWork(Protocol[_Made_co]):
    """What a query of one task has done in the thread of its task, before it and after it."""

    def crop(self) -> Crop:
        """Return the task's input; what it raises ends the query."""
        ...

    def make(self, answer: Answer) -> _Made_co:
        """Return what its caller makes of the answer; what it raises ends the query."""
        ...


class QueryRun(Protocol):
    """One run of a query, with keys of its own."""

    @property
    def overheads(self) -> Overheads: ...

    async def run(self) -> Answer:
        """Run it to its end; raises one of LOST where some of its pieces were lost or altered."""
        ...

    async def clean_up(self) -> None:
        """Delete its keys, once nothing writes any more."""
        ...


class QueryDriver:
    """What all drivers do with queries: restarts after lost data, deletion of what runs leave, and closing."""

    def __init__(self, retry: Retry) -> None:
        self._restarts = retry.restarts
        self._cleanups: set[asyncio.Task[None]] = set()
        self.running: set[asyncio.Future[Any]] = set()  # what a query waits for, or the task that it runs in

    async def _until_answered(
        self, begin: Callable[[], QueryRun], discard: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> Answer:
        """Where it fails, `discard` is done once nothing of it writes any more: restarts write to one result."""
        overheads, cleanups, running = NO_OVERHEADS, list[asyncio.Task[None]](), asyncio.current_task()
        assert running is not None  # noqa: S101 - a coroutine that runs is in a task
        self.running.add(running)
        try:
            while True:
                query = begin()
                try:
                    answer = await query.run()
                    return replace(answer, overheads=overheads + answer.overheads) if overheads.restarts else answer
                except LOST as error:
                    if overheads.restarts == self._restarts:
                        raise StoreUnavailableError(
                            f"the store loses or alters what is written to it ({error}): let --store be one that keeps "
                            "it"
                        ) from error
                    overheads += query.overheads + Overheads(restarts=1)
                finally:
                    cleanups.append(self._delete_later(query.clean_up()))  # its answer does not wait for that
        except BaseException:
            if discard is not None:
                self._delete_later(_after(cleanups, discard))
            raise
        finally:
            self.running.discard(running)

    async def close(self) -> None:
        """Cancel the queries in flight, and wait until all that they and others left behind is deleted."""
        while self.running:  # what one waited for may have come: it then goes on
            for running in self.running:
                running.cancel()
            await asyncio.wait([*self.running])
        while cleanups := [*self._cleanups]:
            await asyncio.gather(*cleanups)
            self._cleanups.difference_update(cleanups)  # from Python 3.12 on, gathering what is done runs no callbacks

    def _delete_later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        cleanup = asyncio.get_running_loop().create_task(work)
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)
        return cleanup


async def _after(cleanups: Sequence[asyncio.Task[None]], discard: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if cleanups:
        await asyncio.wait(cleanups)
    await discard()


def check_report(plan: Plan, task: Task, report: Report) -> Report | Failure:
    """Return a task's report, or a failure that says what of it is not the plan's."""
    stages = range(task.stage, task.gang.stop if task.gang else task.stage + 1)
    expected = sum([task.tile < len(plan.stages[stage].tiles) for stage in stages])
    reports = [report, *report.later]
    if len(reports) != expected:
        return _wrong(f"reported on {len(reports)} stages, the plan says {expected}")
    size, said = len(reports[-1].output or b""), answer_bytes(plan, task)
    return _wrong(f"answered with {size} bytes, the plan says {said}") if said and size != said else report


def answer_bytes(plan: Plan, task: Task) -> int:
    stage = plan.stages[task.gang.stop - 1 if task.gang else task.stage]
    return stage.written(stage.tiles[task.tile], task.batch) if task.inline and task.tile < len(stage.tiles) else 0


def _wrong(message: str) -> Failure:
    return Failure(FailureKind.FAILED_IN_CODE, WRONG_ANSWER, message)
