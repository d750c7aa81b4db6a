"""The one cost model: latency as a distribution, dollars and bytes of a plan.

Planner, selection, simulator, reports and `serfer cost` all call it. A stage's tasks start together and the next stage
waits for the slowest, so

    latency = sum over stages of  dispatch + slowest of n invocations + slowest task (read, compute, write)

An invocation takes a floor plus an exponential tail; the expected slowest of n is then floor + tail * (1 + 1/2 + ... +
1/n) exactly. Inside a task everything runs one after another and adds up. Dollars are requests, memory times billed
time, and the stores' requests and bytes; what a store costs an hour stands apart, because no query causes it.

A gang of n members, one for each tile, is one step of that sum. Its stages wait for each other's halos, so each counts
with its slowest member, and so does every exchange: a round trip to send, one to receive, and bytes at the bandwidth
of an environment (`request_latency` and `bandwidth` of aws.toml, with their sources):

    inside = task + slowest read + sum over stages of slowest compute + sum over exchanges + slowest write
    exchange = (latency + most bytes sent / bandwidth) + (latency + most bytes received / bandwidth)
    latency of the gang = dispatch + slowest of n invocations + inside

Every member is billed from its own start until the last one has started and ended: n * (inside + slowest of n
invocations - mean of one). A message is priced as one request to write, waiting for messages as one to read;
both have their bytes' price. A Redis node has none of these prices, its hours stand apart.

A share S of the queries finds nothing warm. Such a query has the same steps, which wait for their environments where
those are ready later (`critical_path` in cold_starts.py), and pays for the starts of all of them:

    latency = (1 - S) warm + S cold = warm + S * seconds waited, dollars = warm + S * dollars of the starts
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.aws import AwsFacts, LambdaFacts, StoreFacts
from serfer.core.costs.cold_starts import ColdStart, StepTimes, cold_start, critical_path
from serfer.core.costs.vcpus import compute_seconds, vcpus
from serfer.core.inline_outputs import CROP_BYTES
from serfer.core.plan import CACHE, INLINE, OBJECTS, ZIP, Gang, Piece, Plan, Shape, Stage, Tile, explained
from serfer.core.plan.borders import Source, cell_bytes
from serfer.core.units import MB_PER_GB, MS_PER_S

DISPATCH_SECONDS = 2.8e-4
"""A driver's processor time to sign and send one invocation, as measured on the development machine."""
TASK_SECONDS = 4e-4
"""Seconds of a task besides reading, computing and writing: decoding, encoding, the runtime's loop. Measured there."""
CARRY_RATE = 7.5e7
"""Bytes a second that a driver takes out of answers or puts into payloads: base64 in JSON, signing. ADR 9."""
CODEC_RATE = 4e7
"""Bytes a second that a worker does the same with, its runtime included. ADR 9."""
MEASURED_MEMBERS = 2
"""Members of the widest gangs whose predictions agreed with measurements (docs/explanation/planner.md)."""
_BASE64 = 4 / 3
_NEAR_S = 0.005  # of a request, up to which large crops go through a store (serfer/wiring): S3 takes longer
_STEPS = 200  # of a distribution, for each mean of an invocation's tail
_COLD_STEPS = 200_000  # of a distribution at most, for all cold starts together
HOURS_A_MONTH = 730

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Platform:
    """The platform of a plan: Lambda, and the store between its stages, perhaps with a second one for large objects.

    `cold_share` is the share of the queries that find no warm environment for any of their steps (cold_starts.py);
    with `snapstart` environments start from snapshots.
    """

    functions: LambdaFacts
    store: StoreFacts
    cold_share: float = 0.0
    objects: StoreFacts | None = None
    snapstart: bool = False

    @property
    def crop_limit(self) -> float:
        """The bytes of a crop from which on the driver puts it into the store."""
        return CROP_BYTES if self.store.request_latency <= _NEAR_S else math.inf

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
    is what they do with the platform's second store, None for nothing. `crops` are how many of the bytes carried in are
    of the image, `put` those that the driver has put into the store instead. `weights_in` is the place of
    the `weight_bytes` (`Stage.weights_in`).
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
    crops: Floats | float = 0.0
    put: Floats | float = 0.0
    weights_in: str = ZIP

    def cold_start(self, platform: Platform) -> ColdStart:
        return cold_start(self.weight_bytes, self.weights_in, platform.functions, snapstart=platform.snapstart)

    def placed(self, platform: Platform) -> StageLoad:
        """Return the load with the image where the driver puts it: in payloads, or large crops in a near store."""
        put: Floats = np.where(np.asarray(self.crops) > platform.crop_limit, self.crops, 0.0)
        if not put.any():
            return self
        return replace(
            self,
            bytes_read=self.bytes_read + put,
            ranges=self.ranges + (put > 0),
            carried_in=self.carried_in - put,
            crops=0.0,
            put=put,
        )

    def driver_seconds(self, platform: Platform) -> Floats:
        """Return what a driver takes for the bytes of a placed load: carrying them, or putting them into the store."""
        moved = (self.carried_in + self.carried_out + self.put).sum(axis=-1)
        return np.asarray(moved / CARRY_RATE + np.any(self.put) * platform.store.request_latency)

    def usd(self, platform: Platform) -> Floats:
        """Price the stores' requests and bytes, of all tasks and of the driver that puts crops."""
        own = reduce(np.add, [traffic.usd(store) for traffic, store in self.through(platform)])
        put = (np.asarray(self.put) > 0) * platform.store.price_put + self.put * platform.store.price_byte
        return np.asarray((own + put).sum(axis=-1))

    @property
    def tasks(self) -> int:
        return int(self.parallel_s.shape[-1])

    @property
    def stored(self) -> Traffic:
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
    load = load.placed(platform)
    functions, through = platform.functions, load.through(platform)
    compute = compute_seconds(load.serial_s, load.parallel_s, vcpus(memory_mb, functions.memory_per_vcpu))
    read = reduce(np.maximum, [traffic.reading_seconds(store) for traffic, store in through])  # both stores at once
    write = reduce(np.add, [traffic.writing_seconds(store) for traffic, store in through])
    carried = load.carried_in + load.carried_out
    moved = reduce(np.add, [traffic.bytes_read + traffic.bytes_written for traffic, _ in through]) + _BASE64 * carried
    return np.asarray(TASK_SECONDS + compute + read + write + carried / CODEC_RATE + moved / functions.bandwidth)


