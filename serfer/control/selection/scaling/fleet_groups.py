"""The demand of each application's network, with the variants on instances that it may be answered by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from serfer.control.selection.scaling.demand import NetworkDemand
from serfer.control.selection.scaling.fleet_records import FleetObservation, InstanceSeen, Key, PoolTerms
from serfer.control.selection.scaling.records import InstanceCosts, LoadObservation
from serfer.control.selection.scaling.room import Room
from serfer.control.selection.scaling.workers import UTILISATION
from serfer.core.variants import Place, Variant, VariantState

_MORE: Final = 0.5
_BUSY: Final = frozenset({VariantState.OVERLOADED, VariantState.INTERFERED})


@dataclass(frozen=True)
class NetworkGroup:
    """The demand of a network, or of one variant of it that queries name, and the `eligible` variants.

    `pools` says where each may run, `every` are all variants of the network that may run at instances. `declined` says
    that functions answer it for less.
    """

    application: str
    demand: NetworkDemand
    eligible: tuple[InstanceCosts, ...]
    pools: Mapping[str, str]
    every: frozenset[Key]
    declined: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        return self.application, *self.demand.key

    @property
    def named(self) -> bool:
        """Whether it is that of a variant that queries name, which is a part of its network's."""
        return bool(self.demand.variant)

    @cached_property
    def costs(self) -> Mapping[str, InstanceCosts]:
        return {costs.name: costs for costs in self.eligible}

    @cached_property
    def _counted(self) -> dict[str, Key | None]:
        return {}

    def counted(self, instance: InstanceSeen) -> Key | None:
        """Return the copy at an instance that answers the demand: the fastest of those in memory or about to be."""
        if instance.name not in self._counted:
            self._counted[instance.name] = self._fastest(instance)
        return self._counted[instance.name]

    def _fastest(self, instance: InstanceSeen) -> Key | None:
        if not instance.serves:
            return None
        there = [costs for costs in self.eligible if self._has(instance, costs.name)]
        if not there:
            return None
        return self.application, max(there, key=lambda costs: (costs.qps, costs.name)).name

    def _has(self, instance: InstanceSeen, name: str) -> bool:
        copy = instance.copies.get((self.application, name))
        return copy is not None and copy.there

    def observation(self, instances: Iterable[InstanceSeen], room: Room) -> LoadObservation:
        """Return what the heuristic sees: one copy at an instance, and how many instances have one or room for one."""
        running: Counter[str] = Counter()
        calm: set[str] = set()
        available = {f"{self.pools[costs.name]} instances": 0.0 for costs in self.eligible}
        for instance in instances:
            key = self.counted(instance)
            if key is not None:
                running[key[1]] += 1
                copy = instance.copies[key]
                if copy.state not in _BUSY and instance.utilisation <= UTILISATION:
                    calm.add(key[1])
            if key is not None or (instance.serves and self._can_host(instance, room)):
                available[f"{instance.pool} instances"] = available.get(f"{instance.pool} instances", 0.0) + 1.0
        pressed = frozenset(running.keys() - calm)
        return LoadObservation(self.demand.rate, self.demand.slo_ms, running, available, pressed)

    def saturated_qps(self, instances: Iterable[InstanceSeen]) -> float:
        """Return what copies and half a copy more answer by their profiles if all are at their peak, otherwise 0."""
        qps, count = 0.0, 0
        for instance in instances:
            key = self.counted(instance)
            if key is None:
                continue
            copy = instance.copies[key]
            is_full = copy.state == VariantState.OVERLOADED or instance.utilisation > UTILISATION
            if copy.status != "loaded" or not is_full:
                return 0.0
            qps, count = qps + self.costs[key[1]].qps, count + 1
        return qps * (1 + _MORE / count) if count else 0.0

    def _can_host(self, instance: InstanceSeen, room: Room) -> bool:
        return any(
            self.pools[costs.name] == instance.pool and room.fits(instance, (self.application, costs.name))
            for costs in self.eligible
        )


def groups_of(seen: FleetObservation, pools: Mapping[str, PoolTerms]) -> list[NetworkGroup]:
    """Return the networks that have demand, or copies in memory, in a fixed order."""
    by_network: dict[Key, list[Variant]] = {}
    for (application, _), variant in seen.variants.items():
        if variant.place is Place.INSTANCE and pool_of(variant, pools) is not None:
            by_network.setdefault((application, variant.network), []).append(variant)
    there = {key for instance in seen.instances for key, copy in instance.copies.items() if copy.there}
    groups = []
    for (application, network), variants in sorted(by_network.items(), key=lambda entry: entry[0]):
        asked = {key: demand for key, demand in seen.demand.get(application, {}).items() if key[0] == network}
        every = frozenset((application, variant.name) for variant in variants)
        if asked or every & there:
            asked.setdefault((network, ""), NetworkDemand(network))
        groups += [_group(application, asked[key], variants, every, pools) for key in sorted(asked)]
    return groups


def pool_of(variant: Variant, pools: Mapping[str, PoolTerms]) -> str | None:
    return variant.kind if variant.kind in pools else "" if "" in pools else None


def home(group: NetworkGroup, priced: Iterable[str], prices: Mapping[str, float]) -> InstanceCosts | None:
    """Return the fastest variant in the pool whose instances would answer a network's demand for the least dollars."""
    best = {
        pool: max(of, key=lambda costs: costs.qps)
        for pool in priced
        if (of := [costs for costs in group.eligible if group.pools[costs.name] == pool])
    }
    rate = group.demand.rate
    usd = {pool: max(1, math.ceil(rate / costs.qps)) * prices.get(pool, 0.0) for pool, costs in best.items()}
    return best[min(usd, key=lambda pool: (usd[pool], pool))] if usd else None


def _group(
    application: str,
    demand: NetworkDemand,
    variants: list[Variant],
    every: frozenset[Key],
    pools: Mapping[str, PoolTerms],
) -> NetworkGroup:
    places = {variant.name: pool_of(variant, pools) or "" for variant in variants}
    chosen = [variant for variant in variants if demand.variant in {"", variant.name}]
    eligible = _good_enough(chosen, demand)
    costs = tuple(_costs(variant, places[variant.name]) for variant in sorted(eligible, key=lambda found: found.name))
    return NetworkGroup(application, demand, costs, places, every)


def _good_enough(variants: list[Variant], demand: NetworkDemand) -> list[Variant]:
    """Return the variants that meet the strictest objectives, without dollars and then accuracy where none does."""
    accurate = [variant for variant in variants if variant.least_accuracy >= demand.min_accuracy]
    bound = demand.max_cost_usd
    cheap = [variant for variant in accurate if bound is None or variant.usd.value <= bound]
    for found in (cheap, accurate):
        if any(variant.latency_ms.value <= demand.slo_ms for variant in found):
            return found
    return variants


def _costs(variant: Variant, pool: str) -> InstanceCosts:
    """Return a variant's figures for the heuristic: it takes one instance, whose memory Room looks at."""
    return replace(InstanceCosts.of(variant), resources={f"{pool} instances": 1.0})
