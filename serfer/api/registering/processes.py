"""The process that registers a network, as a driver follows it; torch is imported there alone."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from serfer.api.processes import end, started
from serfer.api.registering.registrar import Event
from serfer.core.errors import InputError, SerferError, UnavailableError
from serfer.core.structure import structure
from serfer.fleet.log_events import log_event
from serfer.variants.submitted import SubmittedNetwork

_LONGEST_S: Final = 6 * 3600.0
_MOST_LINE: Final = 1 << 16


async def register(job: SubmittedNetwork, told: Callable[[Event], Awaitable[None]]) -> Event:
    """Register a network, pass on what its process says, and return how it ended: the event done.

    Cancelled, it interrupts the process, which can go on later. Raises SerferError with the reason of a failure.
    """
    process = await started("serfer.variants.submitted", job, limit=_MOST_LINE)
    try:
        async with asyncio.timeout(_LONGEST_S):
            return await _followed(process, told)
    except TimeoutError:
        raise UnavailableError(f"it took more than {_LONGEST_S / 3600:g} hours: hand it in again to go on") from None
    finally:
        await end(process, signal.SIGTERM)


async def _followed(process: asyncio.subprocess.Process, told: Callable[[Event], Awaitable[None]]) -> Event:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    async for line in process.stdout:
        event = structure(Event, json.loads(line), "event", error=UnavailableError)
        match event.event:
            case "done":
                return event
            case "failed":
                raise InputError(event.text)
            case "bug":
                log_event(logging.ERROR, "registration", message=event.text)
                raise SerferError("a bug of the service's; its log says more")
        await told(event)
    raise UnavailableError("its process was ended, by the system for want of memory perhaps: hand it in again to go on")
