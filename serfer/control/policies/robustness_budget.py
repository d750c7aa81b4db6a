"""The robustness budget: what predictions may cost without losing the work-function algorithm's guarantee.

The budget is rho times what the clairvoyant would have paid so far, less what was paid. As long as it never falls below
0, the cost never exceeds rho times the clairvoyant's. The work-function algorithm alone keeps the budget above its
potential, what it may still lose. So a prediction that departs from it may be followed while the budget covers the
potential and the way back to the algorithm. docs/explanation/policies.md has the proof. The delay of boots is apart:
with boots no ratio is proved, and docs have what was measured.
"""

from __future__ import annotations

import numpy as np

from serfer.control.policies.capacity_levels import Bools, Floats
from serfer.control.policies.work_function import WorkFunction
from serfer.control.scenario import Scenario


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
        """Append levels, which are off, up to so many."""
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
            self._on,
            (elapsed_s - booting) + np.minimum(lambda_units, 1.0) * booting,
            lambda_units * elapsed_s,
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
