"""The time in which a service recovers from a load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

NORMAL = 2.0
"""As fast as before: at most so many times the time."""
_EVERY_S = 0.25
_TRIES = 5


async def unloaded_ms(query_ms: Callable[[], Awaitable[float]]) -> float:
    """Return the milliseconds of the fastest of a few queries, one after the other."""
    return min([await query_ms() for _ in range(_TRIES)])


async def recovery_s(query_ms: Callable[[], Awaitable[float]], max_ms: float, give_up_s: float) -> float | None:
    """Return the seconds until a query takes at most `max_ms`; None where it does not within `give_up_s`."""
    started = time.perf_counter()
    while (passed_s := time.perf_counter() - started) < give_up_s:
        if await query_ms() <= max_ms:
            return passed_s
        await asyncio.sleep(_EVERY_S)
    return None
