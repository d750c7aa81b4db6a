"""Keeping a plan's functions warm by learnt windows: `keep_warm`, SERFER_KEEP_WARM.

    each second:  queries in flight of all drivers    (serfer/fleet/control_loop.py)
                    └──> levels, which learn idle times ── leads: pings where environments are missing that are to be
                                                                  warm                    (serfer/fleet/warming.py)

Nobody can end an environment of Lambda, and an idle one costs nothing. So a keep-alive window says for how long pings
go on after a query, and a pre-warming window when they begin again; what lies between is left to Lambda.

All drivers learn from the same load, so the next leader goes on where the one before was. Without the store each driver
learns from its own queries, and none pings.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock

from serfer.control.environments import PINGED_AFTER
from serfer.control.windows import WarmLevels, window_policies
from serfer.core.plan import Plan
from serfer.drivers.driver import Driver
from serfer.fleet.control_loop import ControlLoop, Timing
from serfer.fleet.log_events import log_event
from serfer.fleet.pool import CountingDriver
from serfer.fleet.registry import DriverLoad, PoolRegistry
from serfer.fleet.warming import Ping, Pinger
from serfer.pipeline.warm import environments
from serfer.storage.store import Store


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


class InFlight:
    """Counts the queries in flight of the drivers that it is put around; on one event loop."""

    def __init__(self) -> None:
        self._now = self._most = 0

    def take(self) -> int:
        most, self._most = self._most, self._now
        return most

    def counted(self, driver: Driver) -> Driver:
        return CountingDriver(driver, self.change)

    def change(self, by: int) -> None:
        self._now += by
        self._most = max(self._most, self._now)


class KeepWarm(ControlLoop):
    """One driver's part in keeping a plan's functions warm; `paid` is told of pings as they are sent."""

    def __init__(
        self,
        levels: WarmLevels,
        registry: PoolRegistry,
        ping: Ping,
        limits: PingLimits,
        *,
        paid: Callable[[int], None] = lambda _pings: None,
        timing: Timing | None = None,
    ) -> None:
        super().__init__(registry, "keep warm trouble", timing)
        self.in_flight = InFlight()
        self.status = WarmStatus()
        self.pings = 0
        self._levels = levels
        self._learning = Lock()  # a thread outlives the task that awaits it
        self._pinger = Pinger(ping, limits, self._timing.now)
        self._paid = paid

    async def tick(self) -> None:
        now, own = self._timing.now(), self.in_flight.take()
        await self._exchange(DriverLoad(self._registry.driver, in_flight=own))
        unix, busy = self._timing.unix(), own + (self.view.in_flight if self.hears else 0)
        with self.troubles.survived("windows"):
            self._note(WarmStatus(self.leads, await asyncio.to_thread(self._learnt, unix, busy)))
        if self.acts:
            self._send(now, busy)

    def _learnt(self, unix: float, busy: int) -> int:
        with self._learning:
            self._levels.observe(unix, busy)
            return self._levels.wanted(unix)

    def _send(self, now: float, busy: int) -> None:
        if self._is_busy("functions"):
            return
        if (count := self._pinger.due(now, busy, self.status.wanted)) > 0:
            self.pings += count
            self._paid(count)
            log_event(logging.INFO, "pings", windows=self._levels.name, wanted=self.status.wanted, pings=count)
            self._begin("functions", partial(self._pinger.send, count))

    def _note(self, status: WarmStatus) -> None:
        before, self.status = self.status, status
        if bool(before.wanted) != bool(status.wanted):
            log_event(logging.INFO, "keep warm", windows=self._levels.name, wanted=status.wanted, leads=status.leads)


@dataclass(frozen=True)
class WarmOptions:
    """`windows` is what `window_policies` takes.

    At most `concurrency` environments of a function are pinged, each after most of `kept_s` idle seconds.
    """

    windows: str
    concurrency: int
    kept_s: float


async def open_keep_warm(
    options: WarmOptions, plan: Plan, store: Store, ping: Ping, paid: Callable[[int], None]
) -> KeepWarm:
    """Keep a plan's functions warm, from now on, on the running event loop; drivers coordinate in `store`.

    `ping` warms the functions up for so many queries at once, `paid` is told of how many. Raises UsageError for windows
    that cannot be.
    """
    make = window_policies(options.windows)
    registry = PoolRegistry(store.coordination(), f"serfer:warm:{{{plan.digest[:16]}}}", secrets.token_hex(16))
    most = max(1, options.concurrency // max(environments(plan, 1).values()))
    limits = PingLimits(most, PINGED_AFTER * options.kept_s)
    opened = KeepWarm(WarmLevels(make), registry, ping, limits, paid=paid)
    opened.start()
    return opened
