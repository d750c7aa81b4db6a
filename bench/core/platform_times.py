"""Times and processors of a platform that the local Lambda service takes on: Lambda's, or any others.

They are added to what this machine takes by itself, or hide it: an initialisation ends no sooner than `init_s`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

from serfer.core.errors import UsageError
from serfer.local.lambda_.process import WorkerProcess

LONGEST_S = 60.0
_GOLDEN = (math.sqrt(5) - 1) / 2
_TICK_S, _KEPT_S = 0.005, 0.02


@dataclass(frozen=True)
class PlatformTimes:
    """Times in seconds; 0 leaves a part as it is on this machine.

    An invocation begins later by an exponential tail of mean `invoke_tail_s`, on top of `Faults.latency_s`. A new
    environment is placed after an exponential tail of mean `start_tail_s` and its package's bytes at `package_rate`
    bytes/s; then its initialisation takes `init_s`, or `restore_s` where it is restored from a snapshot, at least.
    A function has memory / `memory_per_vcpu` (MB) vCPUs while it is invoked, each as fast as a processor here; or of
    `vcpu_speed`, and then one at most, since a process cannot be held to several slow ones.

    Raises UsageError for a negative number, and for times that are too long.
    """

    invoke_tail_s: float = 0.0
    start_tail_s: float = 0.0
    package_rate: float = 0.0
    init_s: float = 0.0
    restore_s: float = 0.0
    memory_per_vcpu: float = 0.0
    vcpu_speed: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, most = getattr(self, field.name), LONGEST_S if field.name.endswith("_s") else math.inf
            if not 0 <= value <= most:
                raise UsageError(f"{field.name} must be 0 to {most:g}, not {value}")
        if not 0 < self.vcpu_speed <= 1:
            raise UsageError(f"vcpu_speed must be above 0, and 1 at most, not {self.vcpu_speed}")

    def placing_s(self, package_bytes: int) -> float:
        return package_bytes / self.package_rate if self.package_rate else 0.0

    def processors(self, memory_mb: int) -> float:
        """Return how many processors' time a function of so much memory has; `memory_per_vcpu` is not 0."""
        vcpus = memory_mb / self.memory_per_vcpu
        return min(1.0, vcpus) * self.vcpu_speed if self.vcpu_speed < 1 else vcpus


def tail(mean_s: float) -> Iterator[float]:
    """Yield draws of an exponential distribution, spread so evenly that the mean of some fifty of them is its own.

    They are the quantiles of a half and multiples of the golden ratio, modulo 1: the same in each run.
    """
    number = 0
    while True:
        number += 1
        yield -mean_s * math.log1p(-((0.5 + number * _GOLDEN) % 1.0))


class ProcessorShare:
    """Stops and continues a process so that it has the time of so many processors, as Linux' CFS quota does.

    It stands still while it has used more than its share, and what it leaves unused is kept for a few slices alone.
    """

    def __init__(self, process: WorkerProcess, processors: float) -> None:
        self._process = process
        self._processors = processors
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._seen = self._used = self._left_s = 0.0

    def start(self) -> None:
        self._seen, self._used, self._left_s = self._loop.time(), self._process.processor_s(), 0.0
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._process.go_on()

    def _tick(self) -> None:
        now, used = self._loop.time(), self._process.processor_s()
        self._left_s += self._processors * (now - self._seen) - (used - self._used)
        self._left_s = min(self._left_s, self._processors * _KEPT_S)
        self._seen, self._used = now, used
        if self._left_s < 0:
            self._process.stand_still()
        else:
            self._process.go_on()
        self._timer = self._loop.call_later(_TICK_S, self._tick)
