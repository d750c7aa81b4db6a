"""One function's warm state over a load: cold starts, and the time in which instances are warm and idle.

    row of the load ──> instances in use at once ──> levels ──> idle times of levels, cold or warm

An instance answers one query at a time, and a row needs as many as are in flight on average and two standard deviations
(Poisson's). So idle times are whole rows: what lies between two queries of a row is not seen. A start takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from serfer.control.environments import PINGED_AFTER
from serfer.control.windows import IdlePeriod, WarmLevels, WindowPolicy
from serfer.cost.loads.trace import Trace

_MS: float = 1000.0


@dataclass(frozen=True)
class WarmState:
    """What windows came to: how often a use of an instance began, how many were cold, and instance-seconds.

    `idle_s` are those warm and not in use, `busy_s` those in use; `loads` counts instances that were loaded before a
    query. On Lambda, which lets go of idle environments by itself and of no other, `pings` keep them, and
    `cold_on_lambda` is how many uses start cold.
    """

    policy: str
    uses: int
    cold: int
    loads: int
    idle_s: float
    busy_s: float
    pings: int
    cold_on_lambda: int


def instances(trace: Trace, latency_ms: float) -> NDArray[np.int64]:
    """Return how many instances each row uses at once, (rows,), where a query takes `latency_ms`."""
    in_flight = np.maximum(trace.rates, 0.0) * latency_ms / _MS
    needed: NDArray[np.int64] = np.ceil(in_flight + 2 * np.sqrt(in_flight)).astype(np.int64)
    return needed


def pings(period: IdlePeriod, kept_s: float) -> tuple[int, float]:
    """Return how many pings an idle environment takes, and after how many idle seconds it was used last.

    Lambda keeps one for `kept_s` seconds; it is pinged when most of that is over.
    """
    every_s = PINGED_AFTER * kept_s
    first_s, end_s = (
        max(period.windows.prewarm_s, every_s),
        min(period.windows.until_s, period.until_s - period.since_s),
    )
    if first_s >= end_s:
        return 0, 0.0
    count = math.ceil((end_s - first_s) / every_s)
    return count, first_s + (count - 1) * every_s


def warm_state(trace: Trace, make: Callable[[], WindowPolicy], latency_ms: float, kept_s: float = 300.0) -> WarmState:
    """Run a load through windows, on Lambda one that keeps environments for `kept_s` seconds.

    Instances beyond MOST_LEVELS are left out.
    """
    levels, ended, first, busy_s = WarmLevels(make), _Sum(kept_s), 0, 0.0
    needed, starts = instances(trace, latency_ms), trace.starts_s
    changes = np.flatnonzero(np.diff(needed, prepend=0))
    for begin, end in pairwise([*changes.tolist(), len(needed)]):
        change = levels.observe(float(starts[begin]), int(needed[begin]))
        first += change.first
        ended.add(change.ended)
        busy_s += levels.busy * float(starts[end] - starts[begin])
    lasting = _Sum(kept_s)
    lasting.add(levels.idle(float(starts[-1])))
    return WarmState(
        levels.name,
        uses=first + ended.periods,
        cold=first + ended.cold,
        loads=ended.loads + lasting.loads,
        idle_s=ended.idle_s + lasting.idle_s,
        busy_s=busy_s,
        pings=ended.pings + lasting.pings,
        cold_on_lambda=first + ended.cold_on_lambda,
    )


class _Sum:
    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self.periods = self.cold = self.loads = self.pings = self.cold_on_lambda = 0
        self.idle_s = 0.0

    def add(self, periods: Iterable[IdlePeriod]) -> None:
        for one in periods:
            self.periods += 1
            self.cold += one.cold
            self.loads += 0 < one.windows.prewarm_s <= one.until_s - one.since_s  # without a query
            self.idle_s += one.kept_s
            count, last_s = pings(one, self._kept_s)
            self.pings += count
            self.cold_on_lambda += one.until_s - one.since_s - last_s > self._kept_s
