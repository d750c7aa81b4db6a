"""Loads scaled for a scenario, and without the gaps of their records."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from serfer.control.scenario import Scenario
from serfer.core.errors import UsageError
from serfer.cost.loads.trace import Trace

SCALES: Final = ("S", "M", "none")
_LARGEST: Final = 1e9


def scale_factor(scale: str, trace: Trace, scenario: Scenario) -> float:
    """Return what to multiply a trace's rates with: of scaling S or M, of none, or a number of the user's own.

    Both scalings go by the scenario's first instance type:

        S   (usd_per_hour / 3600 / usd_per_query) / (median of the rows' rates that are not 0): half of the time that
            there is load, it is above that at which an instance costs as much as Lambda
        M   qps / (mean rate over the whole time): several instances matter

    Raises UsageError for another name, and for a load of zeros.
    """
    if scale == "none":
        return 1.0
    if scale not in SCALES:
        return _number(scale)
    busy = trace.rates[trace.rates > 0]
    if not busy.size:
        raise UsageError(f"{trace.name} has no queries at all: it cannot be scaled to {scale}; give --scale none")
    if scale == "S":
        return scenario.instance.usd_per_s / scenario.serverless.usd_per_query / float(np.median(busy))
    return scenario.instance.qps / trace.mean


def _number(scale: str) -> float:
    wrong = UsageError(f"--scale is {', '.join(SCALES)} or a number above 0, not {scale[:40]!r}")
    try:
        factor = float(scale)
    except ValueError as error:
        raise wrong from error
    if not 0 < factor <= _LARGEST:
        raise wrong
    return factor


def without_zeros(load: Trace, over_s: float) -> Trace:
    """Return a load without those times of at least `over_s` seconds in which nothing came: gaps in a record."""
    zero = load.rates == 0
    runs = np.cumsum(np.concatenate(([True], zero[1:] != zero[:-1]))) - 1  # the number of each row's run
    lengths = np.bincount(runs, load.durations_s)
    kept = ~(zero & (lengths[runs] >= over_s))
    if not kept.any():
        raise UsageError(f"{load.name} has no queries at all: --skip-zeros-over {over_s:g} leaves nothing")
    return replace(load, durations_s=load.durations_s[kept], rates=load.rates[kept])
