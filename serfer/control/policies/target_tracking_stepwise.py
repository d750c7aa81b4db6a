"""Stepwise target tracking, the peer of earlier papers: instances half loaded, one step a cooldown."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, on_demand_in
from serfer.control.scenario import Scenario
from serfer.control.snapshots import MOST_COUNTED, SavedFields, Snapshot

_OVER: Final = 2.0  # instances are kept at half of what they can do
_WINDOW_S: Final = 60.0
_COOLDOWN_S: Final = 300.0
_MAX_SEEN: Final = 100_000  # in a snapshot
_DRIFT_S: Final = 1.0  # of a running sum, through rounding
_LAYOUT: Final = 1  # of snapshots: another number for other fields


class StepwiseTargetTracking:
    """Keeps instances at half their capacity over the last minute; at least one, one step a cooldown."""

    name = "target-tracking-stepwise"

    def __init__(self, scenario: Scenario) -> None:
        self._kind = scenario.instance
        self._on = 1
        self._seen: deque[tuple[float, float]] = deque()  # (seconds, queries) of the last minute
        self._seconds = self._queries = 0.0
        self._cooling = 0.0

    def observe(self, seen: Observation) -> ProvisioningPlan:
        """Step towards the target where the last step is long enough ago."""
        self._note(seen.elapsed_s, seen.rate)
        self._cooling -= seen.elapsed_s
        mean = self._queries / self._seconds if self._seconds else 0.0
        target = max(1, math.ceil(_OVER * mean / self._kind.qps))
        if target != self._on and self._cooling <= 0:
            self._on += 1 if target > self._on else -1
            self._cooling = _COOLDOWN_S
        return on_demand(self._kind, self._on, f"{mean:.1f} queries/s in the last minute")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Go on from what is there."""
        self._on = max(1, on_demand_in(fleet, self._kind))

    def snapshot(self) -> Snapshot:
        """Return what there should be, the last minute, and the cooldown, as plain JSON values."""
        return {
            "version": _LAYOUT,
            "on": self._on,
            "seen": [list(one) for one in self._seen],
            "seconds": self._seconds,
            "queries": self._queries,
            "cooling": self._cooling,
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, as if there had been no stop; raises InputError, and is of no use then."""
        saved = SavedFields.of(snapshot, self.name)
        saved.check_version(_LAYOUT)
        self._on = saved.whole("on", 1, MOST_COUNTED)
        seen = saved.numbers("seen", (saved.length("seen", _MAX_SEEN), 2), 0.0)
        self._seen.extend((seconds, queries) for seconds, queries in seen.tolist())
        seconds = float(seen[:, 0].sum())
        self._seconds = saved.number("seconds", seconds - _DRIFT_S, seconds + _DRIFT_S)
        self._queries = saved.number("queries")  # what is left of sums may be below 0 by a rounding
        self._cooling = saved.number("cooling", most=_COOLDOWN_S)

    def _note(self, elapsed_s: float, rate: float) -> None:
        self._seen.append((elapsed_s, elapsed_s * rate))
        self._seconds += elapsed_s
        self._queries += elapsed_s * rate
        while self._seconds - self._seen[0][0] >= _WINDOW_S:
            seconds, queries = self._seen.popleft()
            self._seconds -= seconds
            self._queries -= queries
