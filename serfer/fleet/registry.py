"""The shared state of drivers: records, which each of them updates every second by compare-and-set.

    serfer:pool:{PLAN}    the drivers' loads; the lease (lease.py); what the leader publishes: the instances, how many
                          are wanted, and why
    serfer:warm:{PLAN}    the same for drivers that keep functions warm (keep_warm.py): their queries in flight and the
                          lease
    serfer:variants:...   the same for instances of applications' variants; and for each application what its drivers
                          see (serfer/applications/exchange.py), without a lease

A driver counts as gone when its entry has not changed for TTL_S on the reader's clock. A record is bounded, and
checked before anything in it is used: other programs may write to the store. Fields that a version does not know are
passed over, and those that came later have defaults, so drivers of two versions share a record while one replaces the
other.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from threading import Lock
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from serfer.control.policy import NO_QUERIES, InstanceState, Interruption, LatencyWindow
from serfer.control.scenario import Market
from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import PlanError, StoreUnavailableError
from serfer.core.retry import Backoff, RetryPolicy
from serfer.core.wire import MAX_BATCH
from serfer.fleet.lease import Election, Lease
from serfer.storage.coordination import UNREAD, ContendedError, Coordination, Entry, change

MAX_DRIVERS: Final = 64
MAX_MEMBERS: Final = 256
MAX_REASON: Final = 300
TTL_S: Final = 5.0
"""Seconds for which a driver whose entry does not change counts as running."""
_CLEARED_TTL_S = 1.0
_RECORD_TTL_S = 60.0  # longer: instances go on serving while no driver leads
_WORD = re.compile(r"[!-~]{1,300}")
_URL = re.compile(r"https?://[!-~]{1,290}")
_MAX_NUMBER = 1e12
_MAX_KIND, _MAX_KINDS = 64, 16
_BACKOFF = Backoff(0.02, 0.2)
_ATTEMPTS, _LEAVING_ATTEMPTS = 4, 32


@dataclass(frozen=True)
class DriverLoad:
    """One driver's images a second, its queries on Lambda now, and what it paid.

    `paid_usd` is all that it ever spent on Lambda, `hour_usd` in the last hour. `busy` are the instances that owe it
    responses, `latency` are the queries that it answered since it last wrote.
    """

    driver: str
    rate: float = 0.0
    in_flight: int = 0
    paid_usd: float = 0.0
    hour_usd: float = 0.0
    busy: tuple[str, ...] = ()
    latency: LatencyWindow = NO_QUERIES


@dataclass(frozen=True)
class FleetMember:
    """An instance as the leader publishes it: queries go to those that serve, others boot or drain.

    One without a `kind`, as earlier versions published it, is of the scenario's first type. `batch` is its batch size,
    0 where it was never set.
    """

    name: str
    url: str | None
    state: InstanceState
    kind: str = ""
    market: Market = Market.ON_DEMAND
    batch: int = 0


@dataclass(frozen=True)
class FleetState:
    """The leader's published state: the instances, how many are wanted, and why.

    `interruptions` are the spot instances by type that were ever taken away, counted from one leader to the next.
    """

    leader: str
    members: tuple[FleetMember, ...]
    wanted: int
    reason: str
    interruptions: tuple[Interruption, ...] = ()


@dataclass(frozen=True)
class PoolView:
    """The record as a driver reads it: the other drivers' loads, and the fleet's published state, if there is one."""

    others: tuple[DriverLoad, ...] = ()
    fleet: FleetState | None = None

    @property
    def rate(self) -> float:
        """Images a second of the other drivers."""
        return sum(load.rate for load in self.others)

    @property
    def in_flight(self) -> int:
        return sum(load.in_flight for load in self.others)

    @property
    def busy(self) -> frozenset[str]:
        return frozenset(name for load in self.others for name in load.busy)


class Load(Protocol):
    """What a driver tells the others of itself."""

    @property
    def driver(self) -> str: ...


L = TypeVar("L", bound=Load)


@dataclass(frozen=True)
class Heartbeat(Generic[L]):
    """A driver's load, and how many times the driver has written it."""

    load: L
    beats: int


@dataclass(frozen=True)
class Record(Generic[L]):
    """What drivers share; one without a lease has no fleet either."""

    drivers: tuple[Heartbeat[L], ...] = ()
    lease: Lease | None = None
    fleet: FleetState | None = None

    @property
    def loads(self) -> tuple[L, ...]:
        return tuple(entry.load for entry in self.drivers)


