"""The control loop of case II in every driver: all tell one another that they are there, one of them leads and acts.

    each second:  exchange (lease, published instances) ──> instances that serve are used by this driver
                    └── leads: observe ──> FleetScaler ──> copies load and unload; a reconciler for each pool starts
                                                           and stops instances (serfer/fleet/leader.py), published

No error ends the loop: errors are logged and counted. Without the store each driver continues with the instances that
it knows, and nothing is started or stopped. A leader that dies is followed within the lease's time; what it has begun
at instances is seen there, and instances that it has started are found by their provisioner.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from serfer.applications.applications import served_name
from serfer.applications.exchange import Scaled
from serfer.applications.instances import VariantInstances
from serfer.applications.pipelines import VariantPipelines
from serfer.applications.scaling.copies import VariantCopies
from serfer.applications.scaling.observing import Listed, instances_seen, prices_of, variants_of
from serfer.applications.served import ServedApplication
from serfer.control.policy import InstanceCount, InstanceState, ProvisioningPlan
from serfer.control.scenario import Market
from serfer.control.selection.scaling.fleet import FleetScaler
from serfer.control.selection.scaling.fleet_records import FleetObservation, FleetPlan, PoolTerms
from serfer.fleet.controller import Timing
from serfer.fleet.leader import Leader, Probed, end_instances
from serfer.fleet.log_events import Troubles, log_event
from serfer.fleet.open_pool import remove_empty
from serfer.fleet.provisioners.provisioner import Provisioner
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import DriverLoad, FleetState, PoolRegistry, PoolView

PERIOD_S = 1.0
_EXCHANGE_S = 1.0
_END_S = 15.0  # for tasks in flight, and for the instances that the last driver stops
_MOST_REASON = 300


class Probing(Protocol):
    """Makes what probes the instance at a URL."""

    def __call__(self, url: str) -> Probed:
        """Return the probe of an instance."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


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


