"""Time as drivers see it: the event loop's, unless a caller injects another, as httpcore's backends inject sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol


class Timer(Protocol):
    """A callback to come."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """A monotonic clock, in seconds, and waiting on it; used on one event loop."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> Timer: ...

    async def sleep(self, seconds: float) -> None: ...


class LoopClock:
    """The clock of the running event loop."""

    time = staticmethod(time.monotonic)

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> Timer:
        return asyncio.get_running_loop().call_at(when, callback, *args)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


LOOP_CLOCK = LoopClock()


@asynccontextmanager
async def timeout_at(clock: Clock, when: float) -> AsyncIterator[asyncio.Timeout]:
    """Cancel what runs inside at a time of `clock` and raise TimeoutError, as asyncio.timeout_at does on the loop's."""
    async with asyncio.timeout(None) as limit:
        timer = clock.call_at(when, limit.reschedule, 0.0)
        try:
            yield limit
        finally:
            timer.cancel()
