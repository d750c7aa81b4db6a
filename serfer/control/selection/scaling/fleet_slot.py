"""The decisions of one slot for a fleet: copies are needed, placed, upgraded in place, asked for elsewhere, or go."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from serfer.control.selection.scaling.fleet_groups import NetworkGroup
from serfer.control.selection.scaling.fleet_records import FleetObservation, InstanceSeen, Key, PoolTerms
from serfer.control.selection.scaling.records import ScalingPlan
from serfer.control.selection.scaling.room import Room

_QUIET_S = 5.0  # without a query, after which a copy that was replaced goes: every driver has seen the new one


class Slot:
    """What is decided in one slot, as it is decided: see FleetScaler."""

    def __init__(
        self, seen: FleetObservation, pools: Mapping[str, PoolTerms], worth: Mapping[str, float], slack: float
    ) -> None:
        self.seen = seen
        self.worth = worth
        self.staying = Counter(instance.pool for instance in seen.instances if not instance.leaves)
        self.load: list[tuple[str, Key]] = []
        self.unload: list[tuple[str, Key]] = []
        self.elsewhere: Counter[str] = Counter()
        self.desired: Counter[Key] = Counter()
        self.reasons: dict[tuple[str, str, str], str] = {}
        self.room = Room(seen.instances)
        self._pools = pools
        self._slack = slack
        self._groups: list[NetworkGroup] = []

    def keep(self, group: NetworkGroup) -> None:
        """Count what a network's demand uses as needed, so that it keeps its room."""
        self._groups.append(group)
        for instance in self.seen.instances:
            key = group.counted(instance)
            if key is not None:
                self.room.need(instance, key)
                if not group.named:
                    self.desired[key] += 1

    def add(self, group: NetworkGroup, plan: ScalingPlan) -> None:
        """Place copies at instances; what has no place is an upgrade in place, if that is enough, or elsewhere."""
        missing: Counter[str] = Counter({name: count for name, count in plan.elsewhere.items() if count > 0})
        for name, count in plan.changes.items():
            for _ in range(max(0, count)):
                if not self._place(group, name):
                    missing[name] += 1
        short = sum(count * group.costs[name].qps for name, count in missing.items())
        note = plan.reason
        if missing:
            gained, upgraded = self._upgrade(group, plan.short_qps or short)
            note += f"; upgraded in place: {', '.join(upgraded)}" if upgraded else ""
            self._ask_elsewhere(group, missing, max(0.0, (plan.short_qps or short) - gained))
        self.reasons[group.key] = note

    def _ask_elsewhere(self, group: NetworkGroup, missing: Mapping[str, int], short_qps: float) -> None:
        """Ask for as many more instances as the missing copies still take; instances are shared, so the most counts."""
        for wished, count in missing.items():
            name = self._worth_more(group, wished)
            pool = group.pools[name]
            if self._pools[pool].fixed or short_qps <= 0:
                continue
            more = min(count, math.ceil(short_qps / group.costs[name].qps))
            self.elsewhere[pool] = max(self.elsewhere[pool], more)
            self.desired[group.application, name] += more

    def _worth_more(self, group: NetworkGroup, name: str) -> str:
        """Return a variant, or else the fastest one of a pool of which more instances are worth it than there are."""

        def open_(pool: str) -> bool:
            return self.worth[pool] > self.staying[pool] and not self._pools[pool].fixed

        if open_(group.pools[name]):
            return name
        others = [
            costs
            for costs in group.eligible
            if open_(group.pools[costs.name]) and costs.latency_ms <= group.demand.slo_ms
        ]
        return max(others, key=lambda costs: (costs.qps, costs.name)).name if others else name

    def _place(self, group: NetworkGroup, name: str) -> bool:
        key = group.application, name
        instance = self.room.best(key, group.pools[name], lambda other: group.counted(other) is None)
        if instance is None:
            return False
        self._load(instance, key)
        return True

    def _upgrade(self, group: NetworkGroup, short_qps: float) -> tuple[float, list[str]]:
        """Return the queries/s that are won; the slower variant goes later, once the faster one is loaded."""
        gained, names = 0.0, []
        for instance in self.seen.instances:
            key = group.counted(instance) if instance.serves else None
            if key is None or gained >= short_qps or instance.copies[key].status == "loading":
                continue
            now = group.costs[key[1]].qps
            faster = [
                costs
                for costs in group.eligible
                if costs.qps > now
                and costs.latency_ms <= group.demand.slo_ms
                and group.pools[costs.name] == instance.pool
                and self.room.fits(instance, (group.application, costs.name))
            ]
            if faster:
                best = max(faster, key=lambda costs: (costs.qps, costs.name))
                self._load(instance, (group.application, best.name))
                gained += best.qps - now
                names.append(best.name)
        return gained, names

    def _load(self, instance: InstanceSeen, key: Key) -> None:
        self.room.need(instance, key)
        self.desired[key] += 1
        if (instance.name, key) not in self.load:
            self.load.append((instance.name, key))

    def remove(self, group: NetworkGroup, plan: ScalingPlan) -> None:
        """Unload copies that a network's load no longer needs, where the others that are loaded support it."""
        self.reasons[group.key] = plan.reason
        for name, count in plan.changes.items():
            for _ in range(-count):
                if not self._remove(group, (group.application, name)):
                    self.reasons[group.key] = f"{group.demand.rate:g} queries/s are supported by what runs"

    def _remove(self, group: NetworkGroup, key: Key) -> bool:
        """Unload a copy at the instance that needs least else, the youngest of them."""
        having = [
            instance
            for instance in self.seen.instances
            if group.counted(instance) == key
            and instance.copies[key].status == "loaded"
            and not self._pools[instance.pool].fixed
            and (instance.name, key) not in self.unload
        ]
        if not having or not self._can_go(key):
            return False
        order = {instance.name: number for number, instance in enumerate(self.seen.instances)}
        leaves = min(having, key=lambda instance: (self.room.needed(instance), -order[instance.name]))
        self.unload.append((leaves.name, key))
        self.room.release(leaves, key)
        self.desired[key] -= 1
        return True

    def _can_go(self, key: Key) -> bool:
        for group in self._groups:
            if group.application != key[0] or key[1] not in group.costs or not group.demand.rate:
                continue
            loaded = 0.0
            for instance in self.seen.instances:
                counted = group.counted(instance)
                if counted is None or (instance.name, counted) in self.unload or instance.leaves:
                    continue
                if instance.copies[counted].status != "loaded":
                    return False
                loaded += group.costs[counted[1]].qps
            if loaded - group.costs[key[1]].qps < group.demand.rate * self._slack:
                return False
        return True

    def retire_replaced(self, group: NetworkGroup) -> None:
        """Unload copies beside a faster one of the same network that is loaded, once no query uses them any more."""
        if group.named:
            return
        for instance in self.seen.instances:
            key = group.counted(instance)
            if key is None or instance.copies[key].status != "loaded" or (instance.name, key) in self.unload:
                continue
            for other in sorted(group.every & instance.copies.keys() - {key}):
                copy = instance.copies[other]
                quiet = not copy.waiting and (copy.idle_s is None or copy.idle_s >= _QUIET_S)
                if copy.status == "loaded" and quiet and not self.room.is_needed(instance, other):
                    self.unload.append((instance.name, other))

    def is_idle(self, instance: InstanceSeen) -> bool:
        return not self.room.needed(instance) and not any(copy.waiting for copy in instance.copies.values())
