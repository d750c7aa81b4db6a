"""The one cost model: latency as a distribution, dollars and bytes of a plan.

Planner, selection, simulator, reports and `serfer cost` all call it. A stage's tasks start together and the next stage
waits for the slowest, so

    latency = sum over stages of  dispatch + slowest of n invocations + slowest task (read, compute, write)

An invocation takes a floor plus an exponential tail; the expected slowest of n is then floor + tail * (1 + 1/2 + ... +
1/n) exactly. Inside a task everything runs one after another and adds up. Dollars are requests, memory times billed
time, and the stores' requests and bytes; what a store costs an hour stands apart, because no query causes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.aws import AwsFacts, LambdaFacts, StoreFacts
from serfer.core.costs.vcpus import compute_seconds, vcpus
from serfer.core.plan import CACHE, INLINE, OBJECTS, Plan, Shape, Stage, Tile
from serfer.core.units import MS_PER_S

DISPATCH_SECONDS = 2.8e-4
"""A driver's processor time to sign and send one invocation, as measured on the development machine."""
TASK_SECONDS = 4e-4
"""Seconds of a task besides reading, computing and writing: decoding, encoding, the runtime's loop. Measured there."""
CARRY_RATE = 7.5e7
"""Bytes a second that a driver takes out of answers or puts into payloads: base64 in JSON, signing. ADR 9."""
CODEC_RATE = 4e7
"""Bytes a second that a worker does the same with, its runtime included. ADR 9."""
_BASE64 = 4 / 3
_MB_PER_GB = 1024
_STEPS = 200  # of a distribution, for each mean of an invocation's tail
_COLD_STEPS = 200_000  # of a distribution at most, for all cold starts together
HOURS_A_MONTH = 730

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Platform:
    """The platform of a plan: Lambda, and the store between its stages, perhaps with a second one for large objects.

    `cold_share` is how many of the invocations find no warm environment; a cold one takes as long as it takes to start
    a process and to load the function's weights.
    """

    functions: LambdaFacts
    store: StoreFacts
    cold_share: float = 0.0
    objects: StoreFacts | None = None

    @classmethod
    def over(cls, facts: AwsFacts, store: str, cold_share: float = 0.0) -> Platform:
        """Return the platform with a kind of store, or two as in "valkey+s3"; raises UsageError for an unknown one."""
        main, objects = facts.stores(store)
        return cls(facts.functions, main, cold_share, objects)

    @property
    def price_hour(self) -> float:
        """Dollars an hour of the stores, whether queries come or not."""
        return self.store.price_hour + (self.objects.price_hour if self.objects else 0.0)


@dataclass(frozen=True)
class Traffic:
    """Store traffic of a stage's tasks, arrays as StageLoad has them; `ranges` are byte ranges read."""

    bytes_read: Floats
    ranges: Floats
    bytes_written: Floats

    def reading_seconds(self, store: StoreFacts) -> Floats:
        """Return what each task's requests to read take, its bytes apart."""
        return np.asarray((self.ranges > 0) * store.request_latency + self.ranges * store.range_latency)

    def writing_seconds(self, store: StoreFacts) -> Floats:
        """Return what each task's request to write takes, its bytes apart."""
        return np.asarray((self.bytes_written > 0) * store.request_latency)

    def usd(self, store: StoreFacts) -> Floats:
        """Price each task's requests, and its bytes where the store charges for those."""
        requests = self.ranges * store.price_get + (self.bytes_written > 0) * store.price_put
        return requests + (self.bytes_read + self.bytes_written) * store.price_byte if store.price_byte else requests


