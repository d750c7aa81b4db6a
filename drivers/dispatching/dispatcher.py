"""Dispatch of attempts: when, and which of them together.

As many invocations run at once as there are slots, the oldest query's first. What waits for a slot may go with an
attempt that gets one: tasks of other queries for the same tile (a batch, drivers/batching.py), or tiles of the same
stage and query (a bundle). `fill` chooses in both cases.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple, Protocol

from drivers.batching import Batching, BatchTerms
from drivers.clock import Clock
from drivers.dispatching.prewarming import Prewarmer, Prewarming, WarmingInvoker
from drivers.dispatching.priority_semaphore import PrioritySemaphore
from drivers.invoker import Invoker, SharedInvoker
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.core.run_machine import Failure
from serfer.core.wire import MAX_BATCH, Report, Task

_BACKGROUND = 1 << 60  # more queries than ever come


class Demand(NamedTuple):
    """A task's demand on an invocation: images, and bytes of tensors in its payload and in its answer.

    It must have been computed by `latest`, on the driver's clock.
    """

    images: int
    payload: int
    answer: int
    latest: float = math.inf

    def plus(self, other: Demand) -> Demand:
        """Return what both ask together."""
        return Demand(
            self.images + other.images,
            self.payload + other.payload,
            self.answer + other.answer,
            min(self.latest, other.latest),
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of one invocation: tasks, images and bytes of tensors each way; an image is computed in `image_s` s."""

    tasks: int
    images: int
    tensor_bytes: int
    image_s: float = 0.0

    def admit(self, demand: Demand, now: float) -> bool:
        """Return whether tasks of this demand may be one invocation."""
        return (
            demand.images <= self.images
            and max(demand.payload, demand.answer) <= self.tensor_bytes
            and now + demand.images * self.image_s <= demand.latest
        )


def fill(first: Demand, others: Iterable[Demand], bounds: Bounds, now: float) -> list[int]:
    """Return the places of those among `others` that share the invocation of `first`: each in order that still fits."""
    chosen: list[int] = []
    total = first
    for place, other in enumerate(others):
        if len(chosen) + 1 >= bounds.tasks:
            break
        together = total.plus(other)
        if bounds.admit(together, now):
            chosen.append(place)
            total = together
    return chosen


class Owner(Protocol):
    """The query of an attempt."""

    def sent(self, attempt: Attempt, carrier: asyncio.Task[None]) -> None:
        """Take note that an attempt has left the queue; `carrier`, its own asyncio task or another's, invokes it."""
        ...

    def ended(self, attempt: Attempt, result: Report | Failure, took_s: float) -> None:
        """Take an attempt's result."""
        ...

    def broken(self, bug: Exception) -> None:
        """End with a bug of ours."""
        ...


@dataclass(eq=False, slots=True)
class Attempt:
    """A try of a query's task, at a `place`: stage, tile and number of the attempt.

    It answers with `answer_bytes` of tensors; the lowest `age` is the oldest query's. One that goes `alone` shares no
    invocation.
    """

    owner: Owner
    place: tuple[int, int, int]
    task: Task
    age: int
    deadline: float
    answer_bytes: int
    alone: bool
    group: Hashable = None  # those that it may share an invocation with, while it waits
    carrier: asyncio.Task[None] = field(init=False)  # waits for its slot


