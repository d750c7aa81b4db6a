"""Dispatch of tasks: when, and which of them together.

As many invocations run at once as there are slots, the oldest query's first. What waits for a slot may go with a task
that gets one: tasks of other queries for the same tile (a batch, drivers/batching.py), or tiles of the same stage and
query (a bundle). `fill` chooses in both cases.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.core.run_machine import Failure
from serfer.core.wire import MAX_BATCH, Report, Task
from serfer.drivers.batching import Batching, BatchTerms
from serfer.drivers.clock import Clock
from serfer.drivers.dispatching.prewarming import Prewarmer, Prewarming, WarmingInvoker
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.invoker import Invoker, SharedInvoker

_BACKGROUND = 1 << 60  # more queries than ever come


class Demand(NamedTuple):
    """A task's demand on an invocation: images, and bytes of tensors in its payload and in its answer.

    It must have been computed by `latest`, on the driver's clock.
    """

    images: int
    payload: int
    answer: int
    latest: float = math.inf


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one invocation: tasks, images and bytes of tensors each way; an image is computed in `image_s` s."""

    tasks: int
    images: int
    tensor_bytes: int
    image_s: float = 0.0


def fill(first: Demand, others: Iterable[Demand], bounds: Bounds, now: float) -> list[int]:
    """Return the indices of the tasks to bundle with `first`, in order, greedily."""
    chosen: list[int] = []
    images, payload, answer, latest = first
    for place, other in enumerate(others):
        if len(chosen) + 1 >= bounds.tasks:
            break
        total = images + other.images, payload + other.payload, answer + other.answer, min(latest, other.latest)
        in_time = now + total[0] * bounds.image_s <= total[3]
        if total[0] <= bounds.images and max(total[1:3]) <= bounds.tensor_bytes and in_time:
            chosen.append(place)
            images, payload, answer, latest = total
    return chosen


Timed: TypeAlias = tuple[Report | Failure, float]
"""A task's result, and how many seconds its invocation took."""


@dataclass(eq=False, slots=True)
class PendingTask:
    """A task that is to be invoked for an attempt at a `place`: stage, tile and number of the attempt.

    It answers with `answer_bytes` of tensors; the lowest `age` is the oldest query's. One that goes `alone` shares no
    invocation. `carrier` is the asyncio task that waits until it is its `turn`: it has a slot, or goes with another
    task, whose invocation has its `result`, too.
    """

    place: tuple[int, int, int]
    task: Task
    age: int
    deadline: float
    answer_bytes: int
    alone: bool
    group: Hashable = None  # those that it may share an invocation with, while it waits
    carrier: asyncio.Task[None] = field(init=False)
    turn: asyncio.Future[bool] = field(init=False)
    result: asyncio.Future[Timed] | None = field(default=None, init=False)


