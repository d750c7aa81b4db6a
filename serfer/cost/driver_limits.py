"""What drivers and Lambda allow in simulations: slots, environments that a function may gain, and duplicates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from serfer.core.hedging import HedgeBudget, late_after_s

_GROWTH_S: Final = 10.0  # in which a function may gain `growth` environments


@dataclass(frozen=True)
class DriverLimits:
    """So many drivers, each with `slots` invocations at once: None for the account's concurrency, as they have on AWS.

    With `hedge` they duplicate tasks that are late. Lambda adds at most `growth` environments to a function in 10 s,
    and keeps `provisioned` ones initialised, whether queries come or not.
    """

    drivers: int = 1
    slots: int | None = None
    hedge: bool = False
    growth: float = math.inf
    provisioned: int = 0

    def slots_of_each(self, concurrency: int) -> int:
        return concurrency if self.slots is None else self.slots


class Growth:
    """The environments that a function may gain: at most `most` at once, and as many more in 10 s, continuously.

    Source: AWS Lambda Developer Guide, "Lambda scaling behavior".
    """

    def __init__(self, most: float) -> None:
        self._most = self._left = most
        self._at = 0.0

    def take(self, now: float) -> bool:
        """Add an environment, if that is allowed; `now` never goes back."""
        if self._most == math.inf:
            return True
        self._left = min(self._most, self._left + (now - self._at) * self._most / _GROWTH_S)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class KnownHedging:
    """Hedging by drivers that have learnt how long tasks take: `usual_s` of each stage (see `core/hedging.py`).

    `answered` says how many tasks have answered so far: duplicates are a share of them. While a task starts that will
    answer in `ends_in_s`, it has no lateness if that is in time: a timer would find it done.
    """

    def __init__(self, usual_s: Sequence[float], answered: Callable[[], int]) -> None:
        self._late_after_s = [late_after_s(seconds) for seconds in usual_s]
        self._answered, self._counted = answered, 0
        self._budget = HedgeBudget()
        self.ends_in_s = math.inf

    def late_after(self, stage: int) -> float | None:
        seconds = self._late_after_s[stage]
        return seconds if seconds < self.ends_in_s else None

    def spend(self) -> bool:
        answered = self._answered()
        self._budget.earn(answered - self._counted)
        self._counted = answered
        return self._budget.spend()
