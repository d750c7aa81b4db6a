"""Admission control: a bound on queries in flight, a bounded queue before it, and the time that each would take.

    arrives ──▶ a slot is free? ──▶ runs ──▶ departs
                  │ no                          │ measured while queries wait: departures a second
                  ▼                             ▼
                queue ◀── room, and time enough before its deadline?   no ──▶ 429, Retry-After

A refusal says when there should be room: after what waits, and after the clients refused before. So
clients that respect it come back one after the other, and not all at once. Refusals of many that do not are held back
(`RefusalPace`), so that those who ask again at once do not take the time of those who were let in.

This is a driver's; an instance refuses by predicted time, in serfer/instance/engine.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from statistics import median

from serfer.api.http.problems import OVERLOADED, Problem
from serfer.core.errors import DeadlineError

_ROUNDS = 4  # of as many departures as run at once are what a rate is taken from: they come in clumps
_GUESS_S = 0.25  # between departures, where nothing is known
_MARGIN = 2.0  # a query may take so much longer than the mean says
_STALE_S = 10.0  # what was measured longer ago says nothing of now
_LONGEST_WAIT_S = 60.0
_REFUSALS_PER_S = 10.0  # that go out at once
_LONGEST_HOLD_S = 3.0


class Reservation:
    """A place among those that run or wait, for a query that is to ask for its turn later; `release` gives it up."""

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission

    def release(self) -> None:
        """Give the place up; a second call does nothing."""
        if self._admission is not None:
            self._admission.reserved -= 1
            self._admission = None


_RESERVED: ContextVar[Reservation | None] = ContextVar("serfer_reservation", default=None)


@contextmanager
def using(reservation: Reservation) -> Iterator[None]:
    """Give the reserved place to the query that asks for its turn in here."""
    token = _RESERVED.set(reservation)
    try:
        yield
    finally:
        _RESERVED.reset(token)


class RefusalPace:
    """Holds refusals back for at most 3 s where there are more than 10 a second; `clock` is in seconds.

    Reading and refusing a request takes milliseconds of the processors that answers need.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._next = -math.inf

    async def hold(self, left_s: float) -> None:
        """Return when the next refusal may go out, at the latest when the `left_s` until its deadline have passed."""
        now = self._clock()
        due = min(max(self._next, now), now + min(_LONGEST_HOLD_S, max(left_s, 0.0)))
        self._next = due + 1 / _REFUSALS_PER_S
        if due > now:
            await self._sleep(due - now)


