"""Case II for a whole fleet (INFaaS, 4.2): which variants instances load and unload, and how many instances there are.

    demand of an application's network ──GreedyScaler──► copies more or fewer ──► placed at instances, or
                                                                                  upgraded in place, or elsewhere
    functions' dollars ──InstanceWorth──► instances worth their price ──┐
    copies elsewhere, triggers (plan_workers), idle instances ──────────┴──► instances wanted, within bounds

Networks of an instance take turns on its device, so of an application's network one copy at each instance counts: the
fastest that is good enough. Another one beside it is what an upgrade has replaced, and goes once the new one is loaded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from serfer.control.selection.scaling.fleet_groups import NetworkGroup, groups_of, home
from serfer.control.selection.scaling.fleet_records import FleetObservation, FleetPlan, InstanceSeen, Key, PoolTerms
from serfer.control.selection.scaling.greedy import GreedyScaler
from serfer.control.selection.scaling.records import (
    OPTIONS,
    InstanceCosts,
    LoadObservation,
    ScalingOptions,
    ScalingPlan,
)
from serfer.control.selection.scaling.room import Room
from serfer.control.selection.scaling.workers import WorkerObservation, plan_workers
from serfer.control.selection.scaling.worth import Demanded, InstanceWorth, affordable

_QUIET_S = 3.0  # without a query, after which a copy that was replaced goes: every driver has seen the new one
_LEAST_IDLE_S = 10.0
_HELD_S = 60.0  # after all copies were busy, in which none goes
_FORGOTTEN_S = 300.0  # in which what was seen of a saturated copy loses all but 1/e of its weight
_LEAST_SPEED = 0.05  # of the profile
_MOST_REASON = 300
_ANY = "instances"  # what reasons call those for all types


class FleetScaler:
    """Decides once a slot for all applications of a fleet; deterministic: it keeps nothing but how long things last.

    Never are more instances wanted than a pool may have or the ceiling of dollars allows, and no copy is unloaded that
    the demand needs among those that are loaded.
    """

    def __init__(self, pools: Mapping[str, PoolTerms], options: ScalingOptions = OPTIONS) -> None:
        self._pools = pools
        self._options = options
        self._worth = {name: InstanceWorth(terms.boot_s) for name, terms in pools.items() if not terms.fixed}
        self._scalers: dict[tuple[str, str, str], tuple[tuple[InstanceCosts, ...], GreedyScaler]] = {}
        self._idle_since: dict[str, float] = {}
        self._speed: dict[tuple[str, str, str], float] = {}
        self._held: dict[tuple[str, str, str], float] = {}
        self._resumed = False

    def observe(self, seen: FleetObservation) -> FleetPlan:
        """Learn from a slot, and decide."""
        self._resume(seen)
        every = self._at_their_speed(seen, groups_of(seen, self._pools))
        worth = self._worths(seen, every)
        slot = _Slot(seen, self._pools, worth, self._options.slack_threshold)
        groups = [self._gated(group, slot) for group in every]
        for group in groups:
            slot.keep(group)
        for group in groups:
            self._scale(slot, group)
        for group in groups:
            slot.retire_replaced(group)
        self._scalers = {group.key: self._scalers[group.key] for group in groups}
        self._held = {group.key: until for group in groups if (until := self._held.get(group.key, 0.0)) > seen.now_s}
        return self._planned(slot, worth, groups)

    def _resume(self, seen: FleetObservation) -> None:
        """Take the instances that are there at the first look for worth their price: an earlier leader found that."""
        if self._resumed:
            return
        self._resumed = True
        for pool, count in Counter(one.pool for one in seen.instances if not one.leaves).items():
            if pool in self._worth:
                self._worth[pool].resume(count)

    def _at_their_speed(self, seen: FleetObservation, groups: list[NetworkGroup]) -> list[NetworkGroup]:
        """Count a demand as what saturated copies answer by their profile, and half a copy more, where it is less.

        Others may share their device. What was seen counts less and less: what no longer holds is tried again.
        """
        found, speeds = [], {}
        for group in groups:
            before = self._speed.get(group.key, 1.0)
            speed = before + (1.0 - before) * min(1.0, seen.elapsed_s / _FORGOTTEN_S)
            if (saturated := group.saturated_qps(seen.instances)) > 0:
                speed = min(speed, max(_LEAST_SPEED, group.demand.rate / saturated))
            speeds[group.key] = speed
            demand = group.demand
            at_speed = replace(demand, rate=demand.rate / speed, stranded=demand.stranded / speed)
            found.append(replace(group, demand=at_speed))
        self._speed = speeds
        return found

    def _worths(self, seen: FleetObservation, groups: list[NetworkGroup]) -> dict[str, float]:
        """Return how many instances of each pool are worth their price; of fixed ones all."""
        demanded = {pool: Demanded() for pool in self._worth}
        for group in groups:
            best = home(group, self._worth, seen.prices)
            if best is not None and not group.named:
                demand = group.demand
                demanded[group.pools[best.name]].add(demand.rate, demand.stranded, demand.functions_usd, best.qps)
        for pool, worth in self._worth.items():
            worth.observe(seen.elapsed_s, seen.prices.get(pool, 0.0), demanded[pool])
        return {pool: math.inf if terms.fixed else self._worth[pool].count for pool, terms in self._pools.items()}

    def _gated(self, group: NetworkGroup, slot: _Slot) -> NetworkGroup:
        """Leave the pools out that have no instance and are not worth one; where none is worth it, functions answer."""
        pools = {group.pools[each.name] for each in group.eligible}
        if not any(slot.worth[pool] > 0 for pool in pools):
            return replace(group, demand=replace(group.demand, rate=0.0), declined=group.demand.rate > 0)
        usable = {pool for pool in pools if slot.worth[pool] > 0 or slot.staying[pool]}
        return replace(group, eligible=tuple(each for each in group.eligible if group.pools[each.name] in usable))

    def _scale(self, slot: _Slot, group: NetworkGroup) -> None:
        """Have the heuristic decide on one network's copies, and take its actions down."""
        eligible, scaler = self._scalers.get(group.key, ((), None))
        if scaler is None or eligible != group.eligible:
            scaler = GreedyScaler(group.eligible, self._options)
        self._scalers[group.key] = group.eligible, scaler
        load = slot.observation(group)
        fastest = max((each.qps for each in group.eligible), default=0.0)
        most = fastest * (1 + sum(terms.most for terms in self._pools.values()))
        plan = scaler.observe(replace(load, rate=min(load.rate, most)))  # more than all could take is all the same
        if load.overloaded and load.overloaded >= load.running.keys():
            self._held[group.key] = slot.seen.now_s + _HELD_S
        if any(count > 0 for count in [*plan.changes.values(), *plan.elsewhere.values()]):
            slot.add(group, plan)
        elif slot.seen.now_s >= self._held.get(group.key, 0.0):
            slot.remove(group, plan)

    def _planned(self, slot: _Slot, worth: Mapping[str, float], groups: list[NetworkGroup]) -> FleetPlan:
        seen, wanted = slot.seen, {}
        spare = self._spare(slot, worth)
        reasons = _reasons(slot, groups)
        triggers = _triggers(slot)
        most = {pool: terms.most for pool, terms in self._pools.items()}
        for pool, terms in self._pools.items():
            if terms.fixed:
                continue
            staying = [one for one in seen.instances if one.pool == pool and not one.leaves]
            serving, least = (
                sum(one.serves for one in staying),
                len(staying) - sum(one.name in spare for one in staying),
            )
            more = slot.elsewhere[pool]
            count = max(least, serving + more) if more else least
            if pool in triggers and not more:
                count += 1
                reasons = {name: f"{text}; {triggers[pool]}" for name, text in reasons.items()}
            wanted[pool] = max(least, min(count, int(worth[pool])))
            if wanted[pool] < count:
                bound = f"{worth[pool]:g} instances are worth their price"
                reasons = {name: f"{text}; {bound}" for name, text in reasons.items()}
        return FleetPlan(
            tuple(slot.load),
            tuple(slot.unload),
            affordable(wanted, most, seen.prices, seen.max_usd_per_hour),
            spare,
            dict(slot.desired),
            {application: text[:_MOST_REASON] for application, text in reasons.items()},
        )

    def _spare(self, slot: _Slot, worth: Mapping[str, float]) -> frozenset[str]:
        """Return the instances that nothing needs: for as long as a start takes, or beyond what is worth the price.

        To keep an idle instance for that long costs as much as to start it again: the rule of ski rental.
        """
        now, staying = slot.seen.now_s, Counter(slot.staying)
        idle = [one for one in slot.seen.instances if one.serves and slot.is_idle(one)]
        self._idle_since = {one.name: self._idle_since.get(one.name, now) for one in idle}
        spare = set()
        for one in reversed(idle):  # the youngest first
            terms = self._pools[one.pool]
            waited = now - self._idle_since[one.name] >= max(_LEAST_IDLE_S, terms.boot_s)
            if not terms.fixed and not slot.elsewhere[one.pool] and (waited or staying[one.pool] > worth[one.pool]):
                spare.add(one.name)
                staying[one.pool] -= 1
        return frozenset(spare)


