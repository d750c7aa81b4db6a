"""MArk's Algorithm 1: the instances that serve a forecast most cheaply, running ones without launch overhead.

    FILL: while load is unfulfilled at step tau, when what is launched now will serve:
        e    = the last step up to which load is unfulfilled without a break
        cost = (O + (steps from tau to e) * P) / (queries of tau to e that one more instance serves)
        add the instance of the least cost: a running one has O = 0, and can be taken once

The text's e - tau is 0 where one step is unfulfilled, which would make every running instance free of charge; here both
ends count, in the price as in the queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.scenario import InstanceType, Market

Floats = NDArray[np.float64]
Key = tuple[str, Market]
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """A type in a market: its `capacity` C in queries/s, its price P of a unit, and its launch overhead O in dollars.

    The overhead is the price of the time in which one is paid for and does not serve yet.
    """

    key: Key
    capacity: float
    unit_usd: float
    launch_usd: float

    @classmethod
    def of(cls, kind: InstanceType, market: Market, unit_s: float) -> Candidate:
        usd_per_s = kind.market_usd_per_hour(market) / 3600.0
        return cls((kind.name, market), kind.qps, usd_per_s * unit_s, usd_per_s * kind.boot_s)


def fill(forecast: Floats, candidates: Sequence[Candidate], running: Mapping[Key, int]) -> Counter[Key]:
    """Return how many instances of each candidate the load takes that is forecast from step tau on, (steps,).

    Among equally cheap ones the first candidate is taken. Several of the best are added at once where all of them serve
    as much as the first: the others' cost of a query does not fall meanwhile.
    """
    need = np.array(forecast, dtype=np.float64)
    left, plan = Counter(dict(running)), Counter[Key]()
    least = _ROUNDING * max(candidate.capacity for candidate in candidates)
    while need.size and need[0] > least:
        over = np.flatnonzero(need <= least)
        span = need[: over[0]] if over.size else need
        best = min(candidates, key=lambda one: _cost(one, span, running=left[one.key] > 0))
        copies = max(1, int(float(span.min()) / best.capacity))
        if left[best.key]:
            copies = min(copies, left[best.key])
            left[best.key] -= copies
        plan[best.key] += copies
        need -= copies * best.capacity
    return plan


def _cost(one: Candidate, span: Floats, *, running: bool) -> float:
    served = float(np.minimum(span, one.capacity).sum())
    return ((0.0 if running else one.launch_usd) + len(span) * one.unit_usd) / served