@dataclass(frozen=True)
class StageLoad:
    """The work of a stage's tasks for one query: arrays with a value for each task, or what broadcasts to that.

    `serial_s` and `parallel_s` are compute on one vCPU, the part that more vCPUs do not speed up and the part that they
    do. Bytes are read from and written to the store, or carried by the driver; `ranges` are byte ranges read. `objects`
    is what they do with the platform's second store, None for nothing.
    """

    serial_s: Floats
    parallel_s: Floats
    bytes_read: Floats
    ranges: Floats
    bytes_written: Floats
    carried_in: Floats
    carried_out: Floats
    weight_bytes: int = 0
    objects: Traffic | None = None

    @property
    def tasks(self) -> int:
        """The number of tasks of the stage."""
        return int(self.parallel_s.shape[-1])

    @property
    def stored(self) -> Traffic:
        """The tasks' store traffic."""
        return Traffic(self.bytes_read, self.ranges, self.bytes_written)

    def through(self, platform: Platform) -> list[tuple[Traffic, StoreFacts]]:
        """Return what the tasks do with each of a platform's stores; raises ValueError for a second that it lacks."""
        if self.objects is None:
            return [(self.stored, platform.store)]
        if platform.objects is None:
            raise ValueError("the load goes through an object store, the platform has none")
        return [(self.stored, platform.store), (self.objects, platform.objects)]


def task_seconds(load: StageLoad, memory_mb: Floats | float, platform: Platform) -> Floats:
    """Predict how long each task of a stage runs in a warm environment: what Lambda bills."""
    functions, through = platform.functions, load.through(platform)
    compute = compute_seconds(load.serial_s, load.parallel_s, vcpus(memory_mb, functions.memory_per_vcpu))
    read = reduce(np.maximum, [traffic.reading_seconds(store) for traffic, store in through])  # both stores at once
    write = reduce(np.add, [traffic.writing_seconds(store) for traffic, store in through])
    carried = load.carried_in + load.carried_out
    moved = reduce(np.add, [traffic.bytes_read + traffic.bytes_written for traffic, _ in through]) + _BASE64 * carried
    return np.asarray(TASK_SECONDS + compute + read + write + carried / CODEC_RATE + moved / functions.bandwidth)


def stage_price(load: StageLoad, memory_mb: Floats | float, platform: Platform) -> tuple[Floats, Floats]:
    """Predict a stage's expected seconds and its dollars, for one query.

    `memory_mb` is a number, or an array whose last axis, of length 1, stands for the tasks; the result lacks that axis.
    """
    memory = np.asarray(memory_mb)
    tasks, cold = task_seconds(load, memory, platform), cold_seconds(load.weight_bytes, platform)
    driver = load.tasks * DISPATCH_SECONDS + (load.carried_in + load.carried_out).sum(axis=-1) / CARRY_RATE
    starting = invoke_seconds(load.tasks, platform.functions) + _someone_is_cold(load.tasks, platform) * cold
    billed = billed_usd(memory, tasks + platform.cold_share * cold, platform.functions)
    requests = reduce(np.add, [traffic.usd(store) for traffic, store in load.through(platform)])
    usd = (billed + platform.functions.price_request + requests).sum(axis=-1)
    return np.asarray(driver + starting + tasks.max(axis=-1)), np.asarray(usd)


def billed_usd(memory_mb: Floats | float, seconds: Floats | float, functions: LambdaFacts) -> Floats:
    """Price memory times time, each duration rounded up to the millisecond."""
    milliseconds = np.ceil(np.round(np.asarray(seconds) * MS_PER_S, 9))
    return np.asarray(memory_mb) / _MB_PER_GB * milliseconds / MS_PER_S * functions.price_gb_second


def invoke_seconds(tasks: int, functions: LambdaFacts) -> float:
    """Return the expected time of the slowest of `tasks` warm invocations that start together."""
    return functions.invoke_floor + functions.invoke_tail * sum(1 / number for number in range(1, tasks + 1))


def cold_seconds(weight_bytes: int, platform: Platform) -> float:
    """Return what a cold start adds: starting the process, and making sessions of the weights."""
    return platform.functions.init + weight_bytes / platform.functions.load_rate


def _someone_is_cold(tasks: int, platform: Platform) -> float:
    return float(1 - (1 - platform.cold_share) ** tasks)


def invocation_usd(memory_mb: int, milliseconds: float, facts: LambdaFacts, shared: int = 1) -> float:
    """Price one invocation in dollars: the request plus memory times duration, rounded up to the millisecond.

    Of an invocation that `shared` queries' tasks had together this is one task's part, `milliseconds` its own share.
    """
    gb_seconds = memory_mb / _MB_PER_GB * math.ceil(milliseconds * shared) / shared / MS_PER_S
    return facts.price_request / shared + gb_seconds * facts.price_gb_second


