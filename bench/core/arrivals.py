"""Arrival times of queries, fixed before the load starts, so that a slow system cannot thin it out."""

from __future__ import annotations

import math

import numpy as np

from serfer.core.errors import UsageError

MAX_QUERIES = 1_000_000
PATTERNS = ("even", "poisson")


def burst(queries: int) -> tuple[float, ...]:
    return (0.0,) * _checked(queries)


def even(rate: float, seconds: float) -> tuple[float, ...]:
    return tuple(number / rate for number in range(_checked(_expected(rate, seconds))))


def poisson(rate: float, seconds: float, seed: int) -> tuple[float, ...]:
    """Return independent arrivals at `rate` queries a second on average; the same seed gives the same ones.

    There are as many as `even` has, at uniform random times: a Poisson process, given its count. So rounds of different
    seeds offer the same work.
    """
    count = _checked(_expected(rate, seconds))
    return tuple(sorted(np.random.default_rng(seed).uniform(0.0, seconds, count).tolist()))


def _expected(rate: float, seconds: float) -> int:
    if not (0 < rate < math.inf and 0 < seconds < math.inf):
        raise UsageError(f"a rate and its seconds must be more than 0, not {rate:g} and {seconds:g}")
    return max(1, math.floor(min(rate * seconds * (1 + 1e-9), MAX_QUERIES + 1)))


def _checked(queries: int) -> int:
    if not 1 <= queries <= MAX_QUERIES:
        raise UsageError(f"a load has 1 to {MAX_QUERIES:,} queries; ask for fewer, or for less time")
    return queries
