"""A sustained load: queries at a rate, evenly spaced or as independent users send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from bench.core import arrivals
from bench.core.options import NetworkOption, QueriesOption
from bench.load.measure import (
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
    run_load,
)
from bench.load.results import Log
from serfer.cli.shared.options import JsonOption, PlanOption
from serfer.core.errors import UsageError
from serfer.pictures.charts import Chart, Curve, share_chart, time_chart

_MS_PER_S = 1000.0


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
        """Return the arrivals of each round, in seconds from its start."""
        if self.pattern == "poisson":
            return tuple(arrivals.poisson(self.rate, self.seconds, self.seed + number) for number in range(rounds))
        return (arrivals.even(self.rate, self.seconds),) * rounds

    def charts(self, logs: Sequence[Log]) -> list[Chart]:
        """Chart latencies over time, and their distribution; what ended without an answer is not in it."""
        curves = [_over_time(log) for log in logs]
        return [time_chart(curves), share_chart(curves)]


def _over_time(log: Log) -> Curve:
    answered = (query for query in log.queries if query.error is None)
    return Curve(log.system, tuple((query.scheduled, query.latency * _MS_PER_S) for query in answered))


def command(
    rps: Annotated[float, typer.Option(help="Queries a second.")] = 5.0,
    seconds: Annotated[float, typer.Option(help="How long they come.")] = 20.0,
    pattern: Annotated[str, typer.Option(help="even, or poisson: as independent users send them.")] = "even",
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
    """Send queries at a rate to each system, in turn, whatever becomes of those before, and measure latencies."""
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
    run_load(Uniform(rps, seconds, pattern, seed), options, directory, as_json=as_json)
