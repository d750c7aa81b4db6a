"""The instances of a simulation, from their launches to their ends, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.cost.fleet import Fleet, Purchase
from serfer.cost.loads.trace import Floats


@dataclass(frozen=True, eq=False)
class InstanceHistory:
    """The instances of a simulation: when each was launched and stopped, in seconds, by launch: arrays (launches,).

    `running` says which of them still are on at the end, `end_s`; those count as stopped then. `bought` is each one's
    place in `purchases`, `lost` whether it was taken away.
    """

    launched_s: Floats
    stopped_s: Floats
    running: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    bought: NDArray[np.int64]
    purchases: tuple[Purchase, ...]
    end_s: float

    @property
    def on_s(self) -> float:
        return float((self.stopped_s - self.launched_s).sum())

    @property
    def usd(self) -> float:
        return float((self.stopped_s - self.launched_s) @ self._each([one.usd_per_s for one in self.purchases]))

    @property
    def min_billing_usd(self) -> Floats:
        """The dollars that each instance costs beyond that, because its type is billed for a least time."""
        least = self._each([one.kind.min_billing_s for one in self.purchases]) - (self.stopped_s - self.launched_s)
        return np.maximum(least, 0.0) * self._each([one.usd_per_s for one in self.purchases])

    def usd_per_s_at(self, times: Floats) -> Floats:
        prices = self._each([one.usd_per_s for one in self.purchases])
        return _sum(self.launched_s, prices, times) - _sum(self.stopped_s, prices, times)

    def on_after(self, time_s: float) -> list[tuple[float, Purchase]]:
        there = np.flatnonzero((self.launched_s <= time_s) & (self.stopped_s > time_s))
        return [(float(self.launched_s[row]), self.purchases[self.bought[row]]) for row in there]

    def on_at(self, times: Floats) -> Floats:
        ones = np.ones(len(self.launched_s))
        return _sum(self.launched_s, ones, times) - _sum(self.stopped_s, ones, times)

    def serving_at(self, times: Floats) -> Floats:
        return self._serving(np.ones(len(self.launched_s)), times)

    def capacity_at(self, times: Floats) -> Floats:
        """Return how many queries/s those that serve sustain at each of the times."""
        return self._serving(self._each([one.kind.qps for one in self.purchases]), times)

    def booting_capacity_at(self, times: Floats) -> Floats:
        qps = self._each([one.kind.qps for one in self.purchases])
        return _sum(self.launched_s, qps, times) - _sum(self.stopped_s, qps, times) - self._serving(qps, times)

    @property
    def ready_s(self) -> Floats:
        return self.launched_s + self._each([one.kind.boot_s for one in self.purchases])

    def _serving(self, values: Floats, times: Floats) -> Floats:
        ready = self.ready_s
        served = ready < self.stopped_s
        return _sum(ready[served], values[served], times) - _sum(self.stopped_s[served], values[served], times)

    def _each(self, values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64)[self.bought] if len(self.bought) else np.zeros(0)


def _sum(events: Floats, values: Floats, times: Floats) -> Floats:
    order = np.argsort(events, kind="stable")
    sums = np.concatenate(([0.0], np.cumsum(values[order])))
    return sums[np.searchsorted(events[order], times, side="right")]


def history_of(fleet: Fleet, end_s: float) -> InstanceHistory:
    left = [(one.launched_s, end_s, True, False, one.purchase) for one in fleet if one.launched_s < end_s]
    ended = [(one.launched_s, time_s, False, lost, one.purchase) for one, time_s, lost in fleet.ended]
    table = np.array(sorted([*ended, *left]), dtype=np.float64).reshape(-1, 5)
    return InstanceHistory(
        launched_s=table[:, 0],
        stopped_s=table[:, 1],
        running=table[:, 2] > 0,
        lost=table[:, 3] > 0,
        bought=table[:, 4].astype(np.int64),
        purchases=tuple(fleet.purchases),
        end_s=end_s,
    )
