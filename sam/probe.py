"""Invokes a function of a plan on inputs that lie in its store, and times it: starts, warm ones, memories, packages."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from urllib.parse import urlsplit

from serfer.core.checksum import protect
from serfer.core.errors import TaskFailedError, UnavailableError
from serfer.core.keys import input_key, output_key
from serfer.core.plan import Plan
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import DTYPES, MAX_BATCH, Crop, Task
from serfer.drivers.lambda_http import LambdaInvoker
from serfer.sam.measure import Sample, Samples
from serfer.sam.probed_function import ProbedFunction, RefusedError
from serfer.storage.store import Store

_LARGE_BYTES = 4_000_000
_TTL_S = 3600.0
_TIMEOUT_S = 60.0
_CONNECTIONS = 5
_DTYPE = "float32"
_LEAST_COMPUTE_MS = 100.0  # of a task that shows shares of a vCPU, which come in slices of some 20 ms


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    `groups` are the invocations that are sent at once to environments that have to be started; `small` and `large` how
    many are sent one after another on one image, and on so many images that the input has some megabytes; `memories`
    (MB) and `packages` (bytes added) have `repeats` invocations each, `restored` start from a snapshot at once.
    """

    groups: Sequence[int] = (4, 16, 64)
    small: int = 40
    large: int = 10
    memories: Sequence[int] = (442, 885, 1327, 1769, 2654, 3538)
    packages: Sequence[int] = (40_000_000, 15_000_000, 0)
    repeats: int = 5
    restored: int = 4


@dataclass(frozen=True)
class Step:
    """A part of a probe: so many invocations that may start environments, each of so much memory."""

    name: str
    invocations: int
    memory_mb: int
    images: int = 1


def steps(plan: Plan, extent: Extent) -> Iterator[Step]:
    """Yield the steps of a probe of a plan's first stage."""
    memory_mb, images = plan.stages[0].memory_mb, large_batch(plan)
    for group in extent.groups:
        yield Step(f"{group} starts at once", group, memory_mb)
    yield Step("warm invocations", extent.small + 1, memory_mb)
    yield Step("warm invocations on large inputs", extent.large + 1, memory_mb, images)
    for each in extent.memories:
        yield Step(f"{each} MB", extent.repeats + 1, each, images)
    for size in extent.packages:
        yield Step(f"packages with {size:,} bytes more", extent.repeats, memory_mb)
    yield Step("starts from a snapshot", extent.restored, memory_mb)


def large_batch(plan: Plan) -> int:
    """Return how many images make an input of some megabytes of the plan's first tile."""
    return min(MAX_BATCH, max(2, math.ceil(_LARGE_BYTES / input_bytes(plan, 1))))


