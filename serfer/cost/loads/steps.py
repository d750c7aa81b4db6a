"""A load in steps: the times between two decisions of a policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import UsageError
from serfer.cost.loads.trace import Floats, Trace

PERIOD_S: Final = 5.0
"""Seconds between two decisions of a controller, by default."""
_MAX_STEPS: Final = 50_000_000
_ROUNDING: Final = 1e-9

Progress = Callable[[str], None]


def silent(text: str) -> None:
    del text


@dataclass(frozen=True, eq=False)
class Steps:
    """A trace cut into steps of at most a period that lie within `rows`, by their numbers: arrays (steps,)."""

    durations_s: Floats
    rates: Floats
    rows: NDArray[np.int32]

    @property
    def ends_s(self) -> Floats:
        return np.cumsum(self.durations_s)

    def part(self, first: int, last: int) -> Steps:
        return Steps(self.durations_s[first:last], self.rates[first:last], self.rows[first:last])

    def before(self, time_s: float) -> int:
        return int(np.searchsorted(self.ends_s, time_s + _ROUNDING, side="right"))


def check_period(period_s: float) -> None:
    if not 0 < period_s < math.inf:
        raise UsageError(f"--period-s is more than 0, not {period_s:g}")


def steps_of(trace: Trace, period_s: float) -> Steps:
    check_period(period_s)
    whole = np.floor(trace.durations_s / period_s + _ROUNDING)
    rest = trace.durations_s - whole * period_s
    rest[rest < _ROUNDING * trace.durations_s] = 0.0
    if whole.sum() + len(rest) > _MAX_STEPS:
        raise UsageError(f"--period-s {period_s:g} makes more than {_MAX_STEPS:,} decisions: give a longer one")
    count = (whole + (rest > 0)).astype(np.int64)
    durations = np.full(int(count.sum()), period_s)
    durations[np.cumsum(count)[rest > 0] - 1] = rest[rest > 0]
    return Steps(durations, np.repeat(trace.rates, count), np.repeat(np.arange(len(count), dtype=np.int32), count))