class _Slot:
    """What is decided in one slot, as it is decided."""

    def __init__(
        self, seen: FleetObservation, pools: Mapping[str, PoolTerms], worth: Mapping[str, float], slack: float
    ) -> None:
        self.seen = seen
        self.worth = worth
        self.staying = Counter(one.pool for one in seen.instances if not one.leaves)
        self.load: list[tuple[str, Key]] = []
        self.unload: list[tuple[str, Key]] = []
        self.elsewhere: Counter[str] = Counter()
        self.desired: Counter[Key] = Counter()
        self.reasons: dict[tuple[str, str, str], str] = {}
        self._pools = pools
        self._slack = slack
        self._room = Room(seen.instances)
        self._groups: list[NetworkGroup] = []

    def keep(self, group: NetworkGroup) -> None:
        """Count what a network's demand uses as needed, so that it keeps its room."""
        self._groups.append(group)
        for one in self.seen.instances:
            key = group.counted(one)
            if key is not None:
                self._room.need(one, key)
                if not group.named:
                    self.desired[key] += 1

    def observation(self, group: NetworkGroup) -> LoadObservation:
        """Return what the heuristic sees of a network: one copy at an instance, and instances that have room."""
        return group.observation(self.seen.instances, self._room)

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
            each for each in group.eligible if open_(group.pools[each.name]) and each.latency_ms <= group.demand.slo_ms
        ]
        return max(others, key=lambda each: (each.qps, each.name)).name if others else name

    def _place(self, group: NetworkGroup, name: str) -> bool:
        """Load a copy at the least used instance with room and none of the network; returns whether there is one."""
        key = group.application, name
        one = self._room.best(key, group.pools[name], lambda other: group.counted(other) is None)
        if one is None:
            return False
        self._load(one, key)
        return True

    def _upgrade(self, group: NetworkGroup, short_qps: float) -> tuple[float, list[str]]:
        """Load faster variants beside what instances have of a network, for no more instances; returns queries/s won.

        The slower one goes later, once the faster one is loaded.
        """
        gained, names = 0.0, []
        for one in self.seen.instances:
            key = group.counted(one) if one.serves else None
            if key is None or gained >= short_qps or one.copies[key].status == "loading":
                continue
            now = group.costs[key[1]].qps
            faster = [
                each
                for each in group.eligible
                if each.qps > now
                and each.latency_ms <= group.demand.slo_ms
                and group.pools[each.name] == one.pool
                and self._room.fits(one, (group.application, each.name))
            ]
            if faster:
                best = max(faster, key=lambda each: (each.qps, each.name))
                self._load(one, (group.application, best.name))
                gained += best.qps - now
                names.append(best.name)
        return gained, names

    def _load(self, one: InstanceSeen, key: Key) -> None:
        self._room.need(one, key)
        self.desired[key] += 1
        if (one.name, key) not in self.load:
            self.load.append((one.name, key))

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
            one
            for one in self.seen.instances
            if group.counted(one) == key
            and one.copies[key].status == "loaded"
            and not self._pools[one.pool].fixed
            and (one.name, key) not in self.unload
        ]
        if not having or not self._can_go(key):
            return False
        order = {one.name: number for number, one in enumerate(self.seen.instances)}
        one = min(having, key=lambda each: (self._room.needed(each), -order[each.name]))
        self.unload.append((one.name, key))
        self._room.release(one, key)
        self.desired[key] -= 1
        return True

    def _can_go(self, key: Key) -> bool:
        """Whether every demand that a copy counts for is supported without it by what is loaded."""
        for group in self._groups:
            if group.application != key[0] or key[1] not in group.costs or not group.demand.rate:
                continue
            loaded = 0.0
            for one in self.seen.instances:
                counted = group.counted(one)
                if counted is None or (one.name, counted) in self.unload or one.leaves:
                    continue
                if one.copies[counted].status != "loaded":
                    return False
                loaded += group.costs[counted[1]].qps
            if loaded - group.costs[key[1]].qps < group.demand.rate * self._slack:
                return False
        return True

    def retire_replaced(self, group: NetworkGroup) -> None:
        """Unload copies beside a faster one of the same network that is loaded, once no query uses them any more."""
        if group.named:
            return
        for one in self.seen.instances:
            key = group.counted(one)
            if key is None or one.copies[key].status != "loaded" or (one.name, key) in self.unload:
                continue
            for other, copy in one.copies.items():
                replaced = other != key and other in group.every and copy.status == "loaded"
                quiet = not copy.waiting and (copy.idle_s is None or copy.idle_s >= _QUIET_S)
                if replaced and quiet and not self._room.is_needed(one, other):
                    self.unload.append((one.name, other))

    def is_idle(self, one: InstanceSeen) -> bool:
        """Whether an instance has nothing that is needed, and nothing to do."""
        return not self._room.needed(one) and not any(copy.waiting for copy in one.copies.values())

    def used_mb(self, one: InstanceSeen) -> float:
        """Return the megabytes of what is needed at an instance."""
        return self._room.used_mb(one)


