"""The default policy: for each level, whichever break-even rule would have been cheapest so far, within a guarantee.

    load ──> capacity levels ──┬──> robustness budget and work function ──────────────────┐
                               ├──> expert rules: other thresholds ──────────────┐        │ covered?
                               └──> guesses: windows, and values that are learnt ─┴──> cheapest ──> on or off

What each rule would have paid does not depend on the one that is followed, so the cheapest one so far is followed
(older cost counts less), as long as the total cost stays below 3 - 2/c times the clairvoyant's, the delay of boots
apart: see robustness_budget.py, and docs/explanation/policies.md for the proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from serfer.control.policies.capacity_levels import MAX_LEVELS, Bools, Floats, lambda_units, levels_of
from serfer.control.policies.expert_rules import PLAIN, SIZES, ExpertRules
from serfer.control.policies.guesses.value_guess import ValueGuess
from serfer.control.policies.guesses.windows_guess import WindowsGuess
from serfer.control.policies.robustness_budget import RobustnessBudget
from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, on_demand_in
from serfer.control.scenario import Scenario
from serfer.control.snapshots import SavedFields, Snapshot
from serfer.control.values.trainer import Trainer


class Guess(Protocol):
    """Decides for each level as if it alone were followed; pure and deterministic.

    Load does not depend on decisions, so what a guess would have cost is known whether or not it is followed.
    """

    @property
    def reason(self) -> str:
        """What its decisions rest on, in a few words for logs."""
        ...

    @property
    def on(self) -> Bools:
        """The levels that should be on: (levels,); off where it knows too little."""
        ...

    def grow(self, levels: int) -> None:
        """Append levels, which are off, up to so many."""
        ...

    def units(self, elapsed_s: float, lambda_units: Floats) -> Floats:
        """Return what each level cost in the last `elapsed_s` seconds, (levels,) in instance-seconds.

        `lambda_units` is what Lambda cost a second. NaN for a level of which the guess knew too little.
        """
        ...

    def observe(self, seen: Observation) -> bool:
        """Learn from an observation, and decide; return whether costs are to be compared again."""
        ...

    def snapshot(self) -> Snapshot:
        """Return all that was learnt, as plain JSON values."""
        ...

    def restore(self, saved: SavedFields, levels: int) -> None:
        """Go on from the snapshot of so many levels, in a guess that has seen nothing; raises InputError."""
        ...


_FADING_S: Final = 2 * 86_400.0  # in which what a rule cost loses all but 1/e of its weight
_FIRST: Final = SIZES.index((1.0, 4.0))  # followed at first: what surprised once comes again, more often than not
_LAYOUT: Final = 2  # of snapshots: another number for other fields


class BreakEven:
    """Capacity levels, each of which follows the rule or the guess that would have been the cheapest.

    Guesses have the numbers after those of the expert rules.
    """

    name = "break-even"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._budget = RobustnessBudget(scenario)
        self._rules = ExpertRules(scenario)
        self._values = ValueGuess(scenario)
        self._guesses: dict[str, Guess] = {"windows": WindowsGuess(scenario), "values": self._values}
        self._guessed_cost: Floats = np.zeros((0, len(self._guesses)))
        self._followed = np.zeros(0, np.int64)

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Account for what the last seconds cost each rule, and follow the cheapest."""
        elapsed_s, rate = seen.elapsed_s, seen.rate
        self._grow(levels_of(self._scenario, rate))
        units = lambda_units(self._scenario, rate, len(self._followed))
        fading = math.exp(-elapsed_s / _FADING_S)
        guessed = np.column_stack([guess.units(elapsed_s, units) for guess in self._guesses.values()])
        self._budget.pass_time(elapsed_s, units)
        paid = self._rules.pass_time(elapsed_s, units, fading, self._budget.plain)
        guessed = np.where(np.isnan(guessed), paid[:, [PLAIN]], guessed)  # what knows too little follows PLAIN
        self._guessed_cost = self._guessed_cost * fading + guessed
        decided = [guess.observe(seen) for guess in self._guesses.values()]
        if any(decided):
            self._follow()
        predicted = self._predicted()
        on = self._budget.choose(predicted, elapsed_s)
        instances = int(np.count_nonzero(on))
        reason = self._reason(instances, followed=np.array_equal(on, predicted))
        return on_demand(self._scenario.instance, instances, f"{rate:.1f} queries/s: {reason}")

    def learn_by(self, trainer: Trainer) -> None:
        """Have models of values learnt from now on: without, windows are the only guess."""
        self._values.learn_by(trainer)

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Take as many levels for on and serving as there are instances."""
        instances = on_demand_in(fleet, self._scenario.instance)
        self._grow(instances)
        self._budget.resume(instances)
        self._rules.resume(instances)

    def snapshot(self) -> Snapshot:
        """Return all that was learnt, as plain JSON values."""
        return {
            "version": _LAYOUT,
            "budget": self._budget.snapshot(),
            "rules": self._rules.snapshot(),
            "guesses": {name: guess.snapshot() for name, guess in self._guesses.items()},
            "guessed_cost": self._guessed_cost.tolist(),
            "followed": self._followed.tolist(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, as if there had been no stop; raises InputError, and is of no use then."""
        saved = SavedFields.of(snapshot, self.name)
        saved.check_version(_LAYOUT)
        levels = saved.length("followed", MAX_LEVELS)
        self._budget.restore(saved.part("budget"), levels)
        self._rules.restore(saved.part("rules"), levels)
        guesses = saved.part("guesses")
        for name, guess in self._guesses.items():
            guess.restore(guesses.part(name), levels)
        self._guessed_cost = saved.numbers("guessed_cost", (levels, len(self._guesses)), 0.0)
        self._followed = saved.wholes("followed", levels, 0, len(SIZES) + len(self._guesses) - 1)

    def _grow(self, levels: int) -> None:
        more = levels - len(self._followed)
        if more > 0:
            self._budget.grow(levels)
            self._rules.grow(levels)
            for guess in self._guesses.values():
                guess.grow(levels)
            self._guessed_cost = np.vstack([self._guessed_cost, np.zeros((more, len(self._guesses)))])
            self._followed = np.append(self._followed, np.full(more, _FIRST))

    def _predicted(self) -> Bools:
        """Return which levels their rules have on, and all below the highest of them: its load would fill those."""
        levels = np.arange(len(self._followed))
        on = np.column_stack([self._rules.on, *(guess.on for guess in self._guesses.values())])
        wanted = np.flatnonzero(on[levels, self._followed])
        predicted: Bools = levels <= (wanted[-1] if wanted.size else -1)
        return predicted

    def _follow(self) -> None:
        """Switch each level to the rule that has been the cheapest; among equals it keeps its rule."""
        costs = np.column_stack([self._rules.cost, self._guessed_cost])
        best, levels = costs.argmin(axis=1), np.arange(len(costs))
        self._followed = np.where(costs[levels, best] < costs[levels, self._followed], best, self._followed)

    def _reason(self, instances: int, *, followed: bool) -> str:
        if not followed:
            return "the plain rule, as guesses have cost too much"
        level = max(instances - 1, 0)
        rule = int(self._followed[level]) if level < len(self._followed) else PLAIN
        if rule >= len(SIZES):
            return [*self._guesses.values()][rule - len(SIZES)].reason
        start, stop = SIZES[rule]
        return f"on after {start:g} starts' price on lambda, off after {stop:g} idle"
