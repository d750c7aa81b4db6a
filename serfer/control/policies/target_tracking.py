"""Target tracking as AWS has it: out at once and in proportion, in slowly.

Application Auto Scaling's target tracking keeps a metric of one-minute data points, here the load over the capacity of
the instances that there should be, near a target by two CloudWatch alarms:

    above the target            ──> wanted = ceil(wanted * metric / target)
    15 minutes below 90% of it  ──> the same, which is fewer now, at most once in the scale-in cooldown of 300 s

Source: Application Auto Scaling User Guide, "Target tracking scaling policies" (how it works: proportional, rounded up,
gradual scale-in; cooldowns), and the alarms that it creates, TargetTracking-...-AlarmHigh (3 data points of a minute
above) and -AlarmLow (15 below 90%). A scale-out may follow another within its cooldown where it is larger, so there is
no cooldown here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from serfer.control.policy import InstanceGroup, Observation, ProvisioningPlan, on_demand, on_demand_in
from serfer.control.scenario import Scenario

_POINT_S: Final = 60.0
_LOW: Final = 0.9  # of the target, below which the alarm for scale-in is
_MINUTES_BELOW: Final = 15
_SCALE_IN_COOLDOWN_S: Final = 300.0
_ROUNDING: Final = 1e-9


class TargetTracking:
    """Keeps instances at 70% of their capacity; at least one. Scales out at the first minute above: AWS waits for 3."""

    name = "target-tracking"
    target = 0.7
    minutes_above = 1

    def __init__(self, scenario: Scenario) -> None:
        self._kind = scenario.instance
        self._wanted = 1
        self._seconds = self._queries = 0.0  # of the minute that has begun
        self._rate = 0.0  # of the last whole one
        self._above = self._below = 0  # minutes that the alarms' conditions have held
        self._cooling_s = 0.0

    def observe(self, seen: Observation) -> ProvisioningPlan:
        self._cooling_s -= seen.elapsed_s
        self._seconds += seen.elapsed_s
        self._queries += seen.elapsed_s * seen.rate
        if self._seconds >= _POINT_S - _ROUNDING:
            self._point(self._queries / self._seconds, max(1, int(self._seconds / _POINT_S)))
            self._seconds = self._queries = 0.0
        return on_demand(self._kind, self._wanted, f"{self._rate:.1f} queries/s in the last minute")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        self._wanted = max(1, on_demand_in(fleet, self._kind))

    def _point(self, rate: float, minutes: int) -> None:
        """Take in a data point of the mean rate of a minute, or of a few that one observation has."""
        self._rate = rate
        loaded = rate / (self._wanted * self._kind.qps)
        self._above = self._above + minutes if loaded > self.target * (1 + _ROUNDING) else 0
        self._below = self._below + minutes if loaded < _LOW * self.target else 0
        proportional = max(1, math.ceil(self._wanted * loaded / self.target - _ROUNDING))
        if self._above >= self.minutes_above:
            self._wanted = proportional
        elif self._below >= _MINUTES_BELOW and proportional < self._wanted and self._cooling_s <= _ROUNDING:
            self._wanted = proportional
            self._cooling_s = _SCALE_IN_COOLDOWN_S


class SageMaker(TargetTracking):
    """A SageMaker endpoint: instances alone, at half of their capacity, scaled by the alarms as AWS creates them.

    Half is the safety factor that Amazon SageMaker's developer guide begins with ("Load testing your auto scaling
    configuration": SageMakerVariantInvocationsPerInstance = requests/s * 0.5 * 60), and MArk's over-provisioning of 2.
    """

    name = "sagemaker"
    alone = True
    target = 0.5
    minutes_above = 3
