"""Open-loop load: queries are sent when they are due, whatever became of those before.

A query's latency counts from when it was due, not from when it could be sent: a system (or a client) that falls behind
cannot hide the wait (coordinated omission). Every query ends as one record, with its answer's time or its error's name.

    due       sent      answered
     │─ lag ───│──────────│
     │────── latency ─────│
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.core.exactness import difference
from serfer.pipeline.pipeline import Logits

Pixels = NDArray[np.uint8]
Submit = Callable[[Pixels], Future[Logits]]
NO_ANSWER, WRONG = "NoAnswer", "WrongAnswerError"
_TOLD_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Sent:
    """One query: seconds from the load's start when it was due, was sent and ended; `error` names its error's class."""

    number: int
    scheduled: float
    started: float
    ended: float
    error: str | None = None
    message: str = ""

    @property
    def latency(self) -> float:
        """Seconds from when it was due."""
        return self.ended - self.scheduled

    @property
    def lag(self) -> float:
        """Seconds by which it was sent late."""
        return self.started - self.scheduled


@dataclass(frozen=True)
class Question:
    """What a query asks: (N, H, W, C) uint8 pixels, and the (N, K) logits that are right; None where nobody knows."""

    pixels: Pixels
    logits: Logits | None = None


@dataclass(frozen=True)
class Clock:
    """Seconds, and how to wait for some of them."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


class _Load:
    """The queries of one load; they end in threads of the system's own."""

    def __init__(self, submit: Submit, arrivals: Sequence[float], clock: Clock) -> None:
        self._submit = submit
        self._arrivals = arrivals
        self._clock = clock
        self._start = clock.now()
        self._lock = threading.Lock()
        self._open: dict[int, tuple[float, Future[Logits]]] = {}
        self._ends: dict[int, Sent] = {}
        self._failed = 0
        self.all_ended = threading.Event()

    @property
    def now(self) -> float:
        """Seconds since the load's start."""
        return self._clock.now() - self._start

    def send(self, number: int, question: Question) -> None:
        """Send one query when it is due; an error on the way is its end."""
        if (wait := self._arrivals[number] - self.now) > 0:
            self._clock.sleep(wait)
        started = self.now
        try:
            future = self._submit(question.pixels)
        except Exception as error:  # noqa: BLE001 - whatever a system raises fails the query, not the load
            self._end(number, started, type(error).__name__, str(error))
            return
        with self._lock:
            self._open[number] = started, future
        future.add_done_callback(lambda done: self._end(number, started, *_verdict(done, question.logits)))

    def _end(self, number: int, started: float, error: str | None = None, message: str = "") -> None:
        """Take a query's end; its first one counts."""
        ended = self.now
        with self._lock:
            self._open.pop(number, None)
            if number in self._ends:
                return
            self._ends[number] = Sent(number, self._arrivals[number], started, ended, error, message)
            self._failed += error is not None
            if len(self._ends) == len(self._arrivals):
                self.all_ended.set()

    def give_up(self) -> None:
        """Let what has not ended end as failed, and cancel it."""
        with self._lock:
            left = [*self._open.items()]
        for number, (started, future) in left:
            self._end(number, started, NO_ANSWER, "no answer while the client waited")
            future.cancel()

    def in_order(self) -> list[Sent]:
        """Return how every query ended."""
        with self._lock:
            return [self._ends[number] for number in sorted(self._ends)]

    def __str__(self) -> str:
        ended = len(self._ends)
        return f"{ended + len(self._open):,} of {len(self._arrivals):,} sent, {ended:,} ended, {self._failed:,} failed"


def offer(
    submit: Submit,
    questions: Sequence[Question],
    arrivals: Sequence[float],
    *,
    patience_s: float = 600.0,
    clock: Clock | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Sent]:
    """Send a query at each arrival (seconds, ascending), the questions in turn, and return how each ended, in order.

    What has no answer `patience_s` after the last arrival is given up and counts as failed with `NoAnswer`; a wrong
    answer (rule 1) counts as failed with `WrongAnswerError`.
    """
    load = _Load(submit, arrivals, clock or Clock())
    try:
        _run(load, questions, len(arrivals), progress)
        while not load.all_ended.wait(_TOLD_EVERY_S):
            progress(str(load))
            if load.now > arrivals[-1] + patience_s:
                load.give_up()
    except BaseException:
        load.give_up()  # whoever closes the system must not wait for what nobody waits for
        raise
    return load.in_order()


def _run(load: _Load, questions: Sequence[Question], count: int, progress: Callable[[str], None]) -> None:
    """Send every query when it is due."""
    told = 0.0
    for number in range(count):
        load.send(number, questions[number % len(questions)])
        if load.now > told + _TOLD_EVERY_S:
            told = load.now
            progress(str(load))


def _verdict(future: Future[Logits], expected: Logits | None) -> tuple[str | None, str]:
    """Return the name and the message of what is wrong with an answer, if anything is."""
    try:
        error = future.exception()
    except CancelledError:
        return NO_ANSWER, "cancelled"
    if error is not None:
        return type(error).__name__, str(error)
    if expected is None:
        return None, ""
    found = future.result()
    if found.shape != expected.shape:
        return WRONG, f"answered with shape {found.shape}, not {expected.shape}"
    distance = difference(found, expected)
    return (None, "") if distance.exact else (WRONG, f"{distance.error:.1e} of the logits' range off")
