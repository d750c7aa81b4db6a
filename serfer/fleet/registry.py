"""What the drivers of a pool tell one another, in the store: each its load, and who leads, which instances serve.

    PREFIX:driver:N    a driver's load, N from 0: a place that it took and keeps for as long as it comes back
    PREFIX:fleet       the leader's word: the instances, how many are wanted, and why

Everything is renewed each second, has a time to live of a few, and is bounded and checked before it is believed.

A store may bill every request, so a look reads the places that were taken when it last looked and asks only for those
that a new driver would take: drivers take the lowest free place. All places are looked at first, and every minute.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from serfer.core.errors import MissingKeyError, PlanError
from serfer.core.structure import structure, unstructure
from serfer.fleet.lease import SLOT_S
from storage.store import Range, Store

MOST_DRIVERS: Final = 64
MOST_MEMBERS: Final = 256
TTL_S: Final = 5.0
"""How long a driver that says no more is reckoned with."""
FULL_LOOK_EVERY: Final = 60
"""So many looks, one each second, until all places are looked at again."""
_FLEET_TTL_S = 60.0  # longer: what serves goes on serving while nobody leads
_MOST_BYTES = 256 * 1024
_WORD = re.compile(r"[!-~]{1,300}")
_URL = re.compile(r"https?://[!-~]{1,290}")
MOST_REASON: Final = 300
_LARGEST = 1e12


@dataclass(frozen=True)
class Load:
    """What one driver tells: its images a second, and how many of them run on Lambda now.

    `paid_usd` is all that it ever spent on Lambda, `hour_usd` in the last hour. `busy` are the instances that have yet
    to answer it something.
    """

    driver: str
    rate: float = 0.0
    in_flight: int = 0
    paid_usd: float = 0.0
    hour_usd: float = 0.0
    busy: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listed:
    """An instance as the leader tells of it: queries are sent to those that are "serving", others boot or drain."""

    name: str
    url: str | None
    state: str


@dataclass(frozen=True)
class Fleet:
    """What the leader tells: the instances, how many are wanted, and why."""

    leader: str
    members: tuple[Listed, ...]
    wanted: int
    reason: str


@dataclass(frozen=True)
class View:
    """What stands on the board: the loads of the other drivers, and the leader's word if there is one."""

    others: tuple[Load, ...] = ()
    fleet: Fleet | None = None

    @property
    def rate(self) -> float:
        """Images a second of the other drivers."""
        return sum(load.rate for load in self.others)

    @property
    def in_flight(self) -> int:
        """Queries of the other drivers that run on Lambda."""
        return sum(load.in_flight for load in self.others)

    @property
    def busy(self) -> frozenset[str]:
        """Instances that have yet to answer another driver something."""
        return frozenset(name for load in self.others for name in load.busy)


@dataclass(frozen=True)
class Requests:
    """Requests to the store a second: gets and existence checks, and puts."""

    reads: float
    writes: float


def requests_per_s(drivers: int) -> Requests:
    """Return what one of so many drivers of a pool sends the store: its board and its lease (for pricing)."""
    per_slot = 1.0 / SLOT_S
    followers = (drivers - 1) / drivers
    full_looks = (MOST_DRIVERS - drivers) / FULL_LOOK_EVERY
    reads = drivers + 2.0 + full_looks + per_slot * followers  # loads, the next place, the leader's word; a lost slot
    return Requests(reads, writes=1.0 + 1.0 / drivers + per_slot)


