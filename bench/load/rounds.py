"""Systems under the same load, in turn, round by round: interleaving them cancels drift of the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from serfer.core.dataclass_codec import unstructure
from serfer.core.errors import UnavailableError
from serfer_bench.core.processes import held
from serfer_bench.core.system import System
from serfer_bench.core.tables import Results, Table
from serfer_bench.load.queries import Example, run_queries
from serfer_bench.load.results import Log, Result, Round, make_round

Progress = Callable[[str], None]
_MILLION = 1_000_000
_MB = 1 << 20


@dataclass(frozen=True)
class Plan:
    """The load of systems: the arrivals of each round, and the concurrent queries that warm each system up."""

    arrivals: tuple[tuple[float, ...], ...]
    warm_up: int
    patience_s: float


def measure_rounds(
    systems: Sequence[System],
    examples: Sequence[Example],
    plan: Plan,
    progress: Progress = lambda _: None,
) -> tuple[tuple[Round, ...], tuple[Log, ...]]:
    for system in systems:
        _warm_up(system, examples, plan, progress)
        system.take_times()
    rounds, logs = [], []
    for number, arrivals in enumerate(plan.arrivals):
        for system in systems if number % 2 == 0 else reversed(systems):
            report = _prefixed(progress, f"round {number + 1} of {len(plan.arrivals)}, {system.name}: ")
            before, start = system.totals(), held()
            sent = run_queries(system.submit, examples, arrivals, patience_s=plan.patience_s, progress=report)
            logs.append(Log(system.name, number, tuple(sent), system.take_times()))
            rounds.append(make_round(logs[-1], system.totals() - before, start, held()))
    return tuple(rounds), tuple(logs)


def _warm_up(system: System, examples: Sequence[Example], plan: Plan, progress: Progress) -> None:
    if not plan.warm_up:
        return
    report = _prefixed(progress, f"warming up {system.name}: ")
    arrivals = (0.0,) * plan.warm_up
    ends = run_queries(system.submit, examples, arrivals, patience_s=plan.patience_s, progress=report)
    if all(end.error for end in ends):
        raise UnavailableError(f"{system.name} answers no query: {ends[0].error}: {ends[0].message}")


def _prefixed(progress: Progress, prefix: str) -> Progress:
    return lambda text: progress(prefix + text)


HEAD = (
    *("system", "p50 ms", "p90", "p95", "p99", "max", "p99/p50", "a second", "kB a query", "polls", "$/M"),
    *("cold", "retries", "hedges", "failed"),
)


def rows(result: Result) -> list[tuple[str, ...]]:
    return [_row(system, result.of(system)) for system in result.systems]


def _row(system: str, rounds: Sequence[Round]) -> tuple[str, ...]:
    latencies = [one.latency for one in rounds if one.latency]
    names = ("p50", "p90", "p95", "p99", "max")
    times = [f"{median(getattr(one, name) for one in latencies):,.1f}" if latencies else "-" for name in names]
    tail = f"{median(one.p99 / one.p50 for one in latencies):.2f}" if latencies else "-"
    dollars = [one.usd_per_query * _MILLION for one in rounds if one.usd_per_query is not None]
    counts = [[getattr(one, name) for one in rounds] for name in ("cold", "retries", "hedges")]
    return (
        system,
        *times,
        tail,
        f"{median(one.throughput for one in rounds):,.1f}",
        f"{median(one.bytes_per_query for one in rounds) / 1000:,.1f}",
        f"{median(one.polls_per_query for one in rounds):,.0f}",
        f"{median(dollars):,.2f}" if dollars else "-",
        *("-" if None in count else str(sum(count)) for count in counts),
        str(sum(one.sent - one.answered for one in rounds)),
    )


def summaries(result: Result) -> list[str]:
    head = HEAD[1:]
    shown = ("p50 ms", "p99", "p99/p50", "a second", "failed")
    lines = (zip(head, row[1:], strict=True) for row in rows(result))
    texts = [", ".join(f"{name} {value}" for name, value in line if name in shown) for line in lines]
    return [f"{system}: {text}" for system, text in zip(result.systems, texts, strict=True)]


def remarks(result: Result) -> list[str]:
    work, first, last = result.work, result.rounds[0], result.rounds[-1]
    load = f"{work.model}: {work.load}; {len(result.of(first.system))} rounds of {work.queries:,} queries after"
    set_up = f"{result.warm_up} to warm up; {work.workers} workers, at most {work.concurrency} invocations at once"
    failures = [
        f"{one.system}, round {one.round + 1}: {why.count:,} x {why.error}: {why.example}"
        for one in result.rounds
        for why in one.failures
    ]
    late = f"the client sent at most {max(one.lag_ms for one in result.rounds):.1f} ms late (p99)"
    here = f"driver {_mb(first.start.driver_bytes)} to {_mb(last.end.driver_bytes)} MB"
    below = f"{first.start.workers} to {last.end.workers} processes below it, {_mb(first.start.workers_bytes)} to"
    descriptors = f"descriptors {first.start.descriptors} to {last.end.descriptors}"
    held = f"{late}; {here}; {below} {_mb(last.end.workers_bytes)} MB; {descriptors}"
    return [f"{load} {set_up}", *failures, held, *result.stamp.lines]


def _mb(count: int) -> str:
    return f"{count / _MB:,.0f}"


def results(result: Result) -> Results:
    return Results([unstructure(result)], [Table(HEAD, rows(result))], remarks(result))
