"""The default policy: for each level, whichever break-even rule would have been cheapest so far, within a guarantee.

    load ──> capacity levels ──┬──> robustness budget and work function ──────────────────┐
                               ├──> expert rules: other thresholds ──────────────┐        │ covered?
                               └──> keep-alive predictor, from bursts and gaps ──┴──> cheapest ──> on or off

What each rule would have paid does not depend on the one that is followed, so the cheapest one so far is followed
(older cost counts less), as long as the total cost stays below 3 - 2/c times the clairvoyant's, the delay of boots
apart: see robustness_budget.py, and docs/explanation/policies.md for the proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from serfer.control.policies.capacity_levels import MAX_LEVELS, Bools, Floats, lambda_units, levels_of
from serfer.control.policies.expert_rules import PLAIN, SIZES, ExpertRules
from serfer.control.policies.keep_alive_predictor import BOOT_TICKS, KeepAlivePredictor
from serfer.control.policies.robustness_budget import RobustnessBudget
from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, paid_for
from serfer.control.saved.fields import SavedFields, Snapshot
from serfer.control.scenario import Scenario

_FADING_S: Final = 2 * 86_400.0  # in which what a rule cost loses all but 1/e of its weight
_LAYOUT: Final = 1  # of snapshots: another number for other fields
_LEARNT: Final = len(SIZES)  # the keep-alive predictor's number among the rules


class BreakEven:
    """Capacity levels, each of which follows the rule that would have been the cheapest."""

    name = "break-even"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._tick_s = max(scenario.instance.boot_s / BOOT_TICKS, 1.0)
        self._budget = RobustnessBudget(scenario)
        self._rules = ExpertRules(scenario)
        self._predictors: list[KeepAlivePredictor] = []
        self._learnt_cost: Floats = np.zeros(0)
        self._followed = np.zeros(0, np.int64)
        self._seconds = self._queries = 0.0  # of the tick that has begun

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Account for what the last seconds cost each rule, and follow the cheapest."""
        elapsed_s, rate = seen.elapsed_s, seen.rate
        self._grow(levels_of(self._scenario, rate))
        units = lambda_units(self._scenario, rate, len(self._predictors))
        fading = math.exp(-elapsed_s / _FADING_S)
        learnt = self._learnt_units(units) * elapsed_s
        self._budget.pass_time(elapsed_s, units)
        paid = self._rules.pass_time(elapsed_s, units, fading, self._budget.plain)
        self._learnt_cost = self._learnt_cost * fading + np.where(np.isnan(learnt), paid[:, PLAIN], learnt)
        self._tick(elapsed_s, rate)
        predicted = self._predicted()
        on = self._budget.choose(predicted, elapsed_s)
        instances = int(np.count_nonzero(on))
        reason = self._reason(instances, followed=np.array_equal(on, predicted))
        return on_demand(self._scenario.instance, instances, f"{rate:.1f} queries/s: {reason}")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Take as many levels for on and serving as there are instances."""
        instances = paid_for(fleet)
        self._grow(instances)
        self._budget.resume(instances)
        self._rules.resume(instances)

    def snapshot(self) -> Snapshot:
        """Return all that was learnt, as plain JSON values."""
        return {
            "version": _LAYOUT,
            "budget": self._budget.snapshot(),
            "rules": self._rules.snapshot(),
            "predictors": [predictor.snapshot() for predictor in self._predictors],
            "learnt_cost": self._learnt_cost.tolist(),
            "followed": self._followed.tolist(),
            "seconds": self._seconds,
            "queries": self._queries,
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, as if there had been no stop; raises InputError, and is of no use then."""
        saved = SavedFields.of(snapshot, self.name)
        saved.check_version(_LAYOUT)
        levels = saved.length("predictors", MAX_LEVELS)
        self._budget.restore(saved.part("budget"), levels)
        self._rules.restore(saved.part("rules"), levels)
        self._predictors = [KeepAlivePredictor() for _ in range(levels)]
        for predictor, part in zip(self._predictors, saved.parts("predictors", levels), strict=True):
            predictor.restore(part)
        self._learnt_cost = saved.numbers("learnt_cost", (levels,), 0.0)
        self._followed = saved.wholes("followed", levels, 0, _LEARNT)
        self._seconds = saved.number("seconds", 0.0, self._tick_s)
        self._queries = saved.number("queries", 0.0)

    def _grow(self, levels: int) -> None:
        more = levels - len(self._predictors)
        if more > 0:
            self._budget.grow(levels)
            self._rules.grow(levels)
            self._predictors += [KeepAlivePredictor() for _ in range(more)]
            self._learnt_cost = np.append(self._learnt_cost, np.zeros(more))
            self._followed = np.append(self._followed, np.full(more, PLAIN))

    def _learnt_units(self, units: Floats) -> Floats:
        """Return what the predictors pay a second, NaN for those that have seen too little: they follow PLAIN."""
        return np.array([_units(*pair) for pair in zip(self._predictors, units.tolist(), strict=True)])

    def _tick(self, elapsed_s: float, rate: float) -> None:
        """Advance the predictors once a tick is over."""
        self._seconds += elapsed_s
        self._queries += elapsed_s * rate
        if self._seconds >= self._tick_s:
            units = lambda_units(self._scenario, self._queries / self._seconds, len(self._predictors)).tolist()
            for predictor, each in zip(self._predictors, units, strict=True):
                predictor.tick(each)
            self._seconds = self._queries = 0.0
            self._follow()

    def _predicted(self) -> Bools:
        """Return which levels their rules have on, and all below the highest of them: its load would fill those."""
        highest = -1
        for level, rule in enumerate(self._followed.tolist()):
            if self._predictors[level].on if rule == _LEARNT else self._rules.on[level, rule]:
                highest = level
        predicted: Bools = np.arange(len(self._followed)) <= highest
        return predicted

    def _follow(self) -> None:
        """Switch each level to the rule that has been the cheapest; among equals it keeps its rule."""
        costs = np.column_stack([self._rules.cost, self._learnt_cost])
        best, levels = costs.argmin(axis=1), np.arange(len(costs))
        self._followed = np.where(costs[levels, best] < costs[levels, self._followed], best, self._followed)

    def _reason(self, instances: int, *, followed: bool) -> str:
        if not followed:
            return "the plain rule, as guesses have cost too much"
        level = max(instances - 1, 0)
        rule = int(self._followed[level]) if level < len(self._followed) else PLAIN
        if rule == _LEARNT:
            return "windows learnt from bursts so far"
        start, stop = SIZES[rule]
        return f"on after {start:g} starts' price on lambda, off after {stop:g} idle"


def _units(predictor: KeepAlivePredictor, lambda_units: float) -> float:
    """Return what a level costs in a second on which its predictor decides; NaN where that has seen too little."""
    if predictor.on is None:
        return math.nan
    if predictor.serves:
        return 1.0
    return 1.0 + lambda_units if predictor.on else lambda_units
