"""What drivers tell one another of an application: one record, which each of them updates by compare-and-set.

    serfer:variants:{APPLICATION}    by driver: signals of its variants, how live and canary queries ended, what these
                                     ask of instances; by the leader of these what it decided last

A driver counts as gone when its entry has not changed for GONE_S on the reader's clock. The record is bounded, and
checked before anything in it is used: other programs may write to the store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Annotated, Any, Final

from serfer.applications.meters import DriverSignals
from serfer.control.canary import BUCKETS, Conduct
from serfer.control.selection.scaling.demand import NetworkDemand
from serfer.core.errors import PlanError
from serfer.core.retry import Backoff, RetryPolicy
from serfer.core.structure import Bounds, structure, unstructure
from storage.coordination import ContendedError, Coordination, change

MAX_DRIVERS: Final = 64
GONE_S: Final = 5.0
_RECORD_TTL_S = 60.0
_MAX_BYTES = 4 << 20
_MAX_VARIANTS = 1000
_MAX_REASON = 1000
_CHANGES = RetryPolicy("variants", ContendedError, Backoff(0.02, 0.2), attempts=4)


@dataclass(frozen=True, slots=True)
class Scaled:
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
    scaled: Scaled | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """Another driver's entry, and how many seconds ago it was first seen."""

    entry: DriverEntry
    age_s: float


class Exchange:
    """One driver's access to the record of an application; methods block, and raise what the coordination raises."""

    def __init__(
        self, coordination: Coordination, application: str, driver: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._coordination = coordination
        self._key = f"serfer:variants:{{{application}}}"
        self._driver = driver
        self._clock = clock
        self._beats = 0
        self._first_seen: dict[str, tuple[int, float]] = {}  # by driver: its beats, and when these were first seen
        self._one_at_a_time = Lock()  # a thread outlives the task that awaits it, so both may run as a driver ends
        self._left = False

    def exchange(self, own: DriverEntry) -> list[Seen]:
        """Write this driver's entry and return those of the others.

        Where others write at the same time again and again, or MAX_DRIVERS are there, it is not written this time.
        After `leave` nothing is read or written.
        """
        with self._one_at_a_time:
            return [] if self._left else self._exchange(own)

    def _exchange(self, own: DriverEntry) -> list[Seen]:
        self._beats += 1
        own = replace(own, beats=self._beats)
        others: list[Seen] = []

        def joined(value: bytes | None) -> bytes:
            nonlocal others
            others = self._running(value)
            entries = [each.entry for each in others]
            return _encoded([*entries, own] if len(entries) < MAX_DRIVERS else entries)

        with suppress(ContendedError):
            change(self._coordination, self._key, joined, _RECORD_TTL_S, policy=_CHANGES)
        return others

    def leave(self) -> None:
        """Take this driver's entry out, after an exchange that is running; the last driver deletes the record."""
        with self._one_at_a_time:
            self._left = True
            self._leave()

    def _leave(self) -> None:
        def left(value: bytes | None) -> bytes | None:
            entries = [each.entry for each in self._running(value)]
            if not entries:
                self._coordination.delete([self._key])
            return _encoded(entries) if entries else None

        with suppress(ContendedError):
            change(self._coordination, self._key, left, _RECORD_TTL_S, policy=_CHANGES)

    def _running(self, value: bytes | None) -> list[Seen]:
        """Return the entries of the other drivers that have written lately."""
        now, entries = self._clock(), () if value is None else _decoded(value)
        first_seen = {}
        for entry in entries:
            beats, at = self._first_seen.get(entry.driver, (-1, now))
            first_seen[entry.driver] = (entry.beats, at if beats == entry.beats else now)
        self._first_seen = first_seen
        seen = [Seen(entry, now - first_seen[entry.driver][1]) for entry in entries if entry.driver != self._driver]
        return [each for each in seen if each.age_s < GONE_S]


def _encoded(entries: list[DriverEntry]) -> bytes:
    return json.dumps({"drivers": unstructure(entries)}, separators=(",", ":")).encode()


@dataclass(frozen=True)
class _Record:
    drivers: tuple[DriverEntry, ...]


def _decoded(value: bytes) -> tuple[DriverEntry, ...]:
    """Return the entries of a record; none of one that is not sound, which the next write replaces."""
    try:
        if len(value) > _MAX_BYTES:
            return ()
        record = structure(_Record, _plain(value), "record", lenient=True)
    except (ValueError, RecursionError, PlanError):
        return ()
    sound = len(record.drivers) <= MAX_DRIVERS and all(_is_sound(entry) for entry in record.drivers)
    return record.drivers if sound else ()


def _plain(value: bytes) -> Any:  # noqa: ANN401 - any JSON value
    return json.loads(value)


def _is_sound(entry: DriverEntry) -> bool:
    counted = all(len(conduct.answered) == BUCKETS for conduct in (entry.live, entry.canary))
    names = [*entry.variants, *entry.demand]
    scaled = entry.scaled or Scaled()
    few = max(len(names), len(scaled.desired)) <= _MAX_VARIANTS and len(scaled.reason) <= _MAX_REASON
    return counted and few
