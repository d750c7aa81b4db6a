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

from serfer.control.scenario import Scenario


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
