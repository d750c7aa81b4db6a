"""The plain break-even rule: each level of capacity is rented on Lambda until renting has cost as much as a start.

Load is cut into levels of one instance's `qps`. For a level, `behind` is by how much having had it on would be dearer
than having had it off, start included, as the best schedule so far sees it: from 0 (on is as good) to the start's price
(off is as good). The rule starts the level's instance at 0 and stops it at the start's price. It costs at most 3 - 2/c
times the best schedule, boots' delay apart; docs/explanation/policies.md has the proof.

This is ski rental in both directions (Karlin, Manasse, Rudolph, Sleator: Competitive snoopy caching, Algorithmica
1988), and `behind` the work function of a metrical task system of two states (Borodin, Linial, Saks, JACM 1992).
"""

from __future__ import annotations

from serfer.control.policies.levels import levels_of
from serfer.control.policy import Wanted
from serfer.control.scenario import Scenario


class SkiRental:
    """One walk between 0 and the start's price for each level that load has reached."""

    name = "ski-rental"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        kind = scenario.instance
        self._qps, self._price, self._start_usd = kind.qps, kind.usd_per_s, kind.start_usd
        self._usd_per_query = scenario.serverless.usd_per_query
        self._behind: list[float] = []
        self._on: list[bool] = []

    def observe(self, elapsed_s: float, rate: float) -> Wanted:
        """Walk on, and start or stop levels that have arrived at an end."""
        while len(self._behind) < levels_of(self._scenario, rate):
            self._behind.append(self._start_usd)
            self._on.append(False)
        for level, behind in enumerate(self._behind):
            load = min(max(rate - level * self._qps, 0.0), self._qps)
            step = (self._price - load * self._usd_per_query) * elapsed_s
            now = self._behind[level] = min(max(behind + step, 0.0), self._start_usd)
            if now >= self._start_usd and step >= 0:
                self._on[level] = False
            elif now <= 0:
                self._on[level] = True
        return Wanted(sum(self._on), f"{rate:.1f} queries/s")

    def resume(self, instances: int) -> None:
        """Take so many levels for started just now."""
        while len(self._behind) < instances:
            self._behind.append(self._start_usd)
            self._on.append(False)
        for level in range(instances):
            self._behind[level], self._on[level] = 0.0, True
