"""One function's warm state over a load: cold starts, and the time in which instances are warm and idle.

    row of the load ──> instances in use at once ──> levels ──> idle times of levels, cold or warm

An instance answers one query at a time, and a row needs as many as are in flight on average and two standard deviations
(Poisson's). So idle times are whole rows: what lies between two queries of a row is not seen. A start takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from serfer.control.windows import IdlePeriod, WarmLevels, WindowPolicy
from serfer.sim.traces import Trace

_MS: float = 1000.0


@dataclass(frozen=True)
class WarmState:
    """What windows came to: how often a use of an instance began, how many were cold, and instance-seconds.

    `idle_s` are those warm and not in use, `busy_s` those in use; `loads` counts instances that were loaded before a
    query.
    """

    policy: str
    uses: int
    cold: int
    loads: int
    idle_s: float
    busy_s: float


def instances(trace: Trace, latency_ms: float) -> NDArray[np.int64]:
    """Return how many instances each row uses at once, (rows,), where a query takes `latency_ms`."""
    in_flight = np.maximum(trace.rates, 0.0) * latency_ms / _MS
    needed: NDArray[np.int64] = np.ceil(in_flight + 2 * np.sqrt(in_flight)).astype(np.int64)
    return needed


def warm_state(trace: Trace, make: Callable[[], WindowPolicy], latency_ms: float) -> WarmState:
    """Run a load through windows; instances beyond MOST_LEVELS are left out."""
    levels, ended, first, busy_s = WarmLevels(make), _Sum(), 0, 0.0
    needed, starts = instances(trace, latency_ms), trace.starts_s
    changes = np.flatnonzero(np.diff(needed, prepend=0))
    for begin, end in pairwise([*changes.tolist(), len(needed)]):
        change = levels.observe(float(starts[begin]), int(needed[begin]))
        first += change.first
        ended.add(change.ended)
        busy_s += levels.busy * float(starts[end] - starts[begin])
    uses, cold, lasting = first + ended.periods, first + ended.cold, _Sum()
    lasting.add(levels.idle(float(starts[-1])))
    loads, idle_s = ended.loads + lasting.loads, ended.kept_s + lasting.kept_s
    return WarmState(levels.name, uses, cold, loads, idle_s, busy_s)


class _Sum:
    """The sums over idle times."""

    def __init__(self) -> None:
        self.periods = self.cold = self.loads = 0
        self.kept_s = 0.0

    def add(self, periods: Iterable[IdlePeriod]) -> None:
        """Add idle times."""
        for one in periods:
            self.periods += 1
            self.cold += one.cold
            self.loads += one.prewarmed
            self.kept_s += one.kept_s
