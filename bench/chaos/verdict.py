"""The outcome of a scenario of the chaos suite, and whether it passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from serfer_bench.chaos.budget import InvocationBudget
from serfer_bench.chaos.testbed import Left
from serfer_bench.core.quantiles import percentiles
from serfer_bench.core.workload import Sent
from serfer_bench.load.queries import WRONG

_MS_PER_S = 1000.0
_EXAMPLE = 160  # characters of an error's message


@dataclass(frozen=True)
class PassCriteria:
    """Pass criteria: the longest life of a key, whether any may be left at all, and the highest ratio of p99 to p50."""

    longest_s: float
    keys_stay: bool
    tail: float | None


@dataclass(frozen=True)
class Observations:
    """Observations of a scenario once its queries have ended.

    `served` are seconds from a query's first invocation on; `allowed` is the budget's limit of invocations;
    `duplicates` queries were answered by two drivers, `conflicting` of them with different answers.
    """

    sent: tuple[Sent[None], ...]
    served: tuple[float, ...]
    budget: InvocationBudget
    invocations: int
    allowed: int
    duplicates: int
    conflicting: int
    remark: str


@dataclass(frozen=True)
class Outcome:
    """A row of the suite's table; milliseconds of answered queries, from their scheduled arrivals.

    In a burst most of that is waiting; `served` is from a query's first invocation on. `twofold` queries were answered
    by two drivers. `longest_s` is the longest time to live of a key left in the store, `forever` counts keys without
    one. `problems` is empty where the scenario passes.
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


def judge(
    name: str, criteria: PassCriteria, observed: Observations, left: Left, processes: int, seconds: float
) -> Outcome:
    latencies_ms = [one.latency * _MS_PER_S for one in observed.sent if one.error is None]
    p50, p99 = percentiles(latencies_ms, 50, 99)
    served_p50, served_p99 = percentiles([seconds * _MS_PER_S for seconds in observed.served], 50, 99)
    wrong = sum(one.error == WRONG for one in observed.sent)
    budget = observed.budget
    return Outcome(
        scenario=name,
        queries=len(observed.sent),
        lost=sum(one.error is not None for one in observed.sent) - wrong,
        wrong=wrong,
        p50_ms=p50,
        p99_ms=p99,
        served_p50_ms=served_p50,
        served_p99_ms=served_p99,
        retries=budget.retries,
        hedges=budget.hedges,
        restarts=budget.restarts,
        invocations=observed.invocations,
        allowed=observed.allowed,
        keys=left.keys,
        longest_s=left.longest_s,
        forever=left.forever,
        processes=processes,
        twofold=observed.duplicates,
        seconds=seconds,
        remark=observed.remark,
        problems=(
            *_unanswered(observed),
            *_left_behind(left, processes, criteria),
            *_late(p50, p99, criteria.tail),
        ),
    )


def skipped(name: str, queries: int) -> Outcome:
    return Outcome(
        scenario=name,
        queries=queries,
        lost=queries,
        wrong=0,
        p50_ms=0.0,
        p99_ms=0.0,
        served_p50_ms=0.0,
        served_p99_ms=0.0,
        retries=0,
        hedges=0,
        restarts=0,
        invocations=0,
        allowed=0,
        keys=0,
        longest_s=0.0,
        forever=0,
        processes=0,
        twofold=0,
        seconds=0.0,
        remark="",
        problems=("there was no time left for it: allow more --seconds",),
    )


def _unanswered(observed: Observations) -> Iterator[str]:
    failed = [one for one in observed.sent if one.error]
    if failed:
        example = f"{failed[0].error}: {failed[0].message}"[:_EXAMPLE]
        yield f"{len(failed)} queries without a right answer, the first {example}"
    if observed.conflicting:
        yield f"{observed.conflicting} queries got two different answers"
    if observed.invocations > observed.allowed:
        yield f"{observed.invocations - observed.allowed} invocations more than allowed"


def _left_behind(left: Left, processes: int, criteria: PassCriteria) -> Iterator[str]:
    if left.keys and not criteria.keys_stay:
        yield f"{left.keys} keys left"
    if left.forever:
        yield f"{left.forever} keys without a time to live"
    if left.longest_s > criteria.longest_s:
        yield f"a key that lives {left.longest_s:.0f} s, more than {criteria.longest_s:.0f}"
    if processes:
        yield f"{processes} processes left"


def _late(p50: float, p99: float, tail: float | None) -> Iterator[str]:
    if tail is not None and p99 > tail * p50:
        yield f"p99 is {p99 / p50:.1f} times p50, more than {tail:g}"
