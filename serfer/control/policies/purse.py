"""The plain rule's books, and what may be spent on better guesses without losing its guarantee.

docs/explanation/policies.md has the proof.

For every level the books keep `behind`, the plain rule's walk, and what the clairvoyant would have paid so far. The
purse is rho times that, less what was paid: as long as it never falls below zero, nobody paid more than rho times the
clairvoyant. The plain rule alone keeps it above what the rule may still lose, its `liability`. So a guess that departs
from the rule may be followed while the purse covers the liability and the way back to the rule.
"""

from __future__ import annotations

import numpy as np

from serfer.control.policies.levels import Bools, Floats
from serfer.control.policies.work_function import WorkFunction
from serfer.control.scenario import Scenario


class Purse:
    """The books of all levels."""

    def __init__(self, scenario: Scenario) -> None:
        self._advantage = scenario.advantage
        self._start = scenario.instance.boot_s
        self.rho = bound(scenario.advantage)
        self.units = 0.0
        self._work_function = WorkFunction(self._start)
        self._on: Bools = np.zeros(0, np.bool_)
        self._boot: Floats = np.zeros(0)  # seconds that an instance which was started still boots

    @property
    def plain(self) -> Bools:
        """Which levels the plain rule has on."""
        return np.array(self._work_function.on, np.bool_)

    @property
    def behind(self) -> Floats:
        """The plain rule's walk on each level."""
        return np.array(self._work_function.gap)

    def grow(self, levels: int) -> None:
        """Keep books of so many levels."""
        more = levels - len(self._on)
        self._work_function.grow(levels)
        self._on = np.append(self._on, np.zeros(more, np.bool_))
        self._boot = np.append(self._boot, np.zeros(more))

    def pass_time(self, elapsed_s: float, lambda_units: Floats) -> None:
        """Book what everybody paid in the last `elapsed_s` seconds, and walk on."""
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

    def choose(self, wished: Bools, elapsed_s: float) -> Bools:
        """Return what is on from now on: what is wished for where the purse covers it, else the plain rule.

        `elapsed_s` is how long it will be until the next choice, in seconds.
        """
        plain = self.plain
        chosen = wished if self._covers(wished, plain, elapsed_s) else plain
        started, stopped = chosen & ~self._on, self._on & ~chosen
        self.units += float(np.sum(self._boot[stopped])) - self._start * int(np.count_nonzero(started))
        self._boot = np.where(started, self._start, np.where(stopped, 0.0, self._boot))
        self._on = chosen.copy()
        return chosen

    def resume(self, levels: int) -> None:
        """Take so many levels for on and serving, by the plain rule too; the purse holds what that may cost."""
        self.grow(max(levels, len(self._on)))
        self._work_function.resume(levels)
        self._on[:levels] = True
        self.units = max(self.units, float(np.sum(self._liability())))

    def _covers(self, wished: Bools, plain: Bools, elapsed_s: float) -> bool:
        """Say whether the purse pays for a wish until the next choice and, then, for the way back and the rule."""
        loss = (self._advantage + 1.0) * elapsed_s * len(wished)
        if self.units >= 4.0 * self._start * len(wished) + loss or np.array_equal(wished, plain):
            return True  # the first: more than all of what follows could be
        starts = self._start * np.count_nonzero(wished & ~self._on)
        back = self._start * np.count_nonzero(plain & ~wished)
        return bool(self.units >= np.sum(self._liability()) + starts + back + loss)

    def _liability(self) -> Floats:
        """Return what the plain rule may still lose on each level before its walk is back at the start's price."""
        left = self._start - self.behind
        return np.where(self.plain, left, 2.0 * left)


def bound(advantage: float) -> float:
    """Return 3 - 2/c, the plain rule's competitive ratio; where Lambda is never dearer, it is optimal."""
    return max(1.0, 3.0 - 2.0 / advantage)
