"""The two ends: never an instance, and never anything else."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, on_demand_in
from serfer.control.scenario import S_PER_HOUR, Scenario

_ROUNDING: Final = 1e-9  # instances


class Serverless:
    """Everything runs on Lambda."""

    name = "serverless"

    def __init__(self, scenario: Scenario) -> None:
        del scenario

    def observe(self, seen: Observation) -> ProvisioningPlan:
        del seen
        return ProvisioningPlan((), "everything on lambda")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Instances that are on are stopped with the next decision."""


class Instances:
    """Enough instances for the highest load of the last hour, and never less than one: what a careful owner keeps."""

    name = "instances"

    def __init__(self, scenario: Scenario) -> None:
        self._kind = scenario.instance
        self._now = 0.0
        self._peaks: deque[tuple[float, float]] = deque()  # (when, rate): later and smaller ones behind

    def observe(self, seen: Observation) -> ProvisioningPlan:
        self._now += seen.elapsed_s
        self._note(seen.rate)
        while self._peaks[0][0] < self._now - S_PER_HOUR:
            self._peaks.popleft()
        wanted = max(1, math.ceil(self._peaks[0][1] / self._kind.qps - _ROUNDING))
        return on_demand(self._kind, wanted, f"{self._peaks[0][1]:.1f} queries/s in the last hour")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        if instances := on_demand_in(fleet, self._kind):
            self._note(instances * self._kind.qps)

    def _note(self, rate: float) -> None:
        while self._peaks and self._peaks[-1][1] <= rate:
            self._peaks.pop()
        self._peaks.append((self._now, rate))