def stage_price(load: StageLoad, memory_mb: Floats | float, platform: Platform) -> tuple[Floats, Floats]:
    """Predict a stage's expected seconds and its dollars, for one query in warm environments.

    `memory_mb` is a number, or an array whose last axis, of length 1, stands for the tasks; the result lacks that axis.
    """
    load, memory = load.placed(platform), np.asarray(memory_mb)
    tasks = task_seconds(load, memory, platform)
    driver = load.tasks * DISPATCH_SECONDS + load.driver_seconds(platform)
    starting = invoke_seconds(load.tasks, platform.functions)
    billed = billed_usd(memory, tasks, platform.functions)
    usd = (billed + platform.functions.price_request).sum(axis=-1) + load.usd(platform)
    return np.asarray(driver + starting + tasks.max(axis=-1)), np.asarray(usd)


def ready_seconds(tasks: int, cold_s: float, functions: LambdaFacts, *, first: bool) -> float:
    """Return the second of a query that finds nothing warm at which the environments of a step are ready.

    `cold_s` is what a cold start of one takes. A query's own tasks start the environments of its `first` step,
    warm-up requests those of the others, which wait for an invocation in addition.
    """
    return cold_s + (0.0 if first else invoke_seconds(tasks, functions))


def starting_usd(
    tasks: int, memory_mb: Floats | float, cold_s: float, functions: LambdaFacts, *, first: bool
) -> Floats:
    """Price the starts of a step's environments in a query that finds nothing warm, warm-up requests included."""
    request = 0.0 if first else functions.price_request
    return np.asarray(tasks * (billed_usd(memory_mb, cold_s, functions) + request))


