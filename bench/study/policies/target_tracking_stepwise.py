"""Stepwise target tracking, the peer of earlier papers: instances half loaded, one step a cooldown."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, on_demand_in
from serfer.control.scenario import Market, Scenario

_OVER: Final = 2.0  # instances are kept at half of what they can do
_WINDOW_S: Final = 60.0
_COOLDOWN_S: Final = 300.0


class StepwiseTargetTracking:
    """Keeps instances at half their capacity over the last minute; at least one, one step a cooldown."""

    name = "target-tracking-stepwise"

    def __init__(self, scenario: Scenario) -> None:
        self._kind = scenario.instance
        self._on = 1
        self._seen: deque[tuple[float, float]] = deque()  # (seconds, queries) of the last minute
        self._seconds = self._queries = 0.0
        self._cooling = 0.0

    def purchases(self) -> list[tuple[str, Market]]:
        return [(self._kind.name, Market.ON_DEMAND)]

    def observe(self, seen: Observation) -> ProvisioningPlan:
        self._note(seen.elapsed_s, seen.rate)
        self._cooling -= seen.elapsed_s
        mean = self._queries / self._seconds if self._seconds else 0.0
        target = max(1, math.ceil(_OVER * mean / self._kind.qps))
        if target != self._on and self._cooling <= 0:
            self._on += 1 if target > self._on else -1
            self._cooling = _COOLDOWN_S
        return on_demand(self._kind, self._on, f"{mean:.1f} queries/s in the last minute")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        self._on = max(1, on_demand_in(fleet, self._kind))

    def _note(self, elapsed_s: float, rate: float) -> None:
        self._seen.append((elapsed_s, elapsed_s * rate))
        self._seconds += elapsed_s
        self._queries += elapsed_s * rate
        while self._seconds - self._seen[0][0] >= _WINDOW_S:
            seconds, queries = self._seen.popleft()
            self._seconds -= seconds
            self._queries -= queries
