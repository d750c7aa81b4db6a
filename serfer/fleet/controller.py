"""The control loop of every driver: the load of all ──> how many instances ──> the leader starts and stops them.

    each second:  registry (loads of all drivers, lease, published fleet) ──> policy, in a thread
                    ├── leads: probes ──> a reconciler for each type and market
                    │                     ──> publish, start, stop                (serfer/fleet/leader.py)
                    │          pings of functions that are to be warm             (serfer/fleet/warming.py)
                    └── follows: uses the published instances

All drivers decide on the same load, so that the next leader continues where the previous one was. No error ends the
loop: errors are logged, counted, and failures are retried. Without the store each driver continues with the
instances that it knows, and none are started or stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from drivers.instance.client import InstanceClient
from serfer.control.policy import Dispatched, InstanceGroup, InstanceState, Observation, ProvisioningPlan, paid_for
from serfer.control.scenario import S_PER_HOUR
from serfer.fleet.decider import Decider
from serfer.fleet.latencies import of_all
from serfer.fleet.leader import Leader, end_instances
from serfer.fleet.log_events import Troubles, log_event
from serfer.fleet.observed_fleet import ObservedFleet
from serfer.fleet.pool import Pool, ServingInstance
from serfer.fleet.provisioners.batch_sizes import BatchSizes
from serfer.fleet.provisioners.provisioner import Provisioner
from serfer.fleet.purchase import Purchase, startable, wanted_by
from serfer.fleet.registry import DriverLoad, FleetState, PoolRegistry, PoolView
from serfer.fleet.status import Status, TypeStatus
from serfer.fleet.warming import Warming

PERIOD_S = 1.0
_EXCHANGE_S = 1.0
_REVIVE_S = 1.0
_END_S = 15.0  # for tasks in flight, and for the instances that the last driver stops


@dataclass(frozen=True)
class Timing:
    """The loop's clock, in seconds, and Unix time, which policies see: it goes on from one driver to the next."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    unix: Callable[[], float] = time.time