def start_usd(tasks: int, memory_mb: int, start: ColdStart, functions: LambdaFacts, *, first: bool) -> float:
    """Price the same of starts that may be restored from a snapshot, which is paid by the GB."""
    usd = float(starting_usd(tasks, memory_mb, start.billed_seconds, functions, first=first))
    restored = tasks * memory_mb / MB_PER_GB * functions.price_snapstart_restored if start.restored else 0.0
    return usd + restored


@dataclass(frozen=True)
class Exchange:
    """What a gang's members send and receive before a stage: arrays whose last axis has a value for each member."""

    bytes_sent: Floats
    bytes_received: Floats
    messages: Floats

    def own_seconds(self, platform: Platform) -> tuple[Floats, Floats]:
        """Return what each member's sending takes, and its receiving, the waiting apart."""
        latency, bandwidth = platform.store.request_latency, platform.functions.bandwidth
        sending = (self.messages > 0) * latency + self.bytes_sent / bandwidth
        receiving = (self.bytes_received > 0) * latency + self.bytes_received / bandwidth
        return np.asarray(sending), np.asarray(receiving)

    def price(self, platform: Platform) -> tuple[Floats, Floats]:
        """Predict its seconds, of the slowest sender and the slowest receiver, and the store's dollars."""
        sending, receiving = self.own_seconds(platform)
        store = platform.store
        requests = self.messages * store.price_put + (self.bytes_received > 0) * store.price_get
        usd = requests + (self.bytes_sent + self.bytes_received) * store.price_byte
        return np.asarray(sending.max(axis=-1) + receiving.max(axis=-1)), np.asarray(usd.sum(axis=-1))


@dataclass(frozen=True)
class GangLoad:
    """The work of a gang's members for one query.

    `outer` is what they read before their first stage and write after their last, its compute apart. `serial_s` and
    `parallel_s` have a row for each stage and a value for each member, 0 where it has no tile; there is an exchange
    before each stage but the first.
    """

    outer: StageLoad
    serial_s: Floats
    parallel_s: Floats
    exchanges: tuple[Exchange, ...]

    def compute(self, memory_mb: float, platform: Platform) -> Floats:
        granted = vcpus(memory_mb, platform.functions.memory_per_vcpu)
        return compute_seconds(self.serial_s, self.parallel_s, granted)


def moving_seconds(load: StageLoad, platform: Platform) -> tuple[Floats, Floats]:
    """Return what reading takes each member of a gang at its start, and writing at its end."""
    load = load.placed(platform)
    through, bandwidth = load.through(platform), platform.functions.bandwidth
    reading = reduce(np.maximum, [traffic.reading_seconds(store) for traffic, store in through])
    writing = reduce(np.add, [traffic.writing_seconds(store) for traffic, store in through])
    read = reduce(np.add, [traffic.bytes_read for traffic, _ in through]) + _BASE64 * load.carried_in
    written = reduce(np.add, [traffic.bytes_written for traffic, _ in through]) + _BASE64 * load.carried_out
    into = reading + read / bandwidth + load.carried_in / CODEC_RATE
    out = writing + written / bandwidth + load.carried_out / CODEC_RATE
    return np.asarray(into), np.asarray(out)


@dataclass(frozen=True)
class GangEnds:
    """What a gang's members move before and after its stages: arrays without an axis for the members.

    `reading_s` and `writing_s` are of the slowest member, `carrying_s` is the driver's, `usd` are the stores' requests
    and bytes.
    """

    reading_s: Floats
    writing_s: Floats
    carrying_s: Floats
    usd: Floats

    @classmethod
    def of(cls, load: StageLoad, platform: Platform) -> GangEnds:
        load = load.placed(platform)
        reading, writing = moving_seconds(load, platform)
        return cls(reading.max(axis=-1), writing.max(axis=-1), load.driver_seconds(platform), load.usd(platform))

    def each(self, count: int) -> GangEnds:
        fields = (self.reading_s, self.writing_s, self.carrying_s, self.usd)
        return GangEnds(*(np.broadcast_to(field, (count,)) for field in fields))


