"""The loop of every driver: what all of them have to do ──> how many instances ──> the leader starts and stops them.

    each second:  board (loads of all drivers, the leader's word), lease ──> policy, in a thread
                    ├── leads: a look at the instances ──> roster ──> start, stop, tell     (serfer/fleet/leader.py)
                    └── follows: uses the instances that the leader tells of

All drivers decide on the same load, so that whoever leads next goes on where the one before it was. Nothing here is
fatal: what fails is told, counted and tried again. Without the store each driver goes on with the instances that it
knows, and nobody starts or stops any.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from drivers.instance import InstanceClient
from serfer.control.policy import Wanted
from serfer.control.scenario import S_PER_HOUR
from serfer.fleet.hour import HourSum
from serfer.fleet.leader import Leader, end_instances
from serfer.fleet.lease import Lease
from serfer.fleet.log_events import tell
from serfer.fleet.pool import Pool
from serfer.fleet.provisioners.provisioner import Provisioner
from serfer.fleet.registry import Board, Fleet, Load, View

PERIOD_S = 1.0
_TALK_S = 1.0
_REVIVE_S = 1.0
_END_S = 15.0  # for what was begun, and for instances to end that the last driver stops


@dataclass(frozen=True)
class Timing:
    """Where the loop's time comes from, in seconds."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(frozen=True)
class Status:
    """What a driver knows of the pool: instances wanted, there, and used by it; dollars of the last hour by target."""

    leads: bool = False
    wanted: int = 0
    on: int = 0
    serving: int = 0
    serverless_usd: float = 0.0
    instances_usd: float = 0.0


