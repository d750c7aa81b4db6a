"""What drivers tell one another of an application: one record, which each of them updates by compare-and-set.

    serfer:variants:{APPLICATION}    by driver: signals of its variants, how live and canary queries ended, what these
                                     ask of instances; by the leader of these what it decided last

DriverRegistry (serfer/fleet/registry.py) says when a driver counts as gone. The record is bounded, and checked before
anything in it is used: other programs may write to the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from serfer.applications.meters import DriverSignals
from serfer.control.canary import BUCKETS, Conduct
from serfer.control.selection.scaling.demand import NetworkDemand
from serfer.core.dataclass_codec import Bounds
from serfer.fleet.registry import DriverRegistry
from serfer.storage.coordination import Coordination

_MAX_VARIANTS = 1000
_MAX_REASON = 1000


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """What was decided last: how many copies of each variant on instances there are to be, and why."""

    desired: dict[str, Annotated[int, Bounds(0, 1e6)]] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DriverEntry:
    """A driver's part of the record; `trial` is since when the canary has been there.

    `live` and `canary` are the queries of that trial. `demand` is what this driver's queries ask of instances,
    `scaled` what it decided of all drivers', where it leads.
    """

    driver: str
    variants: dict[str, DriverSignals] = field(default_factory=dict)
    trial: str = ""
    live: Conduct = field(default_factory=Conduct)
    canary: Conduct = field(default_factory=Conduct)
    demand: tuple[NetworkDemand, ...] = ()
    scaled: ScalingDecision | None = None


class Exchange(DriverRegistry[DriverEntry]):
    """One driver's access to the record of an application; methods block, and raise what the coordination raises."""

    _called = "variants"
    _most_bytes = 4 << 20
    _load = DriverEntry

    def __init__(
        self, coordination: Coordination, application: str, driver: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(coordination, f"serfer:variants:{{{application}}}", driver, clock)

    def exchange(self, own: DriverEntry) -> tuple[DriverEntry, ...]:
        return self._join(own).loads

    def _is_sound(self, load: DriverEntry) -> bool:
        counted = all(len(conduct.answered) == BUCKETS for conduct in (load.live, load.canary))
        scaled = load.scaled or ScalingDecision()
        names = (len(load.variants) + len(load.demand), len(scaled.desired))
        return counted and max(names) <= _MAX_VARIANTS and len(scaled.reason) <= _MAX_REASON