class DriverRegistry(ABC, Generic[L]):
    """One driver's access to the record under `key`; methods block, and raise what the coordination raises.

    A thread outlives the task that awaits it, so a driver may leave while it writes: leaving waits for that, and
    nothing is written after it. A subclass has the loads and what else stands in the record, of `_most_bytes` at most;
    retries of its changes are counted as `_called`.
    """

    _called: ClassVar[str]
    _most_bytes: ClassVar[int] = 1 << 20
    _load: type[L]

    def __init__(
        self, coordination: Coordination, key: str, driver: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.driver = driver
        self._coordination = coordination
        self._key = key
        self._clock = clock
        self._beats = 0
        self._changed: dict[str, tuple[int, float]] = {}  # by driver: its beats, and when they were first seen
        self._last: Entry | None = None  # as this driver read or wrote it last
        self._one_at_a_time = Lock()
        self._left = False

    def leave(self) -> bool:
        """Take this driver out; say whether it was the last one, which clears the record."""
        others: tuple[Heartbeat[L], ...] = ()

        def left(record: Record[L]) -> Record[L]:
            nonlocal others
            others, record = self._running(record), self._leaving(record)
            return replace(record, drivers=others) if others else Record()

        with self._one_at_a_time:
            self._left = True
            self._last = self._change(left, attempts=_LEAVING_ATTEMPTS)
            if not others and self._last is not None:
                with suppress(StoreUnavailableError):  # it is cleared, and expires a little later
                    self._coordination.compare_and_set(self._key, self._last.version, self._last.value, _CLEARED_TTL_S)
        return not others

    def _join(self, load: L) -> Record[L]:
        """Write this driver's load; return the record as it was read, with the other drivers alone.

        Where others write at the same time, or MAX_DRIVERS are there, it is not written this time. After `leave`
        nothing is read or written.
        """
        read, written = Record[L](), Record[L]()

        def joined(record: Record[L]) -> Record[L]:
            nonlocal read, written
            read = replace(record, drivers=self._running(record))
            drivers = (*read.drivers, own) if len(read.drivers) < MAX_DRIVERS else read.drivers
            written = self._joining(replace(read, drivers=drivers))
            return written

        with self._one_at_a_time:
            if self._left:
                return read
            self._beats += 1
            own = Heartbeat(load, self._beats)
            with suppress(ContendedError):
                self._last = self._change(joined)
                self._joined(written)
        return read

    def _change(
        self, step: Callable[[Record[L]], Record[L] | None], known: Entry | None = UNREAD, attempts: int = _ATTEMPTS
    ) -> Entry | None:
        def changed(value: bytes | None) -> bytes | None:
            record = step(Record() if value is None else self._decoded(value))
            return None if record is None else self._encoded(record)

        policy = RetryPolicy(self._called, ContendedError, _BACKOFF, attempts)
        return change(self._coordination, self._key, changed, _RECORD_TTL_S, known=known, policy=policy)

    def _running(self, record: Record[L]) -> tuple[Heartbeat[L], ...]:
        """Return the entries of other drivers that have changed within TTL_S, and remember when each did."""
        now, others = self._clock(), [entry for entry in record.drivers if entry.load.driver != self.driver]
        changed = {}
        for entry in others:
            known = self._changed.get(entry.load.driver)
            changed[entry.load.driver] = known if known and known[0] == entry.beats else (entry.beats, now)
        self._changed = changed
        return tuple(entry for entry in others if now - changed[entry.load.driver][1] <= TTL_S)

    def _joining(self, record: Record[L]) -> Record[L]:
        return record

    def _joined(self, record: Record[L]) -> None:
        """Note that what `_joining` returned last was written."""

    def _leaving(self, record: Record[L]) -> Record[L]:
        return record

    def _encoded(self, record: Record[L]) -> bytes:
        return json.dumps(unstructure(record), separators=(",", ":")).encode()

    def _decoded(self, value: bytes) -> Record[L]:
        if len(value) > self._most_bytes:
            return Record()
        try:
            raw = json.loads(value)
            parts = {name: raw[name] for name in ("drivers", "lease", "fleet")}
            listed = list(parts["drivers"])[: 2 * MAX_DRIVERS]
        except (ValueError, RecursionError, TypeError, KeyError):
            return Record()
        entries = {entry.load.driver: entry for entry in map(self._entry, listed) if entry is not None}
        return Record(tuple(entries.values()), _lease(parts["lease"]), _fleet(parts["fleet"]))

    def _entry(self, value: Any) -> Heartbeat[L] | None:  # noqa: ANN401  any JSON value
        counted = _structured(_Counted, value)
        load = _structured(self._load, value.get("load")) if counted else None
        if counted is None or load is None or not _bounded(counted.beats):
            return None
        return Heartbeat(load, counted.beats) if _words([load.driver]) and self._is_sound(load) else None

    @abstractmethod
    def _is_sound(self, load: L) -> bool: ...


@dataclass(frozen=True)
class _Counted:
    beats: int


REQUESTS_PER_S: Final = 1.0
"""The gets that a driver sends the store a second, and as many puts, for any number of drivers (for pricing).

On top come retries of writes that met another driver's, and the leader's writes when what it publishes changes.
"""


class PoolRegistry(DriverRegistry[DriverLoad]):
    """One driver's access to its pool's record, with the lease and the published fleet."""

    _called = "pool"
    _load = DriverLoad

    def __init__(
        self, coordination: Coordination, key: str, driver: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(coordination, key, driver, clock)
        self._election = Election(driver, clock)
        self._begun = clock()

    @property
    def leads(self) -> bool:
        return self._election.leads

    def exchange(self, load: DriverLoad) -> PoolView:
        """Read what the others wrote, write this driver's load, and renew the lease or take it over where it is due."""
        read = self._join(load)
        return PoolView(read.loads, read.fleet)

    def publish(self, fleet: FleetState) -> bool:
        """Write the state of the fleet where it has changed; say whether this driver holds the lease."""
        holds = False

        def published(record: Record[DriverLoad]) -> Record[DriverLoad] | None:
            nonlocal holds
            holds = record.lease is not None and record.lease.holder == self.driver
            return replace(record, fleet=fleet) if holds and record.fleet != fleet else None

        with self._one_at_a_time:
            self._last = self._change(published, known=self._last)
        return holds

    def _joining(self, record: Record[DriverLoad]) -> Record[DriverLoad]:
        lease = self._election.proposal(record.lease)
        self._begun = self._clock()
        return replace(record, lease=lease)

    def _joined(self, record: Record[DriverLoad]) -> None:
        self._election.written(record.lease or Lease("", 0), self._begun)

    def _leaving(self, record: Record[DriverLoad]) -> Record[DriverLoad]:
        return replace(record, lease=self._election.released(record.lease))

    def _is_sound(self, load: DriverLoad) -> bool:
        numbers = (load.rate, load.in_flight, load.paid_usd, load.hour_usd, *astuple(load.latency))
        return _words(load.busy) and len(load.busy) <= MAX_MEMBERS and _bounded(*numbers)


_T = TypeVar("_T")


def _structured(kind: type[_T], value: Any) -> _T | None:  # noqa: ANN401  any JSON value
    try:
        return structure(kind, value, "registry", lenient=True)
    except (PlanError, RecursionError):
        return None


def _lease(value: Any) -> Lease | None:  # noqa: ANN401
    lease = _structured(Lease, value)
    right = lease is not None and _bounded(lease.renewals) and (not lease.holder or _words([lease.holder]))
    return lease if right else None


def _fleet(value: Any) -> FleetState | None:  # noqa: ANN401
    fleet = _structured(FleetState, value)
    if fleet is None or len(fleet.members) > MAX_MEMBERS or len(fleet.interruptions) > _MAX_KINDS:
        return None
    if any(not 0 <= member.batch <= MAX_BATCH for member in fleet.members):
        return None
    kinds = [*(member.kind for member in fleet.members), *(interruption.kind for interruption in fleet.interruptions)]
    if not (
        _bounded(fleet.wanted, *(interruption.count for interruption in fleet.interruptions))
        and all(map(_is_kind, kinds))
    ):
        return None
    urls = [member.url for member in fleet.members if member.url is not None]
    right = _words([fleet.leader, *(member.name for member in fleet.members)]) and all(map(_URL.fullmatch, urls))
    return fleet if right and len(fleet.reason) <= MAX_REASON else None


def _bounded(*numbers: float) -> bool:
    return all(0 <= number <= _MAX_NUMBER for number in numbers)


def _is_kind(name: str) -> bool:
    return len(name) <= _MAX_KIND and name.isprintable()


def _words(texts: Iterable[str]) -> bool:
    return all(map(_WORD.fullmatch, texts))
