"""The processes that do what a driver must not do itself: unpack what was uploaded, and register a network.

They end with the driver; torch is imported in theirs alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from serfer.api.registering.registrar import Event
from serfer.core.errors import InputError, SerferError, UnavailableError
from serfer.core.structure import structure, unstructure
from serfer.fleet.log_events import log_event
from serfer.local.die_with_parent import dying_with_me
from serfer.variants.submitted import SubmittedNetwork
from serfer.variants.unpacking import SET, Unpacked, UnpackJob

_UNPACKING_S: Final = 900.0
_LONGEST_S: Final = 6 * 3600.0
_GRACE_S: Final = 20.0  # for a process that is interrupted
_MOST_LINE: Final = 1 << 16
_PIPE: Final = asyncio.subprocess.PIPE
_PLAIN: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # no secrets, and few addresses


async def unpack(job: UnpackJob) -> Unpacked:
    """Unpack an archive in a process with limits; raises InputError that says what is wrong with the archive."""
    process = await _started("serfer.variants.unpacking", job, stderr=_PIPE, env=_PLAIN)
    try:
        async with asyncio.timeout(_UNPACKING_S):
            out, error = await process.communicate()
    except TimeoutError:
        raise InputError(f"{SET} takes more than {_UNPACKING_S:g} s to unpack: send fewer files") from None
    finally:
        await _end(process, signal.SIGKILL)
    if process.returncode == 0:
        return structure(Unpacked, json.loads(out), "unpacked", error=UnavailableError)
    if process.returncode == InputError.exit_code:
        raise InputError(error.decode(errors="replace").strip()[:500])
    raise InputError(f"{SET} takes too much memory or processor time to unpack: send fewer or smaller files")


async def register(job: SubmittedNetwork, told: Callable[[Event], Awaitable[None]]) -> Event:
    """Register a network, pass on what its process says, and return how it ended: the event done.

    Cancelled, it interrupts the process, which can go on later. Raises SerferError with the reason of a failure.
    """
    process = await _started("serfer.variants.submitted", job, limit=_MOST_LINE)
    try:
        async with asyncio.timeout(_LONGEST_S):
            return await _followed(process, told)
    except TimeoutError:
        raise UnavailableError(f"it took more than {_LONGEST_S / 3600:g} hours: hand it in again to go on") from None
    finally:
        await _end(process, signal.SIGTERM)


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


async def _started(module: str, job: Any, **how: Any) -> asyncio.subprocess.Process:  # noqa: ANN401 - a dataclass; options
    """Start a module's process with its job; call it in a thread that lives as long as the driver does."""
    command = dying_with_me(sys.executable, "-P", "-m", module)
    options = {"stdin": _PIPE, "stdout": _PIPE, "stderr": asyncio.subprocess.DEVNULL, "env": os.environ, **how}
    options["env"] = {**options["env"], "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    process = await asyncio.create_subprocess_exec(*command, start_new_session=True, **options)
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    process.stdin.write(json.dumps(unstructure(job)).encode())
    process.stdin.close()
    return process


async def _end(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal a process that runs, and kill it where that does not end it."""
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.send_signal(number)
    try:
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
