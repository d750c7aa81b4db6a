"""The clairvoyant optimum: the least possible cost, with the whole load known beforehand.

Load is cut into levels of one instance's `qps`. Each level, at each moment, runs on Lambda or on an instance of its
own; switching one on costs the price of its boot, switching it off nothing, and there is no delay. So each level is a
shortest path through two states, off and on, which a dynamic programme of two numbers finds:

    off: the least so far that ends off          on: the least so far that ends on
    over a row:  off += the level's load on Lambda      on += the instance's price
    then         off = min(off, on)                     on = min(on, off + start)

Prices and loads are constant within a row, so a best schedule switches where rows begin: stepping by rows gives what
stepping by seconds gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.control.scenario import Scenario


@dataclass(frozen=True, eq=False)
class OptimumSchedule:
    """A schedule that costs the least: how many instances are on in each row, (rows,).

    `usd` (rows,) is the least possible cost of the load up to the end of each row, were that all of it.
    """

    instances: NDArray[np.int64]
    usd: NDArray[np.float64]


def optimum_usd(scenario: Scenario, durations_s: Sequence[float], rates: Sequence[float]) -> float:
    """Return the least cost of a load that is `rates` queries a second for `durations_s` seconds, row by row.

    It uses the first instance type, on demand, starts with everything off, and ignores the least billed time.
    """
    qps, peak = scenario.instance.qps, max(rates, default=0.0)
    levels = 0
    total = 0.0
    while levels * qps < peak:
        total += _level_usd(scenario, durations_s, rates, levels * qps)
        levels += 1
    return total


def _level_usd(scenario: Scenario, durations_s: Sequence[float], rates: Sequence[float], floor: float) -> float:
    kind, usd_per_query = scenario.instance, scenario.serverless.usd_per_query
    qps, price, start = kind.qps, kind.usd_per_s, kind.start_usd
    off, on = 0.0, start
    for seconds, rate in zip(durations_s, rates, strict=True):
        load = rate - floor
        off += seconds * usd_per_query * (0.0 if load <= 0 else min(load, qps))
        on += seconds * price
        if on < off:
            off = on
        elif on > off + start:
            on = off + start
    return off


def optimum_schedule(scenario: Scenario, durations_s: Sequence[float], rates: Sequence[float]) -> OptimumSchedule:
    """Return the schedule behind `optimum_usd`, and the least costs of all beginnings of the load."""
    qps, peak = scenario.instance.qps, max(rates, default=0.0)
    instances, usd = np.zeros(len(rates), dtype=np.int64), np.zeros(len(rates))
    level = 0
    while level * qps < peak:
        on, least = _level_schedule(scenario, durations_s, rates, level * qps)
        instances += on
        usd += least
        level += 1
    return OptimumSchedule(instances, usd)


def _level_schedule(
    scenario: Scenario, durations_s: Sequence[float], rates: Sequence[float], floor: float
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return in which rows a level is on, and the least it costs up to the end of each."""
    kind, usd_per_query = scenario.instance, scenario.serverless.usd_per_query
    qps, price, start = kind.qps, kind.usd_per_s, kind.start_usd
    off, on = 0.0, start
    least, stops, starts = [], bytearray(), bytearray()
    for seconds, rate in zip(durations_s, rates, strict=True):
        load = rate - floor
        off += seconds * usd_per_query * (0.0 if load <= 0 else min(load, qps))
        on += seconds * price
        stops.append(on < off)
        starts.append(on > off + start)
        off, on = min(off, on), min(on, off + start)
        least.append(off)
    was_on, is_on = bytearray(len(least)), False
    for row in range(len(least) - 1, -1, -1):  # back from the end, where all are off: what each state came from
        if stops[row] if not is_on else starts[row]:
            is_on = not is_on
        was_on[row] = is_on
    return np.frombuffer(was_on, dtype=np.bool_), np.array(least)
