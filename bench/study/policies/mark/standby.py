"""MArk's stand-ins for spot instances that are taken away (section 4.5), until others serve in their place.

    notice, or an interruption without one ──> stand-ins for as many queries/s ──> as many spot instances serve as are
                                                                                  planned: they are given up

The paper keeps burstable instances stopped, and resumes them at the notice. A plan has types and markets and no stopped
ones, so the stand-in is a type of the scenario that is started for this alone, on demand; its `boot_s` is a resume's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from serfer.control.policy import InstanceGroup, InstanceState, Observation
from serfer.control.scenario import InstanceType, Market, Scenario

_ROUNDING: Final = 1e-9


class Standby:
    """Counts the capacity that interruptions take, and gives it up as soon as the planned spot instances serve."""

    def __init__(self, scenario: Scenario, kind: InstanceType | None) -> None:
        self._scenario = scenario
        self._kind = kind
        self._leaving = Counter[str]()
        self._lost_qps = 0.0

    def observe(self, seen: Observation, planned: Mapping[tuple[str, Market], int]) -> int:
        """Return how many stand-ins there should be now; `planned` are those without the ones that are leaving."""
        new = self._new(seen)
        if not new and self._lost_qps and _serve(seen.fleet, planned):
            self._lost_qps = 0.0
        self._lost_qps += sum(count * self._scenario.kind(kind).qps for kind, count in new.items())
        return math.ceil(self._lost_qps / self._kind.qps - _ROUNDING) if self._kind else 0

    def _new(self, seen: Observation) -> Counter[str]:
        """Return by type those that were given notice since the last observation, or were taken away without one."""
        before, self._leaving = self._leaving, Counter[str]()
        for group in seen.fleet:
            if group.state is InstanceState.LEAVING:
                self._leaving[group.kind] += group.count
        gone = Counter({interruption.kind: interruption.count for interruption in seen.interruptions})
        return (self._leaving + gone) - before


def _serve(fleet: Iterable[InstanceGroup], planned: Mapping[tuple[str, Market], int]) -> bool:
    serving = sum(
        group.count for group in fleet if group.market is Market.SPOT and group.state is InstanceState.SERVING
    )
    return serving >= sum(count for (_, market), count in planned.items() if market is Market.SPOT)
