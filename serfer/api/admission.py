"""Who may come in: a bound on queries in flight, a bounded queue before it, and the time that each would take.

    arrives ──▶ a slot is free? ──▶ runs ──▶ departs
                  │ no                          │ measured while queries wait: departures a second
                  ▼                             ▼
                queue ◀── room, and time enough before its deadline?   no ──▶ 429, Retry-After

Whoever is refused is told when there should be room: after what waits, and after those who were told so before. So
clients that obey come back one after the other, and not all at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from serfer.api.problems import Problem
from serfer.core.errors import DeadlineError

_SMOOTHING = 0.2  # of each new departure in the mean
_MARGIN = 1.3  # a query may take so much longer than the mean says
_STALE_S = 10.0  # what was measured longer ago says nothing of now
_LONGEST_WAIT_S = 60.0


class Admission:
    """At most `in_flight` queries run and `queue` wait, first come first served; `clock` is in seconds."""

    def __init__(self, in_flight: int, queue: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._in_flight = in_flight
        self._queue = queue
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._between_s: float | None = None  # departures, while more queries came than could run
        self._departed: float | None = None  # the last one, if queries have been kept out ever since
        self._learnt = -math.inf
        self._promised = -math.inf
        self.running = 0
        self.shed = 0

    @property
    def waiting(self) -> int:
        """How many queries wait for their turn."""
        return len(self._waiting)

    @property
    def rate(self) -> float | None:
        """Queries a second that depart when as many come as can; None where that was not measured lately."""
        if self._between_s is None or self._clock() - self._learnt > _STALE_S:
            return None
        return 1 / self._between_s

    def check(self, deadline_s: float) -> None:
        """Refuse a query that could not be answered within `deadline_s`: Problem 429 that says when to come again."""
        full = self.running >= self._in_flight
        rate = self.rate
        late = rate is not None and (self.running + self.waiting + 1) / rate * _MARGIN > deadline_s
        if (full and self.waiting >= self._queue) or (late and self.running):
            self.shed += 1
            self._press()
            raise self._refusal()

    @asynccontextmanager
    async def turn(self, deadline_s: float) -> AsyncIterator[float]:
        """Wait for a slot and hold it; yields the seconds waited. Raises Problem 429, DeadlineError after waiting."""
        self.check(deadline_s)
        waited = await self._take(deadline_s)
        try:
            yield waited
        finally:
            self._depart()

    async def _take(self, deadline_s: float) -> float:
        if self.running < self._in_flight:
            self.running += 1
            return 0.0
        self._press()
        begun, mine = self._clock(), asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        try:
            async with asyncio.timeout(deadline_s):
                await mine
        except BaseException as end:
            if mine in self._waiting:
                self._waiting.remove(mine)
            elif not mine.cancelled():
                self._depart()  # the slot came when nobody wanted it any more
            if not isinstance(end, TimeoutError):
                raise
            raise DeadlineError(f"no answer by the deadline of {deadline_s * 1000:.0f} ms: it waited") from None
        return self._clock() - begun

    def _press(self) -> None:
        """Queries are kept out from now on: departures say how many can run."""
        if self._departed is None:
            self._departed = self._clock()

    def _depart(self) -> None:
        now = self._clock()
        if self._departed is not None:
            took = now - self._departed
            known = self._between_s if self.rate is not None else None
            self._between_s = took if known is None else known + _SMOOTHING * (took - known)
            self._between_s = max(self._between_s, 1e-6)
            self._learnt = now
            self._departed = now if self._waiting else None
        while self._waiting:
            following = self._waiting.popleft()
            if not following.done():
                following.set_result(None)  # the slot is handed on
                return
        self.running -= 1

    def _refusal(self) -> Problem:
        now, between = self._clock(), self._between_s or 1.0
        self._promised = max(self._promised, now + self.waiting * between) + between
        self._promised = min(self._promised, now + _LONGEST_WAIT_S)
        wait_s = max(1, math.ceil(self._promised - now))
        detail = f"more queries than can be answered in time: come again in {wait_s} s"
        return Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, slug="overloaded", headers={"Retry-After": str(wait_s)})
