"""Admission: who may use what a driver has to give, and when the others should come again.

    head ──▶ room, in time? ──▶ body ──▶ parsed ──▶ a place ──▶ a decoder ──▶ a turn ──▶ answer
               │ no              └─ bytes ─┘            └─ bytes    └─ clients take turns ─┘
               ▼
             429, Retry-After

A driver has a budget of slots and a budget of bytes. The rule:

- **Places.** As many queries are here as may run and wait together, from before their images are decoded until their
  answer. A query that would be answered after its deadline, at the rate at which queries depart, is refused before its
  body is read. Where all places are taken, the client that has most of them loses the newest of its queries that wait,
  if the client that asks has at least two fewer. A query whose answer was promised (202) is never lost.
- **Slots.** What waits for a slot stands in a line of its client's. Lines take turns, so that a client waits for one
  request of each other client at most. In a line, requests that have had fewer slots come first: a request of one image
  passes the second image of another. A slot that comes too late for an answer by the deadline goes to the next request.
- **Bytes.** Bodies as they arrive, what they are unpacked to, and arrays that wait count together, and are refused
  where they do not fit. The last eighth is for clients that hold no more than an eighth: one client's large bodies keep
  no small ones of others out. A request may take all bytes if no other request holds any. Large JSON and compressed
  bodies are parsed one at a time, small bodies as they come.
- **Refusals** say when there should be room: after what waits, and after the clients refused before, so that clients
  that respect it return one after the other. Beyond ten a second they are held back: reading and refusing a request
  takes milliseconds of the processors that answers need.

Downloads and uploads have places and no line. An instance refuses by predicted time, in serfer/instance/engine.py.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, MutableSequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Self

from serfer.api.http.problems import OVERLOADED, Problem
from serfer.core.errors import DeadlineError

_ROUNDS: Final = 4  # of as many departures as run at once are what a rate is taken from: they come in clumps
_GUESS_S: Final = 0.25  # between departures, where nothing is known
_MARGIN: Final = 2.0  # a query may take so much longer than the mean says
_STALE_S: Final = 10.0  # what was measured longer ago says nothing of now
_LONGEST_WAIT_S: Final = 60.0
_REFUSALS_PER_S: Final = 10.0  # that go out at once
_LONGEST_HOLD_S: Final = 3.0
_BYTES_AGAIN_S: Final = 1.0
_SPARE: Final = 8  # the part of the bytes that is for clients which hold no more than as much


@dataclass(eq=False)
class Share(AbstractContextManager[Any]):
    """What a client's request has until `release`; as a context, until its end unless it is `kept`."""

    client: str
    kept: bool = field(default=False, kw_only=True)

    @abstractmethod
    def release(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        if not self.kept:
            self.release()


@dataclass(eq=False)
class Place(Share):
    """A place in a `pool`, which cannot be lost if it is kept.

    `waiting` is the slot that it waits for, or has waited for last.
    """

    pool: Places | None = None
    waiting: asyncio.Future[bool] | None = field(default=None, init=False)

    def lose(self, refusal: Problem) -> None:
        self.release()
        if self.waiting is not None:
            self.waiting.set_exception(refusal)

    def release(self) -> None:
        pool, self.pool = self.pool, None
        if pool is not None:
            del pool.taken[self.client][self]
            pool.count -= 1
            pool.shown[0] = pool.count
            if not pool.taken[self.client]:
                del pool.taken[self.client]


class Places:
    """At most `most` places, of which one client has `share` at most, by default all; for one event loop.

    `full` is said where there is none. `at_once` requests that have a place are served at the same time, and one ends
    every `between_s()` seconds: that tells when to come again. `clock` is in seconds.
    """

    def __init__(
        self,
        most: int,
        full: str,
        *,
        share: int | None = None,
        at_once: int | None = None,
        between_s: Callable[[], float] = lambda: 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = most
        self._full = full
        self._share = most if share is None else share
        self._at_once = most if at_once is None else at_once
        self._between_s = between_s
        self._clock = clock
        self.taken: dict[str, dict[Place, None]] = {}  # by client, the oldest first
        self.count = 0
        self.shown: MutableSequence[int] | memoryview = [0]  # the count, for others to see
        self._next = -math.inf  # when the client that was refused last should come again

    def ahead(self, client: str) -> int:
        """Return how many requests end until a client's next one does: no more than its share of the turns allows."""
        own, clients = len(self.taken.get(client, ())), len(self.taken) + (client not in self.taken)
        return min(self.count + 1, (own + 1) * clients)

    def has_room(self, client: str) -> bool:
        if len(self.taken.get(client, ())) >= self._share:
            return False
        return self.count < self.most or self._surplus(client) is not None

    def take(self, client: str = "", *, kept: bool = False) -> Place:
        """Return a place for a request, another client's where that has too many; raises Problem 429 for none."""
        if (self.count or not self.most) and not self.has_room(client):
            raise self.refusal()
        if self.count >= self.most and (surplus := self._surplus(client)):
            surplus.lose(self.refusal())
        place = Place(client, self, kept=kept)
        self.taken.setdefault(client, {})[place] = None
        self.count += 1
        self.shown[0] = self.count
        return place

    def refusal(self) -> Problem:
        """Return the problem of the next client that is refused: behind all that wait, and all refused before."""
        now, between_s = self._clock(), self._between_s()
        waiting = max(0, self.count - self._at_once)
        self._next = min(max(self._next, now + waiting * between_s) + between_s, now + _LONGEST_WAIT_S)
        return _overloaded(self._full, self._next - now)

    def _surplus(self, client: str) -> Place | None:
        """Return the newest place that can be lost of the client with most, if that has two more than this one."""
        largest = max(self.taken.values(), key=len, default={})
        if len(largest) < len(self.taken.get(client, ())) + 2:
            return None
        waiting = (place for place in reversed(largest) if place.waiting is not None and not place.waiting.done())
        return next((place for place in waiting if not place.kept), None)


@dataclass(order=True)
class _Waiter:
    served: int
    number: int
    deadline: float = field(compare=False)
    granted: asyncio.Future[bool] = field(compare=False)  # False where the slot came too late


class Slots:
    """At most `count` slots are held, and clients take turns at them; for one event loop. `clock` is in seconds.

    `took` are the seconds for which the last ones were held without an error, until `ended`. `released` is called with
    the time when what holds one ends, unless it is cancelled: a client that has left says nothing of how fast work is
    done.
    """

    def __init__(
        self,
        count: int,
        clock: Callable[[], float] = time.monotonic,
        released: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.count = count
        self.running = 0
        self.took: deque[float] = deque(maxlen=count)
        self.ended = -math.inf
        self.clock = clock
        self.released = released
        self._lines: dict[str, list[_Waiter]] = {}  # heaps, the client whose turn is next first
        self._arrivals = 0

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lines.values()))

    def hold(self, place: Place, left_s: float = math.inf, served: int = 0) -> _Turn:
        """Return a context that waits for a slot and holds it.

        `served` is how often this request has held one. Raises Problem 429 where the place is lost, and DeadlineError
        after `left_s` seconds, or when a slot comes with less time left than the last ones were held for: it would only
        take others' time.
        """
        return _Turn(self, place, left_s, served)

    async def wait(self, place: Place, left_s: float, served: int) -> None:
        granted = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        waiter = _Waiter(served, self._arrivals, self.clock() + left_s, granted)
        heapq.heappush(self._lines.setdefault(place.client, []), waiter)
        place.waiting = granted
        try:
            async with asyncio.timeout(None if left_s == math.inf else left_s):
                in_time = await granted
        except BaseException as end:
            if granted.done() and not granted.cancelled() and granted.exception() is None and granted.result():
                self.hand_on()  # the slot came when it was no longer wanted
            self._remove(place.client, waiter)
            if isinstance(end, TimeoutError):
                raise _late(left_s) from None
            raise
        if not in_time:
            raise _late(left_s)

    def _remove(self, client: str, waiter: _Waiter) -> None:
        line = self._lines.get(client, [])
        if waiter in line:
            line.remove(waiter)
            heapq.heapify(line)
            if not line:
                del self._lines[client]

    def hand_on(self) -> None:
        """Give the slot to the next client's next request that can still be answered; the client goes to the end."""
        latest = self.clock() + (median(self.took) if self.took else 0.0) if self._lines else 0.0
        while self._lines:
            client = next(iter(self._lines))
            line = self._lines.pop(client)
            waiter = heapq.heappop(line)
            if line:
                self._lines[client] = line
            if not waiter.granted.done():
                waiter.granted.set_result(waiter.deadline > latest)
                if waiter.deadline > latest:
                    return
        self.running -= 1


@dataclass(eq=False, slots=True)
class _Turn:
    """One holder of a slot, `since` a time: a class, as a generator's context takes three times as many calls."""

    slots: Slots
    place: Place
    left_s: float
    served: int
    since: float = field(default=0.0, init=False)
    waited_s: float = field(default=0.0, init=False)

    async def __aenter__(self) -> Self:
        slots = self.slots
        self.since = slots.clock()
        if slots.running < slots.count:
            slots.running += 1
        else:
            await slots.wait(self.place, self.left_s, self.served)
            arrived, self.since = self.since, slots.clock()
            self.waited_s = self.since - arrived
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        slots, now = self.slots, self.slots.clock()
        if kind is None:
            slots.ended = now
            slots.took.append(now - self.since)
        if kind is None or issubclass(kind, Exception):
            slots.released(now)
        slots.hand_on()


class Bytes:
    """The bytes that all requests hold together, `held`, at most `most`; for one event loop."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.by_client: dict[str, int] = {}

    def hold(self, client: str = "", size: int = 0) -> HeldBytes:
        """Return what a client's request holds, `size` bytes at first; raises Problem 429 where that is too much."""
        held = HeldBytes(client, self)
        if size:
            held.add(size)
        return held


@dataclass(eq=False)
class HeldBytes(Share):
    """Bytes of a `budget`; the client may change before the first ones."""

    budget: Bytes
    size: int = field(default=0, init=False)

    def add(self, size: int) -> None:
        """Hold `size` bytes more, or less where it is negative; raises Problem 429 where all would hold too many."""
        budget = self.budget
        of_client = budget.by_client.get(self.client, 0) + size
        if size > 0:
            spare = budget.most // _SPARE
            is_small = of_client <= spare or budget.held == self.size
            if budget.held + size > (budget.most if is_small else budget.most - spare):
                why = "the requests that are here hold all the memory that there is for them (SERFER_API_HELD_BYTES)"
                raise _overloaded(why, _BYTES_AGAIN_S)
        self.size += size
        budget.held += size
        if of_client:
            budget.by_client[self.client] = of_client
        elif size:
            del budget.by_client[self.client]

    def release(self) -> None:
        self.add(-self.size)


class Admission:
    """The places and slots of a service's queries and downloads, and its bytes; `clock` is in seconds.

    At most `in_flight` queries run while `queue` more are here; `held_bytes` is the budget of bytes.
    """

    def __init__(
        self,
        in_flight: int,
        queue: int,
        *,
        held_bytes: int = 256 * 1024 * 1024,
        downloads: int = 16,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.in_flight = in_flight
        self.queries = Places(
            in_flight + queue,
            "more queries than can be answered in time (SERFER_API_IN_FLIGHT, SERFER_API_QUEUE)",
            at_once=in_flight,
            between_s=lambda: 1 / self.rate if self.rate else _GUESS_S,
            clock=clock,
        )
        self.turns = Slots(in_flight, clock, self._depart)
        self.parsing = Slots(1, clock)
        self.downloads = Places(
            downloads,
            "as many downloads run as may at once, of this client or of all (SERFER_API_DOWNLOADS)",
            share=max(1, downloads // 2),
            clock=clock,
        )
        self.bytes = Bytes(held_bytes)
        self._clock = clock
        self._sleep = sleep
        self._next_refusal = -math.inf
        self._gaps: deque[float] = deque(maxlen=_ROUNDS * in_flight)  # between departures, while queries were kept out
        self._pressed = False
        self._departed: float | None = None  # the last departure, if queries have been kept out ever since
        self._learnt = -math.inf

    @property
    def rate(self) -> float | None:
        """Queries a second that depart when as many come as can; None where that was not measured lately."""
        if len(self._gaps) < self.in_flight or self._clock() - self._learnt > _STALE_S:
            return None
        return len(self._gaps) / max(sum(self._gaps), 1e-6)

    def check(self, client: str, left_s: float) -> None:
        """Refuse a query that could not be answered in `left_s` seconds: Problem 429 that says when to come again."""
        queries = self.queries
        if queries.most and not queries.count:
            return  # nobody to wait for
        rate = self.rate or (self._rate_at_most() if queries.count >= self.in_flight else None)
        late = rate is not None and queries.ahead(client) / rate * _MARGIN > left_s
        if late or not queries.has_room(client):
            self._pressed = True
            raise queries.refusal()

    def place(self, client: str, left_s: float, *, kept: bool = False) -> Place:
        """Return a query's place, which it has before it is decoded; raises Problem 429 as `check`."""
        if self.queries.count or not self.queries.most:
            self.check(client, left_s)
        else:
            self._departed = None  # idle time says nothing
        return self.queries.take(client, kept=kept)

    async def pace(self, left_s: float) -> None:
        """Return when the next refusal may go out, at the latest when the `left_s` until its deadline have passed."""
        now = self._clock()
        due = min(max(self._next_refusal, now), now + min(_LONGEST_HOLD_S, max(left_s, 0.0)))
        self._next_refusal = due + 1 / _REFUSALS_PER_S
        if due > now:
            await self._sleep(due - now)

    def _depart(self, now: float) -> None:
        """Take a departure into the rate, if queries were kept out; the first one only says when to begin."""
        kept_out = self.queries.count > self.in_flight
        pressed, self._pressed = self._pressed or kept_out, kept_out
        if not pressed:
            self._departed = None
            return
        if now - self._learnt > _STALE_S:
            self._gaps.clear()
        if self._departed is not None:
            self._gaps.append(now - self._departed)
        self._departed = self._learnt = now

    def _rate_at_most(self) -> float | None:
        if not self.turns.took or self._clock() - self.turns.ended > _STALE_S:
            return None
        return self.in_flight / max(median(self.turns.took), 1e-6)


def _overloaded(why: str, wait_s: float) -> Problem:
    again = max(1, math.ceil(wait_s))
    detail = f"{why}: come again in {again} s"
    return Problem(429, detail, slug=OVERLOADED, headers={"Retry-After": str(again)})


def _late(left_s: float) -> DeadlineError:
    return DeadlineError(f"no answer by the deadline of {left_s * 1000:.0f} ms: it waited")
