"""The plain break-even rule: each capacity level is rented on Lambda until renting has cost as much as a start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, on_demand_in
from serfer.control.scenario import Scenario

# Load cut into capacity levels, one for each instance that it could fill, and what Lambda costs on each.
#
# Policies calculate in instance-seconds: one unit is what an instance costs in a second. At a load that fills a share x
# of a level, Lambda costs c * x units a second for it, the instance 1; a start costs its boot's seconds.

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MAX_LEVELS: Final = 1000  # instances: no pool has more


def levels_of(scenario: Scenario, rate: float) -> int:
    """Return how many levels a load of `rate` queries/s reaches, a thousand at most."""
    return min(math.ceil(rate / scenario.instance.qps), MAX_LEVELS)


def level_loads(scenario: Scenario, rate: float, levels: int) -> Floats:
    """Return how many of `rate` queries/s fall to each of so many levels: (levels,) in queries/s."""
    qps = scenario.instance.qps
    return np.clip(rate - qps * np.arange(levels), 0.0, qps)


def lambda_units(scenario: Scenario, rate: float, levels: int) -> Floats:
    """Return what Lambda costs in a second for each of so many levels: (levels,) in units."""
    price_ratio = scenario.serverless.usd_per_query / scenario.instance.usd_per_s
    return level_loads(scenario, rate, levels) * price_ratio


# The work-function algorithm of each capacity level: two-state ski rental, in both directions.
#
# The work function of a state is the least that any schedule could have paid so far that ends in it. For the two states
# off and on, of which switching on costs a start and switching off nothing, the difference of the two is all there is
# to know: the `gap`, by how much having the level on now would be dearer than having it off, start included. It walks
# between 0 (on is as good) and the start's price (off is as good). The algorithm switches a level on at 0 and off at
# the start's price, and pays at most 3 - 2/c times the best schedule, the delay of boots apart, and 1 + (c^2 - 1)/(2c -
# 1) times with it; decisions every p seconds add (c - 1)p/B for a boot of B. For c and the proofs see
# docs/explanation/policies.md.
#
# Borodin, Linial, Saks: An optimal on-line algorithm for metrical task systems (JACM 1992); for one direction Karlin,
# Manasse, Rudolph, Sleator: Competitive snoopy caching (Algorithmica 1988).


class WorkFunction:
    """The gap of every capacity level in the currency of `start_cost`, and which levels are `on`, lowest level first.

    Plain lists: a load reaches few levels, and a simulation takes millions of steps.
    """

    def __init__(self, start_cost: float) -> None:
        self._start = start_cost
        self.gap: list[float] = []
        self.on: list[bool] = []

    def grow(self, levels: int) -> None:
        more = levels - len(self.gap)
        self.gap += [self._start] * more
        self.on += [False] * more

    def resume(self, levels: int) -> None:
        """Take so many levels for started just now."""
        self.grow(levels)
        self.gap[:levels], self.on[:levels] = [0.0] * levels, [True] * levels

    def advance(self, dearer: Iterable[float]) -> list[float]:
        """Add by how much on was `dearer` than off since the last call, level by level, and switch levels.

        Returns the gaps before they are clipped: below 0, they are what the best schedule that ends off saves by having
        been on.
        """
        gap, on, start = self.gap, self.on, self._start
        walked = [before + more for before, more in zip(gap, dearer, strict=True)]
        for level, now in enumerate(walked):
            if now >= start:
                gap[level], on[level] = start, False
            elif now <= 0.0:
                gap[level], on[level] = 0.0, True
            else:
                gap[level] = now
        return walked


class SkiRental:
    """The work-function algorithm, in dollars, on each level that the load has reached.

    With boots it pays at most 1 + (c^2 - 1)/(2c - 1) times the clairvoyant, c being the price ratio.
    """

    name = "ski-rental"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._work_function = WorkFunction(scenario.instance.start_usd)

    def observe(self, seen: Observation) -> ProvisioningPlan:
        work_function, rate = self._work_function, seen.rate
        work_function.grow(levels_of(self._scenario, rate))
        qps, usd_per_s = self._scenario.instance.qps, self._scenario.instance.usd_per_s
        usd_per_query = self._scenario.serverless.usd_per_query
        work_function.advance(
            (usd_per_s - min(max(rate - level * qps, 0.0), qps) * usd_per_query) * seen.elapsed_s
            for level in range(len(work_function.on))
        )
        return on_demand(self._scenario.instance, sum(work_function.on), f"{rate:.1f} queries/s")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        self._work_function.resume(on_demand_in(fleet, self._scenario.instance))
