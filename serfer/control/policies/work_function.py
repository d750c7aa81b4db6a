"""The work-function algorithm of each capacity level: two-state ski rental, in both directions.

The work function of a state is the least that any schedule could have paid so far that ends in it. For the two states
off and on, of which switching on costs a start and switching off nothing, the difference of the two is all there is to
know: the `gap`, by how much having the level on now would be dearer than having it off, start included. It walks
between 0 (on is as good) and the start's price (off is as good). The algorithm switches a level on at 0 and off at the
start's price, and pays at most 3 - 2/c times the best schedule, the delay of boots apart, and 1 + (c^2 - 1)/(2c - 1)
times with it; decisions every p seconds add (c - 1)p/B for a boot of B. For c and the proofs see
docs/explanation/policies.md.

Borodin, Linial, Saks: An optimal on-line algorithm for metrical task systems (JACM 1992); for one direction Karlin,
Manasse, Rudolph, Sleator: Competitive snoopy caching (Algorithmica 1988).
"""

from __future__ import annotations

from collections.abc import Iterable


class WorkFunction:
    """The gap of every capacity level in the currency of `start_cost`, and which levels are `on`, lowest level first.

    Plain lists: a load reaches few levels, and a simulation takes millions of steps.
    """

    def __init__(self, start_cost: float) -> None:
        self._start = start_cost
        self.gap: list[float] = []
        self.on: list[bool] = []

    def grow(self, levels: int) -> None:
        """Append levels, which are off and were never used, up to so many."""
        more = levels - len(self.gap)
        self.gap += [self._start] * more
        self.on += [False] * more

    def resume(self, levels: int) -> None:
        """Take so many levels for started just now."""
        self.grow(levels)
        self.gap[:levels], self.on[:levels] = [0.0] * levels, [True] * levels

    def advance(self, dearer: Iterable[float]) -> list[float]:
        """Add by how much on was `dearer` than off since the last call, level by level, and switch levels.

        Returns the gaps before they are clipped: below 0, they are what the best schedule that ends off saves by having
        been on.
        """
        gap, on, start = self.gap, self.on, self._start
        walked = [before + more for before, more in zip(gap, dearer, strict=True)]
        for level, now in enumerate(walked):
            if now >= start:
                gap[level], on[level] = start, False
            elif now <= 0.0:
                gap[level], on[level] = 0.0, True
            else:
                gap[level] = now
        return walked
