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
from serfer.core.units import MS_PER_S
from serfer.core.wire import DTYPES, MAX_BATCH, Crop, Task
from serfer.drivers.lambda_http import LambdaInvoker
from serfer.sam.smoke import OverBudgetError
from serfer.storage.store import Store
from serfer_bench.study.aws.measure import Sample, Samples, billed_ms
from serfer_bench.study.aws.probed_function import ProbedFunction, RefusedError

_LARGE_BYTES = 4_000_000
_TTL_S = 3600.0
_TIMEOUT_S = 60.0
_CONNECTIONS = 5
_LEAST_WARM = 50
_DTYPE = "float32"
_LEAST_COMPUTE_MS = 100.0  # of a task that shows shares of a vCPU, which come in slices of some 20 ms


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    `groups` are the invocations that are sent at once to environments that have to be started, the last of them
    `rounds` times; `small` and `large` how many are sent one after another on one image, and on so many images that the
    input has some megabytes; `memories` (MB) and `packages` (bytes added) have `repeats` invocations each, `restored`
    start from a snapshot at once.

    The mean of n exponential times has a standard error of 1 / sqrt(n): 385 samples give a tail within a tenth in 19 of
    20 probes. There are 404 starts, and as many warm invocations.
    """

    groups: Sequence[int] = (4, 16, 64)
    rounds: int = 6
    small: int = 394
    large: int = 10
    memories: Sequence[int] = (442, 885, 1327, 1769, 2654, 3538)
    packages: Sequence[int] = (40_000_000, 15_000_000, 0)
    repeats: int = 5
    restored: int = 4

    @classmethod
    def up_to(cls, most: int) -> Extent:
        extent = cls((*(group for group in cls.groups if group < most), most))
        return replace(extent, small=max(_LEAST_WARM, sum(extent.at_once())) - extent.large)

    def at_once(self, most: float = math.inf) -> Iterator[int]:
        """Yield how many environments are started at once, group after group, in an account that has so many."""
        *others, last = [group for group in self.groups if group <= most] or [int(min(most, *self.groups))]
        yield from others
        yield from [last] * self.rounds


@dataclass(frozen=True)
class Step:
    """A part of a probe: so many invocations that may start environments, each of so much memory.

    A `restored` one starts them from a snapshot, which costs extra.
    """

    name: str
    invocations: int
    memory_mb: int
    images: int = 1
    restored: bool = False


def steps(plan: Plan, extent: Extent, most: float = math.inf) -> Iterator[Step]:
    memory_mb, images = plan.stages[0].memory_mb, large_batch(plan)
    for group in extent.at_once(most):
        yield Step(f"{group} starts at once", group, memory_mb)
    yield Step("warm invocations", extent.small + 1, memory_mb)
    yield Step("warm invocations on large inputs", extent.large + 1, memory_mb, images)
    for each in extent.memories:
        yield Step(f"{each} MB", extent.repeats + 1, each, images)
    for size in extent.packages:
        yield Step(f"packages with {size:,} bytes more", extent.repeats, memory_mb)
    yield Step("starts from a snapshot", extent.restored, memory_mb, restored=True)


def large_batch(plan: Plan) -> int:
    """Return how many images make an input of some megabytes of the plan's first tile."""
    return min(MAX_BATCH, max(2, math.ceil(_LARGE_BYTES / input_bytes(plan, 1))))