def gang_price(
    members: int,
    inside_s: Floats | float,
    carrying_s: Floats | float,
    store_usd: Floats | float,
    memory_mb: Floats | float,
    platform: Platform,
) -> tuple[Floats, Floats]:
    """Predict a gang's expected seconds and its dollars, for one query in warm environments.

    `inside_s` are the seconds of reading, of its stages and exchanges, and of writing, each of the slowest member;
    `carrying_s` the driver's for what is inline, `store_usd` what the stores charge.
    """
    functions = platform.functions
    running = TASK_SECONDS + inside_s
    seconds = members * DISPATCH_SECONDS + carrying_s + invoke_seconds(members, functions) + running
    billed = billed_usd(np.asarray(memory_mb), running + start_skew(members, functions), functions)
    return np.asarray(seconds), np.asarray(members * (billed + functions.price_request) + store_usd)


def start_skew(members: int, functions: LambdaFacts) -> float:
    """Return how long a member that has started waits on average for the last of them to start."""
    return invoke_seconds(members, functions) - invoke_seconds(1, functions)


def billed_usd(memory_mb: Floats | float, seconds: Floats | float, functions: LambdaFacts) -> Floats:
    """Price memory times time, each duration rounded up to the millisecond."""
    milliseconds = np.ceil(np.round(np.asarray(seconds) * MS_PER_S, 9))
    return np.asarray(memory_mb) / MB_PER_GB * milliseconds / MS_PER_S * functions.price_gb_second


def invoke_seconds(tasks: int, functions: LambdaFacts) -> float:
    """Return the expected time of the slowest of `tasks` warm invocations that start together."""
    return functions.invoke_floor + functions.invoke_tail * sum(1 / number for number in range(1, tasks + 1))


def invocation_usd(memory_mb: int, milliseconds: float, facts: LambdaFacts, shared: int = 1) -> float:
    """Price one invocation in dollars: the request plus memory times duration, rounded up to the millisecond.

    Of an invocation that `shared` queries' tasks had together this is one task's part, `milliseconds` its own share.
    """
    gb_seconds = memory_mb / MB_PER_GB * math.ceil(milliseconds * shared) / shared / MS_PER_S
    return facts.price_request / shared + gb_seconds * facts.price_gb_second


@dataclass(frozen=True)
class Latency:
    """A plan's latency in seconds: `step` is the distance of `probability`'s points from `least`.

    Compute is a fixed number here; what varies are the invocations.
    """

    least: float
    step: float
    probability: Floats

    @property
    def mean(self) -> float:
        return self.least + self.step * float(np.arange(len(self.probability)) @ self.probability)

    def quantile(self, share: float) -> float:
        return self.least + self.step * float(np.searchsorted(np.cumsum(self.probability), share))


def latency(
    stages: Sequence[tuple[float, int]], functions: LambdaFacts, cold_share: float = 0.0, waited_s: float = 0.0
) -> Latency:
    """Return the distribution of a plan's latency from each stage's expected warm seconds and number of tasks.

    The slowest of n exponential tails has the distribution (1 - exp(-t))^n; stages add up, so theirs are convolved.
    The `cold_share` of queries that find nothing warm takes `waited_s` longer.
    """
    step = max(functions.invoke_tail / _STEPS, (waited_s if cold_share else 0.0) / _COLD_STEPS)
    total, probability = 0.0, np.ones(1)
    for seconds, tasks in stages:
        total += seconds - functions.invoke_tail * sum(1 / number for number in range(1, tasks + 1))
        probability = _convolve(probability, _slowest(tasks, functions.invoke_tail / step))
    if cold_share == 1:
        total += waited_s
    elif cold_share:
        probability = _add_wait(probability, cold_share, round(waited_s / step))
    return Latency(total, step, probability / probability.sum())


def _slowest(tasks: int, steps: float) -> Floats:
    times = np.arange(math.ceil((math.log(tasks) + 16) * steps) + 1) / steps
    return np.diff(np.exp(tasks * np.log1p(-np.exp(-times[1:]))), prepend=0.0)


def _add_wait(probability: Floats, share: float, steps: int) -> Floats:
    return np.pad((1 - share) * probability, (0, steps)) + np.pad(share * probability, (steps, 0))


