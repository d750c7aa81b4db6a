"""Blocking calls that a cancellation does not leave half way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def to_its_end(call: Callable[[], None]) -> None:
    """Run a blocking call in a thread; a cancellation goes on once it has ended, as it may have had an effect."""
    running = asyncio.get_running_loop().run_in_executor(None, call)  # a task would be cancelled by the end of the loop
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
