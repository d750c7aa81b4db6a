"""Open-loop workloads: queries are sent at their arrival times, whatever became of those before.

A query's latency counts from its scheduled arrival, not from when it was sent: a system (or a client) that falls behind
cannot hide the wait (coordinated omission). Every query ends as one record, with its result or its error's name.

    scheduled   started    ended
     │── lag ────│──────────│
     │─────── latency ──────│
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

NO_ANSWER = "NoAnswer"
_PROGRESS_EVERY_S = 0.25
T = TypeVar("T")
Pending = Future[Any] | asyncio.Future[Any]
Send = Callable[[int], Pending]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sent(Generic[T]):
    """A query's times in seconds from the workload's start, and its result, or its error's class and message."""

    number: int
    scheduled: float
    started: float
    ended: float
    error: str | None = None
    message: str = ""
    result: T | None = None

    @property
    def latency(self) -> float:
        return self.ended - self.scheduled

    @property
    def lag(self) -> float:
        """Seconds by which it was sent late."""
        return self.started - self.scheduled


@dataclass(frozen=True)
class Clock:
    """Seconds, and a wait for some of them."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


def _as_is(_number: int, result: Any) -> Any:  # noqa: ANN401 - any result
    return result


async def run(
    send: Send,
    arrivals: Sequence[float],
    accept: Callable[[int, Any], T] = _as_is,
    *,
    patience_s: float = 600.0,
    clock: Clock | None = None,
    progress: Progress = lambda _: None,
) -> list[Sent[T]]:
    """Send query `number` at each arrival (seconds, ascending), and return how each ended, in order.

    A future that `send` returns may end in any thread. `accept` makes of a query's number and result what is kept of
    it; what it raises is the query's error. Its time does not count. A query without a result `patience_s` after the
    last arrival is cancelled and counts as failed with `NoAnswer`.
    """
    if not arrivals:
        return []
    workload = _Workload(send, arrivals, accept, clock or Clock())
    try:
        reported = 0.0
        for number in range(len(arrivals)):
            await workload.send(number)
            if workload.now > reported + _PROGRESS_EVERY_S:
                reported = workload.now
                progress(str(workload))
        while not await workload.all_ended(_PROGRESS_EVERY_S):
            progress(str(workload))
            if workload.now > arrivals[-1] + patience_s:
                workload.give_up()
    except BaseException:
        workload.give_up()  # closing the system must not wait for queries of which no result is wanted
        raise
    return workload.in_order()


class _Workload(Generic[T]):
    def __init__(self, send: Send, arrivals: Sequence[float], accept: Callable[[int, Any], T], clock: Clock) -> None:
        self._send = send
        self._arrivals = arrivals
        self._accept = accept
        self._clock = clock
        self._start = clock.now()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._open: dict[int, tuple[float, Pending]] = {}
        self._ends: dict[int, Sent[T]] = {}
        self._failed = 0
        self._all_ended = asyncio.Event()

    @property
    def now(self) -> float:
        return self._clock.now() - self._start

    async def send(self, number: int) -> None:
        await self._clock.sleep(max(0.0, self._arrivals[number] - self.now))
        started = self.now
        try:
            pending = self._send(number)
        except Exception as error:  # noqa: BLE001 - whatever a system raises fails the query, not the workload
            self._end(number, started, type(error).__name__, str(error))
            return
        with self._lock:
            self._open[number] = started, pending
        pending.add_done_callback(lambda done: self._done(number, started, done))

    def _done(self, number: int, started: float, done: Pending) -> None:
        ended = self.now
        try:
            result = self._accept(number, done.result())
        except (CancelledError, asyncio.CancelledError):
            self._end(number, started, NO_ANSWER, "cancelled", ended=ended)
        except Exception as error:  # noqa: BLE001 - same
            self._end(number, started, type(error).__name__, str(error), ended=ended)
        else:
            self._end(number, started, result=result, ended=ended)

    def _end(
        self,
        number: int,
        started: float,
        error: str | None = None,
        message: str = "",
        *,
        result: T | None = None,
        ended: float | None = None,
    ) -> None:
        ended = self.now if ended is None else ended
        with self._lock:
            self._open.pop(number, None)
            if number in self._ends:
                return
            self._ends[number] = Sent(number, self._arrivals[number], started, ended, error, message, result)
            self._failed += error is not None
            over = len(self._ends) == len(self._arrivals)
        if over:
            self._loop.call_soon_threadsafe(self._all_ended.set)

    async def all_ended(self, within_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._all_ended.wait()
        return self._all_ended.is_set()

    def give_up(self) -> None:
        with self._lock:
            left = [*self._open.items()]
        for number, (started, pending) in left:
            self._end(number, started, NO_ANSWER, "no answer while the client waited")
            pending.cancel()

    def in_order(self) -> list[Sent[T]]:
        with self._lock:
            return [self._ends[number] for number in sorted(self._ends)]

    def __str__(self) -> str:
        ended = len(self._ends)
        return f"{ended + len(self._open):,} of {len(self._arrivals):,} sent, {ended:,} ended, {self._failed:,} failed"