class WaitingGroups:
    """Tasks that wait for a slot and may share an invocation with others of their group."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, dict[PendingTask, Demand]] = {}

    def join(self, group: Hashable, pending: PendingTask, demand: Demand) -> None:
        pending.group = group
        self._groups.setdefault(group, {})[pending] = demand

    def leave(self, pending: PendingTask) -> Demand:
        members = self._groups[pending.group]
        demand = members.pop(pending)
        if not members:
            del self._groups[pending.group]
        pending.group = None
        return demand

    def take(self, first: PendingTask, bounds: Bounds, now: float) -> list[PendingTask]:
        """Return who shares the invocation of `first`, itself first, then the oldest; they leave their group."""
        group = first.group
        demand = self.leave(first)
        members = self._groups.get(group, {})
        others = sorted(members, key=attrgetter("age"))
        chosen = [others[place] for place in fill(demand, (members[other] for other in others), bounds, now)]
        for other in chosen:
            self.leave(other)
        return [first, *chosen]

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))


class Dispatcher:
    """Invokes the tasks of a driver's queries, each in one of `slots`, the oldest query's first if wanted.

    `functions[k][t]` is invoked for tile t of stage k and may take `timeout_s`. With `batching`, no payload and no
    answer of a shared invocation has more than `tensor_bytes` of tensors; raises UsageError if the invoker has none.
    """

    def __init__(
        self,
        invoker: Invoker,
        functions: Sequence[Sequence[str]],
        *,
        timeout_s: float,
        slots: PrioritySemaphore,
        oldest_first: bool,
        batching: Batching | None,
        tensor_bytes: int,
        clock: Clock,
    ) -> None:
        self._invoker = invoker
        self._shared = invoker if isinstance(invoker, SharedInvoker) else None
        if batching is not None and self._shared is None:
            name = type(invoker).__name__
            raise UsageError(f"{name} cannot run several queries' tasks as one: leave `batching` out")
        self._functions = functions
        self._timeout_s = timeout_s
        self._oldest_first = oldest_first
        self._clock = clock
        self._batching = batching or Batching({}, most=1, passing_s=0.0)
        self._bounds = [_bounds(self._batching, stage, tensor_bytes) for stage in range(len(functions))]
        self._slots = slots
        self._waiting = WaitingGroups()
        self._prewarmer: Prewarmer | None = None

    def prewarm(self, plan: Plan, terms: Prewarming) -> Prewarmer | None:
        """Let tasks wait for the warm-up requests of what is returned; None where there is nothing to warm."""
        if isinstance(self._invoker, WarmingInvoker):
            self._prewarmer = Prewarmer(plan, self._invoker, self._slots, terms, self._clock)
        return self._prewarmer

    def next_age(self, *, background: bool = False) -> int:
        """Return the age of a query that arrives now: they are alike where the oldest does not go first.

        Queries in the background are younger than all others, and among themselves as they came.
        """
        return (self._slots.next_age() if self._oldest_first else 0) + (_BACKGROUND if background else 0)

    def enqueue(self, pending: PendingTask, carrier: asyncio.Task[None]) -> None:
        pending.carrier, pending.turn = carrier, asyncio.get_running_loop().create_future()
        task = pending.task
        if not pending.alone and task.stage not in self._batching.stages and self._bounds[task.stage].tasks > 1:
            demand = Demand(task.batch, task.payload_bytes, pending.answer_bytes)
            self._waiting.join((task.query, task.stage, self._functions[task.stage][task.tile]), pending, demand)

    def withdraw(self, pending: PendingTask) -> None:
        """Take a task out of the queue, and with a member its gang; one that goes with another runs to its end."""
        if pending.result is None:
            pending.carrier.cancel()
            if pending.group is not None:
                self._waiting.leave(pending)

    async def admit(self, together: Sequence[PendingTask]) -> None:
        """Wait until it is the turn of queued tasks: of a gang's members at once, which get their slots together."""
        first = together[0]
        if self._prewarmer and len(together) > 1:
            await asyncio.gather(*(self._await_prewarmed(self._prewarmer, pending) for pending in together))
        elif self._prewarmer:
            await self._await_prewarmed(self._prewarmer, first)  # in this turn of the loop where nothing is waited for
        if not first.turn.done():
            await self._slots.acquire(self._priority(first), len(together), first.turn)

    async def invoke(self, first: PendingTask) -> Timed:
        """Invoke a task whose turn it is, with those that go along; an exception is a bug of the invoker."""
        if first.result is not None:
            return await first.result
        others: list[PendingTask] = []
        try:
            started = self._clock.time()
            others = [] if first.group is None else self._take_companions(first, started)
            tasks = [first.task, *(other.task for other in others)]
            function = self._functions[first.task.stage][first.task.tile]
            if others and self._shared is not None:
                results = await self._shared.invoke_shared(function, tasks, self._timeout_s)
            else:
                results = [await self._invoker.invoke(function, first.task, self._timeout_s)]
            took_s = self._clock.time() - started
            pairs = list(zip(others, results[1:], strict=True))
        except Exception as bug:
            for other in others:
                if other.result:
                    other.result.set_exception(bug)
            raise
        finally:
            self._slots.release()
        for other, result in pairs:
            if other.result:
                other.result.set_result((result, took_s))
        return results[0], took_s

    async def _await_prewarmed(self, prewarmer: Prewarmer, pending: PendingTask) -> None:
        task = pending.task
        await prewarmer.wait(self._functions[task.stage][task.tile], task.tile, pending.turn)

    def _priority(self, pending: PendingTask) -> int:
        """One that may be batched lets younger ones pass; it joins its group only now, when no slot is free."""
        terms = None if pending.alone else self._batching.stages.get(pending.task.stage)
        if terms is None:
            return pending.age
        left_s = pending.deadline - self._clock.time()
        self._waiting.join((pending.task.stage, pending.task.tile), pending, _batch_demand(pending, terms))
        if not self._oldest_first:
            return pending.age
        return pending.age + self._batching.max_queue_jumps(pending.task.stage, pending.task.batch, left_s)

    def _take_companions(self, first: PendingTask, now: float) -> list[PendingTask]:
        others = self._waiting.take(first, self._bounds[first.task.stage], now)[1:]
        for other in others:
            other.result = asyncio.get_running_loop().create_future()
            if other.turn.done():  # a slot of its own has just come
                self._slots.release()
            else:
                other.turn.set_result(False)
        return others


def _bounds(batching: Batching, stage: int, tensor_bytes: int) -> Bounds:
    terms = batching.stages.get(stage)
    if terms is not None:
        return Bounds(batching.most, batching.most, tensor_bytes, terms.image_s)
    return Bounds(batching.bundles[stage] if batching.bundles else 1, MAX_BATCH, tensor_bytes)


def _batch_demand(pending: PendingTask, terms: BatchTerms) -> Demand:
    task = pending.task
    latest = pending.deadline - terms.rest_s + task.batch * terms.image_s  # when the rest of its plan must begin
    return Demand(task.batch, task.payload_bytes, pending.answer_bytes, latest)
