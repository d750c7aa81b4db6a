"""The control loop of a pool: the load of all drivers ──> how many instances ──> the leader starts and stops them.

    each second:  loads of all drivers, published fleet    (serfer/fleet/control_loop.py)
                    └──> policy, in a thread ──┬── leads: probes ──> a reconciler for each type and market
                                               │                     ──> publish, start, stop (serfer/fleet/leader.py)
                                               │          pings of what is to be warm        (serfer/fleet/warming.py)
                                               └── follows: uses the published instances

All drivers decide on the same load, so that the next leader continues where the previous one was. Without the store
each driver continues with the instances that it knows, and none are started or stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from typing import Final

from serfer.control.policy import InstanceGroup, InstanceState, Interruption, Observation, ProvisioningPlan, paid_for
from serfer.control.scenario import S_PER_HOUR, Scenario
from serfer.drivers.instance.client import InstanceClient
from serfer.fleet.control_loop import PERIOD_S, FleetLoop, Timing
from serfer.fleet.leader import Provisioning
from serfer.fleet.log_events import log_event
from serfer.fleet.pool import Pool, RollingSum, ServingInstance, of_all
from serfer.fleet.provisioners.batch_sizes import BatchSizes
from serfer.fleet.provisioners.provisioner import Provisioner
from serfer.fleet.purchase import Purchase, startable, wanted_by
from serfer.fleet.registry import DriverLoad, FleetMember, FleetState, PoolRegistry, PoolView
from serfer.fleet.warming import Ping, Pinger

_REVIVE_S: Final = 1.0


@dataclass(frozen=True)
class TypeStatus:
    """The instances of a type and market that are wanted, there, and used by a driver; dollars of the last hour."""

    wanted: int = 0
    on: int = 0
    serving: int = 0
    hour_usd: float = 0.0


@dataclass(frozen=True)
class Status:
    """A driver's view of the pool: whether it leads, its instances by type, and Lambda's dollars of the last hour."""

    leads: bool = False
    types: Mapping[Purchase, TypeStatus] = field(default_factory=dict)
    serverless_usd: float = 0.0

    @property
    def wanted(self) -> int:
        return sum(status.wanted for status in self.types.values())

    @property
    def on(self) -> int:
        return sum(status.on for status in self.types.values())

    @property
    def serving(self) -> int:
        return sum(status.serving for status in self.types.values())

    @property
    def instances_usd(self) -> float:
        return sum(status.hour_usd for status in self.types.values())

    def counts(self) -> tuple[bool, Mapping[Purchase, TypeStatus]]:
        return self.leads, {bought: replace(status, hour_usd=0.0) for bought, status in self.types.items()}


class ObservedFleet:
    """Follows what the leader publishes, `state`; types that the scenario does not have are passed over."""

    def __init__(self, scenario: Scenario, state: Callable[[], FleetState | None]) -> None:
        self._state = state
        self._scenario = scenario
        self._types = {kind.name for kind in scenario.instances}
        self._usd: defaultdict[Purchase, RollingSum] = defaultdict(RollingSum)
        self._interrupted: Counter[str] | None = None

    @property
    def members(self) -> list[tuple[Purchase, FleetMember]]:
        state = self._state()
        listed = state.members if state else ()
        found = [(bought_as(member, self._scenario), member) for member in listed]
        return [(bought, member) for bought, member in found if bought.kind in self._types]

    @property
    def on(self) -> Counter[Purchase]:
        return Counter(bought for bought, _ in self.members)

    def groups(self) -> tuple[InstanceGroup, ...]:
        counts = Counter((bought, InstanceState(member.state), member.batch) for bought, member in self.members)
        return tuple(
            InstanceGroup(bought.kind, bought.market, state, count, batch)
            for (bought, state, batch), count in sorted(counts.items())
        )

    def interruptions(self) -> tuple[Interruption, ...]:
        """Return the spot instances that were taken away since the last call; none before the first one."""
        state = self._state()
        if state is None:
            return ()
        total = Counter(
            {
                interruption.kind: interruption.count
                for interruption in state.interruptions
                if interruption.kind in self._types
            }
        )
        known = total if self._interrupted is None else self._interrupted
        new, self._interrupted = total - known, known | total  # an older version's drivers leave them out of the record
        return tuple(Interruption(kind, count) for kind, count in sorted(new.items()))

    def pay(self, now: float, elapsed_s: float) -> None:
        for bought, count in self.on.items():
            price = self._scenario.kind(bought.kind).market_usd_per_hour(bought.market)
            self._usd[bought].add(now, count * price * elapsed_s / S_PER_HOUR)

    def hour_usd(self, now: float) -> dict[Purchase, float]:
        return {bought: total for bought, spent in self._usd.items() if (total := spent.total(now)) > 0}


def bought_as(member: FleetMember, scenario: Scenario) -> Purchase:
    return Purchase(member.kind or scenario.instance.name, member.market)


class Controller(FleetLoop):
    """One driver's part in running a pool; its parts are as Provisioning has them.

    `ping` warms the functions up for so many queries at once, None where they are always warm.
    """

    def __init__(
        self,
        pool: Pool,
        registry: PoolRegistry,
        provisioners: Mapping[Purchase, Provisioner],
        connect: Callable[[str], InstanceClient],
        *,
        admits: Callable[[Purchase, str], bool] = lambda _bought, _url: True,
        ends: Collection[Purchase] = (),
        timing: Timing | None = None,
        ping: Ping | None = None,
    ) -> None:
        scenario = pool.router.scenario
        bought = [Purchase(scenario.instance.name), *provisioners]  # the scenario's first type first
        boot_s = {purchase: scenario.kind(purchase.kind).boot_s for purchase in bought}
        sizes = partial(BatchSizes, scenario, connect)
        super().__init__(
            registry, Provisioning(provisioners, boot_s, connect, admits, ends, sizes), "pool trouble", timing
        )
        self.status = Status()
        self._deciding = Lock()  # a decision outlives the task that awaits it
        self._pool = pool
        self._pinger = Pinger(ping, scenario.serverless, self._timing.now) if ping else None
        self._last = self._timing.now()
        self._fleet = ObservedFleet(scenario, lambda: self.state)
        self._resumed = False
        self._paid = _Paid()

    async def tick(self) -> None:
        now = self._timing.now()
        elapsed_s, self._last = now - self._last, now
        load = self._load(elapsed_s)
        await self._exchange(load)
        self._account_for_others(now)
        fleet = self._fleet.groups()
        self._resume(fleet)
        latency = of_all((load.latency, *(other.latency for other in self.view.others)))
        rate, lost = load.rate + self.view.rate, self._fleet.interruptions()
        self._fleet.pay(now, elapsed_s)
        seen = Observation(now, elapsed_s, rate, fleet, latency, lost)
        wanted = await self._wanted(seen, load)
        if self.acts:  # another driver may lead by now, where deciding took long
            self._act(now, wanted, load)
        self._use()
        await self._revive()
        self._note(now, wanted, own_usd=load.hour_usd)

    def _load(self, elapsed_s: float) -> DriverLoad:
        stats = self._pool.take_stats()
        rate = stats.images / elapsed_s if elapsed_s > 0 else 0.0
        return DriverLoad(
            self._registry.driver, rate, stats.in_flight, stats.paid_usd, stats.hour_usd, stats.busy, stats.latency
        )

    def _account_for_others(self, now: float) -> None:
        self._pool.drivers = 1 + len(self.view.others)
        self._pool.elsewhere = self.view.in_flight
        usd = self._paid.since(self.view, now)
        if usd > 0:
            self._pool.router.budget_limiter.pay(now, usd)

    def _resume(self, fleet: tuple[InstanceGroup, ...]) -> None:
        if not self._resumed and self.state is not None:
            self._resumed = True
            if paid_for(fleet):
                self._pool.router.policy.resume(fleet)

    async def _wanted(self, seen: Observation, load: DriverLoad) -> ProvisioningPlan:
        """A policy may take seconds: meanwhile the lease is renewed, and the others go on counting this driver."""
        seen_then = replace(seen, now_s=self._timing.unix())
        deciding = asyncio.create_task(asyncio.to_thread(self._decide, seen_then))
        try:
            while not (await asyncio.wait((deciding,), timeout=PERIOD_S))[0]:
                await self._exchange(load)
        finally:
            deciding.cancel()
        return self._pool.router.afford(seen, startable(deciding.result(), self._provisioning.provisioners))

    def _decide(self, seen: Observation) -> ProvisioningPlan:
        with self._deciding:
            return self._pool.router.policy.observe(seen)

    def _act(self, now: float, wanted: ProvisioningPlan, load: DriverLoad) -> None:
        busy = frozenset((*load.busy, *self.view.busy))
        if not self._is_busy("provisioner"):
            begun = partial(self._reconcile, now, wanted, busy) if self.state else partial(self._find, now)
            self._begin("provisioner", begun)
        if self._pinger is not None and not self._is_busy("functions"):
            in_flight = load.in_flight + self.view.in_flight
            if pings := self._pinger.due(now, in_flight, wanted.warm):
                self._pool.pay_pings(pings)
                log_event(logging.INFO, "pool pings", wanted=wanted.warm, in_flight=in_flight, pings=pings)
                self._begin("functions", partial(self._pinger.send, pings))

    def _use(self) -> None:
        self._pool.use(
            ServingInstance(member.name, member.url, bought, member.batch)
            for bought, member in self._fleet.members
            if member.state == InstanceState.SERVING and member.url and self._provisioning.admits(bought, member.url)
        )

    async def _revive(self) -> None:
        async def probe(client: InstanceClient) -> None:
            if await client.ready(_REVIVE_S):
                self._pool.revive(client)

        await asyncio.gather(*(probe(client) for client in self._pool.down()))

    def _note(self, now: float, wanted: ProvisioningPlan, *, own_usd: float) -> None:
        before, usd = self.status, self._fleet.hour_usd(now)
        counts, on, serving = wanted_by(wanted), self._fleet.on, self._pool.serving_by_type
        types = {
            bought: TypeStatus(counts.get(bought, 0), on[bought], serving[bought], usd.get(bought, 0.0))
            for bought in dict.fromkeys([*self._provisioning.provisioners, *on, *usd])
        }
        self.status = Status(self.leads, types, own_usd + sum(load.hour_usd for load in self.view.others))
        if before.counts() != self.status.counts():
            log_event(
                logging.INFO,
                "pool",
                leads=self.status.leads,
                wanted=self.status.wanted,
                on=self.status.on,
                serving=self.status.serving,
                types={str(bought): pool.on for bought, pool in types.items() if pool.on},
                drivers=self._pool.drivers,
                reason=wanted.reason,
            )


class _Paid:
    """The other drivers' spending on Lambda, as far as it is accounted for."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}  # by driver: dollars that it ever paid, and when it was seen

    def since(self, view: PoolView, now: float) -> float:
        """Of a driver that is new, or was away for an hour and so forgotten, all of the last hour counts."""
        self._known = {name: known for name, known in self._known.items() if now - known[1] < S_PER_HOUR}
        usd = 0.0
        for load in view.others:
            known = self._known.get(load.driver)
            usd += load.hour_usd if known is None else max(0.0, load.paid_usd - known[0])
        self._known |= {load.driver: (load.paid_usd, now) for load in view.others}
        return usd