@dataclass(frozen=True)
class Latency:
    """A plan's latency in warm environments, in seconds: `step` is the distance of `probability`'s points from `least`.

    Compute is a fixed number here; what varies are the invocations.
    """

    least: float
    step: float
    probability: Floats

    @property
    def mean(self) -> float:
        """Return the expected latency."""
        return self.least + self.step * float(np.arange(len(self.probability)) @ self.probability)

    def quantile(self, share: float) -> float:
        """Return the latency that `share` of the queries stay within."""
        return self.least + self.step * float(np.searchsorted(np.cumsum(self.probability), share))


def latency(
    stages: Sequence[tuple[float, int]], functions: LambdaFacts, cold: Sequence[tuple[float, float]] = ()
) -> Latency:
    """Return the distribution of a plan's latency from each stage's expected warm seconds and number of tasks.

    The slowest of n exponential tails has the distribution (1 - exp(-t))^n; stages add up, so theirs are convolved.
    `cold` has the probability that a stage waits for a cold start, and the seconds that it then waits.
    """
    step = max(functions.invoke_tail / _STEPS, sum(seconds for _, seconds in cold) / _COLD_STEPS)
    total, probability = 0.0, np.ones(1)
    for seconds, tasks in stages:
        total += seconds - functions.invoke_tail * sum(1 / number for number in range(1, tasks + 1))
        probability = _convolved(probability, _slowest(tasks, functions.invoke_tail / step))
    for share, seconds in cold:
        probability = _delayed(probability, share, round(seconds / step))
    return Latency(total, step, probability / probability.sum())


def _slowest(tasks: int, steps: float) -> Floats:
    """Return the distribution of the slowest of n exponential tails, each with a mean of so many steps."""
    times = np.arange(math.ceil((math.log(tasks) + 16) * steps) + 1) / steps
    return np.diff(np.exp(tasks * np.log1p(-np.exp(-times[1:]))), prepend=0.0)


def _delayed(probability: Floats, share: float, steps: int) -> Floats:
    """Return a distribution of which a share comes so many steps later."""
    if not share:
        return probability
    return np.pad((1 - share) * probability, (0, steps)) + np.pad(share * probability, (steps, 0))


def _convolved(one: Floats, other: Floats) -> Floats:
    length = len(one) + len(other) - 1
    size = 1 << (length - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(one, size) * np.fft.rfft(other, size), size)
    return np.maximum(product[:length], 0.0)


@dataclass(frozen=True)
class StagePrice:
    """The cost of one query in a stage: expected seconds, dollars, what its tasks are billed for, and bytes they move.

    `usd` has each task's time rounded up to the millisecond, `billed_s` has not; bytes are read from and written to all
    stores, `bytes_carried` ride along with the driver.
    """

    tasks: int
    memory_mb: int
    seconds: float
    usd: float
    billed_s: float
    bytes_read: int
    ranges: int
    bytes_written: int
    bytes_carried: int


@dataclass(frozen=True)
class PlanPrice:
    """The cost of one query, by stage, and the distribution of its latency."""

    stages: tuple[StagePrice, ...]
    latency: Latency

    @property
    def usd(self) -> float:
        """Dollars of all stages."""
        return sum(stage.usd for stage in self.stages)

    @property
    def stored(self) -> bool:
        """Whether anything goes through the store."""
        return any(stage.bytes_written + stage.bytes_read for stage in self.stages)


def price_plan(plan: Plan, platform: Platform, memory_mb: int | None = None) -> PlanPrice:
    """Price one query of one image, with each stage's own memory or `memory_mb` for all of them.

    Where the platform has no object store, everything goes through the one that it has.
    """
    plan = plan if platform.objects else _without_objects(plan)
    warm = replace(platform, cold_share=0.0)
    prices, known, cold = [], [], []
    for number, stage in enumerate(plan.stages):
        load, memory = plan_load(plan, number), memory_mb or stage.memory_mb
        prices.append(_stage_priced(load, memory, platform))
        known.append((float(stage_price(load, memory, warm)[0]), load.tasks))
        cold.append((_someone_is_cold(load.tasks, platform), cold_seconds(load.weight_bytes, platform)))
    return PlanPrice(tuple(prices), latency(known, platform.functions, cold if platform.cold_share else ()))