@dataclass
class Probe:
    """Times the first tile of a plan by a function that runs it.

    `allow` gets each step before it begins, `spend` every sample; both may raise to stop. `snapstart` is empty, or why
    snapshots are not measured.
    """

    plan: Plan
    invoker: LambdaInvoker
    store: Store
    function: ProbedFunction
    endpoint: str
    allow: Callable[[Step], None]
    spend: Callable[[Sample], None]
    extent: Extent = field(default_factory=Extent)
    snapstart: str = ""
    _missing: list[str] = field(default_factory=list)
    _network_s: float = 0.0

    async def run(self) -> Samples:
        """Measure all steps; the function has its own memory and package again, and its keys are deleted, at the end.

        Raises TaskFailedError where an invocation fails, UnavailableError where `endpoint` does not answer.
        """
        self._network_s = await _network_seconds(self.endpoint)
        small = Task(self.plan.digest, secrets.token_hex(16), 0, 0, 1, _TTL_S, crop=Crop(_DTYPE, None))
        large = replace(small, query=secrets.token_hex(16), batch=large_batch(self.plan))
        keys = [key for task in (small, large) for key in (input_key(task.query, 0), output_key(task.query, 0, 0))]
        todo = {step.name: step for step in steps(self.plan, self.extent)}
        try:
            for task in (small, large):
                key = input_key(task.query, 0)
                value = protect(bytes(input_bytes(self.plan, task.batch)), key)
                await asyncio.to_thread(self.store.put, key, value, _TTL_S)
            groups = await self._groups(small, todo)
            warm = await self._warm(small, todo["warm invocations"], self.extent.small)
            heavy = await self._warm(large, todo["warm invocations on large inputs"], self.extent.large)
            computed = median(sample.report.compute_ms for sample in warm) if warm else 0.0
            memories = await self._memories(small if computed >= _LEAST_COMPUTE_MS else large, todo)
            packages = await self._packages(small, todo)
            restored = await self._restored(small, todo["starts from a snapshot"])
        finally:
            await asyncio.to_thread(self.store.delete, keys)
        return Samples(groups, warm, heavy, memories, packages, restored, tuple(self._missing))

    @property
    def _memory_mb(self) -> int:
        return self.plan.stages[0].memory_mb

    async def _groups(self, task: Task, todo: dict[str, Step]) -> dict[int, list[Sample]]:
        """Start environments in groups, the first of them where there are none yet."""
        most = await asyncio.to_thread(self.function.environments)
        wanted = [group for group in self.extent.groups if group <= most] or [most]
        for group in self.extent.groups:
            if group > most and group not in wanted:
                self._missing.append(f"{group} starts at once: the account has {most} environments")
        found = {}
        for number, group in enumerate(wanted):
            self.allow(todo.get(f"{group} starts at once") or Step("starts", group, self._memory_mb))
            if number:
                await asyncio.to_thread(self.function.renew, self._memory_mb)
            found[group] = _started(await self._at_once(task, group))
        return found

    async def _warm(self, task: Task, step: Step, count: int) -> list[Sample]:
        self.allow(step)
        await self._sample(task)  # opens connections, and makes room for the larger size
        samples = [await self._sample(task) for _ in range(count)]
        return [sample for sample in samples if not sample.report.init_ms]

    async def _memories(self, task: Task, todo: dict[str, Step]) -> dict[int, list[Sample]]:
        found = {}
        for memory_mb in self.extent.memories:
            step = todo[f"{memory_mb} MB"]
            self.allow(step)
            try:
                await asyncio.to_thread(self.function.set_memory, memory_mb)
                await self._sample(task, memory_mb)
                found[memory_mb] = [await self._sample(task, memory_mb) for _ in range(self.extent.repeats)]
            except (RefusedError, TaskFailedError) as error:  # beyond the account's limit, or too little for the task
                self._missing.append(f"{step.name}: {error}")
        await asyncio.to_thread(self.function.set_memory, self._memory_mb)
        return found

    async def _packages(self, task: Task, todo: dict[str, Step]) -> dict[int, list[Sample]]:
        found = {}
        for size in self.extent.packages:
            step = todo[f"packages with {size:,} bytes more"]
            self.allow(step)
            try:
                await asyncio.to_thread(self.function.pad, size)
            except RefusedError as error:  # a container image, or beyond the limit of a package
                self._missing.append(f"{step.name}: {error}")
                continue
            found[size] = _started(await self._at_once(task, self.extent.repeats))
        return found

    async def _restored(self, task: Task, step: Step) -> list[Sample]:
        if self.snapstart:
            self._missing.append(f"{step.name}: {self.snapstart}")
            return []
        self.allow(step)
        try:
            version = await asyncio.to_thread(self.function.publish_snapshot)
        except RefusedError as error:
            self._missing.append(f"{step.name}: {error}")
            return []
        return _started(await self._at_once(task, self.extent.restored, version))

    async def _at_once(self, task: Task, count: int, name: str | None = None) -> list[Sample]:
        """Send so many invocations at once; those that the account has no environments for are missing."""
        results = await asyncio.gather(*(self._timed(task, self._memory_mb, name) for _ in range(count)))
        refused = sum(isinstance(one, Failure) for one in results)
        if refused:
            self._missing.append(f"{refused} of {count} starts at once: Lambda had no room for them")
        return [one for one in results if isinstance(one, Sample)]

    async def _sample(self, task: Task, memory_mb: int | None = None) -> Sample:
        result = await self._timed(task, memory_mb or self._memory_mb, None)
        if isinstance(result, Failure):
            raise TaskFailedError(f"{self.function.name}: {result.kind.value}: {result.message}")
        return result

    async def _timed(self, task: Task, memory_mb: int, name: str | None) -> Sample | Failure:
        """Invoke the function, or a version of it; returns the failure of one that Lambda had no room for."""
        clock, logs = asyncio.get_running_loop().time, list[str]()
        name = name or self.function.name
        started = clock()
        answer = await self.invoker.invoke_logged(name, task, _TIMEOUT_S, logs.append)
        taken = clock() - started
        if isinstance(answer, Failure):
            if answer.kind is FailureKind.THROTTLED:
                return answer
            raise TaskFailedError(f"{name}: {answer.kind.value}: {answer.message}")
        sample = Sample(taken - self._network_s, answer, memory_mb, "".join(logs))
        self.spend(sample)
        return sample


def _started(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.report.init_ms > 0]


async def _network_seconds(endpoint: str) -> float:
    """Return the time of one round trip to an endpoint: what the fastest of some connections takes to open."""
    address = urlsplit(endpoint)
    port = address.port or (443 if address.scheme == "https" else 80)
    clock, fastest = asyncio.get_running_loop().time, math.inf
    for _ in range(_CONNECTIONS):
        started = clock()
        try:
            _, writer = await asyncio.open_connection(address.hostname, port)
        except OSError as error:
            raise UnavailableError(f"{endpoint} cannot be reached: {error}") from error
        fastest = min(fastest, clock() - started)
        writer.close()
    return fastest


def input_bytes(plan: Plan, batch: int) -> int:
    """Return the bytes of so many images' input of a plan's first tile."""
    stage = plan.stages[0]
    return math.prod(stage.inputs[0].shape.of(stage.tiles[0].inputs[0], batch)) * DTYPES[_DTYPE]
