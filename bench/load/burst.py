"""A burst: all queries at once, as SerFer's authors offer them (section 6.3), and each one's latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.core import arrivals
from bench.load.results import Log
from serfer.pictures.latency import Chart, Curve, order_chart

_MS_PER_S = 1000.0


@dataclass(frozen=True)
class Burst:
    """So many queries at once."""

    queries: int

    def __str__(self) -> str:
        return f"a burst of {self.queries:,}"

    def arrivals(self, rounds: int) -> tuple[tuple[float, ...], ...]:
        """Return the arrivals of each round, in seconds from its start."""
        return (arrivals.burst(self.queries),) * rounds

    def charts(self, logs: Sequence[Log]) -> list[Chart]:
        """Chart latencies in the order of completion; what ended without an answer is not in it."""
        return [order_chart([_in_order(log) for log in logs])]


def _in_order(log: Log) -> Curve:
    times = sorted(query.latency * _MS_PER_S for query in log.queries if query.error is None)
    return Curve(log.system, tuple((float(count), time) for count, time in enumerate(times, 1)))
