"""Lateness of tasks: later than the tasks of its stage have lately been (Dean and Barroso, The Tail at Scale, 2013).

A duplicate costs an invocation, so duplicates have a budget: a small share of all tasks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque

QUANTILE = 0.9
"""Of a stage's latest times, the share within which those lie that lateness is reckoned from."""
_REMEMBERED = 256  # tasks of a stage
_KNOWN = 20  # tasks from which on lateness is defined
_FACTOR = 2.0
_LEAST_S = 0.02  # below that, what looks late is the driver's own turn
_SHARE = 0.05  # of all tasks
_HANDFUL = 4


def late_after_s(usual_s: float) -> float:
    """Return after how many seconds a task is late, of a stage of which a share of QUANTILE takes `usual_s` at most."""
    return max(_LEAST_S, _FACTOR * usual_s)


class HedgeBudget:
    """The duplicates that there may be: one for twenty tasks that answered, and a handful in advance."""

    def __init__(self) -> None:
        self._left = float(_HANDFUL)

    def earn(self, tasks: int = 1) -> None:
        self._left = min(self._left + _SHARE * tasks, _HANDFUL + _SHARE * _REMEMBERED)

    def spend(self) -> bool:
        if self._left < 1:
            return False
        self._left -= 1
        return True


class LearntHedging:
    """A task is late after twice the ninth decile of its stage's latest times; at most one in twenty gets a duplicate.

    Until some tasks of a stage have answered, none of it is late. `spend` allows a handful in advance, so that the
    first burst may have its stragglers.
    """

    def __init__(self) -> None:
        self._times = defaultdict[int, tuple[deque[float], list[float]]](lambda: (deque(), []))
        self._budget = HedgeBudget()
        self.spend = self._budget.spend

    def learn(self, stage: int, seconds: float) -> None:
        recent, ordered = self._times[stage]
        recent.append(seconds)
        insort(ordered, seconds)
        if len(recent) > _REMEMBERED:
            del ordered[bisect_left(ordered, recent.popleft())]
        self._budget.earn()

    def late_after(self, stage: int) -> float | None:
        ordered = self._times[stage][1]
        count = len(ordered)
        return late_after_s(ordered[int(QUANTILE * count)]) if count >= _KNOWN else None
