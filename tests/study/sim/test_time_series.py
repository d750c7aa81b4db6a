"""Series over time: what they sum up to is what the run has, however few rows they have."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.cost.loads.trace import Trace
from serfer_bench.study.sim import time_series
from serfer_bench.study.sim.rates import run_rates
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
