"""The control loop of case II in every driver: instances that hold variants of applications.

    each second:  published instances    (serfer/fleet/control_loop.py)
                    ├──> those that serve are used by this driver
                    └── leads: observe ──> FleetScaler ──> copies load and unload; a reconciler for each pool starts
                                                           and stops instances (serfer/fleet/leader.py), published

Without the store each driver continues with the instances that it knows, and nothing is started or stopped. What a
leader that dies has begun at instances is seen there, and instances that it has started are found by their provisioner.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serfer.applications.exchange import ScalingDecision
from serfer.applications.instances import SeenInstance, VariantInstances
from serfer.applications.pipelines import VariantPipelines, served_name
from serfer.applications.scaling.copies import VariantCopies
from serfer.applications.served import ServedApplication
from serfer.control.policy import InstanceCount, InstanceState, ProvisioningPlan
from serfer.control.scenario import S_PER_HOUR, Market
from serfer.control.selection.scaling.fleet import FleetScaler
from serfer.control.selection.scaling.fleet_groups import pool_of
from serfer.control.selection.scaling.fleet_records import (
    CopySeen,
    FleetObservation,
    FleetPlan,
    InstanceSeen,
    Key,
    PoolTerms,
)
from serfer.core.units import MIB
from serfer.core.variants import Place, Variant, VariantState
from serfer.fleet.control_loop import FleetLoop, Timing
from serfer.fleet.leader import Provisioning
from serfer.fleet.log_events import log_event
from serfer.fleet.open_pool import remove_empty
from serfer.fleet.provisioners.provisioner import Provisioner
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import DriverLoad, FleetMember, PoolRegistry


@dataclass(frozen=True)
class VariantPools:
    """The pools of instances: terms by type, provisioners of those that are started here, URLs of those that are not.

    The instances of those in `ends` are stopped by the last driver; they are recorded in `directory`.
    """

    terms: Mapping[str, PoolTerms]
    provisioners: Mapping[Purchase, Provisioner] = field(default_factory=dict)
    urls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ends: tuple[Purchase, ...] = ()
    directory: Path | None = None
    max_usd_per_hour: float = math.inf


class VariantFleet(FleetLoop):
    """One driver's part in running the instances of applications.

    `admits` says whether an instance of a type may be at a published URL.
    """

    def __init__(
        self,
        pools: VariantPools,
        registry: PoolRegistry,
        served: Mapping[str, ServedApplication],
        instances: VariantInstances,
        pipelines: VariantPipelines,
        copies: VariantCopies,
        *,
        admits: Callable[[Purchase, str], bool],
        timing: Timing | None = None,
    ) -> None:
        boot_s = {bought: pools.terms[bought.kind].boot_s for bought in pools.provisioners}
        provisioning = Provisioning(pools.provisioners, boot_s, copies.probe, admits, pools.ends)
        super().__init__(registry, provisioning, "variant instances trouble", timing)
        self.plan = FleetPlan()
        self.copies = copies
        self._pools = pools
        self.served = served
        self._instances = instances
        self._pipelines = pipelines
        self._scaler: FleetScaler | None = None
        self._decided = self._timing.now()

    async def tick(self) -> None:
        await self._exchange(DriverLoad(self._registry.driver, busy=tuple(sorted(self._own_busy()))))
        self._use()
        if not self.leads:
            self._scaler = None
            for app in self.served.values():
                app.own_scaled = None
        elif self.acts and not self._is_busy("controller"):
            self._begin("controller", self._act)

    async def _end(self, *, last: bool) -> None:
        await self.copies.close()
        await super()._end(last=last)
        if self._pools.directory is not None:
            remove_empty(self._pools.directory, self._pools.directory.parent)

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """The number of instances of each pool that are wanted, on and serving; what is wanted the leader knows."""
        found: Counter[tuple[str, str]] = Counter()
        for pool, terms in self._pools.terms.items():
            known = len(self._pools.urls.get(pool, ())) if terms.fixed else self.plan.wanted.get(pool, 0)
            found[pool, "wanted"] = known if self.leads or terms.fixed else 0
            found[pool, "on"] = found[pool, "serving"] = 0
        for instance in self.listed:
            found[instance.kind, "on"] += 1
            found[instance.kind, "serving"] += instance.state == InstanceState.SERVING
        return found

    @property
    def listed(self) -> list[FleetMember]:
        """The instances, those that are managed elsewhere first, then in the order in which they were started."""
        found = [
            FleetMember(url, url, InstanceState.SERVING, pool)
            for pool, urls in self._pools.urls.items()
            for url in urls
        ]
        for member in self.state.members if self.state else ():
            bought = Purchase(member.kind, member.market)
            is_ours = bought in self._pools.provisioners
            if is_ours and (member.url is None or self._provisioning.admits(bought, member.url)):
                found.append(member)
        return found

    def _use(self) -> None:
        urls = tuple(one.url for one in self.listed if one.url and one.state == InstanceState.SERVING)
        self._instances.use(urls)
        self._pipelines.use_places(urls)
        self.copies.forget(urls)

    async def _act(self) -> None:
        now = self._timing.now()
        if self.state is None and self._pools.provisioners:
            with self.troubles.survived("provisioner"):
                await self._find(now)
            return
        plan = await self._decide(now)
        if not self.leads:
            return
        self._change_copies(plan)
        if self._pools.provisioners:
            counts = tuple(InstanceCount(pool, Market.ON_DEMAND, count) for pool, count in plan.wanted.items())
            reason = "; ".join(f"{name}: {text}" for name, text in plan.reasons.items())
            busy = frozenset((*self.view.busy, *self._own_busy()))
            with self.troubles.survived("provisioner"):
                await self._reconcile(now, ProvisioningPlan(counts, reason), busy, plan.spare)

    async def _decide(self, now: float) -> FleetPlan:
        if self._scaler is None:
            self._scaler, self._decided = FleetScaler(self._pools.terms), now
        scaler = self._scaler
        variants = {
            (app.name, name): variant
            for app in self.served.values()
            if app.is_read
            for name, variant in app.table.live.variants.items()
        }
        seen = FleetObservation(
            now,
            now - self._decided,
            tuple(self._observe(member, variants) for member in self.listed),
            variants,
            {name: app.demand for name, app in self.served.items()},
            prices_of(variants.values(), self._pools.terms),
            self._pools.max_usd_per_hour,
        )
        self._decided = now
        plan = await asyncio.to_thread(scaler.observe, seen)
        self._note(plan)
        return plan

    def _observe(self, member: FleetMember, variants: Iterable[Key]) -> InstanceSeen:
        leaves = member.state in {InstanceState.DRAINING, InstanceState.LEAVING}
        url = member.url if member.state == InstanceState.SERVING else None
        seen = self._instances.seen(url) if url else None
        if seen is None or url is None:
            return InstanceSeen(member.name, member.kind, boots=not leaves, leaves=leaves)
        models = {key: served_name(*key) for key in variants}
        return InstanceSeen(
            member.name,
            member.kind,
            {key: self._copy(key, model, url, seen) for key, model in models.items() if model in seen.models},
            seen.memory_bytes / MIB if seen.memory_bytes is not None else None,
            seen.utilisation,
            blocked=frozenset(key for key, model in models.items() if self.copies.is_blocked(url, model)),
        )

    def _copy(self, key: Key, model: str, url: str, seen: SeenInstance) -> CopySeen:
        state, places = seen.models[model], self.served[key[0]].places(key[1])
        return CopySeen(
            self.copies.status(url, model, state, seen.at),
            state.bytes / MIB,
            places.get(url, VariantState.INACTIVE),
            state.idle_s,
            state.signals.waiting,
        )

    def _note(self, plan: FleetPlan) -> None:
        changed = (plan.desired, plan.wanted) != (self.plan.desired, self.plan.wanted)
        self.plan = plan
        for name, app in self.served.items():
            desired = {key[1]: count for key, count in plan.desired.items() if key[0] == name and count > 0}
            app.own_scaled = ScalingDecision(desired, plan.reasons.get(name, "no query asks for what instances have"))
            if changed:
                words = {"desired": desired, "instances": dict(plan.wanted), "reason": app.own_scaled.reason}
                log_event(logging.INFO, "variants scaled", application=name, **words)

    def _change_copies(self, plan: FleetPlan) -> None:
        urls = {instance.name: instance.url for instance in self.listed}
        for action, places in (("load", plan.load), ("unload", plan.unload)):
            for name, key in places:
                if (url := urls.get(name)) is not None:
                    self.copies.change("load" if action == "load" else "unload", url, served_name(*key))

    def _own_busy(self) -> Iterator[str]:
        busy = self._pipelines.busy_places
        return (instance.name for instance in self.listed if instance.url in busy)


def prices_of(variants: Iterable[Variant], pools: Mapping[str, PoolTerms]) -> dict[str, float]:
    """Return the dollars an hour that an instance of each pool costs, as its variants were registered: the dearest."""
    prices = dict.fromkeys(pools, 0.0)
    for variant in variants:
        pool = pool_of(variant, pools) if variant.place is Place.INSTANCE else None
        if pool is not None:
            prices[pool] = max(prices[pool], variant.usd.value * variant.qps.value * S_PER_HOUR)
    return prices
