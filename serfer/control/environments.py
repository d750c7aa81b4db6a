"""Lambda's environments at the level of rates: how many a load keeps, and how many pings a wanted number takes.

load on Lambda ──> queries in flight ──> the environments that were used last are used again
wanted by a plan, and not there ──> a ping each ──> there for `keep_alive_s`, as after a query
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Protocol

from serfer.control.scenario import LambdaTarget

_MS = 1000.0
PINGED_AFTER: Final = 0.8
"""The share of the time that Lambda keeps an idle environment, after which it is pinged to stay."""


def environments(target: LambdaTarget, qps: float) -> int:
    """Return how many environments a load on Lambda uses at once, at most the account's concurrency.

    That is the mean number of queries in flight and two standard deviations (Poisson's), which it is seldom above.
    """
    in_flight = max(qps, 0.0) * target.latency_ms / _MS
    return min(math.ceil(in_flight + 2 * math.sqrt(in_flight)), target.concurrency)


class EnvironmentLimits(Protocol):
    """How many environments there may be at once, and for how many seconds Lambda keeps an idle one."""

    @property
    def concurrency(self) -> int:
        """The most at once."""
        ...

    @property
    def keep_alive_s(self) -> float:
        """Seconds without use after which one counts as dropped."""
        ...


class Environments:
    """The environments that are there; time never goes back."""

    def __init__(self, target: EnvironmentLimits) -> None:
        self._target = target
        self._used: deque[tuple[float, int]] = deque()  # (when last, how many), the longest ago first
        self._count = 0

    def use(self, now: float, count: int) -> None:
        """Have so many queries at once use environments; those that are lacking are started by queries."""
        if count:
            self._drop(now)
            self._take(count)
            self._add(now, count)

    def keep(self, now: float, wanted: int) -> int:
        """Ping as many as are missing to `wanted`, as far as the concurrency allows; return how many."""
        self._drop(now)
        missing = max(0, min(wanted, self._target.concurrency) - self._count)
        self._add(now, missing)
        return missing

    def _drop(self, now: float) -> None:
        while self._used and self._used[0][0] + self._target.keep_alive_s <= now:
            self._count -= self._used.popleft()[1]

    def _take(self, count: int) -> None:
        while count and self._used:
            when, there = self._used.pop()
            taken = min(there, count)
            count -= taken
            self._count -= taken
            if there > taken:
                self._used.append((when, there - taken))

    def _add(self, now: float, count: int) -> None:
        if count:
            self._used.append((now, count))
            self._count += count