class WaitingGroups:
    """Attempts that wait for a slot and may share an invocation with others of their group."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, dict[Attempt, Demand]] = {}

    def join(self, group: Hashable, attempt: Attempt, demand: Demand) -> None:
        """Add an attempt to a group."""
        attempt.group = group
        self._groups.setdefault(group, {})[attempt] = demand

    def leave(self, attempt: Attempt) -> Demand:
        """Forget an attempt that has a group, and return what it asks."""
        members = self._groups[attempt.group]
        demand = members.pop(attempt)
        if not members:
            del self._groups[attempt.group]
        attempt.group = None
        return demand

    def take(self, first: Attempt, bounds: Bounds, now: float) -> list[Attempt]:
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
    """Runs the attempts of a driver's queries, each in one of `slots`, the oldest query's first if wanted.

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
        """Let attempts wait for the warm-up requests of what is returned; None where there is nothing to warm."""
        if isinstance(self._invoker, WarmingInvoker):
            self._prewarmer = Prewarmer(plan, self._invoker, self._slots, terms, self._clock)
        return self._prewarmer

    def next_age(self, *, background: bool = False) -> int:
        """Return the age of a query that arrives now: they are alike where the oldest does not go first.

        Queries in the background are younger than all others, and among themselves as they came.
        """
        return (self._slots.next_age() if self._oldest_first else 0) + (_BACKGROUND if background else 0)

    def start(self, attempt: Attempt) -> asyncio.Task[None]:
        """Queue an attempt, and return the asyncio task that waits for its slot."""
        stage, tile, _ = attempt.place
        if not attempt.alone and stage not in self._batching.stages and self._bounds[stage].tasks > 1:
            function = self._functions[stage][tile]
            demand = Demand(attempt.task.batch, attempt.task.payload_bytes, attempt.answer_bytes)
            self._waiting.join((attempt.task.query, stage, function), attempt, demand)
        attempt.carrier = asyncio.get_running_loop().create_task(self._carry(attempt))
        return attempt.carrier

    def start_gang(self, attempts: Sequence[Attempt]) -> asyncio.Task[None]:
        """Queue the members of a gang, which get their slots together; return the asyncio task that waits for those."""
        carrier = asyncio.get_running_loop().create_task(self._admit(attempts))
        for attempt in attempts:
            attempt.carrier = carrier
        return carrier

    def withdraw(self, attempt: Attempt) -> None:
        """Take an attempt that waits out of the queue, and with a member its gang."""
        attempt.carrier.cancel()
        if attempt.group is not None:
            self._waiting.leave(attempt)

    async def _admit(self, attempts: Sequence[Attempt]) -> None:
        """Wait for the slots of a gang, and invoke its members."""
        await asyncio.gather(*(self._warmed(attempt) for attempt in attempts))
        await self._slots.acquire(attempts[0].age, len(attempts))
        for attempt in attempts:
            carrier = asyncio.get_running_loop().create_task(self._run(attempt))
            attempt.owner.sent(attempt, carrier)
            attempt.carrier = carrier

    async def _carry(self, first: Attempt) -> None:
        """Wait for a slot, and invoke an attempt with those that share its invocation."""
        try:
            await self._warmed(first)
            await self._slots.acquire(self._priority(first))
        except Exception as bug:  # noqa: BLE001 - as in _run
            first.owner.broken(bug)
        else:
            await self._run(first, shares=True)

    async def _warmed(self, attempt: Attempt) -> None:
        """Wait for an environment that is starting for an attempt's function."""
        if self._prewarmer:
            stage, tile, _ = attempt.place
            await self._prewarmer.wait(self._functions[stage][tile], tile)

    async def _run(self, first: Attempt, *, shares: bool = False) -> None:
        """Invoke an attempt that has a slot, perhaps with others, and tell each one's query."""
        members = [first]
        try:
            try:
                started = self._clock.time()
                members = self._take(first, started) if shares else members
                results = await self._results(members)
            finally:
                self._slots.release()
            took_s = self._clock.time() - started
            for member, result in zip(members, results, strict=True):
                member.owner.ended(member, result, took_s)
        except Exception as bug:  # noqa: BLE001 - invokers return failures, so this is a bug; the callers must see it
            for member in members:
                member.owner.broken(bug)

    def _priority(self, attempt: Attempt) -> int:
        """Return at which age an attempt waits for its slot; one that may be batched lets some younger queries pass.

        It joins its group only now, so that none is taken along while there are free slots.
        """
        terms = None if attempt.alone else self._batching.stages.get(attempt.task.stage)
        if terms is None:
            return attempt.age
        left_s = attempt.deadline - self._clock.time()
        self._waiting.join((attempt.task.stage, attempt.task.tile), attempt, _batch_demand(attempt, terms))
        if not self._oldest_first:
            return attempt.age
        return attempt.age + self._batching.max_queue_jumps(attempt.task.stage, attempt.task.batch, left_s)

    def _take(self, first: Attempt, now: float) -> list[Attempt]:
        """Take an attempt that got its slot, and those that go with it, out of the queue."""
        members = [first] if first.group is None else self._waiting.take(first, self._bounds[first.task.stage], now)
        for member in members:
            if member is not first:
                member.carrier.cancel()
            member.owner.sent(member, first.carrier)
        return members

    async def _results(self, members: Sequence[Attempt]) -> Sequence[Report | Failure]:
        """Invoke a function for one task, or once for several."""
        tasks = [member.task for member in members]
        function = self._functions[tasks[0].stage][tasks[0].tile]
        if len(tasks) > 1 and self._shared is not None:
            return await self._shared.invoke_shared(function, tasks, self._timeout_s)
        return [await self._invoker.invoke(function, tasks[0], self._timeout_s)]


def _bounds(batching: Batching, stage: int, tensor_bytes: int) -> Bounds:
    """Return what an invocation of a stage takes: a batch of images, or else a bundle of one query's tiles."""
    terms = batching.stages.get(stage)
    if terms is not None:
        return Bounds(batching.most, batching.most, tensor_bytes, terms.image_s)
    return Bounds(batching.bundles[stage] if batching.bundles else 1, MAX_BATCH, tensor_bytes)


def _batch_demand(attempt: Attempt, terms: BatchTerms) -> Demand:
    """Return what an attempt asks of a batch: the images of others may take until the rest of its plan must begin."""
    task = attempt.task
    latest = attempt.deadline - terms.rest_s + task.batch * terms.image_s
    return Demand(task.batch, task.payload_bytes, attempt.answer_bytes, latest)
