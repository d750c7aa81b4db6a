"""What a leader sees of its instances and applications once a slot, as the pure part takes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from serfer.applications.applications import served_name
from serfer.applications.instances import SeenInstance, VariantInstances
from serfer.applications.scaling.copies import VariantCopies
from serfer.applications.served import ServedApplication
from serfer.control.policy import InstanceState
from serfer.control.scenario import S_PER_HOUR
from serfer.control.selection.scaling.fleet_groups import pool_of
from serfer.control.selection.scaling.fleet_records import CopySeen, InstanceSeen, Key, PoolTerms
from serfer.core.units import MIB
from serfer.core.variants import Place, Variant, VariantState


@dataclass(frozen=True)
class Listed:
    """An instance as the fleet has it: what it is called, its pool, its URL if that is known, and its state."""

    name: str
    pool: str
    url: str | None
    state: InstanceState


def variants_of(served: Iterable[ServedApplication]) -> dict[Key, Variant]:
    """Return the variants of the live releases, by application and name."""
    return {
        (one.name, name): variant for one in served if one.is_read for name, variant in one.table.live.variants.items()
    }


def prices_of(variants: Iterable[Variant], pools: Mapping[str, PoolTerms]) -> dict[str, float]:
    """Return the dollars an hour that an instance of each pool costs, as its variants were registered: the dearest."""
    prices = dict.fromkeys(pools, 0.0)
    for variant in variants:
        pool = pool_of(variant, pools) if variant.place is Place.INSTANCE else None
        if pool is not None:
            prices[pool] = max(prices[pool], variant.usd.value * variant.qps.value * S_PER_HOUR)
    return prices


def instances_seen(
    listed: Sequence[Listed],
    variants: Iterable[Key],
    served: Mapping[str, ServedApplication],
    instances: VariantInstances,
    copies: VariantCopies,
) -> tuple[InstanceSeen, ...]:
    """Return the instances with their copies; one that has not said what it has counts as booting."""
    keys = [(key, served_name(*key)) for key in variants]
    states = {key: served[key[0]].places(key[1]) for key, _ in keys}
    return tuple(_instance(one, keys, states, instances, copies) for one in listed)


def _instance(
    one: Listed,
    keys: Sequence[tuple[Key, str]],
    states: Mapping[Key, Mapping[str, VariantState]],
    instances: VariantInstances,
    copies: VariantCopies,
) -> InstanceSeen:
    leaves = one.state in {InstanceState.DRAINING, InstanceState.LEAVING}
    seen = instances.seen(one.url) if one.url and one.state == InstanceState.SERVING else None
    if seen is None or one.url is None:
        return InstanceSeen(one.name, one.pool, boots=not leaves, leaves=leaves)
    url = one.url
    return InstanceSeen(
        one.name,
        one.pool,
        {key: _copy(url, model, seen, states[key], copies) for key, model in keys if model in seen.models},
        seen.memory_bytes / MIB if seen.memory_bytes is not None else None,
        seen.utilisation,
        blocked=frozenset(key for key, model in keys if copies.is_blocked(url, model)),
    )


def _copy(
    url: str, model: str, seen: SeenInstance, states: Mapping[str, VariantState], copies: VariantCopies
) -> CopySeen:
    state = seen.models[model]
    return CopySeen(
        copies.status(url, model, state, seen.at),
        state.bytes / MIB,
        states.get(url, VariantState.INACTIVE),
        state.idle_s,
        state.signals.waiting,
    )
