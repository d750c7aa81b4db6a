"""A quota of requests: a bucket that fills steadily."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ROUNDING_S = 1e-6  # rounding must not refuse a request that waited as long as it was told to


@dataclass
class Quota:
    """A bucket of `burst` requests that fills steadily, with `per_minute` a minute; `clock` is in seconds.

    `full_at` is when it will be full again if nothing is taken out.
    """

    per_minute: int
    burst: int
    clock: Callable[[], float]
    full_at: float = float("-inf")

    def take(self, now: float) -> float:
        """Take one request out and return 0.0, or take none and return the seconds until there will be one."""
        interval_s = 60 / self.per_minute
        full_at = max(self.full_at, now) + interval_s
        wait = full_at - now - self.burst * interval_s
        if wait > ROUNDING_S:
            return wait
        self.full_at = full_at
        return 0.0
