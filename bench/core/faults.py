"""Injected faults of the local Lambda service, for tests and the chaos suite: `with injected(Faults(throttle=0.3))`.

AWS does all of it now and then: it refuses invocations of an account that has too many, delivers an event more than
once, and gives a function a machine with a noisy neighbour.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from serfer.core.errors import UsageError
from serfer.local.lambda_.conditions import CONDITIONS, Conditions
from serfer.local.lambda_.process import WorkerProcess
from serfer_bench.core.platform_times import LONGEST_S, PlatformTimes, ProcessorShare, tail


@dataclass(frozen=True)
class Faults:
    """The faults that a service injects.

    `throttle` is the share of invocations that are refused with 429. With `twice` every event is delivered twice, and
    twice as many invocations have room, so that a doubled one displaces no other. One environment in `slow_one_in` (0:
    none) takes `slow_factor` times as long for everything its handler does. Each invocation begins `latency_s` seconds
    late. `seed` fixes which invocations are refused and which environments, in the order of their creation, are slow.
    `times` are those of a platform that the service takes on.

    Raises UsageError for an invalid share.
    """

    throttle: float = 0.0
    twice: bool = False
    slow_one_in: int = 0
    slow_factor: float = 50.0
    seed: int = 0
    latency_s: float = 0.0
    times: PlatformTimes = field(default_factory=PlatformTimes)

    def __post_init__(self) -> None:
        if not 0 <= self.throttle < 1:
            raise UsageError(f"throttle must be at least 0 and less than 1, not {self.throttle}")
        if self.slow_one_in < 0:
            raise UsageError(f"slow_one_in must not be negative: {self.slow_one_in}")
        if not 0 <= self.latency_s <= LONGEST_S:
            raise UsageError(f"latency_s must be 0 to {LONGEST_S:g} seconds, not {self.latency_s}")
        if self.slow_factor < 1:
            raise UsageError(f"slow_factor must be at least 1, not {self.slow_factor}")


class Injector(Conditions):
    """Decides which invocation and which environment a fault hits; `chance` is uniform in [0, 1)."""

    def __init__(self, faults: Faults, chance: Callable[[], float] | None = None) -> None:
        self.twice = faults.twice
        self._invoke_tail, self._start_tail = tail(faults.times.invoke_tail_s), tail(faults.times.start_tail_s)
        self._faults = faults
        self._chance = chance or random.Random(faults.seed).random  # noqa: S311 - which one is hit is not a secret
        self._created = faults.seed

    def throttles(self) -> bool:
        return self._faults.throttle > 0 and self._chance() < self._faults.throttle

    def latency_s(self) -> float:
        return self._faults.latency_s + next(self._invoke_tail)

    def placing_s(self, package_bytes: int) -> float:
        return next(self._start_tail) + self._faults.times.placing_s(package_bytes)

    def slowness(self) -> float:
        self._created += 1
        one_in = self._faults.slow_one_in
        return self._faults.slow_factor if one_in and self._created % one_in == 0 else 1.0

    def least_init_s(self, *, restored: bool) -> float:
        return self._faults.times.restore_s if restored else self._faults.times.init_s

    def limit_processors(self, process: WorkerProcess, memory_mb: int) -> ProcessorShare | None:
        times = self._faults.times
        return ProcessorShare(process, times.processors(memory_mb)) if times.memory_per_vcpu else None


@contextmanager
def injected(faults: Faults | None) -> Iterator[None]:
    token = CONDITIONS.set(Injector(faults)) if faults else None
    try:
        yield
    finally:
        if token:
            CONDITIONS.reset(token)
