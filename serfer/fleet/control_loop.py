"""The loop of every driver that controls something together with others: a pool, instances of variants, warm functions.

    each second:  own load ──> registry: loads of all drivers, lease, published fleet    (serfer/fleet/registry.py)
                    └──> the controller decides ── leads: it begins duties, which may take longer than a second
                                                └─ follows: it uses what the leader publishes

The store is asked in a thread, and a slow one is not waited for: until it responds, the last view holds. Without the
store no driver acts. No error ends the loop: errors are logged, counted, and what failed is tried again. A leader that
dies is followed within the lease's time (serfer/fleet/lease.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from serfer.control.policy import ProvisioningPlan
from serfer.fleet.leader import Leader, Provisioning, end_instances
from serfer.fleet.log_events import Troubles
from serfer.fleet.registry import DriverLoad, FleetState, PoolRegistry, PoolView

PERIOD_S: Final = 1.0
_EXCHANGE_S: Final = 1.0
END_S: Final = 15.0
"""For what is in flight when a driver ends, and for the instances that the last one stops."""


@dataclass(frozen=True)
class Timing:
    """The loop's clock, in seconds, and Unix time, which policies see: it goes on from one driver to the next."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    unix: Callable[[], float] = time.time


class Loop(ABC):
    """Runs `tick` each second; its troubles are called `event` in the log, and none of them ends it."""

    def __init__(self, event: str, timing: Timing | None = None) -> None:
        self._timing = timing or Timing()
        self.troubles = Troubles(event, self._timing.now)
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.create_task(self._run())

    @abstractmethod
    async def tick(self) -> None:
        """Run one iteration."""

    async def _stop(self) -> None:
        if self._loop is not None:
            await _cancelled(self._loop)

    async def _run(self) -> None:
        while True:
            began = self._timing.now()
            with self.troubles.survived("controller"):
                await self.tick()
            await self._timing.sleep(max(0.0, began + PERIOD_S - self._timing.now()))


class ControlLoop(Loop):
    """One driver's part in what drivers control together; what takes longer than a tick is one of its duties.

    `view` is what the other drivers told last, `hears` is whether the store answered then. `duties` is what this one
    has begun, by the part whose troubles its errors are.
    """

    def __init__(self, registry: PoolRegistry, event: str, timing: Timing | None = None) -> None:
        super().__init__(event, timing)
        self.view = PoolView()
        self.duties: dict[str, asyncio.Task[None]] = {}
        self.hears = False
        self._registry = registry
        self._exchanging: asyncio.Task[PoolView] | None = None

    @property
    def leads(self) -> bool:
        return self._registry.leads

    @property
    def acts(self) -> bool:
        return self.hears and self.leads

    async def close(self) -> None:
        await self._stop()
        in_flight = [*self.duties.values(), *([self._exchanging] if self._exchanging else [])]
        if in_flight:  # threads outlive their tasks: the registry waits for what they still write
            await asyncio.wait(in_flight, timeout=END_S)
        for task in in_flight:
            await _cancelled(task)
        last = not self.view.others
        with self.troubles.survived("store"):
            last = await asyncio.to_thread(self._registry.leave)
        await self._end(last=last)

    async def _end(self, *, last: bool) -> None:
        """End what was controlled, after the loop; `last` says that no other driver is there."""

    async def _exchange(self, load: DriverLoad) -> None:
        """Exchange loads with the other drivers, in a thread that may outlast this call; errors of the store count."""
        if self._exchanging is None:
            self._exchanging = asyncio.create_task(asyncio.to_thread(self._registry.exchange, load))
        await asyncio.wait((self._exchanging,), timeout=_EXCHANGE_S)
        if self._exchanging.done():
            exchanging, self._exchanging, self.hears = self._exchanging, None, False
            with self.troubles.survived("store"):
                self.view, self.hears = exchanging.result(), True

    def _is_busy(self, part: str) -> bool:
        return part in self.duties and not self.duties[part].done()

    def _begin(self, part: str, duty: Callable[[], Awaitable[None]]) -> None:
        async def begun() -> None:
            with self.troubles.survived(part):
                await duty()

        self.duties[part] = asyncio.create_task(begun())


class FleetLoop(ControlLoop):
    """A loop whose leader starts and stops instances, and publishes them in `state` for every driver to use."""

    def __init__(
        self, registry: PoolRegistry, provisioning: Provisioning, event: str, timing: Timing | None = None
    ) -> None:
        super().__init__(registry, event, timing)
        self.state: FleetState | None = None
        self.changes: Counter[str] = Counter()
        self._provisioning = provisioning
        self._leader: Leader | None = None

    @abstractmethod
    def _use(self) -> None:
        """Send queries to the instances that serve, and to no others."""

    async def _exchange(self, load: DriverLoad) -> None:
        await super()._exchange(load)
        if self.view.fleet is not None and (not self.leads or self.state is None):
            self.state = self.view.fleet
        if not self.leads:
            self._leader = None

    async def _find(self, now: float) -> None:
        """Begin with the instances that earlier drivers started, where none has published any."""
        self._published(await self._leading(now).initial_state())

    async def _reconcile(
        self, now: float, wanted: ProvisioningPlan, busy: Collection[str], spare: Collection[str] = ()
    ) -> None:
        await self._leading(now).work(now, wanted, busy, spare)

    def _leading(self, now: float) -> Leader:
        """Return what acts from when this driver took the lead until another one does."""
        if self._leader is None:
            self._leader = Leader(
                self._registry, self._provisioning, self.changes, fleet=self.state, published=self._published, now=now
            )
        return self._leader

    def _published(self, fleet: FleetState) -> None:
        self.state = fleet
        self._use()

    async def _end(self, *, last: bool) -> None:
        provisioners = self._provisioning.provisioners
        if last:
            with self.troubles.survived("provisioner"):
                await end_instances([provisioners[bought] for bought in self._provisioning.ends], END_S)
        for provisioner in provisioners.values():
            await provisioner.close()


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
