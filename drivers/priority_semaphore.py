"""A semaphore with priorities: how many invocations run at once, and whose turn it is.

First come, first served starves queries that have begun: their later stages queue behind the first stages of every
query that came after them (SerFer, section 9.2). Here the oldest query goes first, with all that it has to start.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools


class PrioritySemaphore:
    """A semaphore whose waiters are served by their `priority`, the lowest first, and in order of arrival within it."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()

    async def acquire(self, priority: int) -> None:
        """Wait for a slot; cancelling gives up waiting."""
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the slot came just as its waiter gave up
            raise

    def release(self) -> None:
        """Release a slot to the first waiter, if any."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
