"""The loop of every driver that keeps functions warm: queries at once of all drivers ──> windows ──> the leader pings.

    each second:  registry (queries in flight of all drivers, lease) ──> levels, which learn idle times
                    └── leads: pings where environments are missing that are to be warm    (serfer/fleet/warming.py)

Nobody can end an environment of Lambda, and an idle one costs nothing. So a keep-alive window says for how long pings
go on after a query, and a pre-warming window when they begin again; what lies between is left to Lambda.

All drivers learn from the same load, so the next leader goes on where the one before was. No error ends the loop;
without the store each driver learns from its own queries, and none pings.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from serfer.control.windows import WarmLevels
from serfer.fleet.controller import PERIOD_S, Timing
from serfer.fleet.keep_warm.in_flight import InFlight
from serfer.fleet.log_events import Troubles, log_event
from serfer.fleet.policy_state import SAVE_EVERY_S, StateKeeper
from serfer.fleet.registry import DriverLoad, PoolRegistry, PoolView
from serfer.fleet.warming import Warming

_EXCHANGE_S: Final = 1.0
_END_S: Final = 15.0
Ping = Callable[[int], Awaitable[None]]
"""Warms the functions up for so many queries at once."""


@dataclass(frozen=True)
class PingLimits:
    """For how many queries at once functions are pinged at most, and seconds that an idle environment is left alone."""

    concurrency: int
    keep_alive_s: float


@dataclass(frozen=True)
class WarmStatus:
    """Whether this driver leads, and for how many queries at once functions are to be warm."""

    leads: bool = False
    wanted: int = 0


class KeepWarm:
    """One driver's part in keeping a plan's functions warm; `paid` is told of pings as they are sent."""

    def __init__(
        self,
        levels: WarmLevels,
        registry: PoolRegistry,
        ping: Ping,
        limits: PingLimits,
        *,
        state: StateKeeper | None = None,
        paid: Callable[[int], None] = lambda _pings: None,
        timing: Timing | None = None,
    ) -> None:
        self.in_flight = InFlight()
        self.status = WarmStatus()
        self.pings = 0
        self.pinging: asyncio.Task[None] | None = None
        self._levels = levels
        self._learning = Lock()  # a thread outlives the task that awaits it
        self._registry = registry
        self._ping = ping
        self._warming = Warming(limits)
        self._state = state
        self._paid = paid
        self._timing = timing or Timing()
        self.troubles = Troubles("keep warm trouble", self._timing.now)
        self._unsaved_since = self._timing.now()
        self._exchanging: asyncio.Task[PoolView] | None = None
        self._view = PoolView()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the loop on the running event loop."""
        self._loop = asyncio.create_task(self._run())

    async def tick(self) -> None:
        """Run one iteration; pings are the task `pinging`, which may take longer."""
        now, own = self._timing.now(), self.in_flight.take()
        view = PoolView()
        with self.troubles.survived("store"):
            view = await self._exchange(own)
        leads = self._registry.leads
        unix, busy = self._timing.unix(), own + view.in_flight
        with self.troubles.survived("windows"):
            self._note(WarmStatus(leads, await asyncio.to_thread(self._learnt, unix, busy)))
        if leads:
            self._send(now, busy)
            await self._save(now)

    async def close(self) -> None:
        """End the loop, leave the registry, learn of the last second, and save what was learnt, as the leader."""
        leads = self._registry.leads
        if self._loop is not None:
            await _cancelled(self._loop)
        in_flight = [task for task in (self._exchanging, self.pinging) if task is not None]
        if in_flight:  # a thread outlives its task: what it still writes is taken back below
            await asyncio.wait(in_flight, timeout=_END_S)
        for task in in_flight:
            await _cancelled(task)
        with self.troubles.survived("store"):
            await asyncio.to_thread(self._registry.leave)
        with self.troubles.survived("windows"):
            await asyncio.to_thread(self._learnt, self._timing.unix(), self.in_flight.take())
        if self._state is not None:
            if leads:
                await asyncio.to_thread(self._offer, self._state)
            await asyncio.to_thread(self._state.close, _END_S)

    async def _run(self) -> None:
        while True:
            began = self._timing.now()
            with self.troubles.survived("loop"):
                await self.tick()
            await self._timing.sleep(max(0.0, began + PERIOD_S - self._timing.now()))

    async def _exchange(self, own: int) -> PoolView:
        """Exchange queries in flight with the other drivers; a slow store is not waited for, and the last view holds.

        Raises what the store raises.
        """
        if self._exchanging is None:
            load = DriverLoad(self._registry.driver, in_flight=own)
            self._exchanging = asyncio.create_task(asyncio.to_thread(self._registry.exchange, load))
        await asyncio.wait((self._exchanging,), timeout=_EXCHANGE_S)
        if self._exchanging.done():
            exchanging, self._exchanging, self._view = self._exchanging, None, PoolView()
            self._view = exchanging.result()
        return self._view

    def _learnt(self, unix: float, busy: int) -> int:
        """Learn of queries in flight, and return for how many functions are to be warm; in a thread."""
        with self._learning:
            self._levels.observe(unix, busy)
            return self._levels.wanted(unix)

    def _send(self, now: float, busy: int) -> None:
        """Ping the functions where environments are missing, unless earlier pings are in flight."""
        if self.pinging is not None and not self.pinging.done():
            return
        count = self._warming.due(now, busy, self.status.wanted)
        if count > 0:
            self.pings += count
            self._paid(count)
            log_event(logging.INFO, "pings", windows=self._levels.name, wanted=self.status.wanted, pings=count)
            self.pinging = asyncio.create_task(self._pinged(count))

    async def _pinged(self, count: int) -> None:
        with self.troubles.survived("functions"):
            try:
                await self._ping(count)
            except Exception:
                self._warming.failed(self._timing.now())
                raise

    async def _save(self, now: float) -> None:
        if self._state is not None and now - self._unsaved_since >= SAVE_EVERY_S:
            self._unsaved_since = now
            await asyncio.to_thread(self._offer, self._state)

    def _offer(self, state: StateKeeper) -> None:
        with self._learning:
            state.offer(self._levels)

    def _note(self, status: WarmStatus) -> None:
        """Keep the status for metrics, and log where functions begin or cease to be kept warm."""
        before, self.status = self.status, status
        if bool(before.wanted) != bool(status.wanted):
            log_event(logging.INFO, "keep warm", windows=self._levels.name, wanted=status.wanted, leads=status.leads)


async def _cancelled(task: asyncio.Task[object]) -> None:
    """Cancel a task and wait for it; its error is dropped."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