class VariantFleet:
    """One driver's part in running the instances of applications.

    `connect` makes what probes an instance, `admits` says whether one of a type may be at a published URL.
    """

    def __init__(  # noqa: PLR0913 - its parts, by name
        self,
        pools: VariantPools,
        registry: PoolRegistry,
        served: Mapping[str, ServedApplication],
        instances: VariantInstances,
        pipelines: VariantPipelines,
        copies: VariantCopies,
        *,
        connect: Probing,
        admits: Callable[[Purchase, str], bool],
        timing: Timing | None = None,
    ) -> None:
        self.leads = False
        self.plan = FleetPlan()
        self.changes: Counter[str] = Counter()
        self.copies = copies
        self.work: asyncio.Task[None] | None = None
        self._pools = pools
        self._registry = registry
        self._served = served
        self._instances = instances
        self._pipelines = pipelines
        self._connect = connect
        self._admits = admits
        self._timing = timing or Timing()
        self.troubles = Troubles("variant instances trouble", self._timing.now)
        self._state: FleetState | None = None
        self._view = PoolView()
        self._leader: Leader | None = None
        self._scaler: FleetScaler | None = None
        self._decided = self._timing.now()
        self._loop: asyncio.Task[None] | None = None
        self._exchanging: asyncio.Task[PoolView] | None = None

    def start(self) -> None:
        """Start the loop on the running event loop."""
        self._loop = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End the loop, leave the registry, and, as the last driver, stop the instances that end with it."""
        in_flight = [task for task in (self._loop, self._exchanging, self.work) if task is not None]
        if self._loop is not None:
            self._loop.cancel()
        if in_flight:
            await asyncio.wait(in_flight, timeout=_END_S)
        for task in in_flight:
            task.cancel()
        await self.copies.close()
        last = not self._view.others
        with self.troubles.survived("store"):
            last = await asyncio.to_thread(self._registry.leave)
        if last:
            with self.troubles.survived("provisioner"):
                await end_instances([self._pools.provisioners[bought] for bought in self._pools.ends], _END_S)
        for provisioner in self._pools.provisioners.values():
            await provisioner.close()
        await self._connect.close()
        if self._pools.directory is not None:
            remove_empty(self._pools.directory, self._pools.directory.parent)

    async def tick(self) -> None:
        """Run one iteration; the leader's work with instances is the task `work`, which may take longer."""
        with self.troubles.survived("store"):
            await self._exchange()
        self.leads = self._registry.leads
        if self._view.fleet is not None and (not self.leads or self._state is None):
            self._state = self._view.fleet
        self._use()
        if self.leads:
            self._lead()
        else:
            self._leader = self._scaler = None
            for one in self._served.values():
                one.own_scaled = None

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """The number of instances of each pool that are wanted, on and serving; what is wanted the leader knows."""
        found: Counter[tuple[str, str]] = Counter()
        for pool, terms in self._pools.terms.items():
            known = len(self._pools.urls.get(pool, ())) if terms.fixed else self.plan.wanted.get(pool, 0)
            found[pool, "wanted"] = known if self.leads or terms.fixed else 0
            found[pool, "on"] = found[pool, "serving"] = 0
        for one in self.listed:
            found[one.pool, "on"] += 1
            found[one.pool, "serving"] += one.state == InstanceState.SERVING
        return found

    @property
    def served(self) -> Mapping[str, ServedApplication]:
        """The applications by name."""
        return self._served

    @property
    def listed(self) -> list[Listed]:
        """The instances, those that are managed elsewhere first, then in the order in which they were started."""
        found = [
            Listed(url, pool, url, InstanceState.SERVING) for pool, urls in self._pools.urls.items() for url in urls
        ]
        for member in self._state.members if self._state else ():
            bought = Purchase(member.kind, member.market)
            is_ours = bought in self._pools.provisioners
            if is_ours and (member.url is None or self._admits(bought, member.url)):
                found.append(Listed(member.name, member.kind, member.url, member.state))
        return found

    async def _run(self) -> None:
        while True:
            began = self._timing.now()
            with self.troubles.survived("controller"):
                await self.tick()
            await self._timing.sleep(max(0.0, began + PERIOD_S - self._timing.now()))

    async def _exchange(self) -> None:
        """Tell the other drivers which instances owe this one answers, and read what they tell; a slow store waits."""
        if self._exchanging is None:
            busy = self._pipelines.busy_places
            names = tuple(sorted(one.name for one in self.listed if one.url in busy))
            load = DriverLoad(self._registry.driver, busy=names)
            self._exchanging = asyncio.create_task(asyncio.to_thread(self._registry.exchange, load))
        await asyncio.wait((self._exchanging,), timeout=_EXCHANGE_S)
        if self._exchanging.done():
            exchanging, self._exchanging = self._exchanging, None
            self._view = exchanging.result()

    def _use(self) -> None:
        """Send queries to the instances that serve, and to no others."""
        urls = tuple(one.url for one in self.listed if one.url and one.state == InstanceState.SERVING)
        self._instances.use(urls)
        self._pipelines.use_places(urls)
        self.copies.forget(urls)

    def _lead(self) -> None:
        """Begin to decide, to change copies, and to start and stop instances, unless the last work is under way."""
        if self.work is not None and not self.work.done():
            return
        now = self._timing.now()
        if self._leader is None:
            self._leader = Leader(
                self._registry,
                self._pools.provisioners,
                self._connect,
                self.changes,
                boot_s={bought: self._pools.terms[bought.kind].boot_s for bought in self._pools.provisioners},
                fleet=self._state,
                published=self._published,
                now=now,
            )
        is_new = self._state is None and bool(self._pools.provisioners)
        self.work = asyncio.create_task(self._find(self._leader) if is_new else self._act(self._leader, now))

    async def _act(self, leader: Leader, now: float) -> None:
        """Decide, in a thread, and have it done."""
        with self.troubles.survived("controller"):
            plan = await self._decide(now)
            if not self._registry.leads:
                return
            self._change_copies(plan)
            if self._pools.provisioners:
                await self._provision(leader, now, plan, frozenset((*self._view.busy, *self._own_busy())))

    async def _decide(self, now: float) -> FleetPlan:
        if self._scaler is None:
            self._scaler, self._decided = FleetScaler(self._pools.terms), now
        scaler = self._scaler
        variants = variants_of(self._served.values())
        seen = FleetObservation(
            now,
            now - self._decided,
            instances_seen(self.listed, variants, self._served, self._instances, self.copies),
            variants,
            {name: one.demand for name, one in self._served.items()},
            prices_of(variants.values(), self._pools.terms),
            self._pools.max_usd_per_hour,
        )
        self._decided = now
        plan = await asyncio.to_thread(scaler.observe, seen)
        self._note(plan)
        return plan

    def _note(self, plan: FleetPlan) -> None:
        """Keep a plan for the routes, the metrics and the other drivers, and log it where it has changed."""
        changed = (plan.desired, plan.wanted) != (self.plan.desired, self.plan.wanted)
        self.plan = plan
        for name, one in self._served.items():
            desired = {key[1]: count for key, count in plan.desired.items() if key[0] == name and count > 0}
            one.own_scaled = Scaled(desired, plan.reasons.get(name, "no query asks for what instances have"))
            if changed:
                words = {"desired": desired, "instances": dict(plan.wanted), "reason": one.own_scaled.reason}
                log_event(logging.INFO, "variants scaled", application=name, **words)

    def _change_copies(self, plan: FleetPlan) -> None:
        urls = {one.name: one.url for one in self.listed}
        for action, places in (("load", plan.load), ("unload", plan.unload)):
            for name, key in places:
                if (url := urls.get(name)) is not None:
                    self.copies.change("load" if action == "load" else "unload", url, served_name(*key))

    async def _find(self, leader: Leader) -> None:
        """Begin with the instances that earlier drivers started, where none has published any."""
        with self.troubles.survived("provisioner"):
            self._published(await leader.initial_state())

    async def _provision(self, leader: Leader, now: float, plan: FleetPlan, busy: frozenset[str]) -> None:
        counts = tuple(InstanceCount(pool, Market.ON_DEMAND, count) for pool, count in plan.wanted.items())
        reason = "; ".join(f"{name}: {text}" for name, text in plan.reasons.items())[:_MOST_REASON]
        with self.troubles.survived("provisioner"):
            await leader.work(now, ProvisioningPlan(counts, reason), busy, plan.spare)

    def _own_busy(self) -> Iterator[str]:
        busy = self._pipelines.busy_places
        return (one.name for one in self.listed if one.url in busy)

    def _published(self, fleet: FleetState) -> None:
        self._state = fleet
        self._use()
