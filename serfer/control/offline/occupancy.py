"""How much of a number of slots has been in use lately."""

from __future__ import annotations

import math

HORIZON_S = 2.0
"""The period in which INFaaS's monitors report (section 4)."""


class Occupancy:
    """The mean of a number in use, over about the last `horizon_s` seconds: older use fades exponentially.

    A state is replaced as a whole, so another thread may read while one writes. Times are seconds of any one clock.
    """

    def __init__(self, horizon_s: float = HORIZON_S) -> None:
        self._horizon_s = horizon_s
        self._state = (-math.inf, 0.0, 0.0)  # since when so many are in use, the mean until then, how many

    def change(self, now: float, used: float) -> None:
        """Note that so many are in use from now on."""
        at, mean, before = self._state  # written out, as drivers do this twice for each invocation
        self._state = (now, before + (mean - before) * math.exp((at - now) / self._horizon_s), used)

    def mean(self, now: float) -> float:
        """Return the mean until now."""
        at, mean, used = self._state
        faded = math.exp(min(0.0, at - now) / self._horizon_s)
        return used + (mean - used) * faded
