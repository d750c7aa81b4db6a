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

from serfer.control.selection.scaling.demand import NetworkDemand, total
from serfer.control.selection.scaling.fleet_groups import NetworkGroup, groups_of, home
from serfer.control.selection.scaling.fleet_records import FleetObservation, FleetPlan, PoolTerms
from serfer.control.selection.scaling.fleet_slot import Slot
from serfer.control.selection.scaling.greedy import GreedyScaler
from serfer.control.selection.scaling.records import OPTIONS, InstanceCosts
from serfer.control.selection.scaling.workers import WorkerObservation, plan_workers
from serfer.control.selection.scaling.worth import InstanceWorth, PoolDemand, affordable

_LEAST_IDLE_S = 10.0
_HELD_S = 60.0  # after all copies were busy, in which none goes while there is demand
_FORGOTTEN_S = 300.0  # in which what was seen of a saturated copy loses all but 1/e of its weight
_KEPT_S = 120.0  # after the last query that only instances can answer, in which one instance stays for the next
_TRICKLE_QPS = 0.1  # that such queries count as until then: one instance, whatever they were
_LEAST_SPEED = 0.05  # of the profile
_MOST_REASON = 300
_ANY = "instances"  # what reasons call those for all types


class FleetScaler:
    """Decides once a slot for all applications of a fleet; deterministic: it keeps nothing but how long things last.

    Never are more instances wanted than a pool may have or the ceiling of dollars allows, and no copy is unloaded that
    the demand needs among those that are loaded.
    """

    def __init__(self, pools: Mapping[str, PoolTerms]) -> None:
        self._pools = pools
        self._worth = {name: InstanceWorth(terms.boot_s) for name, terms in pools.items() if not terms.fixed}
        self._scalers: dict[tuple[str, str, str], tuple[tuple[InstanceCosts, ...], GreedyScaler]] = {}
        self._idle_since: dict[str, float] = {}
        self._speed: dict[tuple[str, str, str], float] = {}
        self._held: dict[tuple[str, str, str], float] = {}
        self._stranded: dict[tuple[str, tuple[str, str]], tuple[NetworkDemand, float]] = {}
        self._kept_s = max([_KEPT_S, *(2 * terms.boot_s for terms in pools.values() if not terms.fixed)])
        self._resumed = False

    def observe(self, seen: FleetObservation) -> FleetPlan:
        self._resume(seen)
        seen = replace(seen, demand=self._lasting(seen))
        every = self._at_their_speed(seen, groups_of(seen, self._pools))
        worth = self._worths(seen, every)
        slot = Slot(seen, self._pools, worth, OPTIONS.slack_threshold)
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
        for pool, count in Counter(instance.pool for instance in seen.instances if not instance.leaves).items():
            if pool in self._worth:
                self._worth[pool].resume(count)

    def _lasting(self, seen: FleetObservation) -> dict[str, dict[tuple[str, str], NetworkDemand]]:
        """Queries that come rarely, or while an instance starts, would otherwise start and stop one each time."""
        for application, of in seen.demand.items():
            for key, asked in of.items():
                if asked.stranded > 0:
                    self._stranded[application, key] = asked, seen.now_s + self._kept_s
        self._stranded = {key: kept for key, kept in self._stranded.items() if kept[1] > seen.now_s}
        found = {}
        for application, of in seen.demand.items():
            lasting = [
                replace(asked, rate=little, stranded=little, functions_usd=0.0)
                for (name, key), (asked, _) in self._stranded.items()
                if name == application and not (key in of and of[key].stranded > 0)
                for little in (min(asked.stranded, _TRICKLE_QPS),)
            ]
            found[application] = total([of.values(), lasting])
        return found

    def _at_their_speed(self, seen: FleetObservation, groups: list[NetworkGroup]) -> list[NetworkGroup]:
        """Others may share their device. What was seen counts less and less: what no longer holds is tried again."""
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
        demanded = {pool: PoolDemand() for pool in self._worth}
        for group in groups:
            best = home(group, self._worth, seen.prices)
            if best is not None and not group.named:
                demand = group.demand
                demanded[group.pools[best.name]].add(demand.rate, demand.stranded, demand.functions_usd, best.qps)
        for pool, worth in self._worth.items():
            worth.observe(seen.elapsed_s, seen.prices.get(pool, 0.0), demanded[pool])
        return {pool: math.inf if terms.fixed else self._worth[pool].count for pool, terms in self._pools.items()}

    def _gated(self, group: NetworkGroup, slot: Slot) -> NetworkGroup:
        """Leave the pools out that have no instance and are not worth one; where none is worth it, functions answer."""
        pools = {group.pools[costs.name] for costs in group.eligible}
        if not any(slot.worth[pool] > 0 for pool in pools):
            return replace(group, demand=replace(group.demand, rate=0.0), declined=group.demand.rate > 0)
        usable = {pool for pool in pools if slot.worth[pool] > 0 or slot.staying[pool]}
        return replace(group, eligible=tuple(costs for costs in group.eligible if group.pools[costs.name] in usable))

    def _scale(self, slot: Slot, group: NetworkGroup) -> None:
        eligible, scaler = self._scalers.get(group.key, ((), None))
        if scaler is None or eligible != group.eligible:
            scaler = GreedyScaler(group.eligible)
        self._scalers[group.key] = group.eligible, scaler
        load = group.observation(slot.seen.instances, slot.room)
        fastest = max((costs.qps for costs in group.eligible), default=0.0)
        most = fastest * (1 + sum(terms.most for terms in self._pools.values()))
        plan = scaler.observe(replace(load, rate=min(load.rate, most)))  # more than all could take is all the same
        if load.overloaded and load.overloaded >= load.running.keys():
            self._held[group.key] = slot.seen.now_s + _HELD_S
        if any(count > 0 for count in [*plan.changes.values(), *plan.elsewhere.values()]):
            slot.add(group, plan)
        elif not group.demand.rate or slot.seen.now_s >= self._held.get(group.key, 0.0):
            slot.remove(group, plan)

    def _planned(self, slot: Slot, worth: Mapping[str, float], groups: list[NetworkGroup]) -> FleetPlan:
        seen, wanted = slot.seen, {}
        spare = self._spare(slot, worth)
        reasons = _reasons(slot, groups)
        triggers = _triggers(slot)
        most = {pool: terms.most for pool, terms in self._pools.items()}
        for pool, terms in self._pools.items():
            if terms.fixed:
                continue
            staying = [instance for instance in seen.instances if instance.pool == pool and not instance.leaves]
            least, more = sum(instance.name not in spare for instance in staying), slot.elsewhere[pool]
            count = max(least, more + sum(instance.serves for instance in staying)) if more else least
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

    def _spare(self, slot: Slot, worth: Mapping[str, float]) -> frozenset[str]:
        """Keeping an idle instance for as long as a start takes costs as much as the start: the rule of ski rental."""
        now, staying = slot.seen.now_s, Counter(slot.staying)
        idle = [instance for instance in slot.seen.instances if instance.serves and slot.is_idle(instance)]
        self._idle_since = {instance.name: self._idle_since.get(instance.name, now) for instance in idle}
        spare = set()
        for instance in reversed(idle):  # the youngest first
            pool, terms = instance.pool, self._pools[instance.pool]
            waited = now - self._idle_since[instance.name] >= max(_LEAST_IDLE_S, terms.boot_s)
            if not terms.fixed and not slot.elsewhere[pool] and (waited or staying[pool] > worth[pool]):
                spare.add(instance.name)
                staying[pool] -= 1
        return frozenset(spare)


