"""Idle instances end by themselves, so that none is orphaned where every driver has died."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

Sleep = Callable[[float], Awaitable[None]]


class IdleWatch:
    """A middleware that notes requests of any kind, those of health too; `clock` is in seconds."""

    def __init__(self, app: ASGIApp, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._idle_s = idle_s
        self._clock = clock
        self._running = 0
        self._last = clock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; while it runs nothing is idle."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
            self.rest()

    def rest(self) -> None:
        """Restart the count."""
        self._last = self._clock()

    @property
    def left_s(self) -> float:
        """Seconds until it has been idle for long enough; 0 or less when it has."""
        return self._idle_s if self._running else self._last + self._idle_s - self._clock()

    async def passed(self, sleep: Sleep = asyncio.sleep) -> None:
        """Return when no request has come for so long."""
        while (left_s := self.left_s) > 0:
            await sleep(left_s)
