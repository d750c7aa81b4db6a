"""The batch sizes of a pool's instances, which its leader sets by requests as the plan wants: nothing is restarted.

plan: so many instances of a type with each size ──> which instance gets which ──> those that have another are asked

Each instance is asked when it first serves, also under policies that set nothing, as an earlier pool may have left it
with any size, and again when it did not answer a probe: it may have been started again. Servers of other kinds than
`serfer instance` keep what they were started with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from serfer.control.dispatch import OWN, assign
from serfer.control.policy import InstanceState, ProvisioningPlan
from serfer.control.scenario import Scenario
from serfer.drivers.instance.client import InstanceClient
from serfer.fleet.log_events import log_event
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import FleetMember

_ASK_S: Final = 2.0
_UNKNOWN: Final = -1  # an earlier pool may have set anything


@dataclass(frozen=True)
class _Size:
    """The size that an instance was asked to have, and the one that it has: not above what it was measured with."""

    asked: int
    has: int


class BatchSizes:
    """What is known of instances' batch sizes, beginning with those that the previous leader published.

    `connect` makes the client of an instance's URL.
    """

    def __init__(
        self, scenario: Scenario, connect: Callable[[str], InstanceClient], known: Iterable[FleetMember] = ()
    ) -> None:
        self._scenario = scenario
        self._connect = connect
        self._clients: dict[str, InstanceClient] = {}
        self._of = {member.name: _Size(member.batch, member.batch) for member in known}

    async def bring(
        self, bought: Purchase, listed: Sequence[FleetMember], plan: ProvisioningPlan, ready: Mapping[str, bool]
    ) -> tuple[FleetMember, ...]:
        """Ask the instances of a type and market that serve to have what a plan wants; return them with their sizes.

        One that does not answer is asked again next time.
        """
        for member in listed:
            if not ready.get(member.name):
                self._of.pop(member.name, None)
        staying = [member for member in listed if member.state in (InstanceState.BOOTING, InstanceState.SERVING)]
        staying.sort(key=lambda member: member.state is not InstanceState.SERVING)
        sizes = assign([self._known(member.name).asked for member in staying], plan.batches(bought.kind, bought.market))
        kind = self._scenario.kind(bought.kind)
        await asyncio.gather(
            *(
                self._ask(member, size, plan.window_s(kind, size, self._scenario.slo_ms))
                for member, size in zip(staying, sizes, strict=True)
                if member.state is InstanceState.SERVING
                and ready.get(member.name)
                and size not in (_UNKNOWN, self._known(member.name).asked)
            )
        )
        return tuple(replace(member, batch=self._known(member.name).has) for member in listed)

    def keep(self, names: Iterable[str]) -> None:
        there = set(names)
        self._of = {name: size for name, size in self._of.items() if name in there}
        self._clients = {name: client for name, client in self._clients.items() if name in there}

    def _known(self, name: str) -> _Size:
        return self._of.get(name, _Size(_UNKNOWN, OWN))

    async def _ask(self, member: FleetMember, size: int, window_s: float) -> None:
        name = member.name
        client = self._clients.get(name) or self._connect(str(member.url))
        self._clients[name] = client
        has = await client.set_batching(size, window_s, _ASK_S)
        if has is None:
            return
        self._of[name] = _Size(size, has)
        log_event(logging.INFO, "pool sets a batch size", instance=name, wanted=size, batch=has)
