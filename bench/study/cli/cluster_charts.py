"""Charts of policies on a cluster: load, occupied resources, fragments, and what missed its SLO, over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from serfer.cost.loads.trace import Floats
from serfer.pictures import check_suffix
from serfer_bench.core.charts import Chart, Curve
from serfer_bench.core.drawing import draw_charts
from serfer_bench.study.sim.cluster.outcome import ClusterOutcome
from serfer_bench.study.sim.cluster.run import ClusterRun, Timeline

_BINS: Final = 300
_S_PER_HOUR: Final = 3600.0


def draw_cluster(name: str, runs: Sequence[ClusterRun], outcomes: Sequence[ClusterOutcome], out: Path) -> None:
    check_suffix(out)
    draw_charts(f"{name}: a cluster under load", cluster_charts(runs), _legend(outcomes), (), out)


def _legend(outcomes: Sequence[ClusterOutcome]) -> list[str]:
    lines = [
        f"{one.policy}: {one.requests_per_unit_s:,.3f} requests per unit and second, {one.violations:.2%} missed the "
        f"SLO, {one.cold_starts:,} cold starts, {one.fragments:.1%} fragments, ${one.usd:,.2f}"
        for one in outcomes
    ]
    return ["load: requests a second of all functions", *lines]


def cluster_charts(runs: Sequence[ClusterRun]) -> list[Chart]:
    load = runs[0].load
    came = load.counts.sum(axis=1) / load.period_s
    charts = [Chart("load", "hours", "requests a second", (_curve("load", came, load.period_s),))]
    kinds: list[tuple[str, str, Callable[[Timeline], Floats]]] = [
        ("occupied resources", "units", lambda line: line.units),
        ("running instances", "on average", lambda line: line.instances),
        ("fragments of active servers", "%", lambda line: 100 * line.fragments),
        ("late or dropped", "requests a second", lambda line: line.missed / load.period_s),
    ]
    for title, unit, values in kinds:
        curves = [_curve(run.policy, values(run.timeline), load.period_s) for run in runs]
        charts.append(Chart(title, "hours", unit, tuple(curves), y_max=100.0 if unit == "%" else None))
    return charts


def _curve(name: str, values: Floats, period_s: float) -> Curve:
    bins = min(_BINS, len(values))
    edges = np.linspace(0, len(values), bins + 1).astype(np.int64)
    means = np.add.reduceat(values, edges[:-1]) / np.diff(edges)
    middles = (edges[:-1] + edges[1:]) / 2 * period_s / _S_PER_HOUR
    return Curve(name, tuple(zip(middles.tolist(), means.tolist(), strict=True)))
