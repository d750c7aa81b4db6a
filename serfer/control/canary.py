"""Whether a canary answers worse than the live release, from how both answered: pure, so that every driver agrees.

live:    1,200 queries, 0.1% failed, 95% within 84 ms   ┐
canary:    120 queries, 5.0% failed, 95% within 90 ms   ┴──> take it back: 5.0% of its queries failed
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Annotated, Final

from serfer.core.dataclass_codec import Bounds
from serfer.core.variants import CanaryLimits

BUCKETS: Final = 72
"""Buckets of latencies, each 2^(1/4) times as wide as the one before: from 1 ms to 262 s."""
_STEPS = 4  # buckets to a doubling
_SHARE = 0.95
_Count = Annotated[int, Bounds(0, 1e12)]


class Verdict(StrEnum):
    """What is to become of a canary."""

    GOES_ON = "goes on"
    """It has not answered enough queries yet, and its window has not passed."""
    PASSED = "passed"
    """Its window has passed, and it was not worse: it can be promoted."""
    TAKE_BACK = "take back"


@dataclass(frozen=True, slots=True)
class Conduct:
    """How queries ended: `answered` by latency, in buckets, and how many `failed`."""

    answered: tuple[_Count, ...] = (0,) * BUCKETS
    failed: _Count = 0

    @property
    def queries(self) -> int:
        return sum(self.answered) + self.failed

    @property
    def error_rate(self) -> float:
        return self.failed / self.queries if self.failed else 0.0

    @property
    def p95_ms(self) -> float | None:
        """The 95th percentile of latencies, the upper end of its bucket; None where none was answered."""
        total = sum(self.answered)
        if not total:
            return None
        place = next(place for place, count in enumerate(accumulate(self.answered)) if count >= _SHARE * total)
        return float(2.0 ** (place / _STEPS))

    def __add__(self, other: Conduct) -> Conduct:
        answered = tuple(mine + others for mine, others in zip(self.answered, other.answered, strict=True))
        return Conduct(answered, self.failed + other.failed)


class ConductCounter:
    """Counts how queries end."""

    def __init__(self) -> None:
        self._answered = [0] * BUCKETS
        self._failed = 0

    def answer(self, latency_ms: float) -> None:
        self._answered[bucket_of(latency_ms)] += 1

    def fail(self) -> None:
        self._failed += 1

    @property
    def conduct(self) -> Conduct:
        return Conduct(tuple(self._answered), self._failed)


def bucket_of(latency_ms: float) -> int:
    if latency_ms <= 1.0:
        return 0
    return min(BUCKETS - 1, math.ceil(math.log2(latency_ms) * _STEPS))


def total(conducts: Iterable[Conduct]) -> Conduct:
    return sum(conducts, Conduct())


def judge(canary: Conduct, live: Conduct, age_s: float, limits: CanaryLimits) -> tuple[Verdict, str]:
    """Return what is to become of a canary that has been there for `age_s`, and why, in words.

    Failures are judged as soon as so many have failed that the canary's first `limits.queries` would break the limit
    even if all others were answered. Latencies are compared once both have answered that many.
    """
    allowed = min(1.0, live.error_rate + limits.max_error_rate)
    if canary.failed > allowed * max(canary.queries, limits.queries):
        return (
            Verdict.TAKE_BACK,
            f"{canary.error_rate:.1%} of its queries failed, {live.error_rate:.1%} of the live ones",
        )
    ours, theirs = canary.p95_ms, live.p95_ms
    compared = min(sum(canary.answered), sum(live.answered)) >= limits.queries
    if compared and ours and theirs and ours > limits.max_latency_ratio * theirs:
        return (
            Verdict.TAKE_BACK,
            f"95% of its answers come within {ours:.0f} ms, of the live ones within {theirs:.0f} ms",
        )
    if age_s >= limits.window_s and canary.queries >= limits.queries:
        return Verdict.PASSED, f"{canary.queries:,} queries in {age_s:.0f} s were no worse than the live ones"
    return Verdict.GOES_ON, f"{canary.queries:,} queries so far"
