"""Charts of policies under a load: the load, the instances, Lambda's share, and dollars against the optimum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from serfer.control.optimum import optimum_usd
from serfer.pictures import check_suffix, draw_charts
from serfer.pictures.charts import Chart, Curve, Point
from serfer.sim.rates import Timeline
from serfer.sim.simulate import PolicyRun, SimInput
from serfer.sim.traces import Floats

_BINS, _OPTIMA = 300, 24  # points of a curve, and how often the optimum so far is looked for
_S_PER_HOUR, _H_PER_DAY = 3600.0, 24.0
_DAYS_FROM = 72.0  # hours from which on time is in days
_LOAD, _OPTIMUM = "load", "optimum"


def draw_policies(sim_input: SimInput, runs: Sequence[PolicyRun], out: Path) -> None:
    """Draw what policies did with a load; the format follows from the suffix of `out`."""
    check_suffix(out)  # before the optimum, which takes a while
    title = f"{sim_input.trace.name} in {sim_input.scenario_name}, scaling {sim_input.scale}"
    draw_charts(title, policy_charts(sim_input, runs), [*_legend(sim_input, runs)], (), out)


def _legend(sim_input: SimInput, runs: Sequence[PolicyRun]) -> Iterator[str]:
    trace = sim_input.trace
    yield f"{_LOAD}: {trace.mean:,.1f} queries/s on average, {trace.peak:,.1f} at most"
    for each in runs:
        one = each.outcome
        ratio = "" if one.ratio is None else f", {one.ratio:.3f} times the optimum"
        slo = "" if one.slo_met is None else f"; {one.slo_met:.2%} within {sim_input.scenario.slo_ms:g} ms"
        yield f"{one.policy}: ${one.cost_usd:,.2f}{ratio}, {one.launches:,} launches{slo}"
    if _comparable(runs):
        yield f"{_OPTIMUM}: ${sim_input.optimum_usd:,.2f}, the least possible cost up to then"


def policy_charts(sim_input: SimInput, runs: Sequence[PolicyRun]) -> list[Chart]:
    """Return the charts, over hours or days."""
    hours = sim_input.trace.seconds / _S_PER_HOUR
    unit, seconds = ("days", _S_PER_HOUR * _H_PER_DAY) if hours > _DAYS_FROM else ("hours", _S_PER_HOUR)
    timelines = {each.outcome.policy: each.run.timeline for each in runs}
    load = next(iter(timelines.values()))
    spent = [_spent(each, sim_input, seconds) for each in runs]
    if _comparable(runs):
        spent.append(_optimum(sim_input, seconds))
    charts = [
        ("load", "queries a second, on average", [_mean(_LOAD, load, load.rates, seconds)]),
        (
            "instances that are paid for",
            "instances",
            [_mean(name, one, one.on, seconds) for name, one in timelines.items()],
        ),
        ("Lambda's share of the queries", "%", [_share(name, one, seconds) for name, one in timelines.items()]),
        ("dollars so far", "$", spent),
    ]
    return [
        Chart(title, unit, down, tuple(curves), y_max=100.0 if down == "%" else None) for title, down, curves in charts
    ]


def _comparable(runs: Sequence[PolicyRun]) -> bool:
    """Return whether any of the costs can be compared with the optimum."""
    return any(each.outcome.optimum_usd is not None for each in runs)


def _mean(name: str, timeline: Timeline, values: Floats, unit_s: float) -> Curve:
    """Return the mean of what holds between the timeline's times, in bins."""
    edges = np.linspace(0.0, timeline.times_s[-1], _BINS + 1)
    return Curve(name, _points((edges[:-1] + edges[1:]) / 2 / unit_s, _sums(timeline, values, edges) / np.diff(edges)))


def _sums(timeline: Timeline, values: Floats, edges: Floats) -> Floats:
    """Integrate what holds between the timeline's times over bins."""
    until = np.concatenate(([0.0], np.cumsum(values * np.diff(timeline.times_s))))
    return np.diff(np.interp(edges, timeline.times_s, until))


def _share(name: str, timeline: Timeline, unit_s: float) -> Curve:
    edges = np.linspace(0.0, timeline.times_s[-1], _BINS + 1)
    came, lent = _sums(timeline, timeline.rates, edges), _sums(timeline, timeline.serverless, edges)
    middles = (edges[:-1] + edges[1:]) / 2 / unit_s
    return Curve(name, _points(middles[came > 0], 100 * lent[came > 0] / came[came > 0]))


def _spent(each: PolicyRun, sim_input: SimInput, unit_s: float) -> Curve:
    """Return a policy's dollars so far; what the least billed time costs beyond that is left out."""
    timeline, kind = each.run.timeline, sim_input.scenario.instance
    edges = np.linspace(0.0, timeline.times_s[-1], _BINS + 1)
    hour_usd = each.run.instances_usd - each.run.min_billing_usd
    second_usd = hour_usd / each.run.on_s if each.run.on_s else kind.usd_per_s
    lambda_usd = sim_input.scenario.serverless.usd_per_query * _sums(timeline, timeline.serverless, edges)
    usd = np.cumsum(lambda_usd + second_usd * _sums(timeline, timeline.on, edges))
    return Curve(each.outcome.policy, _points(edges / unit_s, np.concatenate(([0.0], usd))))


def _optimum(sim_input: SimInput, unit_s: float) -> Curve:
    trace = sim_input.trace
    times = np.linspace(0.0, trace.seconds, _OPTIMA + 1)
    least = [0.0]
    for time in times[1:]:
        known = trace.cut(trace.begin_s, trace.begin_s + float(time))
        least.append(optimum_usd(sim_input.scenario, known.durations_s.tolist(), known.rates.tolist()))
    return Curve(_OPTIMUM, _points(times / unit_s, np.array(least)))


def _points(across: Floats, down: Floats) -> tuple[Point, ...]:
    return tuple(zip(across.tolist(), down.tolist(), strict=True))
