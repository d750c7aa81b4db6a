"""A sustained load: queries at a rate, evenly spaced or as independent users send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serfer.core.errors import UsageError
from serfer_bench.core import arrivals
from serfer_bench.core.charts import Chart, Curve, share_chart, time_chart
from serfer_bench.load.results import Log

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
