"""When a plan's warm environments take pings, and how many: each second, by the driver that leads.

    queries in flight on Lambda ──> environments that are there, as far as is known (serfer/control/environments.py)
    fewer than the plan wants   ──> requests at once for as many as are wanted and not in flight

Idle environments answer pings, too, so all are asked where one is missing: requests that are held at the same time find
environments of their own.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

from serfer.control.environments import EnvironmentLimits, Environments

_APART_S: Final = 10.0  # between two pings: a surge would ask for one more each second
_RETRY_S: Final = 60.0
Ping = Callable[[int], Awaitable[None]]
"""Warms the functions up for so many queries at once."""


class Pinger:
    """Sends the pings that are due, and counts the environments that they and queries keep, of which none is known yet.

    `target` has the limits of environments.
    """

    def __init__(self, ping: Ping, target: EnvironmentLimits, clock: Callable[[], float]) -> None:
        self._ping = ping
        self._target = target
        self._clock = clock
        self._environments = Environments(target)
        self._next_s = -math.inf

    def due(self, now: float, in_flight: int, wanted: int) -> int:
        """Return for how many queries functions are to be pinged now, 0 where none is missing or it is too soon.

        They count as pinged. `in_flight` is how many queries Lambda has now.
        """
        self._environments.use(now, in_flight)
        wanted = min(wanted, self._target.concurrency)
        if now < self._next_s or not self._environments.keep(now, wanted):
            return 0
        self._next_s = now + _APART_S
        self._environments.use(now, wanted)
        return wanted - in_flight

    async def send(self, count: int) -> None:
        try:
            await self._ping(count)
        except Exception:  # nothing is known again, and they are repeated in a minute
            self._environments = Environments(self._target)
            self._next_s = self._clock() + _RETRY_S
            raise
