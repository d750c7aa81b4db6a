"""Arrivals: as many in each row as the load has, spread over its steps at random."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.cost.loads.arrivals import arrivals_in_steps
from serfer.cost.loads.steps import steps_of
from serfer.cost.loads.trace import Trace

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