class Controller:
    """One driver's part in running a pool; with `ends_instances` the last driver stops them when it is closed.

    `admits` says of an address that another driver told of whether an instance may be there.
    """

    def __init__(
        self,
        pool: Pool,
        board: Board,
        lease: Lease,
        provisioner: Provisioner,
        connect: Callable[[str], InstanceClient],
        *,
        admits: Callable[[str], bool] = lambda _: True,
        ends_instances: bool = False,
        timing: Timing | None = None,
    ) -> None:
        self.status = Status()
        self.troubles: Counter[str] = Counter()
        self.changes: Counter[str] = Counter()
        self._pool = pool
        self._board = board
        self._lease = lease
        self._provisioner = provisioner
        self._connect = connect
        self._admits = admits
        self._ends_instances = ends_instances
        self._timing = timing or Timing()
        self._last = self._timing.now()
        self._view = View()
        self._fleet: Fleet | None = None
        self._leader: Leader | None = None
        self._resumed = False
        self._paid = _Paid()
        self._instances = HourSum()
        self._said: dict[str, str] = {}
        self._loop: asyncio.Task[None] | None = None
        self._talking: asyncio.Task[tuple[View, bool]] | None = None
        self.work: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin the loop, on the event loop that runs."""
        self._loop = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            began = self._timing.now()
            with self._survived("controller"):
                await self.tick()
            await self._timing.sleep(max(0.0, began + PERIOD_S - self._timing.now()))

    async def tick(self) -> None:
        """Do once what is to be done each second; what the leader does besides is `work`, which may take longer."""
        now = self._timing.now()
        elapsed_s, self._last = now - self._last, now
        load = self._load(elapsed_s)
        leads = False
        with self._survived("store"):
            leads = await self._meet(load)
        if self._view.fleet is not None and (not leads or self._fleet is None):
            self._fleet = self._view.fleet
        self._reckon_with_others(now)
        on = len(self._fleet.members) if self._fleet else 0
        self._resume()
        wanted = await self._wanted(now, elapsed_s, load.rate + self._view.rate, on)
        self._instances.add(now, on * self._pool.router.scenario.instance.usd_per_hour * elapsed_s / S_PER_HOUR)
        self._act(now, wanted, leads=leads, busy=frozenset((*load.busy, *self._view.busy)))
        self._use()
        await self._revive()
        self._note(now, wanted, leads=leads, own_usd=load.hour_usd)

    async def close(self) -> None:
        """End the loop, leave the board, and, where this is the last driver and it is wanted, stop the instances."""
        if self._loop is not None:
            await _cancelled(self._loop)
        begun = [task for task in (self._talking, self.work) if task is not None]
        if begun:  # threads go on though their tasks end: what these tell the store is taken back below
            await asyncio.wait(begun, timeout=_END_S)
        for task in begun:
            await _cancelled(task)
        last = not self._view.others
        with self._survived("store"):
            last = await asyncio.to_thread(self._leave)
        if self._ends_instances and last:
            with self._survived("provisioner"):
                await end_instances(self._provisioner, _END_S)
        await self._provisioner.close()

    def _load(self, elapsed_s: float) -> Load:
        stock = self._pool.stock()
        rate = stock.images / elapsed_s if elapsed_s > 0 else 0.0
        return Load(self._board.driver, rate, stock.in_flight, stock.paid_usd, stock.hour_usd, stock.busy)

    async def _meet(self, load: Load) -> bool:
        """Hear of the other drivers and tell them of this one, and say whether it leads.

        A store that is slow is not waited for: until it has answered, what it said before is what is known.
        """
        if self._talking is None:
            self._talking = asyncio.create_task(asyncio.to_thread(self._talk, load))
        await asyncio.wait((self._talking,), timeout=_TALK_S)
        if not self._talking.done():
            return self._lease.leads
        talking, self._talking = self._talking, None
        self._view, leads = talking.result()
        return leads

    def _talk(self, load: Load) -> tuple[View, bool]:
        """Exchange what drivers tell, and claim the lead; it blocks."""
        return self._board.exchange(load), self._lease.claim()

    def _leave(self) -> bool:
        """Leave the board, and the lead to others; say whether there are none. It blocks."""
        self._lease.release()
        return self._board.leave()

    def _reckon_with_others(self, now: float) -> None:
        """Take into account how many drivers there are, what they have on Lambda, and what they paid for it."""
        self._pool.drivers = 1 + len(self._view.others)
        self._pool.elsewhere = self._view.in_flight
        usd = self._paid.since(self._view, now)
        if usd > 0:
            self._pool.router.spending.pay(now, usd)

    def _resume(self) -> None:
        """Tell the policy, once, of the instances that were on before this driver came."""
        if not self._resumed and self._fleet is not None:
            self._resumed = True
            staying = sum(member.state != "draining" for member in self._fleet.members)
            if staying:
                self._pool.router.policy.resume(staying)

    async def _wanted(self, now: float, elapsed_s: float, rate: float, on: int) -> Wanted:
        """Decide how many instances there should be; the policy runs in a thread, since queries go on meanwhile."""
        router = self._pool.router
        wanted = await asyncio.to_thread(router.policy.observe, elapsed_s, rate)
        return router.afford(now, elapsed_s, wanted, on)

    def _act(self, now: float, wanted: Wanted, *, leads: bool, busy: frozenset[str]) -> None:
        """Where this driver leads, do a leader's work, but for what is still being done."""
        if not leads:
            self._leader = None
            return
        if self.work is not None and not self.work.done():
            return
        if self._leader is None:
            boot_s = self._pool.router.scenario.instance.boot_s
            parts = self._board, self._lease, self._provisioner, self._connect, self.changes
            self._leader = Leader(*parts, boot_s=boot_s, fleet=self._fleet, now=now)
        self.work = asyncio.create_task(self._lead(self._leader, now, wanted, busy))

    async def _lead(self, leader: Leader, now: float, wanted: Wanted, busy: frozenset[str]) -> None:
        with self._survived("provisioner"):
            members = await self._provisioner.members()
            if self._fleet is None:  # nobody told of any: these are another fleet's, of before
                self._fleet = leader.found(members)
                return
            self._fleet = await leader.work(now, members, wanted, busy)
            self._use()

    def _use(self) -> None:
        """Send queries to those instances that serve."""
        if self._fleet is not None:
            serving = {one.name: one.url for one in self._fleet.members if one.state == "serving" and one.url}
            self._pool.use({name: url for name, url in serving.items() if self._admits(url)})

    async def _revive(self) -> None:
        """Ask those that did not answer a query whether they are there again."""

        async def look(client: InstanceClient) -> None:
            if await client.ready(_REVIVE_S):
                self._pool.revive(client)

        await asyncio.gather(*(look(client) for client in self._pool.down()))

    def _note(self, now: float, wanted: Wanted, *, leads: bool, own_usd: float) -> None:
        """Keep what metrics tell, and write a line where something changed."""
        before = self.status
        self.status = Status(
            leads,
            wanted.instances,
            len(self._fleet.members) if self._fleet else 0,
            self._pool.serving,
            own_usd + sum(load.hour_usd for load in self._view.others),
            self._instances.total(now),
        )
        after = self.status
        if (before.leads, before.wanted, before.on, before.serving) != (
            after.leads,
            after.wanted,
            after.on,
            after.serving,
        ):
            tell(
                *(logging.INFO, "pool"),
                leads=leads,
                wanted=wanted.instances,
                on=after.on,
                serving=after.serving,
                drivers=self._pool.drivers,
                reason=wanted.reason,
            )

    @contextlib.contextmanager
    def _survived(self, what: str) -> Iterator[None]:
        """Count what fails, and tell of it where it is another failure than the last one."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop that pays for instances goes on
            self.troubles[what] += 1
            line = f"{type(error).__name__}: {error}"
            if self._said.get(what) != line:
                self._said[what] = line
                tell(logging.WARNING, "pool trouble", of=what, message=line.partition("\n")[0])
        else:
            if self._said.pop(what, None):
                tell(logging.INFO, "pool trouble is over", of=what)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """End a task; what it fails with is nobody's concern any more."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


class _Paid:
    """What the other drivers paid to Lambda, as far as it was accounted for already."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}  # by driver: dollars it ever paid, and when it said so

    def since(self, view: View, now: float) -> float:
        """Return what they paid since the last call; of a driver that is new or was away for an hour, in the last hour.

        Names are new at every start of a driver, so those that were not seen for an hour are forgotten.
        """
        self._known = {name: known for name, known in self._known.items() if now - known[1] < S_PER_HOUR}
        usd = 0.0
        for load in view.others:
            known = self._known.get(load.driver)
            usd += load.hour_usd if known is None else max(0.0, load.paid_usd - known[0])
        self._known |= {load.driver: (load.paid_usd, now) for load in view.others}
        return usd
