"""Expert rules: break-even rules with thresholds of many sizes, and what each of them would have cost.

A rule of sizes (a, s) starts a level once Lambda has cost a starts more than the instance would have, and stops it once
it has been idle for s starts. (1, 1) is the work-function algorithm; (0, 64) starts at once and hardly ever stops.
"Experts" as in prediction with expert advice: all of them are evaluated, one is followed.
"""

from __future__ import annotations

from itertools import product
from typing import Final

import numpy as np

from serfer.control.policies.capacity_levels import Bools, Floats
from serfer.control.scenario import Scenario

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
        """Append levels, which are off and cost nothing, up to so many."""
        more = levels - len(self.on)
        self.on = np.vstack([self.on, np.zeros((more, len(SIZES)), np.bool_)])
        self.cost, self._boot, self._walk = (
            np.vstack([each, np.zeros((more, len(SIZES)))]) for each in (self.cost, self._boot, self._walk)
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
            self.on,
            (self._walk >= self._stops) & (units < 1.0),
            (self._walk >= self._starts) & (units > 1.0),
        )
        switches[:, PLAIN] = plain != self.on[:, PLAIN]
        self.on ^= switches
        self._boot[switches] = np.where(self.on, self._boot_s, 0.0)[switches]
        self._walk[switches] = 0.0
        return paid
