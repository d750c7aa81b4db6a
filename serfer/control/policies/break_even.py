"""The default policy: for each level, whichever break-even rule would have been cheapest so far, within a guarantee.

    load ──> levels ──┬──> the plain rule's books (purse.py) ────────────────────────────────┐
                      ├──> rules of other thresholds, in the shadow (thresholds.py) ──┐      │ pays?
                      └──> windows learnt from bursts and gaps (windows.py) ──────────┴──> cheapest ──> on or off

What each rule would have paid is known whatever we do, so the cheapest one so far (older cost counts less) is followed.
It may be followed as long as all that was paid stays below 3 - 2/c times the clairvoyant, the delay of boots apart: see
purse.py, and docs/explanation/policies.md for the proof.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from serfer.control.policies.levels import Bools, Floats, lambda_units, levels_of
from serfer.control.policies.purse import Purse
from serfer.control.policies.thresholds import PLAIN, SIZES, Thresholds
from serfer.control.policies.windows import BOOT_TICKS, Windows
from serfer.control.policy import Wanted
from serfer.control.scenario import Scenario

_FADING_S: Final = 2 * 86_400.0  # in which what a rule cost loses all but 1/e of its weight
_LEARNT: Final = len(SIZES)  # the windows' number among the rules


class BreakEven:
    """Levels of capacity, each led by the rule that would have been the cheapest."""

    name = "break-even"

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._tick_s = max(scenario.instance.boot_s / BOOT_TICKS, 1.0)
        self._purse = Purse(scenario)
        self._rules = Thresholds(scenario)
        self._windows: list[Windows] = []
        self._learnt_cost: Floats = np.zeros(0)
        self._leaders = np.zeros(0, np.int64)
        self._seconds = self._queries = 0.0  # of the tick that has begun

    def observe(self, elapsed_s: float, rate: float) -> Wanted:
        """Book what the last seconds cost every rule, and follow the cheapest."""
        self._grow(levels_of(self._scenario, rate))
        units = lambda_units(self._scenario, rate, len(self._windows))
        fading = math.exp(-elapsed_s / _FADING_S)
        learnt = self._learnt_units(units) * elapsed_s
        self._purse.pass_time(elapsed_s, units)
        paid = self._rules.pass_time(elapsed_s, units, fading, self._purse.plain)
        self._learnt_cost = self._learnt_cost * fading + np.where(np.isnan(learnt), paid[:, PLAIN], learnt)
        self._tick(elapsed_s, rate)
        wished = self._wished()
        on = self._purse.choose(wished, elapsed_s)
        instances = int(np.count_nonzero(on))
        return Wanted(
            instances, f"{rate:.1f} queries/s: {self._reason(instances, followed=np.array_equal(on, wished))}"
        )

    def resume(self, instances: int) -> None:
        """Take so many levels for on and serving."""
        self._grow(instances)
        self._purse.resume(instances)
        self._rules.resume(instances)

    def _grow(self, levels: int) -> None:
        more = levels - len(self._windows)
        if more > 0:
            self._purse.grow(levels)
            self._rules.grow(levels)
            self._windows += [Windows() for _ in range(more)]
            self._learnt_cost = np.append(self._learnt_cost, np.zeros(more))
            self._leaders = np.append(self._leaders, np.full(more, PLAIN))

    def _learnt_units(self, units: Floats) -> Floats:
        """Return what the windows pay a second; NaN where they know too little yet, and so follow the plain rule."""
        off, booting = units.tolist(), (1.0 + units).tolist()
        paid = [
            math.nan if window.on is None else 1.0 if window.serves else booting[level] if window.on else off[level]
            for level, window in enumerate(self._windows)
        ]
        return np.array(paid)

    def _tick(self, elapsed_s: float, rate: float) -> None:
        """Let the windows see a tick once it is over."""
        self._seconds += elapsed_s
        self._queries += elapsed_s * rate
        if self._seconds >= self._tick_s:
            units = lambda_units(self._scenario, self._queries / self._seconds, len(self._windows)).tolist()
            for window, each in zip(self._windows, units, strict=True):
                window.tick(each)
            self._seconds = self._queries = 0.0
            self._lead()

    def _wished(self) -> Bools:
        """Return which levels their leaders have on, and all below the highest of them: its load would fill those."""
        highest = -1
        for level, leader in enumerate(self._leaders.tolist()):
            if self._windows[level].on if leader == _LEARNT else self._rules.on[level, leader]:
                highest = level
        wished: Bools = np.arange(len(self._leaders)) <= highest
        return wished

    def _lead(self) -> None:
        """Let each level be led by the rule that has been the cheapest; the one before leads on among equals."""
        costs = np.column_stack([self._rules.cost, self._learnt_cost])
        best, levels = costs.argmin(axis=1), np.arange(len(costs))
        self._leaders = np.where(costs[levels, best] < costs[levels, self._leaders], best, self._leaders)

    def _reason(self, instances: int, *, followed: bool) -> str:
        if not followed:
            return "the plain rule, as guesses have cost too much"
        level = max(instances - 1, 0)
        leader = int(self._leaders[level]) if level < len(self._leaders) else PLAIN
        if leader == _LEARNT:
            return "windows learnt from bursts so far"
        start, stop = SIZES[leader]
        return f"on after {start:g} starts' price on lambda, off after {stop:g} idle"
