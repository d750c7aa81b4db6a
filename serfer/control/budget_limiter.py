"""A ceiling on the dollars of any hour, whatever a policy decides."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from serfer.control.scenario import S_PER_HOUR

_SLICE_S = 60.0
_ROUNDING = 1e-9  # of the ceiling: what sums may be off


class BudgetLimiter:
    """Limits what is spent in any hour; spending is kept in slices of a minute until they are an hour old.

    Lambda may be paid for, and instances may be on, while no hour that has begun comes to more than the ceiling even if
    those that are on stay on until it is over. So those that are on can always stay, and no hour, wherever it begins,
    costs more than the ceiling, as long as they never cost more than `max_usd_per_hour`.
    """

    def __init__(self, max_usd_per_hour: float = math.inf) -> None:
        self.ceiling = max_usd_per_hour
        self._max_usd = max_usd_per_hour * (1.0 + _ROUNDING)
        # [begin, Lambda's dollars, the instances' dollars, the most of them in a second]
        self._slices: deque[list[float]] = deque()
        self._rate = 0.0  # dollars a second that the instances cost which are on
        self._noted = 0.0  # until when their cost is in the slices
        self._dearest = 0.0  # dollars of the dearest hour, as it was in the slice that began at `_looked`
        self._looked = -math.inf

    def instances_cost(self, now: float, elapsed_s: float, usd_per_hour: float) -> None:
        """Add what instances cost in the `elapsed_s` seconds up to now; they go on at that rate."""
        if self.ceiling == math.inf:
            return
        rate, begin = usd_per_hour / S_PER_HOUR, max(now - elapsed_s, now - S_PER_HOUR)
        while begin < now:
            within = self._slice(begin)
            end = min(within[0] + _SLICE_S, now)
            within[2] += rate * (end - begin)
            within[3] = max(within[3], rate)
            begin = end
        self.instances_go_on(now, usd_per_hour)

    def instances_go_on(self, now: float, usd_per_hour: float) -> None:
        """Set what the instances that are on cost an hour from now on; their cost up to now was added."""
        self._rate, self._noted, self._looked = usd_per_hour / S_PER_HOUR, now, -math.inf

    def allows(self, now: float, usd: float) -> bool:
        if self.ceiling == math.inf:
            return True
        if self._looked != now - now % _SLICE_S:
            self._looked = now - now % _SLICE_S
            self._dearest = max(spent + self._rate * left_s for spent, left_s, _ in self._hours(now))
        return self._dearest + usd <= self._max_usd

    def wait_s(self, now: float, usd: float) -> float:
        """Return in how many seconds Lambda may be paid so much more, if nothing else is paid before that.

        An hour where that will not be, as the instances that are on take all there is.
        """
        for spent, left_s, counts_until in self._hours(now):
            if spent + self._rate * left_s + usd > self._max_usd:
                return S_PER_HOUR if counts_until == math.inf else counts_until - now
        return 0.0

    def pay(self, now: float, usd: float) -> None:
        if self.ceiling != math.inf:
            self._slice(now)[1] += usd
            self._dearest += usd  # whichever hour that is, now is within it

    def max_usd_per_hour(self, now: float) -> float:
        """Return what the instances that are on from now on may cost an hour; their cost up to now was added."""
        if self.ceiling == math.inf:
            return math.inf
        rate = min((self._max_usd - spent) / left_s for spent, left_s, _ in self._hours(now) if left_s > 0)
        return max(0.0, rate * S_PER_HOUR)

    def _hours(self, now: float) -> Iterator[tuple[float, float, float]]:
        """Yield the hours among which the dearest is that has begun, from the latest on.

        Of each: the dollars noted since it began, for how many seconds the instances that are on may add to that, and
        until when it counts. An hour that begins within a slice counts all that Lambda cost in it.
        """
        while self._slices and self._slices[0][0] + _SLICE_S + S_PER_HOUR <= now:
            self._slices.popleft()
        yield 0.0, S_PER_HOUR, math.inf
        spent = 0.0
        for begin, serverless, instances, peak in reversed(self._slices):
            end = begin + _SLICE_S
            noted = min(end, self._noted)
            # What instances cost in the slice lies as late as it can, and begins here.
            dense = noted - instances / peak if peak else begin
            since = max(begin, dense, now - S_PER_HOUR)
            spent += serverless
            yield spent, self._left_s(end), end + S_PER_HOUR
            yield spent + min(instances, peak * max(noted - since, 0.0)), self._left_s(since), end + S_PER_HOUR
            spent += instances

    def _left_s(self, begin: float) -> float:
        return min(begin + S_PER_HOUR - self._noted, S_PER_HOUR)

    def _slice(self, at: float) -> list[float]:
        begin, place = at - at % _SLICE_S, len(self._slices)
        while place and self._slices[place - 1][0] > begin:
            place -= 1
        if not place or self._slices[place - 1][0] < begin:
            self._slices.insert(place, [begin, 0.0, 0.0, 0.0])
            return self._slices[place]
        return self._slices[place - 1]
