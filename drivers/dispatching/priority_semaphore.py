"""A semaphore with priorities: how many invocations run at once, and whose turn it is.

First come, first served starves queries that have begun: their later stages queue behind the first stages of every
query that came after them (SerFer, section 9.2). Here the oldest query goes first, with all that it has to start.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable


class PrioritySemaphore:
    """A semaphore whose waiters are served by their `priority`, the lowest first, and in order of arrival within it.

    `clock`, in seconds, is what `slot_seconds` is counted by.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._free = limit
        self._clock = clock
        self._count = (clock(), 0.0, 0)  # until when slot-seconds are counted, those, and the slots in use since
        self._waiting: list[tuple[int, int, int, asyncio.Future[bool]]] = []
        self._arrivals = itertools.count()
        self.next_age = itertools.count().__next__  # the priority of a query that arrives now: after all before it

    @property
    def used(self) -> int:
        return self.limit - self._free

    def slot_seconds(self) -> tuple[float, float]:
        """Return the time, and the seconds of use of all slots until then; any thread may ask.

        The mean number of slots in use between two times is the difference of the one over that of the other.
        """
        now = self._clock()
        since, seconds, used = self._count  # replaced as a whole
        return now, seconds + (now - since) * used

    async def acquire(self, priority: int, slots: int = 1, turn: asyncio.Future[bool] | None = None) -> bool:
        """Wait for slots, and take all of them at once; cancelling gives up waiting.

        Nobody passes a waiter of higher priority that needs more slots than are free: it would wait for ever. A caller
        that resolves `turn` to False while it waits ends that: then no slots are taken, and False is returned.
        """
        if self._free >= slots and not self._waiting:
            self._change_used(slots)
            return True
        turn = turn or asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._arrivals), slots, turn))
        self.release(0)  # there may be room for it, though not for those that wait
        try:
            return await turn
        except asyncio.CancelledError:
            granted = turn.done() and not turn.cancelled() and turn.result()  # just as their waiter gave up
            self.release(slots if granted else 0)
            raise

    def try_acquire(self) -> bool:
        free = self._free > 0 and not self._waiting
        if free:
            self._change_used(1)
        return free

    def release(self, slots: int = 1) -> None:
        self._change_used(-slots)
        while self._waiting:
            _, _, needed, turn = self._waiting[0]
            if not turn.done():
                if needed > self._free:
                    return
                self._change_used(needed)
                turn.set_result(True)
            heapq.heappop(self._waiting)

    def _change_used(self, slots: int) -> None:
        if slots:
            now, (since, seconds, used) = self._clock(), self._count
            self._free -= slots
            self._count = now, seconds + (now - since) * used, self.limit - self._free