def _convolve(one: Floats, other: Floats) -> Floats:
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
class GangPrice(StagePrice):
    """The cost of one query in a gang, which counts as one stage.

    `bytes_exchanged` are sent between its members; `waiting_s` is how long all of them together are billed while they
    wait for others, of `billed_s`.
    """

    exchanges: int
    bytes_exchanged: int
    waiting_s: float

    @property
    def billed_gb_s(self) -> float:
        return self.memory_mb / MB_PER_GB * self.billed_s

    @property
    def waiting_gb_s(self) -> float:
        return self.memory_mb / MB_PER_GB * self.waiting_s


@dataclass(frozen=True)
class PlanPrice:
    """The cost of one query, by step, and the distribution of its latency: `stages` has one for each gang as well.

    `numbers` are the plan's stages that each of them stands for, `cold_starts` the parts of a cold start of each,
    `times` when each is ready and ends in a query that finds nothing warm. Seconds, dollars and billed seconds of
    stages are expected ones, with the share of such queries.
    """

    stages: tuple[StagePrice, ...]
    numbers: tuple[range, ...]
    cold_starts: tuple[ColdStart, ...]
    times: tuple[StepTimes, ...]
    latency: Latency

    def name(self, step: int) -> str:
        """Return the name of a step: a stage's, or that of a gang's first and last stages."""
        numbers = self.numbers[step]
        return f"stage-{numbers.start}" + (f"..{numbers[-1]}" if isinstance(self.stages[step], GangPrice) else "")

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def usd(self) -> float:
        return sum(stage.usd for stage in self.stages)

    @property
    def stored(self) -> bool:
        exchanged = any(isinstance(stage, GangPrice) and stage.bytes_exchanged for stage in self.stages)
        return exchanged or any(stage.bytes_written + stage.bytes_read for stage in self.stages)


def price_plan(plan: Plan, platform: Platform, memory_mb: int | None = None) -> PlanPrice:
    """Price one query of one image, with each stage's own memory or `memory_mb` for all of them."""
    plan = plan if platform.objects else _without_objects(plan)
    functions, warm = platform.functions, list[StagePrice]()
    starts, numbers = list[ColdStart](), list[range]()
    for number, _ in plan.functions:
        if numbers and number in numbers[-1]:
            continue
        gang, memory = plan.gang_of(number), memory_mb or plan.stages[number].memory_mb
        load: StageLoad
        if gang is None:
            load = plan_load(plan, number)
            warm.append(_price_stage(load, memory, platform))
        else:
            members = gang_load(plan, gang)
            load = members.outer
            warm.append(price_gang(members, memory, platform))
        starts.append(load.cold_start(platform))
        numbers.append(gang.stages if gang else range(number, number + 1))
    ready = (
        ready_seconds(stage.tasks, start.seconds, functions, first=not step)
        for step, (stage, start) in enumerate(zip(warm, starts, strict=True))
    )
    times = critical_path(zip(ready, (stage.seconds for stage in warm), strict=True))
    share, waited_s = platform.cold_share, sum(time.waited for time in times)
    distribution = latency([(stage.seconds, stage.tasks) for stage in warm], functions, share, waited_s)
    stages = tuple(
        _add_starts(stage, start, time.waited, platform, first=not step) if share else stage
        for step, (stage, start, time) in enumerate(zip(warm, starts, times, strict=True))
    )
    return PlanPrice(stages, tuple(numbers), tuple(starts), times, distribution)


def _add_starts(stage: StagePrice, start: ColdStart, waited_s: float, platform: Platform, *, first: bool) -> StagePrice:
    share = platform.cold_share
    return replace(
        stage,
        seconds=stage.seconds + share * waited_s,
        usd=stage.usd + share * start_usd(stage.tasks, stage.memory_mb, start, platform.functions, first=first),
        billed_s=stage.billed_s + share * stage.tasks * start.billed_seconds,
    )


