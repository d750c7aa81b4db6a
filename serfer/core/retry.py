"""Retries of what may succeed later: how long to wait before each, how many there are, and a hook that sees them all.

Waits grow and are random, so that callers that failed together do not retry together: "equal jitter" of M. Brooker,
Exponential Backoff And Jitter, AWS Architecture Blog, 2015, of which half is kept. Clocks and sleeping are the
caller's; a generator, which cannot be called again, uses RetryPolicy.wait.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
RetryHook: TypeAlias = Callable[[str, int, Exception], object]
"""Called with a policy's name, the number of the attempt that failed, from 1, and its error."""
NO_JITTER = 1.0
_MAX_GROWTHS = 64  # more of them overflow a float, and have long reached `longest`
_hooks: list[RetryHook] = []


class Backoff(NamedTuple):
    """Waits in seconds: the n-th, from 1, is base * factor^(n - 1), at most `longest`, times a factor in [0.5, 1)."""

    base: float
    longest: float
    factor: float = 2.0

    def wait(self, failures: int, draw: float = NO_JITTER) -> float:
        """Return the wait after `failures` failures, at least one; `draw` is uniform in [0, 1), or NO_JITTER."""
        full = self.base * self.factor ** min(failures - 1, _MAX_GROWTHS)
        return min(self.longest, full) * (0.5 + 0.5 * draw)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The errors that are retried, `attempts` in all, and the waits; hooks know the policy by its `name`."""

    name: str
    on: type[Exception] | tuple[type[Exception], ...]
    backoff: Backoff
    attempts: float = math.inf

    def wait(
        self, attempt: int, error: Exception, left_s: float = math.inf, after_s: float = 0.0, draw: float | None = None
    ) -> float | None:
        """Return how long to wait after the `attempt`-th attempt, from 1, has failed; None where it was the last.

        That is the one whose next would not begin within `left_s`, too. `after_s` is the wait that the callee asked
        for: the backoff is added to it, since others were asked the same. `draw` is uniform in [0, 1).
        """
        if attempt >= self.attempts or not isinstance(error, self.on):
            return None
        draw = random.random() if draw is None else draw  # noqa: S311 - jitter, not a secret
        wait = after_s + self.backoff.wait(attempt, draw)
        if wait >= left_s:
            return None
        for hook in tuple(_hooks):
            hook(self.name, attempt, error)
        return wait


@contextmanager
def observe_retries(hook: RetryHook) -> Iterator[None]:
    _hooks.append(hook)
    try:
        yield
    finally:
        _hooks.remove(hook)


def retry(
    call: Callable[[], T],
    policy: RetryPolicy,
    sleep: Callable[[float], object],
    left_s: Callable[[], float] = lambda: math.inf,
) -> T:
    """Return what a call does; raises its last error once attempts, or the seconds that are left, are used up."""
    attempt = 1
    while True:
        try:
            return call()
        except policy.on as error:
            wait = policy.wait(attempt, error, left_s())
            if wait is None:
                raise
        sleep(wait)
        attempt += 1


async def retry_async(
    call: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    sleep: Callable[[float], Awaitable[object]],
    left_s: Callable[[], float] = lambda: math.inf,
) -> T:
    attempt = 1
    while True:
        try:
            return await call()
        except policy.on as error:
            wait = policy.wait(attempt, error, left_s())
            if wait is None:
                raise
        await sleep(wait)
        attempt += 1
