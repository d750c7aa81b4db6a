"""What drivers tell one another of an application: one record, which each of them updates by compare-and-set.

    serfer:variants:{APPLICATION}    by driver: signals of its variants, how live and canary queries ended, what these
                                     ask of instances; by the leader of these what it decided last

DriverRegistry (serfer/fleet/registry.py) says when a driver counts as gone. The record is bounded, and checked before
anything in it is used: other programs may write to the store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from serfer.applications.meters import DriverSignals
from serfer.control.canary import BUCKETS, Conduct
from serfer.control.selection.scaling.demand import NetworkDemand
from serfer.core.dataclass_codec import Bounds, structure, unstructure
from serfer.core.errors import PlanError
from serfer.fleet.registry import MAX_DRIVERS, DriverRegistry, Heartbeat, Record
from serfer.storage.coordination import Coordination

_MAX_BYTES: Final = 4 << 20
_MAX_VARIANTS = 1000
_MAX_REASON = 1000


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """What was decided last: how many copies of each variant on instances there are to be, and why."""

    desired: dict[str, Annotated[int, Bounds(0, 1e6)]] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DriverEntry:
    """A driver's part of the record; `beats` counts its writes, `trial` is since when the canary has been there.

    `live` and `canary` are the queries of that trial. `demand` is what this driver's queries ask of instances,
    `scaled` what it decided of all drivers', where it leads.
    """

    driver: str
    beats: Annotated[int, Bounds(0)] = 0
    variants: dict[str, DriverSignals] = field(default_factory=dict)
    trial: str = ""
    live: Conduct = field(default_factory=Conduct)
    canary: Conduct = field(default_factory=Conduct)
    demand: tuple[NetworkDemand, ...] = ()
    scaled: ScalingDecision | None = None


class Exchange(DriverRegistry[DriverEntry]):
    """One driver's access to the record of an application; methods block, and raise what the coordination raises."""

    _called = "variants"

    def __init__(
        self, coordination: Coordination, application: str, driver: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(coordination, f"serfer:variants:{{{application}}}", driver, clock)

    def exchange(self, own: DriverEntry) -> tuple[DriverEntry, ...]:
        return self._join(own).loads

    def _encoded(self, record: Record[DriverEntry]) -> bytes:
        entries = [replace(one.load, beats=one.beats) for one in record.drivers]
        return json.dumps({"drivers": unstructure(entries)}, separators=(",", ":")).encode()

    def _decoded(self, value: bytes) -> Record[DriverEntry]:
        """Read a record; nothing of one that is not sound, which the next write replaces."""
        try:
            if len(value) > _MAX_BYTES:
                return Record()
            drivers = structure(_Record, _plain(value), "record", lenient=True).drivers
        except (ValueError, RecursionError, PlanError):
            return Record()
        sound = len(drivers) <= MAX_DRIVERS and all(map(_is_sound, drivers))
        return Record(tuple(Heartbeat(entry, entry.beats) for entry in drivers)) if sound else Record()


@dataclass(frozen=True)
class _Record:
    drivers: tuple[DriverEntry, ...]


def _plain(value: bytes) -> Any:  # noqa: ANN401 - any JSON value
    return json.loads(value)


def _is_sound(entry: DriverEntry) -> bool:
    counted = all(len(conduct.answered) == BUCKETS for conduct in (entry.live, entry.canary))
    names = [*entry.variants, *entry.demand]
    scaled = entry.scaled or ScalingDecision()
    few = max(len(names), len(scaled.desired)) <= _MAX_VARIANTS and len(scaled.reason) <= _MAX_REASON
    return counted and few
