"""How a scenario of the chaos suite went, and what must not be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.chaos.testbed import Left
from bench.load.account import Account
from bench.load.load import WRONG, Sent

_MS_PER_S = 1000.0
_EXAMPLE = 160  # characters of an error's message


@dataclass(frozen=True)
class Demands:
    """What is asked of a scenario: how long keys may live, whether they may stay at all, how many times p50 p99 is."""

    longest_s: float
    keys_stay: bool
    tail: float | None


@dataclass(frozen=True)
class Played:
    """What is known of a scenario once its queries have ended.

    `served` are seconds from a query's first invocation on; `allowed` is what may have been invoked at most (Account);
    `twofold` queries were answered by two drivers, `differing` of them with different answers.
    """

    sent: tuple[Sent, ...]
    served: tuple[float, ...]
    account: Account
    invocations: int
    allowed: int
    twofold: int
    differing: int
    remark: str


@dataclass(frozen=True)
class Outcome:
    """A line of the suite's table; milliseconds from when queries were due, of those that were answered.

    In a burst most of that is waiting; `served` is from a query's first invocation on.
    `longest_s` is the longest that a key left in the store has to live, `forever` how many of them have no time to
    live. `problems` is empty where all went well.
    """

    scenario: str
    queries: int
    lost: int
    wrong: int
    p50_ms: float
    p99_ms: float
    served_p50_ms: float
    served_p99_ms: float
    retries: int
    hedges: int
    restarts: int
    invocations: int
    allowed: int
    keys: int
    longest_s: float
    forever: int
    processes: int
    twofold: int
    seconds: float
    remark: str
    problems: tuple[str, ...]

    @property
    def shown(self) -> dict[str, str]:
        """Its columns as people read them."""
        return {
            "scenario": self.scenario,
            "queries": f"{self.queries:,}",
            "lost": str(self.lost),
            "wrong": str(self.wrong),
            "p50 ms": f"{self.p50_ms:,.0f}",
            "p99 ms": f"{self.p99_ms:,.0f}",
            "served p50": f"{self.served_p50_ms:,.0f}",
            "served p99": f"{self.served_p99_ms:,.0f}",
            "retries": f"{self.retries:,}",
            "hedges": f"{self.hedges:,}",
            "restarts": f"{self.restarts:,}",
            "invocations": f"{self.invocations:,}",
            "allowed": f"{self.allowed:,}",
            "keys left": f"{self.keys:,}" + (f" for {self.longest_s:.0f} s" if self.keys else ""),
            "processes left": str(self.processes),
            "verdict": "; ".join(self.problems) or "ok",
            "remark": self.remark,
        }


def outcome(name: str, demands: Demands, played: Played, left: Left, processes: int, seconds: float) -> Outcome:
    """Judge a scenario that was played, and what it left behind."""
    p50, p99 = _percentiles([one.latency for one in played.sent if one.error is None])
    served_p50, served_p99 = _percentiles(played.served)
    wrong = sum(one.error == WRONG for one in played.sent)
    account = played.account
    return Outcome(
        scenario=name,
        queries=len(played.sent),
        lost=sum(one.error is not None for one in played.sent) - wrong,
        wrong=wrong,
        p50_ms=p50,
        p99_ms=p99,
        served_p50_ms=served_p50,
        served_p99_ms=served_p99,
        retries=account.retries,
        hedges=account.hedges,
        restarts=account.restarts,
        invocations=played.invocations,
        allowed=played.allowed,
        keys=left.keys,
        longest_s=left.longest_s,
        forever=left.forever,
        processes=processes,
        twofold=played.twofold,
        seconds=seconds,
        remark=played.remark,
        problems=(
            *_unanswered(played),
            *_left_behind(left, processes, demands),
            *_late(p50, p99, demands.tail),
        ),
    )


def not_played(name: str, queries: int) -> Outcome:
    """Return the line of a scenario for which there was no time: all of its queries are lost."""
    times, counts, problem = (0.0,) * 4, (0,) * 6, "there was no time left for it: allow more --seconds"
    return Outcome(name, queries, queries, 0, *times, *counts, 0.0, 0, 0, 0, 0.0, "", (problem,))


def _percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return p50 and p99 in milliseconds, 0 where there is nothing."""
    if not seconds:
        return 0.0, 0.0
    p50, p99 = np.percentile(seconds, (50, 99)) * _MS_PER_S
    return float(p50), float(p99)


def _unanswered(played: Played) -> Iterator[str]:
    failed = [one for one in played.sent if one.error]
    if failed:
        example = f"{failed[0].error}: {failed[0].message}"[:_EXAMPLE]
        yield f"{len(failed)} queries without a right answer, the first {example}"
    if played.differing:
        yield f"{played.differing} queries got two different answers"
    if played.invocations > played.allowed:
        yield f"{played.invocations - played.allowed} invocations more than allowed"


def _left_behind(left: Left, processes: int, demands: Demands) -> Iterator[str]:
    if left.keys and not demands.keys_stay:
        yield f"{left.keys} keys left"
    if left.forever:
        yield f"{left.forever} keys without a time to live"
    if left.longest_s > demands.longest_s:
        yield f"a key that lives {left.longest_s:.0f} s, more than {demands.longest_s:.0f}"
    if processes:
        yield f"{processes} processes left"


def _late(p50: float, p99: float, tail: float | None) -> Iterator[str]:
    if tail is not None and p99 > tail * p50:
        yield f"p99 is {p99 / p50:.1f} times p50, more than {tail:g}"