def _triggers(slot: _Slot) -> Mapping[str, str]:
    """Return the pools to which INFaaS' triggers add an instance; none while one has nothing to do, or boots."""
    workers, free = [], set()
    for one in slot.seen.instances:
        if one.leaves:
            continue
        if one.serves and slot.is_idle(one):
            free.add(one.pool)
        utilisation = {"the device": one.utilisation}
        if one.memory_mb:
            utilisation["memory"] = slot.used_mb(one) / one.memory_mb
        states = {f"{key[0]} {key[1]}": copy.state for key, copy in one.copies.items() if copy.status == "loaded"}
        workers.append(WorkerObservation(one.name, one.pool or _ANY, utilisation, states, boots=one.boots))
    added = {"" if kind == _ANY else kind: why for kind, why in plan_workers(workers).add.items()}
    return {pool: why for pool, why in added.items() if pool not in free}


def _reasons(slot: _Slot, groups: list[NetworkGroup]) -> dict[str, str]:
    """Return the reasons of each application's networks in one line."""
    reasons: dict[str, list[str]] = {}
    for group in groups:
        said = slot.reasons.get(group.key, "")
        if group.declined:
            said = "functions answer for less than an instance costs"
        if said and not group.named:
            reasons.setdefault(group.application, []).append(f"{group.demand.network}: {said}")
    return {application: "; ".join(lines) for application, lines in reasons.items()}
