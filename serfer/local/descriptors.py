"""File descriptors: as many as the machine allows, and what to do when there are none left."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Callable
from typing import Any

FEW = 1024
"""Below this a stack of drivers, functions and their clients runs out under an ordinary load."""
PAUSE_S = 1.0
_QUIET_S = 10.0
_LOGGER = logging.getLogger("serfer")


def raise_limit() -> int:
    """Raise this process's limit of open files, which its children inherit, to the most that it may, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def bound_log(loop: asyncio.AbstractEventLoop) -> None:
    """Make a loop log, as `Shortage` does, the connections that asyncio's own servers cannot accept."""
    shortage = Shortage()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and "socket.accept()" in context["message"]:
            shortage.log(error)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


class Shortage:
    """Logs that connections cannot be accepted, one line every ten seconds at most; `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0

    def log(self, error: OSError) -> None:
        """Log the reason, unless it was logged just now."""
        if self._clock() >= self._next:
            self._next = self._clock() + _QUIET_S
            _LOGGER.warning("connections wait to be accepted: %s (raise the limit: ulimit -n)", error.strerror)
