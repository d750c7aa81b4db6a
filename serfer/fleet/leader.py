"""What only the leader does: look at the instances, start and stop them, and tell the other drivers which serve."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from drivers.instance import InstanceClient
from serfer.control.policy import Wanted
from serfer.fleet.lease import Lease
from serfer.fleet.log_events import tell
from serfer.fleet.provisioners.provisioner import Member, Provisioner
from serfer.fleet.reconciler import Orders, Roster
from serfer.fleet.registry import MOST_REASON, Board, Fleet, Listed

_PROBE_S = 2.0
_LOOK_S = 0.1


class Leader:
    """Leads for as long as `lease` says so; `connect` makes the client of an instance's URL.

    Made anew whenever a driver begins to lead: it adopts the word of the leader before, `fleet`, as of `now`.
    """

    def __init__(
        self,
        board: Board,
        lease: Lease,
        provisioner: Provisioner,
        connect: Callable[[str], InstanceClient],
        changes: Counter[str],
        *,
        boot_s: float,
        fleet: Fleet | None,
        now: float,
    ) -> None:
        self._board = board
        self._lease = lease
        self._provisioner = provisioner
        self._connect = connect
        self._changes = changes
        self._clients: dict[str, InstanceClient] = {}
        self._roster = Roster(boot_s)
        if fleet is not None:
            self._roster.adopt(fleet, now)

    def found(self, members: Sequence[Member]) -> Fleet:
        """Return what there is where nobody told of anything: instances that drivers before these ones started."""
        listed = tuple(Listed(member.name, member.url, "booting") for member in members)
        return Fleet(self._lease.candidate, listed, len(listed), "found when the first driver came")

    async def work(self, now: float, members: Sequence[Member], wanted: Wanted, busy: Collection[str]) -> Fleet:
        """Do what is to be done, and return what every driver was told; raises what provisioner and store raise."""
        ready = await self._probe(members)
        orders = self._roster.decide(now, members, ready, wanted.instances, busy)
        fleet = Fleet(self._lease.candidate, orders.listed, wanted.instances, wanted.reason[:MOST_REASON])
        if self._lease.leads:  # looking at all of them took time
            await asyncio.to_thread(self._board.lead, fleet)
            await self._carry_out(orders, wanted)
        return fleet

    async def _carry_out(self, orders: Orders, wanted: Wanted) -> None:
        """Stop and start instances; one that cannot be stopped does not keep others from it."""
        found = await asyncio.gather(
            *(self._stop(name, wanted) for name in orders.stop),
            *([self._start(orders.start, wanted)] if orders.start else []),
            return_exceptions=True,
        )
        for error in found:
            if isinstance(error, BaseException):
                raise error

    async def _start(self, count: int, wanted: Wanted) -> None:
        await self._provisioner.start(count)
        self._changes["started"] += count
        tell(logging.INFO, "pool starts instances", count=count, wanted=wanted.instances, reason=wanted.reason)

    async def _stop(self, name: str, wanted: Wanted) -> None:
        if not await self._provisioner.stop(name):
            return  # it stays, or ends already: neither is a change
        self._changes["stopped"] += 1
        tell(logging.INFO, "pool stops an instance", instance=name, wanted=wanted.instances, reason=wanted.reason)

    async def _probe(self, members: Sequence[Member]) -> dict[str, bool]:
        """Ask every instance that has an address, and is not on its way out, whether it takes queries."""
        asked = [member for member in members if member.url is not None and member.state != "draining"]
        known = {member.name: self._client(member) for member in asked}
        self._clients = known
        found = await asyncio.gather(*(client.ready(_PROBE_S) for client in known.values()))
        return dict(zip(known, found, strict=True))

    def _client(self, member: Member) -> InstanceClient:
        return self._clients.get(member.name) or self._connect(str(member.url))


async def end_instances(provisioner: Provisioner, patience_s: float) -> None:
    """Stop every instance, and wait for so long until they are gone; raises UnavailableError."""
    try:
        async with asyncio.timeout(patience_s):
            while members := await provisioner.members():
                await asyncio.gather(*(provisioner.stop(member.name) for member in members))
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        tell(logging.WARNING, "instances did not end in time: they end by themselves when nobody asks them")
