"""MArk's stand-ins for spot instances that were taken away (section 4.5), until others serve in their place.

The paper resumes stopped burstable instances. A plan has types and markets and no stopped ones, so the stand-in is a
type of the scenario that is started for this alone, on demand: a burstable type, whose `boot_s` is that of a resume.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from serfer.control.policy import InstanceGroup, InstanceState, Interruption
from serfer.control.scenario import InstanceType, Market, Scenario

_ROUNDING: Final = 1e-9


class Standby:
    """Counts the capacity that interruptions took, and gives it up as soon as the planned spot instances serve."""

    def __init__(self, scenario: Scenario, kind: InstanceType | None) -> None:
        self._scenario = scenario
        self._kind = kind
        self.lost_qps = 0.0

    def observe(
        self,
        interruptions: Iterable[Interruption],
        fleet: Iterable[InstanceGroup],
        planned: Mapping[tuple[str, Market], int],
    ) -> int:
        """Return how many stand-ins there should be now."""
        new = sum(one.count * self._scenario.kind(one.kind).qps for one in interruptions)
        if not new and self.lost_qps and _serve(fleet, planned):
            self.lost_qps = 0.0
        self.lost_qps += new
        return math.ceil(self.lost_qps / self._kind.qps - _ROUNDING) if self._kind else 0


def _serve(fleet: Iterable[InstanceGroup], planned: Mapping[tuple[str, Market], int]) -> bool:
    """Return whether as many spot instances serve as are planned."""
    serving = sum(one.count for one in fleet if one.market is Market.SPOT and one.state is InstanceState.SERVING)
    return serving >= sum(count for (_, market), count in planned.items() if market is Market.SPOT)