class Admission:
    """At most `in_flight` queries run and `queue` wait, first come first served; `clock` is in seconds."""

    def __init__(self, in_flight: int, queue: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.in_flight = in_flight
        self._queue = queue
        self._clock = clock
        self._waiting: deque[tuple[asyncio.Future[bool], float]] = deque()  # each with its deadline on the clock
        self._took: deque[float] = deque(maxlen=in_flight)  # seconds that the last queries ran which were answered
        self._gaps: deque[float] = deque(maxlen=_ROUNDS * in_flight)  # between departures, while queries were kept out
        self._pressed = False
        self._departed: float | None = None  # the last departure, if queries have been kept out ever since
        self._learnt = self._answered = -math.inf
        self._promised = -math.inf
        self.running = 0
        self.reserved = 0
        self.shed = 0

    @property
    def waiting(self) -> int:
        """The number of queries that wait for their turn."""
        return len(self._waiting)

    @property
    def rate(self) -> float | None:
        """Queries a second that depart when as many come as can; None where that was not measured lately."""
        if len(self._gaps) < self.in_flight or self._clock() - self._learnt > _STALE_S:
            return None
        return len(self._gaps) / max(sum(self._gaps), 1e-6)

    @property
    def promised(self) -> bool:
        """Whether the query that asks has a place that was reserved for it (`using`)."""
        return _RESERVED.get() is not None

    def check(self, deadline_s: float) -> None:
        """Refuse a query that could not be answered within `deadline_s`: Problem 429 that says when to come again."""
        known = self.running + self.waiting + self.reserved
        rate = self.rate or (self._rate_at_most() if known >= self.in_flight else None)
        late = rate is not None and (known + 1) / rate * _MARGIN > deadline_s
        if known >= self.in_flight + self._queue or (late and known):
            self.shed += 1
            self._pressed = True
            raise self._refusal()

    def reserve(self, deadline_s: float) -> Reservation:
        """Reserve a place for a query that is answered later; raises Problem 429 as `check`."""
        self.check(deadline_s)
        self.reserved += 1
        return Reservation(self)

    @contextmanager
    def place(self, deadline_s: float) -> Iterator[None]:
        """Keep a place for the query that is prepared here, until it asks for its turn; raises Problem 429 as `check`.

        Preparing takes processor time that answers need: a query is refused before it.
        """
        if self.promised:
            yield
            return
        reservation = self.reserve(deadline_s)
        try:
            with using(reservation):
                yield
        finally:
            reservation.release()

    @asynccontextmanager
    async def turn(self, deadline_s: float) -> AsyncIterator[float]:
        """Wait for a slot and hold it; yields the seconds waited.

        Raises Problem 429, unless a place was reserved (`using`), and DeadlineError after waiting, at the latest when a
        slot comes too late: when less time is left than any of the last queries took. It would only take others' time.
        """
        reservation = _RESERVED.get()
        if reservation is None:
            self.check(deadline_s)
        else:
            reservation.release()
        waited = await self._take(deadline_s)
        begun = self._clock()
        try:
            yield waited
        except asyncio.CancelledError:
            self._hand_on()  # its client has left: that is not how fast queries are answered
            raise
        except BaseException:
            self._depart()
            raise
        self._answered = self._clock()
        self._took.append(self._answered - begun)
        self._depart()

    async def _take(self, deadline_s: float) -> float:
        if self.running < self.in_flight:
            self.running += 1
            return 0.0
        self._pressed = True
        begun, mine = self._clock(), asyncio.get_running_loop().create_future()
        place = (mine, begun + deadline_s)
        self._waiting.append(place)
        try:
            async with asyncio.timeout(deadline_s):
                await mine
        except BaseException as end:
            if place in self._waiting:
                self._waiting.remove(place)
            elif mine.done() and not mine.cancelled() and mine.result():
                self._hand_on()  # the slot came when it was not wanted any more
            if not isinstance(end, TimeoutError):
                raise
            raise _late(deadline_s) from None
        if not mine.result():
            raise _late(deadline_s)
        return self._clock() - begun

    def _depart(self) -> None:
        if self._pressed:
            self._learn(self._clock())
        else:
            self._departed = None
        self._hand_on()

    def _hand_on(self) -> None:
        """Give the slot to the query that has waited longest of those that can still be answered, if any waits."""
        self._pressed = bool(self._waiting)
        latest = self._clock() + (median(self._took) if self._took else 0.0)
        while self._waiting:
            following, deadline = self._waiting.popleft()
            if not following.done():
                following.set_result(deadline > latest)
                if deadline > latest:
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

    def _rate_at_most(self) -> float | None:
        """Return the rate if queries take no longer than the last ones did; None where none has ended lately."""
        if not self._took or self._clock() - self._answered > _STALE_S:
            return None
        return self.in_flight / max(median(self._took), 1e-6)

    def _refusal(self) -> Problem:
        now, rate = self._clock(), self.rate
        between = 1 / rate if rate else _GUESS_S
        self._promised = max(self._promised, now + self.waiting * between) + between
        self._promised = min(self._promised, now + _LONGEST_WAIT_S)
        wait_s = max(1, math.ceil(self._promised - now))
        detail = f"more queries than can be answered in time: come again in {wait_s} s"
        return Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, slug=OVERLOADED, headers={"Retry-After": str(wait_s)})


def _late(deadline_s: float) -> DeadlineError:
    return DeadlineError(f"no answer by the deadline of {deadline_s * 1000:.0f} ms: it waited")
