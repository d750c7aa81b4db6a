"""The default policy: for each level, whichever break-even rule would have been cheapest so far, within a guarantee.

    load ──> capacity levels ──┬──> robustness budget and work function ───────────────┐
                               ├──> expert rules: other thresholds ───────────┐        │ covered?
                               └──> windows, learnt from bursts and gaps ─────┴──> cheapest ──> on or off

What each rule would have paid does not depend on the one that is followed, so the cheapest one so far is followed
(older cost counts less), as long as the total cost stays below 3 - 2/c times the clairvoyant's, the delay of boots
apart: see robustness_budget.py, and docs/explanation/policies.md for the proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from serfer.control.policies.capacity_levels import Bools, Floats, lambda_units, levels_of
from serfer.control.policies.expert_rules import PLAIN, SIZES, ExpertRules
from serfer.control.policies.robustness_budget import RobustnessBudget
from serfer.control.policies.windows_guess import WindowsGuess
from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, on_demand_in
from serfer.control.scenario import Scenario

_FADING_S: Final = 2 * 86_400.0  # in which what a rule cost loses all but 1/e of its weight
_FIRST: Final = SIZES.index((1.0, 4.0))  # followed at first: what surprised once comes again, more often than not
_WINDOWS: Final = len(SIZES)  # the number after those of the expert rules


class BreakEven:
    """Capacity levels, each of which follows what would have been the cheapest: an expert rule, or its windows."""

    name = "break-even"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._budget = RobustnessBudget(scenario)
        self._rules = ExpertRules(scenario)
        self._windows = WindowsGuess(scenario)
        self._windows_cost: Floats = np.zeros(0)
        self._followed = np.zeros(0, np.int64)

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Account for what the last seconds cost each rule, and follow the cheapest."""
        elapsed_s, rate = seen.elapsed_s, seen.rate
        self._grow(levels_of(self._scenario, rate))
        units = lambda_units(self._scenario, rate, len(self._followed))
        fading = math.exp(-elapsed_s / _FADING_S)
        by_windows = self._windows.units(elapsed_s, units)
        self._budget.pass_time(elapsed_s, units)
        paid = self._rules.pass_time(elapsed_s, units, fading, self._budget.plain)
        by_windows = np.where(np.isnan(by_windows), paid[:, PLAIN], by_windows)  # what knows too little follows PLAIN
        self._windows_cost = self._windows_cost * fading + by_windows
        if self._windows.observe(seen):
            self._follow()
        predicted = self._predicted()
        on = self._budget.choose(predicted, elapsed_s)
        instances = int(np.count_nonzero(on))
        reason = self._reason(instances, followed=np.array_equal(on, predicted))
        return on_demand(self._scenario.instance, instances, f"{rate:.1f} queries/s: {reason}")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Take as many levels for on and serving as there are instances."""
        instances = on_demand_in(fleet, self._scenario.instance)
        self._grow(instances)
        self._budget.resume(instances)
        self._rules.resume(instances)

    def _grow(self, levels: int) -> None:
        more = levels - len(self._followed)
        if more > 0:
            self._budget.grow(levels)
            self._rules.grow(levels)
            self._windows.grow(levels)
            self._windows_cost = np.append(self._windows_cost, np.zeros(more))
            self._followed = np.append(self._followed, np.full(more, _FIRST))

    def _predicted(self) -> Bools:
        """Return which levels their rules have on, and all below the highest of them: its load would fill those."""
        levels = np.arange(len(self._followed))
        on = np.column_stack([self._rules.on, self._windows.on])
        wanted = np.flatnonzero(on[levels, self._followed])
        predicted: Bools = levels <= (wanted[-1] if wanted.size else -1)
        return predicted

    def _follow(self) -> None:
        """Switch each level to the rule that has been the cheapest; among equals it keeps its rule."""
        costs = np.column_stack([self._rules.cost, self._windows_cost])
        best, levels = costs.argmin(axis=1), np.arange(len(costs))
        self._followed = np.where(costs[levels, best] < costs[levels, self._followed], best, self._followed)

    def _reason(self, instances: int, *, followed: bool) -> str:
        if not followed:
            return "the plain rule, as guesses have cost too much"
        level = max(instances - 1, 0)
        rule = int(self._followed[level]) if level < len(self._followed) else PLAIN
        if rule == _WINDOWS:
            return "windows learnt from bursts so far"
        start, stop = SIZES[rule]
        return f"on after {start:g} starts' price on lambda, off after {stop:g} idle"
