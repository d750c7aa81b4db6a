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

_ROUNDS = 4  # of as many departures as run at once are what a rate is taken from: they come in clumps
_GUESS_S = 0.25  # between departures, where nothing is known
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
        self._gaps: deque[float] = deque(maxlen=_ROUNDS * in_flight)  # between departures, while queries were kept out
        self._pressed = False
        self._departed: float | None = None  # the last departure, if queries have been kept out ever since
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
        if len(self._gaps) < self._in_flight or self._clock() - self._learnt > _STALE_S:
            return None
        return len(self._gaps) / max(sum(self._gaps), 1e-6)

    def check(self, deadline_s: float) -> None:
        """Refuse a query that could not be answered within `deadline_s`: Problem 429 that says when to come again."""
        full = self.running >= self._in_flight
        rate = self.rate
        late = rate is not None and (self.running + self.waiting + 1) / rate * _MARGIN > deadline_s
        if (full and self.waiting >= self._queue) or (late and self.running):
            self.shed += 1
            self._pressed = True
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
        self._pressed = True
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

    def _depart(self) -> None:
        if self._pressed:
            self._learn(self._clock())
        else:
            self._departed = None
        self._pressed = bool(self._waiting)
        while self._waiting:
            following = self._waiting.popleft()
            if not following.done():
                following.set_result(None)  # the slot is handed on
                return
        self.running -= 1
        if not self.running:
            self._departed = None  # idle time says nothing

    def _learn(self, now: float) -> None:
        """Take a departure into the rate; the first one under pressure only says when to begin."""
        if now - self._learnt > _STALE_S:
            self._gaps.clear()
        if self._departed is not None:
            self._gaps.append(now - self._departed)
        self._departed = self._learnt = now

    def _refusal(self) -> Problem:
        now, rate = self._clock(), self.rate
        between = 1 / rate if rate else _GUESS_S
        self._promised = max(self._promised, now + self.waiting * between) + between
        self._promised = min(self._promised, now + _LONGEST_WAIT_S)
        wait_s = max(1, math.ceil(self._promised - now))
        detail = f"more queries than can be answered in time: come again in {wait_s} s"
        return Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, slug="overloaded", headers={"Retry-After": str(wait_s)})
