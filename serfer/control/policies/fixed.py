"""The two ends: never an instance, and never anything else."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from serfer.control.policy import DesiredReplicas
from serfer.control.scenario import S_PER_HOUR, Scenario

_ROUNDING: Final = 1e-9  # instances


class Serverless:
    """Everything runs on Lambda."""

    name = "serverless"

    def __init__(self, scenario: Scenario) -> None:
        del scenario

    def observe(self, elapsed_s: float, rate: float) -> DesiredReplicas:
        """Want none."""
        del elapsed_s, rate
        return DesiredReplicas(0, "everything on lambda")

    def resume(self, instances: int) -> None:
        """Instances that are on are stopped with the next decision."""


class Instances:
    """Enough instances for the highest load of the last hour, and never less than one: what a careful owner keeps."""

    name = "instances"

    def __init__(self, scenario: Scenario) -> None:
        self._qps = scenario.instance.qps
        self._now = 0.0
        self._peaks: deque[tuple[float, float]] = deque()  # (when, rate): later and smaller ones behind

    def observe(self, elapsed_s: float, rate: float) -> DesiredReplicas:
        """Want as many as the highest load of the last hour took."""
        self._now += elapsed_s
        self._note(rate)
        while self._peaks[0][0] < self._now - S_PER_HOUR:
            self._peaks.popleft()
        wanted = max(1, math.ceil(self._peaks[0][1] / self._qps - _ROUNDING))
        return DesiredReplicas(wanted, f"{self._peaks[0][1]:.1f} queries/s in the last hour")

    def resume(self, instances: int) -> None:
        """Keep them for an hour."""
        if instances:
            self._note(instances * self._qps)

    def _note(self, rate: float) -> None:
        while self._peaks and self._peaks[-1][1] <= rate:
            self._peaks.pop()
        self._peaks.append((self._now, rate))
