"""Traces: reading of files, cuts, both scalings, and arrivals: as many in each row as the load has."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.errors import InputError, UsageError
from serfer.cost.loads import reading
from serfer.cost.loads import trace as traces
from serfer.cost.loads.arrivals import arrivals_in_steps
from serfer.cost.loads.reading import read_load
from serfer.cost.loads.steps import silent, steps_of
from serfer.cost.loads.trace import Trace
from serfer_bench.study.loads.scaling import scale_factor
from tests.study.sim.worlds import scenario


def written(tmp_path, text):
    path = tmp_path / "load.csv"
    path.write_text(text)
    return path


def read_trace(path):
    return read_load(path, silent)


def trace(durations, rates):
    return Trace("a trace", np.array(durations, dtype=float), np.array(rates, dtype=float))


@pytest.mark.parametrize(
    ("text", "durations_s", "rates"),
    [
        ("t_seconds,rps\n0,5\n9,2.5\n12,0\n", [9, 3, 3], [5, 2.5, 0]),  # the last as long as the one before
        ("minute,requests\r\n0,60\r\n1,90\r\n", [60, 60], [1.0, 1.5]),
        ("minute,requests\n0,60\n10,60\n11,60\n", [60, 540, 60, 60], [1, 0, 1, 1]),  # none without a row
        ("t_seconds,rps\n3,7\n", [1], [7]),
        ("minute,requests\n3,60\n", [60], [1]),
    ],
)
def test_rates_hold_until_the_next_row(tmp_path, text, durations_s, rates):
    load = read_trace(written(tmp_path, text))
    assert (load.durations_s.tolist(), load.rates.tolist()) == (durations_s, rates)
    queries = sum(seconds * rate for seconds, rate in zip(durations_s, rates, strict=True))
    assert (load.name, load.seconds, load.peak, load.queries) == ("load", sum(durations_s), max(rates), queries)


def test_times_of_a_cut_are_those_of_the_file(tmp_path):
    load = read_trace(written(tmp_path, "t_seconds,rps\n1000,1\n1005,2\n1010,3\n"))
    piece = load.cut(1005, 1008)
    assert (piece.durations_s.tolist(), piece.rates.tolist(), piece.begin_s) == ([3], [2], 1005)
    assert piece.cut(1006).seconds == 2
    for ends in ((0, 10), (1040, math.inf)):
        with pytest.raises(UsageError, match="begins at 1000 and ends at 1015"):
            load.cut(*ends)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("t_seconds,rps\n", "no rows"),
        ("seconds,rps\n0,1\n", "line 1: a load is the columns t_seconds,rps or minute,requests"),
        ("t_seconds,rps\n0,1\n1,x\n", "line 3: two numbers are a row, not '1,x'"),
        ("t_seconds,rps\n0,1,2\n", "line 2: two numbers"),
        ("t_seconds,rps\n0,nan\n", "line 2: numbers are 0 to"),
        ("t_seconds,rps\n0,-1\n", "line 2: numbers are 0 to"),
        ("t_seconds,rps\n0,inf\n", "line 2: numbers are 0 to"),
        ("t_seconds,rps\n0,1\n\n0,2\n", "line 4: times ascend"),
        ("minute,requests\n0,60\n0.5,60\n", r"whole numbers, not 0\.5"),
    ],
)
def test_a_wrong_row_is_named_with_file_and_line(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=message) as raised:
        read_trace(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_is_bounded_before_it_is_decoded(tmp_path, monkeypatch):
    path = written(tmp_path, "t_seconds,rps\n0,1\n1,2\n2,3\n")
    monkeypatch.setattr(traces, "MAX_ROWS", 2)
    with pytest.raises(InputError, match="more than 2 rows"):
        read_trace(path)
    monkeypatch.setattr(reading, "MAX_BYTES", 20)
    with pytest.raises(InputError, match="more than 20 bytes"):
        read_trace(path)
    (tmp_path / "load.csv").write_bytes(b"minute,requests\n0,1\n\xff\xfe")
    monkeypatch.undo()
    with pytest.raises(InputError, match="not UTF-8"):
        read_trace(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "nothing.csv")


def test_scaling_puts_break_even_at_the_median_nonzero_rate_or_makes_the_mean_one_instances_qps():
    load, world = trace([1] * 5, [0, 0, 1, 4, 9]), scenario()
    scaled = load.scaled(scale_factor("S", load, world))
    assert np.median(scaled.rates[scaled.rates > 0]) == pytest.approx(0.526 / 3600 / 4e-5)
    assert load.scaled(scale_factor("M", load, world)).mean == pytest.approx(60)
    assert scale_factor("none", trace([1], [0]), world) == 1


@pytest.mark.parametrize(
    ("scale", "rate", "words"),
    [*((scale, 1, "--scale") for scale in ("s", "0", "-1", "nan", "inf", "x")), ("S", 0, "--scale none")],
)
def test_an_unknown_scale_and_an_empty_load_are_refused(scale, rate, words):
    with pytest.raises(UsageError, match=words):
        scale_factor(scale, trace([1], [rate]), scenario())


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 100)), min_size=1, max_size=20),
    st.floats(0, 500),
    st.floats(0, 500),
)
def test_a_cut_and_its_complement_make_up_the_load(rows, one, other):
    load = trace(*zip(*rows, strict=True))
    parts = []
    for begin, end in ((0, min(one, other)), (min(one, other), max(one, other)), (max(one, other), math.inf)):
        try:
            parts.append(load.cut(begin, end))
        except UsageError:
            continue
    assert sum(part.queries for part in parts) == pytest.approx(load.queries, abs=1e-6)
    assert sum(part.seconds for part in parts) == pytest.approx(load.seconds)


ROWS = st.lists(st.tuples(st.sampled_from([1.0, 7.0, 60.0]), st.floats(0, 30)), min_size=1, max_size=20)


@settings(max_examples=50)
@given(rows=ROWS, seed=st.integers(0, 1000))
def test_a_rows_queries_are_its_rate_times_its_seconds_rounded(rows, seed):
    durations, rates = map(np.array, zip(*rows, strict=True))
    steps = steps_of(Trace("a trace", durations, rates), 5.0)
    counts = arrivals_in_steps(steps, np.random.default_rng(seed))
    assert len(counts) == len(steps.rates)
    came, expected = np.bincount(steps.rows, counts), durations * rates
    assert np.all((came >= np.floor(expected - 1e-6)) & (came <= np.ceil(expected + 1e-6)))


def test_fractions_are_rounded_up_as_often_as_they_say():
    steps = steps_of(Trace("a trace", np.ones(10_000), np.tile([0.3, 2.6], 5_000)), 5.0)
    counts = arrivals_in_steps(steps, np.random.default_rng(0))
    assert counts[::2].mean() == pytest.approx(0.3, abs=0.02)
    assert counts[1::2].mean() == pytest.approx(2.6, abs=0.02)


def test_the_steps_of_a_row_share_its_queries_as_a_poisson_process_has_them():
    steps = steps_of(Trace("a minute", np.array([60.0]), np.array([2.0])), 5.0)
    draws = np.array([arrivals_in_steps(steps, np.random.default_rng(seed)) for seed in range(2000)])
    assert np.all(draws.sum(axis=1) == 120)
    assert draws.mean(axis=0) == pytest.approx(np.full(12, 10.0), rel=0.03)
    assert draws.var(axis=0) == pytest.approx(np.full(12, 120 * (1 / 12) * (11 / 12)), rel=0.15)


def test_an_empty_load_has_no_arrivals():
    steps = steps_of(Trace("nothing", np.zeros(0), np.zeros(0)), 5.0)
    assert len(arrivals_in_steps(steps, np.random.default_rng(0))) == 0
