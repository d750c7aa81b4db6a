"""Duties of the leader: probe the instances, start and stop them, and publish which serve."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from serfer.control.policy import InstanceState, Interruption, ProvisioningPlan
from serfer.fleet.log_events import log_event
from serfer.fleet.provisioners.provisioner import Member, Provisioner
from serfer.fleet.purchase import Purchase, wanted_by
from serfer.fleet.reconciler import Actions, Reconciler
from serfer.fleet.registry import MAX_REASON, FleetMember, FleetState, PoolRegistry

_PROBE_S = 2.0
_LOOK_S = 0.1


class Probed(Protocol):
    """The client of an instance, as far as a leader needs it."""

    async def ready(self, patience_s: float) -> bool:
        """Return whether the instance is up and takes queries."""
        ...


class Sizes(Protocol):
    """What sets batch sizes, of pools whose plans have them."""

    async def bring(
        self, bought: Purchase, listed: Sequence[FleetMember], plan: ProvisioningPlan, ready: Mapping[str, bool]
    ) -> tuple[FleetMember, ...]:
        """Bring instances of a type and market in line with a plan, and return them with their sizes."""
        ...

    def keep(self, names: Iterable[str]) -> None:
        """Forget the instances that are gone."""
        ...


class Leader:
    """Acts for as long as the driver of `registry` leads; `connect` makes the client of an instance's URL.

    Each driver that becomes leader makes one, which starts from the state that the previous leader published, `fleet`,
    as of `now`. `published` is called with each state that this one publishes, before it is acted on. An instance of a
    type and market takes about `boot_s` seconds to boot; one that was published without them is of the first one there.
    `sizes` sets batch sizes, None where plans have none.
    """

    def __init__(  # noqa: PLR0913 - the parts of a pool, one with a default
        self,
        registry: PoolRegistry,
        provisioners: Mapping[Purchase, Provisioner],
        connect: Callable[[str], Probed],
        changes: Counter[str],
        *,
        boot_s: Mapping[Purchase, float],
        fleet: FleetState | None,
        published: Callable[[FleetState], None],
        now: float,
        sizes: Sizes | None = None,
    ) -> None:
        self._registry = registry
        self._provisioners = provisioners
        self._connect = connect
        self._changes = changes
        self._published = published
        self._clients: dict[str, Probed] = {}
        self._reconcilers = {each: Reconciler(boot_s[each], each) for each in provisioners}
        self._listed = _by_purchase(fleet.members if fleet else (), next(iter(boot_s), Purchase("")))
        self._sizes = sizes
        self._interruptions = Counter({one.kind: one.count for one in fleet.interruptions} if fleet else {})
        for each, reconciler in self._reconcilers.items():
            reconciler.adopt(self._listed.get(each, ()), now)

    async def initial_state(self) -> FleetState:
        """Return the state where no driver has published one: instances that earlier drivers started.

        Raises what a provisioner raises.
        """
        members = await asyncio.gather(*(each.members() for each in self._provisioners.values()))
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
        """Return the state to publish; interruptions are counted, and logged."""
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
        """Bring the batch sizes of each type in line with the plan, as long as this driver leads."""
        for bought, action in actions.items():
            self._listed[bought] = action.listed
            if self._sizes is not None and self._registry.leads:
                self._listed[bought] = await self._sizes.bring(bought, action.listed, wanted, ready)
        if self._sizes is not None:
            self._sizes.keep(member.name for there in self._listed.values() for member in there)

    async def _look(self) -> tuple[dict[Purchase, list[Member]], list[BaseException]]:
        """Return the members of each type whose provisioner answers, and the others' errors."""
        looks = await asyncio.gather(*(each.members() for each in self._provisioners.values()), return_exceptions=True)
        members, failures = {}, []
        for bought, there in zip(self._provisioners, looks, strict=True):
            if isinstance(there, BaseException):
                failures.append(there)
            else:
                members[bought] = there
        return members, failures

    async def _carry_out(self, actions: Mapping[Purchase, Actions], wanted: ProvisioningPlan) -> list[BaseException]:
        """Stop and start instances, and return what failed."""
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

    def _client(self, member: Member) -> Probed:
        return self._clients.get(member.name) or self._connect(str(member.url))


def _by_purchase(members: Iterable[FleetMember], first: Purchase) -> dict[Purchase, tuple[FleetMember, ...]]:
    found: dict[Purchase, tuple[FleetMember, ...]] = {}
    for member in members:
        bought = Purchase(member.kind or first.kind, member.market)
        found[bought] = (*found.get(bought, ()), member)
    return found


async def end_instances(provisioners: Iterable[Provisioner], patience_s: float) -> None:
    """Stop every instance, and wait for at most `patience_s` until all are gone; raises UnavailableError."""
    await asyncio.gather(*(_end_all(each, patience_s) for each in provisioners))


async def _end_all(provisioner: Provisioner, patience_s: float) -> None:
    try:
        async with asyncio.timeout(patience_s):
            while members := await provisioner.members():
                await asyncio.gather(*(provisioner.stop(member.name) for member in members))
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        log_event(logging.WARNING, "instances did not end in time: they end by themselves when they get no requests")
