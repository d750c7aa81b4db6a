"""The leader's decision for each instance, from observations: no clock, no network.

booting ── ready ──> serving ── surplus ──> draining ── no query waits for it ──> stopped
   │                    └── not ready so often ──────────────────────────────────┘  and another one
   └── not ready for so long ─────────────────────────────────────────────────────┘   is started

A spot instance that its owner ends is leaving: it gets no more queries, and counts as one of those that are wanted
until it is gone, since plans replace it themselves (serfer/cost/fleet.py does the same).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from serfer.control.policy import InstanceState
from serfer.control.scenario import Market
from serfer.fleet.provisioners.provisioner import Member
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import FleetMember

_MOST_FAILURES = 5  # looks that an instance which served may fail in a row
_BOOTS, _BOOT_MARGIN_S = 3.0, 60.0  # what an instance with an address may take until it is ready
_UNKNOWN_BOOTS, _UNKNOWN_MARGIN_S = 10.0, 600.0  # and one that has no address yet
_LEAVE_S = 3.0  # until every driver has read that an instance gets no queries any more
_DRAIN_S = 120.0  # how long an answer is waited for
_AGAIN_S = 30.0  # between two requests to stop one
_STAYS_S = 10.0  # after one that it outlives: its owner keeps so many
_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0  # after a start that brought no instance, or one that ended while it booted


@dataclass
class _SeenInstance:
    """An instance: when it was first seen, whether it was ever ready, how often in a row it was not.

    `taken` says that it is a spot instance which its owner ends.
    """

    seen: float
    order: int
    was_ready: bool = False
    failures: int = 0
    leaves: float | None = None
    broken: bool = False
    taken: bool = False
    asked_to_stop: float = -math.inf


@dataclass(frozen=True)
class Actions:
    """The number of instances to start, those to stop, and the members to publish.

    `interrupted` counts spot instances that were lost since the last decision: taken away, or silent for good.
    """

    start: int
    stop: tuple[str, ...]
    listed: tuple[FleetMember, ...]
    interrupted: int = 0


@dataclass
class Reconciler:
    """Brings the instances of one type and market in line with how many are wanted.

    Each takes about `boot_s` seconds to boot.
    """

    boot_s: float
    purchase: Purchase
    _known: dict[str, _SeenInstance] = field(default_factory=dict)
    _count: int = 0
    _after_start: int | None = None
    _pause_s: float = 0.0
    _paused_until: float = -math.inf
    _interrupted: int = 0

    def adopt(self, members: Iterable[FleetMember], now: float) -> None:
        """Continue from what the previous leader published: which instances served, and which were to end."""
        for listed in members:
            known = self._known.setdefault(listed.name, self._new(now))
            known.was_ready = known.was_ready or listed.state != InstanceState.BOOTING
            if listed.state in (InstanceState.DRAINING, InstanceState.LEAVING) and known.leaves is None:
                known.leaves, known.taken = now, listed.state == InstanceState.LEAVING

    def decide(
        self,
        now: float,
        members: Sequence[Member],
        ready: Mapping[str, bool],
        wanted: int,
        busy: Collection[str],
        spare: Collection[str] = (),
    ) -> Actions:
        """Return what brings the instances to `wanted`.

        `ready` says which of the probed ones take queries; `busy` are those that owe some driver responses. Of those
        that serve the `spare` ones go first.
        """
        self._interrupted = 0
        self._look(now, members, ready)
        staying = [member.name for member in members if self._known[member.name].leaves is None]
        for name in self._surplus(staying, wanted, spare):
            self._known[name].leaves = now
        missing = wanted - len(staying)
        missing -= self._take_back(now, members, missing)
        missing -= sum(self._known[member.name].taken for member in members)
        start = self._allowed(now, missing, len(members))
        stop = tuple(member.name for member in members if self._may_stop(member.name, now, busy))
        for name in stop:
            self._known[name].asked_to_stop = now
        return Actions(start, stop, tuple(self._fleet_member(member) for member in members), self._interrupted)

    def _look(self, now: float, members: Sequence[Member], ready: Mapping[str, bool]) -> None:
        self._compare(now, [member.name for member in members])
        for member in members:
            known = self._known[member.name]
            if ready.get(member.name):
                known.failures, self._pause_s = 0, 0.0 if not known.was_ready else self._pause_s
                known.was_ready = True
            elif member.name in ready:
                known.failures += 1
            if known.leaves is None and (member.state == "draining" or self._is_broken(known, member, now)):
                self._note_end(known, now, ends=member.state == "draining")

    def _note_end(self, known: _SeenInstance, now: float, *, ends: bool) -> None:
        known.leaves, known.broken = now, not ends
        known.taken = ends and self._is_spot
        self._interrupted += known.broken and known.was_ready and self._is_spot

    @property
    def _is_spot(self) -> bool:
        return self.purchase.market is Market.SPOT

    def _compare(self, now: float, names: Sequence[str]) -> None:
        """Forget those that are gone; where more ended while they booted than came, pause starts."""
        gone = [self._known.pop(name) for name in self._known.keys() - set(names)]
        new = [name for name in names if name not in self._known]
        ended = sum(known.leaves is None and not known.was_ready for known in gone)
        if ended > len(new):
            self._pause(now)
        if self._is_spot:
            self._interrupted += sum(known.taken or (known.leaves is None and known.was_ready) for known in gone)
        for name in new:
            self._known[name] = self._new(now)

    def _pause(self, now: float) -> None:
        self._pause_s = min(max(_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        self._paused_until = now + self._pause_s

    def _is_broken(self, known: _SeenInstance, member: Member, now: float) -> bool:
        if known.was_ready:
            return known.failures >= _MOST_FAILURES
        allowed_s = _BOOTS * self.boot_s + _BOOT_MARGIN_S
        if member.url is None:
            allowed_s = _UNKNOWN_BOOTS * self.boot_s + _UNKNOWN_MARGIN_S
        return now - known.seen > allowed_s

    def _surplus(self, staying: Sequence[str], wanted: int, spare: Collection[str]) -> list[str]:
        """Return which of those that stay are too many: what does not serve yet, spare ones, the youngest, in turn."""
        known = self._known
        order = sorted(staying, key=lambda name: (known[name].was_ready, name not in spare, -known[name].order))
        return order[: max(0, len(staying) - wanted)]

    def _take_back(self, now: float, members: Sequence[Member], missing: int) -> int:
        """Keep members that were to leave and have not ended: that is cheaper than a start."""
        back = [
            known
            for member in members
            if (known := self._known[member.name]).leaves is not None
            and not (known.broken or member.state == "draining" or now - known.asked_to_stop < _STAYS_S)
        ]
        taken = sorted(back, key=lambda known: (not known.was_ready, known.order))[: max(0, missing)]
        for known in taken:
            known.leaves, known.asked_to_stop = None, -math.inf
        return len(taken)

    def _allowed(self, now: float, missing: int, there: int) -> int:
        """Return how many to start now: after a start that brought nothing, only after a pause that grows."""
        if self._after_start is not None and there <= self._after_start:
            self._pause(now)
        self._after_start = None
        if missing <= 0 or now < self._paused_until:
            return 0
        self._after_start = there
        return missing

    def _may_stop(self, name: str, now: float, busy: Collection[str]) -> bool:
        known = self._known[name]
        if known.leaves is None or known.taken or now - known.asked_to_stop < _AGAIN_S:
            return False
        left_s = now - known.leaves
        idle = name not in busy and left_s >= _LEAVE_S
        return known.broken or not known.was_ready or idle or left_s > _DRAIN_S

    def _fleet_member(self, member: Member) -> FleetMember:
        bought = self.purchase
        return FleetMember(member.name, member.url, self._state(member.name), bought.kind, bought.market)

    def _state(self, name: str) -> InstanceState:
        known = self._known[name]
        if known.leaves is not None:
            return InstanceState.LEAVING if known.taken else InstanceState.DRAINING
        return InstanceState.SERVING if known.was_ready else InstanceState.BOOTING

    def _new(self, now: float) -> _SeenInstance:
        self._count += 1
        return _SeenInstance(now, self._count)
