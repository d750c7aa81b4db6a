"""Charts of policies under a load: load, instances, Lambda's share, dollars against the optimum, and latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serfer.cost.loads.trace import Floats
from serfer.pictures import check_suffix
from serfer_bench.core.charts import Chart, Curve, Point
from serfer_bench.core.drawing import draw_charts
from serfer_bench.study.policies.clairvoyant import optimum_schedule
from serfer_bench.study.sim.rates import Timeline
from serfer_bench.study.sim.simulate import PolicyRun, SimInput
from serfer_bench.study.sim.time_series import integrated, spent_usd

_BINS = 300  # points of a curve
_MS = 1000.0
_LEAST_SHARE = 1e-4  # of the queries, that a latency is drawn for
_S_PER_HOUR, _H_PER_DAY = 3600.0, 24.0
_DAYS_FROM = 72.0  # hours from which on time is in days
_LOAD, _OPTIMUM, _SLO = "load", "optimum", "SLO"


def draw_policies(sim_input: SimInput, runs: Sequence[PolicyRun], out: Path) -> None:
    check_suffix(out)  # before the optimum, which takes a while
    title = f"{sim_input.trace.name} in {sim_input.scenario_name}, scaling {sim_input.scale}"
    draw_charts(title, policy_charts(sim_input, runs), [*_legend(sim_input, runs)], (), out)


def _legend(sim_input: SimInput, runs: Sequence[PolicyRun]) -> Iterator[str]:
    trace, slo_ms = sim_input.trace, sim_input.scenario.slo_ms
    yield f"{_LOAD}: {trace.mean:,.1f} queries/s on average, {trace.peak:,.1f} at most"
    for each in runs:
        one = each.outcome
        ratio = "" if one.ratio is None else f", {one.ratio:.3f} times the optimum"
        slo = "" if one.slo_met is None else f"; {one.slo_met:.2%} within {slo_ms:g} ms"
        yield f"{one.policy}: ${one.cost_usd:,.2f}{ratio}, {one.launches:,} launches{slo}"
    if _comparable(runs):
        yield f"{_OPTIMUM}: ${sim_input.optimum_usd:,.2f}, the least possible cost up to then at the level of rates"
    if windows := runs[0].outcome.windows:
        yield f"{_SLO}: {slo_ms:g} ms"
        parts = (f"{one.name} {one.begin_s / _S_PER_HOUR:,.2f} to {one.end_s / _S_PER_HOUR:,.2f} h" for one in windows)
        yield f"shaded: looked at query by query, {', '.join(parts)}"


def policy_charts(sim_input: SimInput, runs: Sequence[PolicyRun]) -> list[Chart]:
    hours = sim_input.trace.seconds / _S_PER_HOUR
    unit, seconds = ("days", _S_PER_HOUR * _H_PER_DAY) if hours > _DAYS_FROM else ("hours", _S_PER_HOUR)
    timelines = {each.outcome.policy: each.run.timeline for each in runs}
    load = next(iter(timelines.values()))
    fleets = [_mean(name, one.times_s, one.on, seconds) for name, one in timelines.items()]
    spent = [_spent(each, seconds) for each in runs]
    if _comparable(runs):
        on, usd = _optimum(sim_input, seconds)
        fleets.append(on)
        spent.append(usd)
    charts = [
        ("load", "queries a second, on average", [_mean(_LOAD, load.times_s, load.rates, seconds)]),
        ("instances that are paid for", "on average", fleets),
        ("Lambda's share of the queries", "%", [_share(name, one, seconds) for name, one in timelines.items()]),
        ("dollars so far", "$", spent),
    ]
    bands = tuple((one.begin_s / seconds, one.end_s / seconds) for one in runs[0].outcome.windows)
    over_time = [
        Chart(title, unit, down, tuple(curves), y_max=100.0 if down == "%" else None, bands=bands)
        for title, down, curves in charts
    ]
    return [*over_time, *_latency_charts(sim_input.scenario.slo_ms, runs)]


def _latency_charts(slo_ms: float, runs: Sequence[PolicyRun]) -> Iterator[Chart]:
    """Yield for each window how long the slowest share of its queries took: p50 at 50%, p99 at 1%.

    A query that was turned away takes for ever, so a curve begins at the share of those.
    """
    for number, window in enumerate(runs[0].outcome.windows):
        curves = [
            Curve(each.outcome.policy, _slowest(result.latencies_s, result.queries))
            for each in runs
            if (result := each.windows[number]).latencies_s.size
        ]
        if curves:
            ends = [share for curve in curves for share, _ in curve.points]
            line = Curve(_SLO, ((min(ends), slo_ms), (max(ends), slo_ms)))
            title = f"latency that a share of the queries exceeds, {window.name} window"
            yield Chart(title, "% of the queries", "ms", (*curves, line), x_log=True, y_log=True)


def _slowest(latencies_s: Floats, came: int) -> tuple[Point, ...]:
    """Return shares of the queries that came, in percent, and the milliseconds that these exceed."""
    lost = came - latencies_s.size
    least = min(max((lost + 1) / came, _LEAST_SHARE), 1.0)
    shares = np.geomspace(least, 1.0, _BINS)
    ranks = np.clip(np.ceil(shares * came).astype(np.int64) - lost, 1, latencies_s.size)
    return _points(100.0 * shares, _MS * np.sort(latencies_s)[latencies_s.size - ranks])


def _comparable(runs: Sequence[PolicyRun]) -> bool:
    return any(each.outcome.optimum_usd is not None for each in runs)


def _mean(name: str, times_s: Floats, values: Floats | NDArray[np.int64], unit_s: float) -> Curve:
    edges = np.linspace(0.0, times_s[-1], _BINS + 1)
    means = integrated(times_s, values, edges) / np.diff(edges)
    return Curve(name, _points((edges[:-1] + edges[1:]) / 2 / unit_s, means))


def _share(name: str, timeline: Timeline, unit_s: float) -> Curve:
    edges = np.linspace(0.0, timeline.times_s[-1], _BINS + 1)
    came, lent = (integrated(timeline.times_s, values, edges) for values in (timeline.rates, timeline.serverless))
    middles = (edges[:-1] + edges[1:]) / 2 / unit_s
    return Curve(name, _points(middles[came > 0], 100 * lent[came > 0] / came[came > 0]))


def _spent(each: PolicyRun, unit_s: float) -> Curve:
    edges = np.linspace(0.0, each.run.timeline.times_s[-1], _BINS + 1)
    return Curve(each.outcome.policy, _points(edges / unit_s, spent_usd(each.run, each.scenario, edges)))


def _optimum(sim_input: SimInput, unit_s: float) -> tuple[Curve, Curve]:
    trace = sim_input.trace
    best = optimum_schedule(sim_input.scenario, trace.durations_s.tolist(), trace.rates.tolist())
    times = trace.starts_s
    edges = np.linspace(0.0, times[-1], _BINS + 1)
    usd = np.interp(edges, times, np.concatenate(([0.0], best.usd)))
    return _mean(_OPTIMUM, times, best.instances, unit_s), Curve(_OPTIMUM, _points(edges / unit_s, usd))


def _points(across: Floats, down: Floats) -> tuple[Point, ...]:
    return tuple(zip(across.tolist(), down.tolist(), strict=True))
