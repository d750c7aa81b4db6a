"""What policies did with a load as charts: the load, the instances, Lambda's share, and dollars against the optimum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from serfer.control.optimum import optimum_usd
from serfer.pictures import check_suffix, draw_charts
from serfer.pictures.charts import Chart, Curve, Point
from serfer.sim.rates import Course
from serfer.sim.simulate import Judged, Setting
from serfer.sim.traces import Floats

_BINS, _OPTIMA = 300, 24  # points of a curve, and how often the optimum so far is looked for
_S_PER_HOUR, _H_PER_DAY = 3600.0, 24.0
_DAYS_FROM = 72.0  # hours from which on time is in days
_LOAD, _OPTIMUM = "load", "optimum"


def draw_policies(setting: Setting, found: Sequence[Judged], out: Path) -> None:
    """Draw what policies did with a load; the format follows from the suffix of `out`."""
    check_suffix(out)  # before the optimum, which takes a while
    title = f"{setting.trace.name} in {setting.scenario_name}, scaling {setting.scale}"
    draw_charts(title, policy_charts(setting, found), [*_legend(setting, found)], (), out)


def _legend(setting: Setting, found: Sequence[Judged]) -> Iterator[str]:
    trace = setting.trace
    yield f"{_LOAD}: {trace.mean:,.1f} queries/s on average, {trace.peak:,.1f} at most"
    for each in found:
        one = each.outcome
        ratio = "" if one.ratio is None else f", {one.ratio:.3f} times the optimum"
        slo = "" if one.slo_met is None else f"; {one.slo_met:.2%} within {setting.scenario.slo_ms:g} ms"
        yield f"{one.policy}: ${one.cost_usd:,.2f}{ratio}, {one.launches:,} launches{slo}"
    if _comparable(found):
        yield f"{_OPTIMUM}: ${setting.optimum_usd:,.2f}, the least that anybody could have paid up to then"


def policy_charts(setting: Setting, found: Sequence[Judged]) -> list[Chart]:
    """Return the charts, over hours or days."""
    hours = setting.trace.seconds / _S_PER_HOUR
    unit, seconds = ("days", _S_PER_HOUR * _H_PER_DAY) if hours > _DAYS_FROM else ("hours", _S_PER_HOUR)
    courses = {each.outcome.policy: each.run.course for each in found}
    load = next(iter(courses.values()))
    spent = [_spent(each, setting, seconds) for each in found]
    if _comparable(found):
        spent.append(_optimum(setting, seconds))
    charts = [
        ("load", "queries a second, on average", [_mean(_LOAD, load, load.rates, seconds)]),
        (
            "instances that are paid for",
            "instances",
            [_mean(name, one, one.on, seconds) for name, one in courses.items()],
        ),
        ("Lambda's share of the queries", "%", [_share(name, one, seconds) for name, one in courses.items()]),
        ("dollars so far", "$", spent),
    ]
    return [
        Chart(title, unit, down, tuple(curves), y_max=100.0 if down == "%" else None) for title, down, curves in charts
    ]


def _comparable(found: Sequence[Judged]) -> bool:
    """Return whether any of the costs can be compared with the optimum."""
    return any(each.outcome.optimum_usd is not None for each in found)


def _mean(name: str, course: Course, values: Floats, unit_s: float) -> Curve:
    """Return the mean of what holds between the course's times, in bins."""
    edges = np.linspace(0.0, course.times_s[-1], _BINS + 1)
    return Curve(name, _points((edges[:-1] + edges[1:]) / 2 / unit_s, _sums(course, values, edges) / np.diff(edges)))


def _sums(course: Course, values: Floats, edges: Floats) -> Floats:
    """Integrate what holds between the course's times over bins."""
    until = np.concatenate(([0.0], np.cumsum(values * np.diff(course.times_s))))
    return np.diff(np.interp(edges, course.times_s, until))


def _share(name: str, course: Course, unit_s: float) -> Curve:
    edges = np.linspace(0.0, course.times_s[-1], _BINS + 1)
    came, lent = _sums(course, course.rates, edges), _sums(course, course.serverless, edges)
    middles = (edges[:-1] + edges[1:]) / 2 / unit_s
    return Curve(name, _points(middles[came > 0], 100 * lent[came > 0] / came[came > 0]))


def _spent(each: Judged, setting: Setting, unit_s: float) -> Curve:
    """Return a policy's dollars so far; what the least billed time costs beyond that is left out."""
    course, kind = each.run.course, setting.scenario.instance
    edges = np.linspace(0.0, course.times_s[-1], _BINS + 1)
    hour_usd = each.run.instances_usd - each.run.min_billing_usd
    second_usd = hour_usd / each.run.on_s if each.run.on_s else kind.usd_per_s
    lambda_usd = setting.scenario.serverless.usd_per_query * _sums(course, course.serverless, edges)
    usd = np.cumsum(lambda_usd + second_usd * _sums(course, course.on, edges))
    return Curve(each.outcome.policy, _points(edges / unit_s, np.concatenate(([0.0], usd))))


def _optimum(setting: Setting, unit_s: float) -> Curve:
    trace = setting.trace
    times = np.linspace(0.0, trace.seconds, _OPTIMA + 1)
    least = [0.0]
    for time in times[1:]:
        known = trace.cut(trace.begin_s, trace.begin_s + float(time))
        least.append(optimum_usd(setting.scenario, known.durations_s.tolist(), known.rates.tolist()))
    return Curve(_OPTIMUM, _points(times / unit_s, np.array(least)))


def _points(across: Floats, down: Floats) -> tuple[Point, ...]:
    return tuple(zip(across.tolist(), down.tolist(), strict=True))
