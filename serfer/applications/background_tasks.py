"""Work that nobody waits for, on one event loop: its errors are logged, and it is cancelled at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from serfer.fleet.log_events import log_event


class BackgroundTasks(set[asyncio.Task[Any]]):
    """The tasks that run."""

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin some work."""
        task = asyncio.create_task(work)
        self.add(task)
        task.add_done_callback(self._end)

    async def cancel(self) -> None:
        """Cancel all of it, and wait until it has ended."""
        tasks = [*self]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_event(logging.ERROR, "applications", error, message=repr(error)[:300])