def _stage_priced(load: StageLoad, memory_mb: int, platform: Platform) -> StagePrice:
    seconds, usd = stage_price(load, memory_mb, platform)
    starting = load.tasks * platform.cold_share * cold_seconds(load.weight_bytes, platform)
    through = [traffic for traffic, _ in load.through(platform)]
    return StagePrice(
        load.tasks,
        memory_mb,
        float(seconds),
        float(usd),
        float(task_seconds(load, memory_mb, platform).sum()) + starting,
        sum(int(traffic.bytes_read.sum()) for traffic in through),
        sum(int(traffic.ranges.sum()) for traffic in through),
        sum(int(traffic.bytes_written.sum()) for traffic in through),
        int((load.carried_in + load.carried_out).sum()),
    )


def plan_load(plan: Plan, number: int) -> StageLoad:
    """Return what the tasks of a plan's stage do for one image, which comes as 8-bit pixels with the calls.

    Bytes and ranges are exact, the plan's own; compute is the prediction that its tiles carry.
    """
    stage = plan.stages[number]
    paths = [each.path for each in plan.stages]
    crops = _each(_pixels(tile, plan.input) if not number else 0 for tile in stage.tiles)
    cache, carried, objects = (_traffic(stage, paths, path) for path in (CACHE, INLINE, OBJECTS))
    return StageLoad(
        serial_s=_each(tile.serial_ms for tile in stage.tiles) / MS_PER_S,
        parallel_s=_each(tile.parallel_ms for tile in stage.tiles) / MS_PER_S,
        bytes_read=cache.bytes_read,
        ranges=cache.ranges,
        bytes_written=cache.bytes_written,
        carried_in=crops + carried.bytes_read,
        carried_out=carried.bytes_written,
        weight_bytes=max(function.weights.bytes for function in stage.functions),
        objects=objects if OBJECTS in paths else None,
    )


def _each(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=float)


def _pixels(tile: Tile, image: Shape) -> int:
    return image.channels * sum(rect.area for rect in tile.inputs)


def _traffic(stage: Stage, paths: Sequence[str], path: str) -> Traffic:
    """Return what a stage's tasks read of the stages whose tensors go one way, and write if its own go that way."""
    ranges = [
        [part.length(1) for piece in tile.pieces if paths[piece.stage] == path for part in piece.ranges]
        for tile in stage.tiles
    ]
    return Traffic(
        _each(map(sum, ranges)),
        _each(map(len, ranges)),
        _each(stage.written(tile) if stage.path == path else 0 for tile in stage.tiles),
    )


def _without_objects(plan: Plan) -> Plan:
    """Return a plan whose stages use one store."""
    cached = (replace(stage, path=CACHE) if stage.path == OBJECTS else stage for stage in plan.stages)
    return replace(plan, stages=tuple(cached))


@dataclass(frozen=True)
class Burst:
    """Queries that come at once: their dollars, and what they ask of Lambda.

    `environments` is how many they would keep busy side by side, as many as the stage with the most tasks has; Lambda
    gives an account `concurrency`, so that all of them take `least_seconds` or more.
    """

    queries: int
    usd: float
    environments: int
    concurrency: int
    least_seconds: float


def price_burst(query: PlanPrice, queries: int, functions: LambdaFacts) -> Burst:
    """Price a burst of like queries."""
    busy = queries * sum(stage.billed_s for stage in query.stages)
    return Burst(
        queries,
        queries * query.usd,
        queries * max(stage.tasks for stage in query.stages),
        functions.concurrency,
        max(query.latency.mean, busy / functions.concurrency),
    )


def standing_usd(platform: Platform, hours: float = HOURS_A_MONTH) -> float:
    """Price what stands while no query comes: functions cost nothing then, a store's node its hours."""
    return float(platform.price_hour * hours)
