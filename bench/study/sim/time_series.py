"""A policy's run as series over time: load, instances, Lambda's part, and the dollars spent so far.

What the least billed time of an instance costs beyond the time that it was on is spent when it stops.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.scenario import Scenario
from serfer.cost.loads.trace import Floats
from serfer.files import write_chunks
from serfer_bench.study.sim.rates import RatesResult

MAX_ROWS: Final = 100_000
"""Rows of a CSV file, of all policies together: longer series are averaged."""
COLUMNS: Final = ("policy", "t_seconds", "load_qps", "instances_on", "instances_serving", "lambda_qps", "usd")
_BLOCK: Final = 1000  # rows that are written at once


def integrated(times_s: Floats, values: Floats | NDArray[np.int64], edges: Floats) -> Floats:
    """Integrate what holds between times, values (m,) and times (m + 1,), over bins: edges (n + 1,) to (n,)."""
    until = np.concatenate(([0.0], np.cumsum(values * np.diff(times_s))))
    return np.diff(np.interp(edges, times_s, until))


def spent_usd(run: RatesResult, scenario: Scenario, edges: Floats) -> Floats:
    """Return the dollars that a run has spent by each of the times, (n,) in seconds; the last one is its `cost_usd`.

    `scenario` is the one of the run.
    """
    timeline, fleet = run.timeline, run.fleet
    whole = np.concatenate(([0.0], edges))
    lambda_usd = scenario.serverless.usd_per_query * np.cumsum(integrated(timeline.times_s, timeline.serverless, whole))
    on_usd = np.cumsum(integrated(timeline.times_s, timeline.instances_usd_per_s, whole))
    order = np.argsort(fleet.stopped_s, kind="stable")
    least = fleet.min_billing_usd[order]
    stopped = np.searchsorted(fleet.stopped_s[order], edges, side="right")
    pings_usd = scenario.serverless.usd_per_query * _pings(run, edges)
    return np.asarray(lambda_usd + pings_usd + on_usd + np.concatenate(([0.0], np.cumsum(least)))[stopped])


def rates_usd(run: RatesResult, scenario: Scenario, begin_s: float, end_s: float) -> float:
    """Return the dollars of a part of a run at the level of rates, without those of the least billed time alone."""
    edges, timeline = np.array([begin_s, end_s]), run.timeline
    on_lambda = float(integrated(timeline.times_s, timeline.serverless, edges)[0])
    instances = float(integrated(timeline.times_s, timeline.instances_usd_per_s, edges)[0])
    on_lambda += float(np.diff(_pings(run, edges))[0])
    return on_lambda * scenario.serverless.usd_per_query + instances


def _pings(run: RatesResult, times_s: Floats) -> Floats:
    until = np.concatenate(([0.0], np.cumsum(run.pings)))
    return until[np.searchsorted(run.steps.ends_s, times_s, side="right")]


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """A policy's run, in a scenario whose first instance type is the one that it started, from `begin_s` on."""

    policy: str
    run: RatesResult
    scenario: Scenario
    begin_s: float

    def rows(self, most: int) -> Iterator[tuple[str, ...]]:
        """Yield at most so many rows: means from a time on, and the dollars spent by its end."""
        timeline = self.run.timeline
        edges = timeline.times_s
        if len(edges) > most + 1:
            edges = np.linspace(0.0, edges[-1], most + 1)
        spans = np.diff(edges)
        columns = [
            integrated(timeline.times_s, values, edges) / spans
            for values in (timeline.rates, timeline.on, timeline.serving, timeline.serverless)
        ]
        usd = spent_usd(self.run, self.scenario, edges[1:])
        for values in zip(self.begin_s + edges[:-1], *columns, usd, strict=True):
            yield (self.policy, *(f"{value:.10g}" for value in values))


def write_time_series(series: Sequence[TimeSeries], path: Path) -> None:
    write_chunks(path, _chunks(series))


def _chunks(series: Sequence[TimeSeries]) -> Iterator[bytes]:
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in series:
        for number, row in enumerate(each.rows(MAX_ROWS // len(series))):
            writer.writerow(row)
            if number % _BLOCK == 0:
                yield buffer.getvalue().encode()
                buffer.seek(0)
                buffer.truncate()
    yield buffer.getvalue().encode()