class Controller:
    """One driver's part in running a pool, whose types and markets have a provisioner each.

    The instances of those in `ends` are stopped by the last driver when it is closed. `admits` says of a published
    address whether an instance of a type may be there. `ping` warms the functions up for so many queries at once, None
    where they are always warm.
    """

    def __init__(  # noqa: PLR0913 - the parts of a pool, most of them with a default
        self,
        pool: Pool,
        registry: PoolRegistry,
        provisioners: Mapping[Purchase, Provisioner],
        connect: Callable[[str], InstanceClient],
        *,
        admits: Callable[[Purchase, str], bool] = lambda _bought, _url: True,
        ends: Collection[Purchase] = (),
        timing: Timing | None = None,
        decider: Decider | None = None,
        ping: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self.status = Status()
        self.changes: Counter[str] = Counter()
        self._pool = pool
        self._registry = registry
        self._provisioners = provisioners
        self._connect = connect
        self.decider = decider or Decider(pool.router)
        self._admits = admits
        self._ends = ends
        self._ping = ping
        self._warming = Warming(pool.router.scenario.serverless)
        self._timing = timing or Timing()
        self.troubles = Troubles("pool trouble", self._timing.now)
        self._last = self._timing.now()
        self._view = PoolView()
        self._fleet = ObservedFleet(pool.router.scenario)
        self._leader: Leader | None = None
        self._resumed = False
        self._paid = _Paid()
        self._dispatched: tuple[Dispatched, ...] = ()
        self._loop: asyncio.Task[None] | None = None
        self._exchanging: asyncio.Task[PoolView] | None = None
        self.work: asyncio.Task[None] | None = None
        self.pinging: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the loop on the running event loop."""
        self._loop = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            began = self._timing.now()
            with self.troubles.survived("controller"):
                await self.tick()
            await self._timing.sleep(max(0.0, began + PERIOD_S - self._timing.now()))

    async def tick(self) -> None:
        """Run one iteration; the leader's part is the task `work`, which may take longer."""
        now = self._timing.now()
        elapsed_s, self._last = now - self._last, now
        load = self._load(elapsed_s)
        leads = False
        with self.troubles.survived("store"):
            leads = await self._exchange(load)
        if self._view.fleet is not None and (not leads or self._fleet.state is None):
            self._fleet.state = self._view.fleet
        self._account_for_others(now)
        fleet = self._fleet.groups()
        self._resume(fleet)
        latency = of_all((load.latency, *(other.latency for other in self._view.others)))
        rate, lost = load.rate + self._view.rate, self._fleet.interruptions()
        self._fleet.pay(now, elapsed_s)
        seen = Observation(now, elapsed_s, rate, fleet, latency, lost, dispatched=self._dispatched)
        wanted = await self._wanted(seen, load, leads=leads)
        leads = leads and self._registry.leads  # another driver may lead by now, where deciding took long
        self._act(now, wanted, leads=leads, busy=frozenset((*load.busy, *self._view.busy)))
        if leads:
            self._keep_warm(now, load.in_flight + self._view.in_flight, wanted.warm)
        self._use()
        await self._revive()
        self._note(now, wanted, leads=leads, own_usd=load.hour_usd)

    async def close(self) -> None:
        """End the loop, leave the registry, and, as the last driver, stop the instances that end with it."""
        leads = self._registry.leads
        if self._loop is not None:
            await _cancelled(self._loop)
        in_flight = [task for task in (self._exchanging, self.work, self.pinging) if task is not None]
        if in_flight:  # threads outlive their tasks: what they still write is taken back below
            await asyncio.wait(in_flight, timeout=_END_S)
        for task in in_flight:
            await _cancelled(task)
        last = not self._view.others
        with self.troubles.survived("store"):
            last = await asyncio.to_thread(self._registry.leave)
        with self.troubles.survived("controller"):
            await self.decider.close(leads=leads)
        if last:
            with self.troubles.survived("provisioner"):
                await end_instances([self._provisioners[bought] for bought in self._ends], _END_S)
        for provisioner in self._provisioners.values():
            await provisioner.close()

    def _load(self, elapsed_s: float) -> DriverLoad:
        stats = self._pool.take_stats()
        self._dispatched = stats.dispatched
        rate = stats.images / elapsed_s if elapsed_s > 0 else 0.0
        return DriverLoad(
            self._registry.driver, rate, stats.in_flight, stats.paid_usd, stats.hour_usd, stats.busy, stats.latency
        )

    async def _exchange(self, load: DriverLoad) -> bool:
        """Exchange loads with the other drivers, and say whether this one leads.

        A slow store is not waited for: until it responds, the last view holds.
        """
        if self._exchanging is None:
            self._exchanging = asyncio.create_task(asyncio.to_thread(self._registry.exchange, load))
        await asyncio.wait((self._exchanging,), timeout=_EXCHANGE_S)
        if self._exchanging.done():
            exchanging, self._exchanging = self._exchanging, None
            self._view = exchanging.result()
        return self._registry.leads

    def _account_for_others(self, now: float) -> None:
        """Note how many drivers there are, what they have on Lambda, and what they paid for it."""
        self._pool.drivers = 1 + len(self._view.others)
        self._pool.elsewhere = self._view.in_flight
        usd = self._paid.since(self._view, now)
        if usd > 0:
            self._pool.router.budget_limiter.pay(now, usd)

    def _resume(self, fleet: tuple[InstanceGroup, ...]) -> None:
        """Report to the policy, once, the instances that were on before this driver started."""
        if not self._resumed and self._fleet.state is not None:
            self._resumed = True
            if paid_for(fleet):
                self.decider.resume(fleet)

    async def _wanted(self, seen: Observation, load: DriverLoad, *, leads: bool) -> ProvisioningPlan:
        """Decide how many instances of each type there should be: of what can be started, what may be paid for.

        A policy may take seconds: meanwhile the lease is renewed, and the others go on counting this driver.
        """
        deciding = asyncio.create_task(self.decider.decide(replace(seen, now_s=self._timing.unix()), leads=leads))
        try:
            while not (await asyncio.wait((deciding,), timeout=PERIOD_S))[0]:
                with self.troubles.survived("store"):
                    await self._exchange(load)
        finally:
            deciding.cancel()
        return self._pool.router.afford(seen, startable(deciding.result(), self._provisioners))

    def _act(self, now: float, wanted: ProvisioningPlan, *, leads: bool, busy: frozenset[str]) -> None:
        """Start the leader's work where this driver leads, unless the last one is still in flight."""
        if not leads:
            self._leader = None
            return
        if self.work is not None and not self.work.done():
            return
        if self._leader is None:
            known = self._fleet.state.members if self._fleet.state else ()
            self._leader = Leader(
                self._registry,
                self._provisioners,
                self._connect,
                self.changes,
                boot_s=self._boot_s(),
                fleet=self._fleet.state,
                published=self._published,
                now=now,
                sizes=BatchSizes(self._pool.router.scenario, self._connect, known),
            )
        self.work = asyncio.create_task(self._lead(self._leader, now, wanted, busy))

    def _boot_s(self) -> dict[Purchase, float]:
        """Return how long each type takes to boot, the scenario's first one first."""
        scenario = self._pool.router.scenario
        bought = [Purchase(scenario.instance.name), *self._provisioners]
        return {each: scenario.kind(each.kind).boot_s for each in bought}

    async def _lead(self, leader: Leader, now: float, wanted: ProvisioningPlan, busy: frozenset[str]) -> None:
        with self.troubles.survived("provisioner"):
            if self._fleet.state is None:  # none was published: these are an earlier fleet's
                self._fleet.state = await leader.initial_state()
            else:
                await leader.work(now, wanted, busy)

    def _published(self, fleet: FleetState) -> None:
        self._fleet.state = fleet
        self._use()

    def _keep_warm(self, now: float, in_flight: int, wanted: int) -> None:
        """Ping the functions where environments are missing that the plan wants, unless earlier pings are in flight."""
        if self._ping is None or (self.pinging is not None and not self.pinging.done()):
            return
        pings = self._warming.due(now, in_flight, wanted)
        if pings:
            self._pool.pay_pings(pings)
            log_event(logging.INFO, "pool pings", wanted=wanted, in_flight=in_flight, pings=pings)
            self.pinging = asyncio.create_task(self._pinged(self._ping, pings))

    async def _pinged(self, ping: Callable[[int], Awaitable[None]], count: int) -> None:
        with self.troubles.survived("functions"):
            try:
                await ping(count)
            except Exception:
                self._warming.failed(self._timing.now())
                raise

    def _use(self) -> None:
        """Send queries to the instances that serve."""
        self._pool.use(
            ServingInstance(one.name, one.url, bought, one.batch)
            for bought, one in self._fleet.members
            if one.state == InstanceState.SERVING and one.url and self._admits(bought, one.url)
        )

    async def _revive(self) -> None:
        """Probe the instances that did not answer a query."""

        async def probe(client: InstanceClient) -> None:
            if await client.ready(_REVIVE_S):
                self._pool.revive(client)

        await asyncio.gather(*(probe(client) for client in self._pool.down()))

    def _note(self, now: float, wanted: ProvisioningPlan, *, leads: bool, own_usd: float) -> None:
        """Keep the status for metrics, and log it where it changed."""
        before, usd = self.status, self._fleet.hour_usd(now)
        counts, on, serving = wanted_by(wanted), self._fleet.on, self._pool.serving_by_type
        types = {
            bought: TypeStatus(counts.get(bought, 0), on[bought], serving[bought], usd.get(bought, 0.0))
            for bought in dict.fromkeys([*self._provisioners, *on, *usd])
        }
        self.status = Status(leads, types, own_usd + sum(load.hour_usd for load in self._view.others))
        if before.counts() != self.status.counts():
            log_event(
                logging.INFO,
                "pool",
                leads=leads,
                wanted=self.status.wanted,
                on=self.status.on,
                serving=self.status.serving,
                types={str(bought): one.on for bought, one in types.items() if one.on},
                drivers=self._pool.drivers,
                reason=wanted.reason,
            )


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for it; its error is dropped."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


class _Paid:
    """The other drivers' spending on Lambda, as far as it is accounted for."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}  # by driver: dollars that it ever paid, and when it was seen

    def since(self, view: PoolView, now: float) -> float:
        """Return what they paid since the last call; of a driver that is new or was away for an hour, in the last hour.

        A driver's name is new at every start, so those that were not seen for an hour are forgotten.
        """
        self._known = {name: known for name, known in self._known.items() if now - known[1] < S_PER_HOUR}
        usd = 0.0
        for load in view.others:
            known = self._known.get(load.driver)
            usd += load.hour_usd if known is None else max(0.0, load.paid_usd - known[0])
        self._known |= {load.driver: (load.paid_usd, now) for load in view.others}
        return usd
