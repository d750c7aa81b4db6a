"""Pictures of policies: what is drawn is what the runs have."""

from dataclasses import replace

import numpy as np
import pytest

from serfer.cost.loads.trace import Trace
from serfer.cost.service_times import Quantiles, ServiceTimes
from serfer_bench.core.charts import Chart, Curve
from serfer_bench.core.charts_figure import charts_figure
from serfer_bench.study.sim.pictures import policy_charts
from serfer_bench.study.sim.simulate import DetailedRun, RunOptions, prepare, run_policies
from tests.study.sim.worlds import scenario


@pytest.fixture(scope="module")
def drawn():
    load = Trace("a load", np.full(24, 300.0), np.array([20.0] * 8 + [90.0] * 8 + [0.0] * 8))
    services = ServiceTimes(Quantiles.always(0.1), Quantiles.always(0.9), "a test")
    world = scenario()
    kind = replace(world.instance, batches=((1, 14.0), (8, 120.0)))  # these sustain what its qps says
    sim_input = prepare(load, "a scenario", replace(world, instances=(kind,)), "none")
    policies = ("ski-rental", "serverless")
    runs = [*run_policies(sim_input, policies, RunOptions(), 0, DetailedRun(services, 600.0))]
    return sim_input, runs, policy_charts(sim_input, runs)


def test_no_two_curves_look_the_same_and_the_legend_shows_how_each_looks():
    names = ["load", "mark-spot", "mark", *(f"policy-{number}" for number in range(11)), "optimum"]
    curves = tuple(Curve(name, ((0.0, 1.0), (1.0, 2.0))) for name in names)
    figure = charts_figure("all", [Chart("one", "hours", "$", curves)], [f"{name}: $1" for name in names], ())
    drawn = [(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines]
    assert len({*drawn}) == len(names)
    handles = figure.legends[0].legend_handles
    assert [(line.get_color(), line.get_linestyle()) for line in handles] == drawn


def test_the_windows_are_shaded_over_time_and_have_a_chart_of_latency_each(drawn):
    _, runs, charts = drawn
    windows = runs[0].outcome.windows
    assert [window.name for window in windows] == ["busiest", "median"]
    assert [chart.title.partition(" ")[0] for chart in charts] == [
        *("load", "instances", "Lambda's", "dollars", "latency", "latency"),
    ]
    for chart in charts[:4]:
        assert chart.bands == tuple((one.begin_s / 3600, one.end_s / 3600) for one in windows)


def test_the_optimum_has_its_instances_and_its_dollars(drawn):
    sim_input, _, charts = drawn
    [fleet] = [curve for curve in charts[1].curves if curve.name == "optimum"]
    [spent] = [curve for curve in charts[3].curves if curve.name == "optimum"]
    assert [fleet.points[number][1] for number in (50, 150, 250)] == pytest.approx([1.0, 2.0, 0.0])
    assert spent.points[-1][1] == pytest.approx(sim_input.optimum_usd)


def test_curves_of_dollars_end_at_the_costs(drawn):
    _, runs, charts = drawn
    for each in runs:
        [spent] = [curve for curve in charts[3].curves if curve.name == each.outcome.policy]
        assert spent.points[-1][1] == pytest.approx(each.outcome.cost_usd)


def test_latencies_are_the_quantiles_beside_a_line_at_the_slo(drawn):
    _, runs, charts = drawn
    for number, chart in enumerate(charts[4:]):
        *curves, line = chart.curves
        assert (line.name, {ms for _, ms in line.points}) == ("SLO", {300.0})
        for each, curve in zip(runs, curves, strict=True):
            shares, milliseconds = np.array(curve.points).T
            latency = each.outcome.windows[number].latency_ms
            found = np.interp([50.0, 5.0, 1.0], shares, milliseconds)
            assert found == pytest.approx([latency.p50, latency.p95, latency.p99], rel=0.05)
