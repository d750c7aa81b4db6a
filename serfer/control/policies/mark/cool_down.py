"""The plans of the last minutes: an instance is kept for a cool-down after the last plan that wanted it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from serfer.control.policies.mark.schedule import Key
from serfer.control.scenario import Market, Scenario
from serfer.control.snapshots import MOST_COUNTED, SavedFields, Snapshot

_MAX_PLANS: Final = 10_000  # in a snapshot
_MAX_KINDS: Final = 64  # types and markets in one of them


class CoolDown:
    """Keeps what was planned in the last `seconds`, and at least the last plan."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._plans: deque[tuple[float, Counter[Key]]] = deque()  # (when, instances)
        self._union: Counter[Key] | None = None  # of those

    def add(self, now: float, plan: Counter[Key]) -> None:
        """Add a plan; `now` never goes back."""
        self._plans.append((now, plan))
        self._union = None

    def kept(self, now: float) -> Counter[Key]:
        """Return the most instances of each type and market that a kept plan wants."""
        while len(self._plans) > 1 and self._plans[0][0] <= now - self._seconds:
            self._plans.popleft()
            self._union = None
        if self._union is None:
            self._union = Counter[Key]()
            for _, plan in self._plans:
                self._union |= plan
        return self._union

    def snapshot(self) -> list[Snapshot]:
        """Return the plans, oldest first, as plain JSON values."""
        return [{"at": when, "instances": _listed(plan.items())} for when, plan in self._plans]

    def restore(self, saved: SavedFields, key: str, scenario: Scenario, now: float) -> None:
        """Go on from a snapshot, which is a field of `saved`; raises InputError for what is not one."""
        kinds = {kind.name for kind in scenario.instances}
        for one in saved.parts(key, saved.length(key, _MAX_PLANS)):
            plan = Counter[Key]()
            for group in one.parts("instances", one.length("instances", _MAX_KINDS)):
                place = group.choice("kind", kinds), Market(group.choice("market", {*Market}))
                plan[place] = group.whole("count", 1, MOST_COUNTED)
            least = self._plans[-1][0] if self._plans else 0.0
            self.add(one.number("at", least, now), plan)


def _listed(plan: Iterable[tuple[Key, int]]) -> list[Snapshot]:
    return [{"kind": kind, "market": market.value, "count": count} for (kind, market), count in plan if count]
