"""What the drivers of a pool tell one another, in the store: each its load, and who leads, which instances serve.

    PREFIX:driver:N    a driver's load, N from 0: a place that it took and keeps for as long as it comes back
    PREFIX:fleet       the leader's word: the instances, how many are wanted, and why

Everything is renewed each second, has a time to live of a few, and is bounded and checked before it is believed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from serfer.core.errors import MissingKeyError, PlanError
from serfer.core.structure import structure, unstructure
from storage.store import Range, Store

MOST_DRIVERS: Final = 64
MOST_MEMBERS: Final = 256
TTL_S: Final = 5.0
"""How long a driver that says no more is reckoned with."""
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


@dataclass
class Board:
    """One driver's access to the board under `prefix`; every method blocks, and raises what the store raises."""

    store: Store
    prefix: str
    driver: str
    _place: int | None = field(default=None, init=False)

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
            if self.store.put_new(self._key(place), value, TTL_S):
                self._place = place
                return

    def look(self) -> View:
        """Read what the others and the leader told; what is none of ours is passed over."""
        keys = [self._key(place) for place in range(MOST_DRIVERS)]
        there = [key for key, found in zip(keys, self.store.exists(keys), strict=True) if found]
        loads = [_load(value) for value in self._values(there)]
        others = {load.driver: load for load in loads if load is not None and load.driver != self.driver}
        if self._place is not None and not any(load and load.driver == self.driver for load in loads):
            self._place = None  # it was gone for so long that another one may have it
        told = self._values([self._fleet_key])
        return View(tuple(others.values()), _fleet(told[0]) if told else None)

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
        last = not self.look().others
        if last:
            self.store.delete([self._fleet_key])
        return last

    def _values(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values that there are; one may go between two looks."""
        try:
            return self.store.get_many([Range(key) for key in keys]) if keys else []
        except MissingKeyError:
            found = []
            for key in keys:
                with contextlib.suppress(MissingKeyError):
                    found.append(self.store.get(key))
            return found

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
