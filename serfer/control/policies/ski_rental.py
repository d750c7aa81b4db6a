"""The plain break-even rule: each capacity level is rented on Lambda until renting has cost as much as a start."""

from __future__ import annotations

from collections.abc import Sequence

from serfer.control.policies.capacity_levels import levels_of
from serfer.control.policies.work_function import WorkFunction
from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, on_demand_in
from serfer.control.scenario import Scenario


class SkiRental:
    """The work-function algorithm, in dollars, on each level that the load has reached.

    With boots it pays at most 1 + (c^2 - 1)/(2c - 1) times the clairvoyant, c being the price ratio (work_function.py).
    """

    name = "ski-rental"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._work_function = WorkFunction(scenario.instance.start_usd)

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Add what the last seconds cost on either target, and start or stop levels."""
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
        """Take so many levels for started just now."""
        self._work_function.resume(on_demand_in(fleet, self._scenario.instance))
