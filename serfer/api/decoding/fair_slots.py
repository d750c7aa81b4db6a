"""Slots shared fairly between clients: each client's requests wait in a line of their own, and lines take turns.

alice  ▒▒▒▒▒▒▒▒ ─┐                     in a line: those that have had least come first,
bob    ▒        ─┼─▶ slot, slot        so a request of one image passes the second image of another
carol  ▒▒       ─┘
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from serfer.api.http.problems import Problem

_WEIGHT = 0.1  # of the newest hold in the mean


@dataclass(order=True)
class _Waiter:
    served: int
    number: int
    admitted: asyncio.Future[None] = field(compare=False)


class FairSlots:
    """At most `slots` are held and `most_waiting` requests wait; for one event loop. `clock` is in seconds."""

    def __init__(self, slots: int, most_waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = self._free = slots
        self._most_waiting = most_waiting
        self._clock = clock
        self._lines: dict[str, list[_Waiter]] = {}  # heaps, the client whose turn is next first
        self._arrivals = 0
        self._mean_s = 0.0  # that a slot is held
        self.refused = 0

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return sum(map(len, self._lines.values()))

    def expected_s(self, client: str) -> float:
        """Return about how long a client's next request will wait: no longer than its share of the slots allows."""
        if self._free:
            return 0.0
        own, clients = len(self._lines.get(client, ())), len(self._lines.keys() | {client})
        return min(self.waiting + 1, (own + 1) * clients) * self._mean_s / self._slots

    def check(self, client: str, left_s: float) -> None:
        """Refuse a request that would wait longer than it may: Problem 429 that says when to come again."""
        expected_s = self.expected_s(client)
        if expected_s > left_s:
            raise self._refusal(expected_s - left_s)

    @asynccontextmanager
    async def hold(self, client: str, served: int) -> AsyncIterator[float]:
        """Wait for a slot and hold it; yields the seconds waited. `served` is how often this request has held one.

        Raises Problem 429 where too many wait and no other client has more of them.
        """
        waited_s = await self._acquire(client, served)
        since = self._clock()
        try:
            yield waited_s
        finally:
            held_s = self._clock() - since
            self._mean_s += _WEIGHT * (held_s - self._mean_s) if self._mean_s else held_s
            self._release()

    async def _acquire(self, client: str, served: int) -> float:
        if self._free:
            self._free -= 1
            return 0.0
        if self.waiting >= self._most_waiting:
            self._make_room(client)
        self._arrivals += 1
        waiter = _Waiter(served, self._arrivals, asyncio.get_running_loop().create_future())
        heapq.heappush(self._lines.setdefault(client, []), waiter)
        since = self._clock()
        try:
            await waiter.admitted
        except BaseException:
            if waiter.admitted.done() and not waiter.admitted.cancelled() and waiter.admitted.exception() is None:
                self._release()  # the slot came when it was no longer wanted
            self._remove(client, waiter)
            raise
        return self._clock() - since

    def _make_room(self, client: str) -> None:
        """Refuse the newest request of the client that has most waiting: this one, if it is that client's."""
        largest = max(self._lines, key=lambda name: len(self._lines[name]), default=client)
        if len(self._lines.get(largest, ())) <= len(self._lines.get(client, ())):
            raise self._refusal(self.expected_s(client))
        newest = max(self._lines[largest], key=lambda waiter: waiter.number)
        self._remove(largest, newest)
        newest.admitted.set_exception(self._refusal(self.expected_s(largest)))

    def _remove(self, client: str, waiter: _Waiter) -> None:
        line = self._lines.get(client, [])
        if waiter in line:
            line.remove(waiter)
            heapq.heapify(line)
            if not line:
                del self._lines[client]

    def _release(self) -> None:
        """Hand a slot to the next client's next request; the client then goes to the end."""
        for client in list(self._lines):
            line = self._lines.pop(client)
            waiter = heapq.heappop(line)
            if line:
                self._lines[client] = line
            if not waiter.admitted.done():
                waiter.admitted.set_result(None)
                return
        self._free += 1

    def _refusal(self, wait_s: float) -> Problem:
        self.refused += 1
        wait = str(max(1, math.ceil(wait_s)))
        detail = f"more images than can be decoded in time: come again in {wait} s"
        return Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, slug="overloaded", headers={"Retry-After": wait})
