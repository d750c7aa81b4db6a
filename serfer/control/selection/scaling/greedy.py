"""INFaaS' greedy heuristic in place of the integer programme (4.2.2): one kind of action at a time, in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from serfer.control.selection.scaling.records import (
    OPTIONS,
    InstanceCosts,
    LoadObservation,
    ScalingOptions,
    ScalingPlan,
    action_cost,
    capacity,
    changed,
    has_room,
)


@dataclass(frozen=True, slots=True, order=True)
class _Action:
    """A strategy: its cost, and what it changes; actions of one cost are ordered by their words."""

    cost: float
    reason: str
    changes: tuple[tuple[str, int], ...]


class GreedyScaler:
    """Replicates or upgrades when headroom is short, and removes or downgrades what was not needed for T_v slots."""

    def __init__(self, variants: Sequence[InstanceCosts], options: ScalingOptions = OPTIONS) -> None:
        self._variants = tuple(variants)
        self._by_name = {variant.name: variant for variant in variants}
        self._options = options
        self._waited: dict[str, int] = {}

    def observe(self, seen: LoadObservation) -> ScalingPlan:
        """Return what to load or unload now: more where headroom is too small, or all that runs is overloaded.

        An overloaded variant may have headroom by its profile, where queries come unevenly: then the slack is missing.
        """
        wanted = seen.rate * self._options.slack_threshold
        missing = wanted - capacity(self._variants, seen.running)
        running = {name for name, count in seen.running.items() if count}
        if running and running <= seen.overloaded:
            missing = max(missing, wanted - seen.rate)
        if missing > 0:
            self._waited.clear()
            return self._up(seen, missing)
        return self._down(seen)

    def _up(self, seen: LoadObservation, missing_qps: float) -> ScalingPlan:
        """Return the cheapest of replicating and upgrading that fits, else as much as fits, and the rest elsewhere."""
        actions = sorted(self._ups(seen, missing_qps))
        for action in actions:
            if self._fits(seen, dict(action.changes)):
                return ScalingPlan(dict(action.changes), action.reason)
        if not actions:
            return ScalingPlan({}, "no variant meets the SLO", short_qps=missing_qps)
        parts = [self._part(seen, action, missing_qps) for action in actions]
        return min(parts, key=lambda part: part.short_qps)  # the first of the least: the cheapest of them

    def _part(self, seen: LoadObservation, action: _Action, missing_qps: float) -> ScalingPlan:
        """Return as much of an action as there is room for; the rest is for another worker (constraint 3)."""
        [(name, count)] = action.changes
        room = next(fit for fit in range(count - 1, -1, -1) if not fit or self._fits(seen, {name: fit}))
        here = {name: room} if room else {}
        short = missing_qps - room * self._by_name[name].qps
        return ScalingPlan(here, f"{action.reason}, {count - room} of them elsewhere", {name: count - room}, short)

    def _ups(self, seen: LoadObservation, missing_qps: float) -> Iterator[_Action]:
        running = [self._by_name[name] for name, count in seen.running.items() if count and name in self._by_name]
        for variant in self._variants:
            if variant.latency_ms > seen.slo_ms:
                continue
            is_faster = any(variant.network == other.network and variant.qps > other.qps for other in running)
            if running and variant not in running and not is_faster:
                continue
            count = math.ceil(missing_qps / variant.qps)
            word = "replicate" if variant in running else "upgrade to" if running else "start"
            cost = action_cost(variant, count, self._options)
            yield _Action(cost, f"{word} {count} x {variant.name}", ((variant.name, count),))

    def _down(self, seen: LoadObservation) -> ScalingPlan:
        """Return the most saving action whose variant has waited for T_v slots, its loading time."""
        best = {name: min(actions) for name, actions in self._downs(seen).items() if actions}
        self._waited = {name: self._waited.get(name, 0) + 1 for name in best}
        due = [action for name, action in best.items() if self._waited[name] > self._slots(name)]
        if not due:
            return ScalingPlan({}, f"{seen.rate:g} queries/s are supported by what runs")
        self._waited.clear()
        action = min(due)
        return ScalingPlan(dict(action.changes), action.reason)

    def _downs(self, seen: LoadObservation) -> dict[str, list[_Action]]:
        wanted = seen.rate * self._options.slack_threshold
        supported = capacity(self._variants, seen.running)
        downs: dict[str, list[_Action]] = {}
        for name in sorted(name for name, count in seen.running.items() if count and name in self._by_name):
            variant = self._by_name[name]
            missing = wanted - (supported - variant.qps)
            saved = action_cost(variant, -1, self._options)
            if missing <= 0:
                downs[name] = [_Action(saved, f"remove 1 x {name}", ((name, -1),))]
                continue
            downs[name] = [
                action
                for other in self._variants
                if (action := self._downgrade(seen, variant, other, missing)) is not None
            ]
        return downs

    def _downgrade(
        self, seen: LoadObservation, variant: InstanceCosts, other: InstanceCosts, missing: float
    ) -> _Action | None:
        if other is variant or other.network != variant.network or other.latency_ms > seen.slo_ms:
            return None
        count = math.ceil(missing / other.qps)
        cost = action_cost(variant, -1, self._options) + action_cost(other, count, self._options)
        changes = ((variant.name, -1), (other.name, count))
        if cost >= 0 or not self._fits(seen, dict(changes)):
            return None
        return _Action(cost, f"downgrade 1 x {variant.name} to {count} x {other.name}", changes)

    def _fits(self, seen: LoadObservation, changes: Mapping[str, int]) -> bool:
        return has_room(self._variants, changed(seen.running, changes), seen.available)

    def _slots(self, name: str) -> int:
        return math.ceil(self._by_name[name].load_s / self._options.slot_s)
