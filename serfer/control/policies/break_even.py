"""The default policy: for each level, whichever break-even rule would have been cheapest so far, within a guarantee.

    load ──> capacity levels ──┬──> robustness budget and work function ───────────────┐
                               ├──> expert rules: other thresholds ───────────┐        │ covered?
                               └──> windows, learnt from bursts and gaps ─────┴──> cheapest ──> on or off

What each rule would have paid does not depend on the one that is followed, so the cheapest one so far is followed
(older cost counts less), as long as the total cost stays below 3 - 2/c times the clairvoyant's, the delay of boots
apart: see RobustnessBudget, and docs/explanation/policies.md for the proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np

from serfer.control.policies.ski_rental import Bools, Floats, WorkFunction, lambda_units, levels_of
from serfer.control.policies.windows_guess import WindowsGuess
from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, on_demand_in
from serfer.control.scenario import Scenario

# Expert rules: break-even rules with thresholds of many sizes, and what each of them would have cost.
#
# A rule of sizes (a, s) starts a level once Lambda has cost a starts more than the instance would have, and stops it
# once it has been idle for s starts. (1, 1) is the work-function algorithm; (0, 64) starts at once and hardly ever
# stops. "Experts" as in prediction with expert advice: all of them are evaluated, one is followed.

SIZES: Final = tuple(product((0.0, 0.3, 1.0), (1.0, 4.0, 16.0, 64.0)))  # (start, stop), in starts
PLAIN: Final = SIZES.index((1.0, 1.0))


class ExpertRules:
    """Each rule on each level: whether it is `on`, and its discounted `cost` in instance-seconds, (levels, rules)."""

    def __init__(self, scenario: Scenario) -> None:
        self._boot_s = scenario.instance.boot_s
        self._starts, self._stops = (np.array(sizes) * self._boot_s for sizes in zip(*SIZES, strict=True))
        self.on: Bools = np.zeros((0, len(SIZES)), np.bool_)
        self.cost: Floats = np.zeros((0, len(SIZES)))
        self._boot: Floats = self.cost.copy()
        self._walk: Floats = self.cost.copy()

    def grow(self, levels: int) -> None:
        more = levels - len(self.on)
        self.on = np.vstack([self.on, np.zeros((more, len(SIZES)), np.bool_)])
        self.cost, self._boot, self._walk = (
            np.vstack([table, np.zeros((more, len(SIZES)))]) for table in (self.cost, self._boot, self._walk)
        )

    def resume(self, levels: int) -> None:
        """Take so many levels for on and serving, by each rule."""
        self.on[:levels], self._boot[:levels], self._walk[:levels] = True, 0.0, 0.0

    def pass_time(self, elapsed_s: float, lambda_units: Floats, fading: float, plain: Bools) -> Floats:
        """Discount earlier cost by `fading`, add the last `elapsed_s` seconds' and return it; start and stop.

        `plain` says which levels the work-function algorithm has on from now on: the rule PLAIN is that algorithm.
        """
        units = lambda_units[:, None]
        booting = np.minimum(self._boot, elapsed_s)
        paid: Floats = np.where(self.on, elapsed_s + units * booting, units * elapsed_s)
        self.cost = self.cost * fading + paid
        self._boot -= booting
        step = np.where(self.on, 1.0 - units, units - 1.0) * elapsed_s
        self._walk = np.maximum(self._walk + step, 0.0)
        switches = np.where(
            self.on, (self._walk >= self._stops) & (units < 1.0), (self._walk >= self._starts) & (units > 1.0)
        )
        switches[:, PLAIN] = plain != self.on[:, PLAIN]
        self.on ^= switches
        self._boot[switches] = np.where(self.on, self._boot_s, 0.0)[switches]
        self._walk[switches] = 0.0
        return paid


# The robustness budget: what predictions may cost without losing the work-function algorithm's guarantee.
#
# The budget is rho times what the clairvoyant would have paid so far, less what was paid. As long as it never falls
# below 0, the cost never exceeds rho times the clairvoyant's. The work-function algorithm alone keeps the budget above
# its potential, what it may still lose. So a prediction that departs from it may be followed while the budget covers
# the potential and the way back to the algorithm. docs/explanation/policies.md has the proof. The delay of boots is
# apart: with boots no ratio is proved, and docs have what was measured.


class RobustnessBudget:
    """The budget of all capacity levels together: `units` instance-seconds; `rho` is the ratio that it guarantees."""

    def __init__(self, scenario: Scenario) -> None:
        self._price_ratio = scenario.price_ratio
        self._start = scenario.instance.boot_s
        self.rho = competitive_ratio(scenario.price_ratio)
        self.units = 0.0
        self._work_function = WorkFunction(self._start)
        self._on: Bools = np.zeros(0, np.bool_)
        self._boot: Floats = np.zeros(0)  # seconds that an instance which was started still boots

    @property
    def plain(self) -> Bools:
        """The levels that the work-function algorithm has on."""
        return np.array(self._work_function.on, np.bool_)

    @property
    def gap(self) -> Floats:
        """The work function's gap on each level, in instance-seconds."""
        return np.array(self._work_function.gap)

    def grow(self, levels: int) -> None:
        more = levels - len(self._on)
        self._work_function.grow(levels)
        self._on = np.append(self._on, np.zeros(more, np.bool_))
        self._boot = np.append(self._boot, np.zeros(more))

    def pass_time(self, elapsed_s: float, lambda_units: Floats) -> None:
        """Account for the last `elapsed_s` seconds: what was paid, and what the clairvoyant would have paid."""
        walked = self._work_function.advance(((1.0 - lambda_units) * elapsed_s).tolist())
        # Where on has become as good as off, the clairvoyant pays the instance's price from there on.
        clairvoyant = lambda_units * elapsed_s + np.minimum(walked, 0.0)
        booting = np.minimum(self._boot, elapsed_s)
        paid = np.where(
            self._on, (elapsed_s - booting) + np.minimum(lambda_units, 1.0) * booting, lambda_units * elapsed_s
        )
        self.units += float(np.sum(self.rho * clairvoyant - paid))
        self._boot = self._boot - booting

    def choose(self, predicted: Bools, elapsed_s: float) -> Bools:
        """Return which levels are on from now on: the predicted ones where the budget covers them, else `plain`.

        `elapsed_s` is how long it will be until the next choice, in seconds.
        """
        plain = self.plain
        chosen = predicted if self._covers(predicted, plain, elapsed_s) else plain
        started, stopped = chosen & ~self._on, self._on & ~chosen
        self.units += float(np.sum(self._boot[stopped])) - self._start * int(np.count_nonzero(started))
        self._boot = np.where(started, self._start, np.where(stopped, 0.0, self._boot))
        self._on = chosen.copy()
        return chosen

    def resume(self, levels: int) -> None:
        """Take so many levels for on and serving, by the algorithm too; the budget holds what that may cost."""
        self.grow(max(levels, len(self._on)))
        self._work_function.resume(levels)
        self._on[:levels] = True
        self.units = max(self.units, float(np.sum(self._potential())))

    def _covers(self, predicted: Bools, plain: Bools, elapsed_s: float) -> bool:
        """Whether the budget pays for a prediction until the next choice and, then, for the way back to `plain`."""
        loss = (self._price_ratio + 1.0) * elapsed_s * len(predicted)
        if self.units >= 4.0 * self._start * len(predicted) + loss or np.array_equal(predicted, plain):
            return True  # the first: more than all of what follows could be
        starts = self._start * np.count_nonzero(predicted & ~self._on)
        back = self._start * np.count_nonzero(plain & ~predicted)
        return bool(self.units >= np.sum(self._potential()) + starts + back + loss)

    def _potential(self) -> Floats:
        """Return what the algorithm may still lose on each level before its gap is back at the start's price."""
        left = self._start - self.gap
        return np.where(self.plain, left, 2.0 * left)


def competitive_ratio(price_ratio: float) -> float:
    """Return 3 - 2/c, that of the work-function algorithm; where Lambda is never dearer, it is optimal."""
    return max(1.0, 3.0 - 2.0 / price_ratio)


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
