"""Duties of the leader: probe the instances, start and stop them, and publish which serve."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from serfer.control.policy import InstanceState, Interruption, ProvisioningPlan
from serfer.drivers.instance.client import InstanceProbe
from serfer.fleet.log_events import log_event
from serfer.fleet.provisioners.batch_sizes import BatchSizes
from serfer.fleet.provisioners.provisioner import Member, Provisioner
from serfer.fleet.purchase import Purchase, wanted_by
from serfer.fleet.reconciler import Actions, Reconciler
from serfer.fleet.registry import MAX_REASON, FleetMember, FleetState, PoolRegistry

_PROBE_S = 2.0
_LOOK_S = 0.1


@dataclass(frozen=True)
class Provisioning:
    """How instances are started: a provisioner for each type and market, and how long one takes to boot, in seconds.

    `connect` makes what probes the instance at a URL, `admits` says of a published address whether an instance of a
    type may be there. Those of the types in `ends` are stopped by the last driver when it is closed. `sizes` makes what
    sets their batch sizes, of those that the previous leader published.
    """

    provisioners: Mapping[Purchase, Provisioner]
    boot_s: Mapping[Purchase, float]
    connect: Callable[[str], InstanceProbe]
    admits: Callable[[Purchase, str], bool] = lambda _bought, _url: True
    ends: Collection[Purchase] = ()
    sizes: Callable[[Sequence[FleetMember]], BatchSizes | None] = lambda _members: None


class Leader:
    """Acts for as long as the driver of `registry` leads.

    Each driver that becomes leader makes one, which starts from the state that the previous leader published, `fleet`,
    as of `now`. `published` is called with each state that this one publishes, before it is acted on. An instance that
    was published without type and market is of the first one that has a boot time.
    """

    def __init__(
        self,
        registry: PoolRegistry,
        provisioning: Provisioning,
        changes: Counter[str],
        *,
        fleet: FleetState | None,
        published: Callable[[FleetState], None],
        now: float,
    ) -> None:
        known, boot_s = fleet.members if fleet else (), provisioning.boot_s
        self._registry = registry
        self._provisioners = provisioning.provisioners
        self._connect = provisioning.connect
        self._changes = changes
        self._published = published
        self._clients: dict[str, InstanceProbe] = {}
        self._reconcilers = {bought: Reconciler(boot_s[bought], bought) for bought in self._provisioners}
        self._listed = _by_purchase(known, next(iter(boot_s), Purchase("")))
        self._sizes = provisioning.sizes(known)
        self._interruptions = Counter(
            {interruption.kind: interruption.count for interruption in fleet.interruptions} if fleet else {}
        )
        for bought, reconciler in self._reconcilers.items():
            reconciler.adopt(self._listed.get(bought, ()), now)

    async def initial_state(self) -> FleetState:
        """Return the state where no driver has published one: instances that earlier drivers started.

        Raises what a provisioner raises.
        """
        members = await asyncio.gather(*(provisioner.members() for provisioner in self._provisioners.values()))
        listed = tuple(
            FleetMember(member.name, member.url, InstanceState.BOOTING, bought.kind, bought.market)
            for bought, there in zip(self._provisioners, members, strict=True)
            for member in there
        )
        return FleetState(self._registry.driver, listed, len(listed), "found when the first driver came")

    async def work(
        self, now: float, wanted: ProvisioningPlan, busy: Collection[str], spare: Collection[str] = ()
    ) -> None:
        """Reconcile the instances with `wanted`, publish them, and act, as long as this driver leads.

        Where there are too many, `spare` ones are the first to go.
        A type whose provisioner fails stays as it was published, and the others go on; then the first failure of
        provisioners and coordination is raised.
        """
        members, failures = await self._look()
        ready = await self._probe([member for there in members.values() for member in there])
        counts = wanted_by(wanted)
        actions = {
            bought: self._reconcilers[bought].decide(now, there, ready, counts.get(bought, 0), busy, spare)
            for bought, there in members.items()
        }
        await self._set_sizes(actions, wanted, ready)
        fleet = self._state(actions, wanted)
        # The probes took time, and so does a request: without the lease nothing is started or stopped.
        if self._registry.leads and await asyncio.to_thread(self._registry.publish, fleet):
            self._published(fleet)
            failures += await self._carry_out(actions, wanted)
        for error in failures:
            raise error

    def _state(self, actions: Mapping[Purchase, Actions], wanted: ProvisioningPlan) -> FleetState:
        for bought, action in actions.items():
            if action.interrupted:
                self._interruptions[bought.kind] += action.interrupted
                self._changes["interrupted"] += action.interrupted
                log_event(logging.WARNING, "pool loses spot instances", type=bought.kind, count=action.interrupted)
        listed = tuple(member for bought in self._reconcilers for member in self._listed.get(bought, ()))
        lost = tuple(Interruption(kind, count) for kind, count in sorted(self._interruptions.items()))
        return FleetState(self._registry.driver, listed, wanted.total, wanted.reason[:MAX_REASON], lost)

    async def _set_sizes(
        self, actions: Mapping[Purchase, Actions], wanted: ProvisioningPlan, ready: Mapping[str, bool]
    ) -> None:
        for bought, action in actions.items():
            self._listed[bought] = action.listed
            if self._sizes is not None and self._registry.leads:
                self._listed[bought] = await self._sizes.bring(bought, action.listed, wanted, ready)
        if self._sizes is not None:
            self._sizes.keep(member.name for there in self._listed.values() for member in there)

    async def _look(self) -> tuple[dict[Purchase, list[Member]], list[BaseException]]:
        looks = await asyncio.gather(
            *(provisioner.members() for provisioner in self._provisioners.values()), return_exceptions=True
        )
        members, failures = {}, []
        for bought, there in zip(self._provisioners, looks, strict=True):
            if isinstance(there, BaseException):
                failures.append(there)
            else:
                members[bought] = there
        return members, failures

    async def _carry_out(self, actions: Mapping[Purchase, Actions], wanted: ProvisioningPlan) -> list[BaseException]:
        outcomes = await asyncio.gather(
            *(self._stop(bought, name, wanted) for bought, action in actions.items() for name in action.stop),
            *(self._start(bought, action.start, wanted) for bought, action in actions.items() if action.start),
            return_exceptions=True,
        )
        return [error for error in outcomes if isinstance(error, BaseException)]

    async def _start(self, bought: Purchase, count: int, wanted: ProvisioningPlan) -> None:
        await self._provisioners[bought].start(count)
        self._changes["started"] += count
        words = {"type": str(bought), "wanted": wanted.total, "reason": wanted.reason}
        log_event(logging.INFO, "pool starts instances", count=count, **words)

    async def _stop(self, bought: Purchase, name: str, wanted: ProvisioningPlan) -> None:
        if not await self._provisioners[bought].stop(name):
            return  # it stays, or is ending already: neither is a change
        self._changes["stopped"] += 1
        words = {"type": str(bought), "wanted": wanted.total, "reason": wanted.reason}
        log_event(logging.INFO, "pool stops an instance", instance=name, **words)

    async def _probe(self, members: Sequence[Member]) -> dict[str, bool]:
        """Return by name whether each instance with an address, unless it drains, is ready for queries."""
        self._clients = {
            member.name: self._client(member)
            for member in members
            if member.url is not None and member.state != "draining"
        }
        ready = await asyncio.gather(*(client.ready(_PROBE_S) for client in self._clients.values()))
        return dict(zip(self._clients, ready, strict=True))

    def _client(self, member: Member) -> InstanceProbe:
        return self._clients.get(member.name) or self._connect(str(member.url))


def _by_purchase(members: Iterable[FleetMember], first: Purchase) -> dict[Purchase, tuple[FleetMember, ...]]:
    found: dict[Purchase, tuple[FleetMember, ...]] = {}
    for member in members:
        bought = Purchase(member.kind or first.kind, member.market)
        found[bought] = (*found.get(bought, ()), member)
    return found


async def end_instances(provisioners: Iterable[Provisioner], patience_s: float) -> None:
    """Stop every instance, and wait for at most `patience_s` until all are gone; raises UnavailableError."""
    await asyncio.gather(*(_end_all(provisioner, patience_s) for provisioner in provisioners))


async def _end_all(provisioner: Provisioner, patience_s: float) -> None:
    try:
        async with asyncio.timeout(patience_s):
            while members := await provisioner.members():
                await asyncio.gather(*(provisioner.stop(member.name) for member in members))
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        log_event(logging.WARNING, "instances did not end in time: they end by themselves when they get no requests")
