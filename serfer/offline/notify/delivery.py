"""Delivery of an event to every target, each tried again for a bounded time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

from serfer.core.errors import UnavailableError
from serfer.core.retry import Backoff, RetryPolicy
from serfer.offline.notify.event import JobEvent
from serfer.offline.notify.target import Target

_BACKOFF = Backoff(1.0, 30.0, 3.0)
_TIMEOUT_S, _LEAST_S = 10.0, 0.1


@dataclass(frozen=True)
class Patience:
    """How often an event is tried, and for how many seconds in all."""

    attempts: int = 5
    seconds: float = 90.0


PATIENT, BRIEF = Patience(), Patience(attempts=2, seconds=10.0)


@dataclass(frozen=True)
class Delivery:
    """What became of an event at a target, after so many attempts; `error` is empty where it was delivered."""

    target: str
    attempts: int
    error: str


def deliver(
    event: JobEvent,
    targets: Sequence[Target],
    patience: Patience = PATIENT,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] | None = None,
    draw: Callable[[], float] = random.random,
) -> list[Delivery]:
    """Deliver an event to all targets at once; returns what became of it at each, in their order.

    An interrupt ends the waits between attempts.
    """
    if not targets:
        return []
    stopped = Event()
    run = _Delivering(event, patience, stopped, clock, sleep or stopped.wait, draw)
    with ThreadPoolExecutor(len(targets), thread_name_prefix="serfer-notify") as threads:
        try:
            return [*threads.map(run.deliver, targets)]
        except BaseException:
            stopped.set()
            raise


@dataclass(frozen=True)
class _Delivering:
    """One event on its way; `draw` is uniform in [0, 1)."""

    event: JobEvent
    patience: Patience
    stopped: Event
    clock: Callable[[], float]
    sleep: Callable[[float], object]
    draw: Callable[[], float]

    def deliver(self, target: Target) -> Delivery:
        """Try until the event is taken, no other attempt would help, or the attempts or the time are used up."""
        policy = RetryPolicy("notification", UnavailableError, _BACKOFF, self.patience.attempts)
        end, number = self.clock() + self.patience.seconds, 0
        while True:
            number += 1
            attempt = target.send(self.event, max(_LEAST_S, min(_TIMEOUT_S, end - self.clock())))
            error, left_s = UnavailableError(attempt.error), end - self.clock()
            wait_s = policy.wait(number, error, left_s, attempt.wait_s, self.draw()) if attempt.again else None
            if wait_s is not None:
                self.sleep(wait_s)
            if wait_s is None or self.stopped.is_set():
                return Delivery(target.name, number, attempt.error)