def price_gang(load: GangLoad, memory_mb: int, platform: Platform) -> GangPrice:
    outer, members = load.outer.placed(platform), load.outer.tasks
    compute, ends = load.compute(memory_mb, platform), GangEnds.of(load.outer, platform)
    priced = [exchange.price(platform) for exchange in load.exchanges]
    inside_s = float(
        compute.max(axis=-1).sum() + sum(spent_s for spent_s, _ in priced) + ends.reading_s + ends.writing_s
    )
    store_usd = float(ends.usd + sum(dollars for _, dollars in priced))
    seconds, usd = gang_price(members, inside_s, ends.carrying_s, store_usd, memory_mb, platform)
    driver = members * DISPATCH_SECONDS + float(ends.carrying_s)
    billed = float(seconds) - driver - invoke_seconds(1, platform.functions)
    exchanging = sum(sum(map(np.sum, exchange.own_seconds(platform))) for exchange in load.exchanges)
    busy = members * TASK_SECONDS + compute.sum() + exchanging + sum(map(np.sum, moving_seconds(outer, platform)))
    return GangPrice(
        members,
        memory_mb,
        float(seconds),
        float(usd),
        members * billed,
        *_sum_traffic(outer, platform),
        exchanges=sum(bool(exchange.messages.any()) for exchange in load.exchanges),
        bytes_exchanged=sum(int(exchange.bytes_sent.sum()) for exchange in load.exchanges),
        waiting_s=members * billed - float(busy),
    )


def _price_stage(load: StageLoad, memory_mb: int, platform: Platform) -> StagePrice:
    load = load.placed(platform)
    seconds, usd = stage_price(load, memory_mb, platform)
    billed = float(task_seconds(load, memory_mb, platform).sum())
    moved = _sum_traffic(load, platform)
    return StagePrice(load.tasks, memory_mb, float(seconds), float(usd), billed, *moved)


def _sum_traffic(load: StageLoad, platform: Platform) -> tuple[int, int, int, int]:
    through = [traffic for traffic, _ in load.through(platform)]
    read, ranges, written = (
        sum(int(getattr(traffic, name).sum()) for traffic in through)
        for name in ("bytes_read", "ranges", "bytes_written")
    )
    return read, ranges, written, int((load.carried_in + load.carried_out).sum())


def plan_load(plan: Plan, number: int) -> StageLoad:
    """Return what the tasks of a plan's stage do for one image, which comes as 8-bit pixels with the calls.

    Bytes and ranges are exact, the plan's own; compute is the prediction that its tiles carry.
    """
    stage = plan.stages[number]
    paths = [step.path for step in plan.stages]
    crops = _to_floats(_pixels(tile, plan.input) if not number else 0 for tile in stage.tiles)
    cache, carried, objects = (_traffic(stage, paths, path) for path in (CACHE, INLINE, OBJECTS))
    return StageLoad(
        serial_s=_to_floats(explained(tile.serial_ms) for tile in stage.tiles) / MS_PER_S,
        parallel_s=_to_floats(explained(tile.parallel_ms) for tile in stage.tiles) / MS_PER_S,
        bytes_read=cache.bytes_read,
        ranges=cache.ranges,
        bytes_written=cache.bytes_written,
        carried_in=crops + carried.bytes_read,
        carried_out=carried.bytes_written,
        weight_bytes=max(function.weights.bytes for function in stage.functions),
        objects=objects if OBJECTS in paths else None,
        crops=crops,
        weights_in=stage.weights_in,
    )


