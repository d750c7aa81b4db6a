"""Series over time: what they sum up to is what the run has, however few rows they have."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.cost.loads.trace import Trace
from serfer.cost.service_times import Quantiles, ServiceTimes
from serfer_bench.core.charts import Chart, Curve
from serfer_bench.core.charts_figure import charts_figure
from serfer_bench.study.sim import time_series
from serfer_bench.study.sim.pictures import policy_charts
from serfer_bench.study.sim.rates import run_rates
from serfer_bench.study.sim.simulate import DetailedRun, RunOptions, prepare, run_policies
from serfer_bench.study.sim.time_series import COLUMNS, TimeSeries, rates_usd, write_time_series
from tests.study.sim.worlds import Scripted, scenario


def run_of(rates, wanted, world, warm=0):
    load = Trace("a load", np.full(len(rates), 30.0), np.array(rates, dtype=float), 1000.0)
    return TimeSeries("scripted", run_rates(load, world, Scripted(wanted, warm), period_s=10.0), world, load.begin_s)


@given(
    rates=st.lists(st.floats(0, 200), min_size=1, max_size=40),
    wanted=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    most=st.integers(1, 80),
    warm=st.integers(0, 40),
)
def test_rows_integrate_to_the_load_and_end_with_the_cost(rates, wanted, most, warm):
    world = scenario(boot_s=25.0, least_s=60.0, keep_alive_s=100.0)
    series = run_of(rates, wanted, world, warm)
    rows = [[float(value) for value in row[1:]] for row in series.rows(most)]
    assert len(rows) <= most
    times = np.array([row[0] for row in rows] + [1000.0 + 30.0 * len(rates)])
    assert times[0] == 1000.0
    load, on, serving, on_lambda, usd = np.array(rows).T[1:]
    spans = np.diff(times)
    assert spans @ load == pytest.approx(series.run.queries)
    assert spans @ on == pytest.approx(series.run.on_s)
    assert (spans @ on_lambda + series.run.pings.sum()) * 4e-5 == pytest.approx(series.run.serverless_usd)
    assert (serving <= on + 1e-9).all()
    assert (np.diff(usd) >= -1e-12).all()
    assert usd[-1] == pytest.approx(series.run.cost_usd)


@given(rates=st.lists(st.floats(0, 200), min_size=1, max_size=20), cut=st.floats(0, 1), warm=st.integers(0, 40))
def test_the_dollars_of_two_parts_are_those_of_the_whole(rates, cut, warm):
    world = scenario(least_s=0.0, keep_alive_s=100.0)
    run = run_of(rates, [0, 1, 3, 1], world, warm).run
    end = 30.0 * len(rates)
    parts = rates_usd(run, world, 0.0, cut * end) + rates_usd(run, world, cut * end, end)
    assert parts == pytest.approx(run.cost_usd)


def test_a_file_has_a_bounded_number_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(time_series, "MAX_ROWS", 20)
    series = run_of(range(100), [0, 2, 1], scenario())
    write_time_series([series, series], tmp_path / "out.csv")
    rows = [*csv.reader((tmp_path / "out.csv").read_text().splitlines())]
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 1 + 20
    assert [*tmp_path.iterdir()] == [tmp_path / "out.csv"]


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
        *("load", "instances", "Lambda's", "dollars", "latency", "latency")
    ]
    for chart in charts[:4]:
        assert chart.bands == tuple((one.begin_s / 3600, one.end_s / 3600) for one in windows)


def test_the_optimum_has_its_instances_and_curves_of_dollars_end_at_the_costs(drawn):
    sim_input, runs, charts = drawn
    [fleet] = [curve for curve in charts[1].curves if curve.name == "optimum"]
    [spent] = [curve for curve in charts[3].curves if curve.name == "optimum"]
    assert [fleet.points[number][1] for number in (50, 150, 250)] == pytest.approx([1.0, 2.0, 0.0])
    assert spent.points[-1][1] == pytest.approx(sim_input.optimum_usd)
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
