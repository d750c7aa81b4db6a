"""A burst: all queries at once, as SerFer's authors offer them (section 6.3), and each one's latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from serfer.cli.shared.options import JsonOption
from serfer.core.errors import UsageError
from serfer_bench.core import arrivals
from serfer_bench.core.charts import Chart, Curve, order_chart, share_chart, time_chart
from serfer_bench.core.options import NetworkOption, PlanOption, QueriesOption
from serfer_bench.load.measure import (
    ConcurrencyOption,
    DeadlineOption,
    Options,
    OrderOption,
    PatienceOption,
    RoundsOption,
    ServiceOption,
    SystemOption,
    WarmUpOption,
    WorkersOption,
    Workload,
    run_load,
)
from serfer_bench.load.results import Log

_MS_PER_S = 1000.0
_QUERIES = 100


@dataclass(frozen=True)
class Uniform:
    """`rate` queries a second for `seconds`; `pattern` is "even" or "poisson", rounds take seeds from `seed` on."""

    rate: float
    seconds: float
    pattern: str = "even"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pattern not in arrivals.PATTERNS:
            raise UsageError(f"the pattern is {' or '.join(arrivals.PATTERNS)}, not {self.pattern!r}")

    def __str__(self) -> str:
        how = f"{self.pattern}, seed {self.seed}" if self.pattern == "poisson" else self.pattern
        return f"{self.rate:g} queries a second for {self.seconds:g} s ({how})"

    def arrivals(self, rounds: int) -> tuple[tuple[float, ...], ...]:
        if self.pattern == "poisson":
            return tuple(arrivals.poisson(self.rate, self.seconds, self.seed + number) for number in range(rounds))
        return (arrivals.even(self.rate, self.seconds),) * rounds

    def charts(self, logs: Sequence[Log]) -> list[Chart]:
        curves = [_over_time(log) for log in logs]
        return [time_chart(curves), share_chart(curves)]


def _over_time(log: Log) -> Curve:
    answered = (query for query in log.queries if query.error is None)
    return Curve(log.system, tuple((query.scheduled, query.latency * _MS_PER_S) for query in answered))


@dataclass(frozen=True)
class Burst:
    """So many queries at once."""

    queries: int

    def __str__(self) -> str:
        return f"a burst of {self.queries:,}"

    def arrivals(self, rounds: int) -> tuple[tuple[float, ...], ...]:
        return (arrivals.burst(self.queries),) * rounds

    def charts(self, logs: Sequence[Log]) -> list[Chart]:
        return [order_chart([_in_order(log) for log in logs])]


def _in_order(log: Log) -> Curve:
    times = sorted(query.latency * _MS_PER_S for query in log.queries if query.error is None)
    return Curve(log.system, tuple((float(count), time) for count, time in enumerate(times, 1)))


def command(
    queries: Annotated[
        int | None, typer.Option("--queries", min=1, help="How many queries come at once. [default: 100]")
    ] = None,
    rps: Annotated[
        float | None, typer.Option(help="Queries a second in place of a burst, whatever becomes of those before.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long they come, with --rps.")] = 20.0,
    pattern: Annotated[str, typer.Option(help="Of --rps: even; or poisson, as of independent users.")] = "even",
    seed: Annotated[int, typer.Option(min=0, help="Of the first round's arrivals, with poisson.")] = 0,
    model: NetworkOption = None,
    plan: PlanOption = None,
    system: SystemOption = None,
    rounds: RoundsOption = 3,
    workers: WorkersOption = "local",
    concurrency: ConcurrencyOption = None,
    order: OrderOption = None,
    service_ms: ServiceOption = 5.0,
    warm_up: WarmUpOption = None,
    patience_s: PatienceOption = 600.0,
    deadline_ms: DeadlineOption = 120_000,
    directory: QueriesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send queries, all at once or at a rate, to each system, in turn, and measure each one's latency."""
    if queries is not None and rps is not None:
        raise UsageError("give --queries or --rps, not both")
    load: Workload = Burst(queries or _QUERIES) if rps is None else Uniform(rps, seconds, pattern, seed)
    options = Options(
        model=model,
        plan=plan,
        systems=system,
        rounds=rounds,
        workers=workers,
        concurrency=concurrency,
        orders=order,
        service_ms=service_ms,
        warm_up=warm_up,
        patience_s=patience_s,
        deadline_s=deadline_ms / _MS_PER_S,
    )
    run_load(load, options, directory, as_json=as_json)