def gang_load(plan: Plan, gang: Gang) -> GangLoad:
    """Return what the members of a plan's gang do for one image; bytes and ranges are exact.

    Cells from before the gang are read once, those that several stages of another member read are sent once.
    """
    stages = [plan.stages[number] for number in gang.stages]
    members = range(stages[0].grid.tiles)
    paths = [step.path for step in plan.stages]
    later = {source.stage for stage in plan.stages[gang.stop :] for source in stage.inputs}
    answered = {*later, len(plan.stages) - 1}
    read = [
        _cells_read(piece for stage in stages for tile in stage.tiles[member : member + 1] for piece in tile.pieces)
        for member in members
    ]

    def through(path: str) -> Traffic:
        outside = [
            {key: cells for key, cells in read_cells.items() if key[0] < gang.start and paths[key[0]] == path}
            for read_cells in read
        ]
        return Traffic(
            _to_floats(
                sum(cell_bytes(plan, source, number, 1) for source, cells in written.items() for number in cells)
                for written in outside
            ),
            _to_floats(sum(map(_runs, written.values())) for written in outside),
            _to_floats(
                sum(
                    stage.written(stage.tiles[member])
                    for number, stage in zip(gang.stages, stages, strict=True)
                    if number in answered and stage.path == path and member < len(stage.tiles)
                )
                for member in members
            ),
        )

    crops = _to_floats(_pixels(tile, plan.input) if not gang.start else 0 for tile in stages[0].tiles)
    cache, carried, objects = (through(path) for path in (CACHE, INLINE, OBJECTS))
    compute = np.zeros((2, len(stages), len(members)))
    for row, stage in enumerate(stages):
        compute[0, row, : len(stage.tiles)] = [explained(tile.serial_ms) / MS_PER_S for tile in stage.tiles]
        compute[1, row, : len(stage.tiles)] = [explained(tile.parallel_ms) / MS_PER_S for tile in stage.tiles]
    return GangLoad(
        StageLoad(
            np.zeros(len(members)),
            np.zeros(len(members)),
            cache.bytes_read,
            cache.ranges,
            cache.bytes_written,
            carried_in=crops + carried.bytes_read,
            carried_out=carried.bytes_written,
            weight_bytes=sum(stage.functions[0].weights.bytes for stage in stages),
            objects=objects if OBJECTS in paths else None,
            crops=crops,
            weights_in=stages[0].weights_in,
        ),
        compute[0],
        compute[1],
        tuple(_exchanges(plan, gang, len(members))),
    )


def _cells_read(pieces: Iterable[Piece]) -> dict[Source, set[int]]:
    cells: dict[Source, set[int]] = {}
    for piece in pieces:
        cells.setdefault((piece.stage, piece.tile), set()).update(piece.cell_numbers)
    return cells


def _runs(numbers: Iterable[int]) -> int:
    ordered = sorted(numbers)
    return bool(ordered) + sum(after != before + 1 for before, after in pairwise(ordered))


def _exchanges(plan: Plan, gang: Gang, members: int) -> Iterable[Exchange]:
    had: list[dict[Source, set[int]]] = [{} for _ in range(members)]
    for number in gang.stages:
        sent, received, messages = np.zeros((3, members))
        for reader, tile in enumerate(plan.stages[number].tiles):
            for (stage, writer), cells in _cells_read(tile.pieces).items():
                there = had[reader].setdefault((stage, writer), set())
                new = cells - there
                there |= cells
                if stage >= gang.start and writer != reader and new:
                    size = sum(cell_bytes(plan, (stage, writer), number, 1) for number in new)
                    sent[writer] += size
                    received[reader] += size
                    messages[writer] += 1
        if number > gang.start:
            yield Exchange(sent, received, messages)


def _to_floats(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=float)


def _pixels(tile: Tile, image: Shape) -> int:
    return image.channels * sum(rect.area for rect in tile.inputs)


def _traffic(stage: Stage, paths: Sequence[str], path: str) -> Traffic:
    ranges = [
        [part.length(1) for piece in tile.pieces if paths[piece.stage] == path for part in piece.ranges]
        for tile in stage.tiles
    ]
    return Traffic(
        _to_floats(map(sum, ranges)),
        _to_floats(map(len, ranges)),
        _to_floats(stage.written(tile) if stage.path == path else 0 for tile in stage.tiles),
    )


def _without_objects(plan: Plan) -> Plan:
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
    busy = queries * sum(stage.billed_s for stage in query.stages)
    return Burst(
        queries,
        queries * query.usd,
        queries * max(stage.tasks for stage in query.stages),
        functions.concurrency,
        max(query.latency.mean, busy / functions.concurrency),
    )


def standing_usd(platform: Platform) -> float:
    """Price a month in which no query comes: functions cost nothing then, a store's node its hours."""
    return float(platform.price_hour * HOURS_A_MONTH)