def _triggers(slot: Slot) -> Mapping[str, str]:
    """Return the pools to which INFaaS' triggers add an instance; none while one has nothing to do, or boots."""
    workers, free = [], set()
    for instance in slot.seen.instances:
        if instance.leaves:
            continue
        if instance.serves and slot.is_idle(instance):
            free.add(instance.pool)
        utilisation = {"the device": instance.utilisation}
        if instance.memory_mb:
            utilisation["memory"] = slot.room.used_mb(instance) / instance.memory_mb
        states = {f"{key[0]} {key[1]}": copy.state for key, copy in instance.copies.items() if copy.status == "loaded"}
        workers.append(
            WorkerObservation(instance.name, instance.pool or _ANY, utilisation, states, boots=instance.boots)
        )
    added = {"" if kind == _ANY else kind: why for kind, why in plan_workers(workers).items()}
    return {pool: why for pool, why in added.items() if pool not in free}


def _reasons(slot: Slot, groups: list[NetworkGroup]) -> dict[str, str]:
    reasons: dict[str, list[str]] = {}
    for group in groups:
        said = slot.reasons.get(group.key, "")
        if group.declined:
            said = "functions answer for less than an instance costs"
        if said and not group.named:
            network = group.demand.network  # often the only one, of the application's name
            reasons.setdefault(group.application, []).append(
                said if network == group.application else f"{network}: {said}"
            )
    return {application: "; ".join(lines) for application, lines in reasons.items()}