@dataclass
class Probe:
    """Times the first tile of a plan by a function that runs it.

    `allow` gets each step before it begins, and may raise OverBudgetError, which ends the probe with what it has;
    `spend` gets the memory (MB) and the billed time (ms) of every invocation, one that failed too. `snapstart` is
    empty, or why snapshots are not measured.
    """

    plan: Plan
    invoker: LambdaInvoker
    store: Store
    function: ProbedFunction
    endpoint: str
    allow: Callable[[Step], None]
    spend: Callable[[int, float], None]
    extent: Extent = field(default_factory=Extent)
    snapstart: str = ""
    _found: Samples = field(default_factory=Samples)
    _most: float = math.inf
    _network_s: float = 0.0

    async def run(self) -> Samples:
        """Measure all steps, or as many as are allowed; what the probe stored is deleted at the end.

        The function has its own memory again, and after all steps its package too. Raises TaskFailedError where an
        invocation fails, UnavailableError where `endpoint` does not answer.
        """
        self._network_s = await _network_seconds(self.endpoint)
        small = Task(self.plan.digest, secrets.token_hex(16), 0, 0, 1, _TTL_S, crop=Crop(_DTYPE, None))
        large = replace(small, query=secrets.token_hex(16), batch=large_batch(self.plan))
        keys = [key for task in (small, large) for key in (input_key(task.query, 0), output_key(task.query, 0, 0))]
        found = self._found
        try:
            for task in (small, large):
                key = input_key(task.query, 0)
                value = protect(bytes(input_bytes(self.plan, task.batch)), key)
                await asyncio.to_thread(self.store.put, key, value, _TTL_S)
            await self._groups(small)
            await self._warm(small, "warm invocations", found.small)
            await self._warm(large, "warm invocations on large inputs", found.large)
            computed = median(sample.report.compute_ms for sample in found.small) if found.small else 0.0
            await self._memories(small if computed >= _LEAST_COMPUTE_MS else large)
            await self._packages(small)
            await self._restored(small)
        except OverBudgetError as stop:
            found.missing.append(f"{stop}; nor is what comes after it")
        finally:
            await asyncio.to_thread(self.store.delete, keys)
        return found

    @property
    def _memory_mb(self) -> int:
        return self.plan.stages[0].memory_mb

    def _begin(self, name: str) -> Step:
        step = next(step for step in steps(self.plan, self.extent, self._most) if step.name == name)
        self.allow(step)
        return step

    async def _groups(self, task: Task) -> None:
        self._most = await asyncio.to_thread(self.function.environments)
        for group in self.extent.groups:
            if group > self._most:
                self._found.missing.append(f"{group} starts at once: the account has {self._most} environments")
        for number, group in enumerate(self.extent.at_once(self._most)):
            self._begin(f"{group} starts at once")
            if number:
                await asyncio.to_thread(self.function.renew, self._memory_mb)
            await self._at_once(task, group, self._found.groups.setdefault(group, []))
        await asyncio.to_thread(self.function.set_memory, self._memory_mb)  # renewing changes it by one

    async def _warm(self, task: Task, name: str, found: list[Sample]) -> None:
        step = self._begin(name)
        await self._sample(task, step)
        for _ in range(step.invocations - 1):
            sample = await self._sample(task, step)
            if not sample.report.init_ms:
                found.append(sample)

    async def _memories(self, task: Task) -> None:
        try:
            for memory_mb in self.extent.memories:
                step = self._begin(f"{memory_mb} MB")
                try:
                    await asyncio.to_thread(self.function.set_memory, memory_mb)
                    await self._sample(task, step)
                    for _ in range(self.extent.repeats):
                        sample = await self._sample(task, step)
                        self._found.memories.setdefault(memory_mb, []).append(sample)
                except (RefusedError, TaskFailedError) as error:  # beyond the account's limit, or too little for it
                    self._found.missing.append(f"{step.name}: {error}")
        except OverBudgetError:
            self._found.memories.clear()  # of the first few, the largest would pass for a whole vCPU
            raise
        finally:
            await asyncio.to_thread(self.function.set_memory, self._memory_mb)

    async def _packages(self, task: Task) -> None:
        for size in self.extent.packages:
            step = self._begin(f"packages with {size:,} bytes more")
            try:
                await asyncio.to_thread(self.function.pad, size)
            except RefusedError as error:  # a container image, or beyond the limit of a package
                self._found.missing.append(f"{step.name}: {error}")
            else:
                await self._at_once(task, step.invocations, self._found.packages.setdefault(size, []))

    async def _restored(self, task: Task) -> None:
        name = "starts from a snapshot"
        if self.snapstart:
            self._found.missing.append(f"{name}: {self.snapstart}")
            return
        step = self._begin(name)
        try:
            version = await asyncio.to_thread(self.function.publish_snapshot)
        except RefusedError as error:
            self._found.missing.append(f"{name}: {error}")
        else:
            await self._at_once(task, step.invocations, self._found.restored, version)

    async def _at_once(self, task: Task, count: int, found: list[Sample], name: str | None = None) -> None:
        results = await asyncio.gather(*(self._timed(task, self._memory_mb, name) for _ in range(count)))
        failures = [one for one in results if isinstance(one, Failure)]
        for failure in failures:
            if failure.kind is not FailureKind.THROTTLED:
                raise self._failed(failure)
        if failures:
            self._found.missing.append(f"{len(failures)} of {count} starts at once: Lambda had no room for them")
        found += [one for one in results if isinstance(one, Sample) and one.report.init_ms > 0]

    async def _sample(self, task: Task, step: Step) -> Sample:
        self.allow(replace(step, name=f"the rest of {step.name}", invocations=1))
        result = await self._timed(task, step.memory_mb, None)
        if isinstance(result, Failure):
            raise self._failed(result)
        return result

    async def _timed(self, task: Task, memory_mb: int, name: str | None) -> Sample | Failure:
        clock, logs = asyncio.get_running_loop().time, list[str]()
        started = clock()
        answer = await self.invoker.invoke(name or self.function.name, task, _TIMEOUT_S, logs.append)
        taken, log = clock() - started, "".join(logs)
        if isinstance(answer, Failure):
            if answer.kind is not FailureKind.THROTTLED:
                self.spend(memory_mb, billed_ms(log) or taken * MS_PER_S)
            return answer
        sample = Sample(taken - self._network_s, answer, memory_mb, log)
        self.spend(memory_mb, sample.billed_ms)
        return sample

    def _failed(self, failure: Failure) -> TaskFailedError:
        return TaskFailedError(f"{self.function.name}: {failure.kind.value}: {failure.message}")


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
    stage = plan.stages[0]
    return math.prod(stage.inputs[0].shape.of(stage.tiles[0].inputs[0], batch)) * DTYPES[_DTYPE]
