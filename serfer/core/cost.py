"""The one cost model: latency as a distribution, dollars and bytes of a plan.

Planner, selection, simulator, reports and `serfer cost` all call it. A stage's tasks start together and the next stage
waits for the slowest, so

    latency = sum over stages of  dispatch + slowest of n invocations + slowest task (read, compute, write)

An invocation takes a floor plus an exponential tail; the expected slowest of n is then floor + tail * (1 + 1/2 + ... +
1/n) exactly. Inside a task everything runs one after another and adds up. Dollars are requests, memory times billed
time, and the store's requests; what a store costs an hour stands apart, because no query causes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.core.aws import LambdaFacts, StoreFacts

FLOAT_BYTES = 4
DISPATCH_SECONDS = 2.8e-4
"""A driver's processor time to sign and send one invocation, as measured on the development machine."""
TASK_SECONDS = 4e-4
"""What a task takes besides reading, computing and writing: decoding, encoding, the runtime's loop. Measured there."""
CARRY_RATE = 7.5e7
"""Bytes a second that a driver takes out of answers or puts into payloads: base64 in JSON, signing. ADR 9."""
CODEC_RATE = 4e7
"""Bytes a second that a worker does the same with, its runtime included. ADR 9."""
_BASE64 = 4 / 3
_MB_PER_GB = 1024
_MS_PER_S = 1000
_STEPS = 200  # of a distribution, for each mean of an invocation's tail

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Platform:
    """Where a plan runs: Lambda, and the store between its stages.

    `cold_share` is how many of the invocations find no warm environment; a cold one takes as long as it takes to start
    a process and to load the function's weights.
    """

    functions: LambdaFacts
    store: StoreFacts
    cold_share: float = 0.0


@dataclass(frozen=True)
class StageLoad:
    """What the tasks of a stage do for one query: arrays with a value for each task, or what broadcasts to that.

    `serial_s` and `parallel_s` are compute on one vCPU, the part that more vCPUs do not speed up and the part that they
    do. Bytes are read from and written to the store, or carried by the driver; `ranges` are byte ranges read.
    """

    serial_s: Floats
    parallel_s: Floats
    bytes_read: Floats
    ranges: Floats
    bytes_written: Floats
    carried_in: Floats
    carried_out: Floats
    weight_bytes: int = 0

    @property
    def tasks(self) -> int:
        """How many tasks the stage has."""
        return int(self.parallel_s.shape[-1])


def task_seconds(load: StageLoad, memory_mb: Floats | float, platform: Platform) -> Floats:
    """Predict how long each task of a stage runs in a warm environment: what Lambda bills."""
    functions, store = platform.functions, platform.store
    vcpus = np.asarray(memory_mb) / functions.memory_per_vcpu
    compute = load.serial_s / np.minimum(1.0, vcpus) + load.parallel_s / vcpus
    read = (load.ranges > 0) * store.request_latency + load.ranges * store.range_latency
    write = (load.bytes_written > 0) * store.request_latency
    carried = load.carried_in + load.carried_out
    moved = load.bytes_read + load.bytes_written + _BASE64 * carried
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
    requests = load.ranges * platform.store.price_get + (load.bytes_written > 0) * platform.store.price_put
    usd = (billed + platform.functions.price_request + requests).sum(axis=-1)
    return np.asarray(driver + starting + tasks.max(axis=-1)), np.asarray(usd)


def billed_usd(memory_mb: Floats | float, seconds: Floats | float, functions: LambdaFacts) -> Floats:
    """Price memory times time, each duration rounded up to the millisecond."""
    milliseconds = np.ceil(np.round(np.asarray(seconds) * _MS_PER_S, 9))
    return np.asarray(memory_mb) / _MB_PER_GB * milliseconds / _MS_PER_S * functions.price_gb_second


def invoke_seconds(tasks: int, functions: LambdaFacts) -> float:
    """Return the expected time of the slowest of `tasks` warm invocations that start together."""
    return functions.invoke_floor + functions.invoke_tail * sum(1 / number for number in range(1, tasks + 1))


def cold_seconds(weight_bytes: int, platform: Platform) -> float:
    """Return what a cold start adds: starting the process, and making sessions of the weights."""
    return platform.functions.init + weight_bytes / platform.functions.load_rate


def _someone_is_cold(tasks: int, platform: Platform) -> float:
    return float(1 - (1 - platform.cold_share) ** tasks)


def invocation_usd(memory_mb: int, milliseconds: float, facts: LambdaFacts) -> float:
    """Price one invocation in dollars: the request plus memory times duration, rounded up to the millisecond."""
    gb_seconds = memory_mb / _MB_PER_GB * math.ceil(milliseconds) / _MS_PER_S
    return facts.price_request + gb_seconds * facts.price_gb_second


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


def latency(stages: Sequence[tuple[float, int]], functions: LambdaFacts) -> Latency:
    """Return the distribution of a plan's latency from each stage's expected seconds and number of tasks.

    The slowest of n exponential tails has the distribution (1 - exp(-t))^n; stages add up, so theirs are convolved.
    """
    step = functions.invoke_tail / _STEPS
    total, probability = 0.0, np.ones(1)
    for seconds, tasks in stages:
        total += seconds - functions.invoke_tail * sum(1 / number for number in range(1, tasks + 1))
        times = np.arange((math.log(tasks) + 16) * _STEPS + 1) / _STEPS
        below = np.exp(tasks * np.log1p(-np.exp(-times[1:])))
        probability = _convolved(probability, np.diff(below, prepend=0.0))
    return Latency(total, step, probability / probability.sum())


def _convolved(one: Floats, other: Floats) -> Floats:
    length = len(one) + len(other) - 1
    size = 1 << (length - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(one, size) * np.fft.rfft(other, size), size)
    return np.maximum(product[:length], 0.0)
