"""Duties of the leader: probe the instances, start and stop them, and publish which serve."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from drivers.instance.client import InstanceClient
from serfer.control.policy import ProvisioningPlan
from serfer.fleet.log_events import log_event
from serfer.fleet.provisioners.provisioner import Member, Provisioner
from serfer.fleet.reconciler import Actions, Reconciler
from serfer.fleet.registry import MAX_REASON, FleetMember, FleetState, PoolRegistry

_PROBE_S = 2.0
_LOOK_S = 0.1


class Leader:
    """Acts for as long as the driver of `registry` leads; `connect` makes the client of an instance's URL.

    Each driver that becomes leader makes one, which starts from the state that the previous leader published, `fleet`,
    as of `now`.
    """

    def __init__(
        self,
        registry: PoolRegistry,
        provisioner: Provisioner,
        connect: Callable[[str], InstanceClient],
        changes: Counter[str],
        *,
        boot_s: float,
        fleet: FleetState | None,
        now: float,
    ) -> None:
        self._registry = registry
        self._provisioner = provisioner
        self._connect = connect
        self._changes = changes
        self._clients: dict[str, InstanceClient] = {}
        self._reconciler = Reconciler(boot_s)
        if fleet is not None:
            self._reconciler.adopt(fleet, now)

    def initial_state(self, members: Sequence[Member]) -> FleetState:
        """Return the state where no driver has published one: instances that earlier drivers started."""
        listed = tuple(FleetMember(member.name, member.url, "booting") for member in members)
        return FleetState(self._registry.driver, listed, len(listed), "found when the first driver came")

    async def work(
        self, now: float, members: Sequence[Member], wanted: ProvisioningPlan, busy: Collection[str]
    ) -> FleetState | None:
        """Reconcile the instances with `wanted`, and return the published state, None where this driver leads no more.

        Raises what provisioner and coordination raise.
        """
        ready = await self._probe(members)
        actions = self._reconciler.decide(now, members, ready, wanted.total, busy)
        fleet = FleetState(self._registry.driver, actions.listed, wanted.total, wanted.reason[:MAX_REASON])
        # The probes took time, and so does a request: without the lease nothing is started or stopped.
        if not (self._registry.leads and await asyncio.to_thread(self._registry.publish, fleet)):
            return None
        await self._carry_out(actions, wanted)
        return fleet

    async def _carry_out(self, actions: Actions, wanted: ProvisioningPlan) -> None:
        """Stop and start instances; the first failure is raised when all have been tried."""
        outcomes = await asyncio.gather(
            *(self._stop(name, wanted) for name in actions.stop),
            *([self._start(actions.start, wanted)] if actions.start else []),
            return_exceptions=True,
        )
        for error in outcomes:
            if isinstance(error, BaseException):
                raise error

    async def _start(self, count: int, wanted: ProvisioningPlan) -> None:
        await self._provisioner.start(count)
        self._changes["started"] += count
        log_event(logging.INFO, "pool starts instances", count=count, wanted=wanted.total, reason=wanted.reason)

    async def _stop(self, name: str, wanted: ProvisioningPlan) -> None:
        if not await self._provisioner.stop(name):
            return  # it stays, or is ending already: neither is a change
        self._changes["stopped"] += 1
        log_event(logging.INFO, "pool stops an instance", instance=name, wanted=wanted.total, reason=wanted.reason)

    async def _probe(self, members: Sequence[Member]) -> dict[str, bool]:
        """Return by name whether each instance with an address, unless it drains, is ready for queries."""
        self._clients = {
            member.name: self._client(member)
            for member in members
            if member.url is not None and member.state != "draining"
        }
        ready = await asyncio.gather(*(client.ready(_PROBE_S) for client in self._clients.values()))
        return dict(zip(self._clients, ready, strict=True))

    def _client(self, member: Member) -> InstanceClient:
        return self._clients.get(member.name) or self._connect(str(member.url))


async def end_instances(provisioner: Provisioner, patience_s: float) -> None:
    """Stop every instance, and wait for at most `patience_s` until all are gone; raises UnavailableError."""
    try:
        async with asyncio.timeout(patience_s):
            while members := await provisioner.members():
                await asyncio.gather(*(provisioner.stop(member.name) for member in members))
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        log_event(logging.WARNING, "instances did not end in time: they end by themselves when they get no requests")