@dataclass
class Board:
    """One driver's access to the board under `prefix`; every method blocks, and raises what the store raises."""

    store: Store
    prefix: str
    driver: str
    _place: int | None = field(default=None, init=False)
    _taken: set[int] = field(default_factory=set, init=False)  # places, when it last looked
    _looks: int = field(default=0, init=False)

    def exchange(self, load: Load) -> View:
        """Read what the others told, and tell this driver's load; where all places are taken it is not told.

        In this order, since a driver that hung for long may find another one in its place, and then takes a new one.
        """
        view = self.look()
        self._tell(load)
        return view

    def _tell(self, load: Load) -> None:
        value = _encoded(load)
        if self._place is not None:
            self.store.put(self._key(self._place), value, TTL_S)
            return
        for place in range(MOST_DRIVERS):
            if place not in self._taken and self.store.put_new(self._key(place), value, TTL_S):
                self._place = place
                self._taken.add(place)
                return

    def look(self) -> View:
        """Read what the others and the leader told; invalid values are passed over."""
        full = self._looks % FULL_LOOK_EVERY == 0
        self._looks += 1
        return self._look(full=full)

    def _look(self, *, full: bool) -> View:
        self._note_taken(self._free_places(MOST_DRIVERS if full else max(self._taken, default=-1) + 2))
        places = sorted(self._taken)
        values = self._values([self._key(place) for place in places])
        self._taken = {place for place, value in zip(places, values, strict=True) if value is not None}
        loads = [_load(value) for value in values if value is not None]
        others = {load.driver: load for load in loads if load is not None and load.driver != self.driver}
        if self._place is not None and not any(load and load.driver == self.driver for load in loads):
            self._place = None  # it was gone for so long that another one may have it
        [told] = self._values([self._fleet_key])
        return View(tuple(others.values()), None if told is None else _fleet(told))

    def _free_places(self, below: int) -> list[int]:
        """Return the places that were free at the last look; the next driver takes the lowest of them."""
        return [place for place in range(min(below, MOST_DRIVERS)) if place not in self._taken]

    def _note_taken(self, places: Sequence[int]) -> None:
        """Ask whether these places are taken by now; if the highest one is, also for the one above it, and so on."""
        while places:
            found = self.store.exists([self._key(place) for place in places])
            self._taken.update(place for place, there in zip(places, found, strict=True) if there)
            above = places[-1] + 1
            places = [above] if found[-1] and above < MOST_DRIVERS and above not in self._taken else []

    def lead(self, fleet: Fleet) -> None:
        """Put the leader's word."""
        self.store.put(self._fleet_key, _encoded(fleet), _FLEET_TTL_S)

    def leave(self) -> bool:
        """Take this driver off, and say whether it was the last one, which takes the leader's word along.

        Of several that leave at once at least one is told so.
        """
        if self._place is not None:
            self.store.delete([self._key(self._place)])
            self._place = None
        last = not self._look(full=True).others
        if last:
            self.store.delete([self._fleet_key])
        return last

    def _values(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the keys' values, None for a key that has gone since the last look."""
        try:
            return [*self.store.get_many([Range(key) for key in keys])] if keys else []
        except MissingKeyError:
            return [self._value(key) for key in keys]

    def _value(self, key: str) -> bytes | None:
        try:
            return self.store.get(key)
        except MissingKeyError:
            return None

    def _key(self, place: int) -> str:
        return f"{self.prefix}:driver:{place}"

    @property
    def _fleet_key(self) -> str:
        return f"{self.prefix}:fleet"


_T = TypeVar("_T", Load, Fleet)


def _encoded(told: Load | Fleet) -> bytes:
    return json.dumps(unstructure(told)).encode()


def _decoded(kind: type[_T], value: bytes) -> _T | None:
    """Read what stood on the board, None where it is none of ours; the store is not believed blindly."""
    if len(value) > _MOST_BYTES:
        return None
    try:
        return structure(kind, json.loads(value), "board", lenient=True)
    except (ValueError, RecursionError, PlanError):
        return None


def _load(value: bytes) -> Load | None:
    load = _decoded(Load, value)
    if load is None or not (_words([load.driver, *load.busy]) and len(load.busy) <= MOST_MEMBERS):
        return None
    numbers = (load.rate, load.in_flight, load.paid_usd, load.hour_usd)
    return load if all(0 <= number <= _LARGEST for number in numbers) else None


def _fleet(value: bytes) -> Fleet | None:
    fleet = _decoded(Fleet, value)
    if fleet is None or len(fleet.members) > MOST_MEMBERS or not 0 <= fleet.wanted <= _LARGEST:
        return None
    urls = [member.url for member in fleet.members if member.url is not None]
    right = _words([fleet.leader, *(member.name for member in fleet.members)]) and all(map(_URL.fullmatch, urls))
    return fleet if right and len(fleet.reason) <= MOST_REASON else None


def _words(texts: Iterable[str]) -> bool:
    return all(map(_WORD.fullmatch, texts))
