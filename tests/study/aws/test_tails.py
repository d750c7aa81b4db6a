"""Tails that are fitted to times of invocations and of starts: right on average, whatever they are."""

from statistics import fmean, stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer_bench.study.aws.probe import Extent
from serfer_bench.study.aws.tails import _least_of_sums, floor_and_tail, start_tail

EXTENT = Extent()
STARTS = sum(EXTENT.at_once())
WARM = EXTENT.small + EXTENT.large


def starts(draws, tail, invoke_tail, count, floor=2.0):
    """So many starts that take a floor and two exponential times of these means."""
    return (floor + draws.exponential(invoke_tail, count) + draws.exponential(tail, count)).tolist()


def ratios(seed, tail, invoke_tail, count, warm, rounds):
    """The tails of starts that so many probes find, as ratios to what they are."""
    draws = np.random.default_rng(seed)
    for _ in range(rounds):
        _, found = floor_and_tail((0.02 + draws.exponential(invoke_tail, warm)).tolist())
        yield start_tail(starts(draws, tail, invoke_tail, count), found) / tail


@pytest.mark.parametrize("count", [20, 84, STARTS])
@pytest.mark.parametrize(("tail", "invoke_tail"), [(1.0, 0.001), (1.0, 0.1), (0.3, 0.15), (2.0, 2.0)])
def test_the_tail_of_starts_is_right_on_average_however_long_that_of_invocations_is(tail, invoke_tail, count):
    """A fit of one exponential time to what has two finds up to a fifth less."""
    found = [*ratios(7, tail, invoke_tail, count, WARM, rounds=100)]
    assert fmean(found) == pytest.approx(1, abs=3 * stdev(found) / len(found) ** 0.5)


def test_as_many_starts_as_a_probe_has_give_their_tail_within_a_tenth():
    """In 19 of 20 probes, as the mean of 400 exponential times is within 9.8% of what it is."""
    assert [*EXTENT.at_once()] == [4, 16, *[64] * 6]
    found = ratios(11, 1.0, 0.1, STARTS, WARM, rounds=100)
    assert sum(abs(ratio - 1) <= 0.1 for ratio in found) >= 92


@given(scale=st.floats(0.01, 10), more=st.floats(0, 10), seed=st.integers(0, 99), count=st.integers(2, 100))
def test_a_tail_of_starts_depends_on_no_unit_and_no_constant(scale, more, seed, count):
    cold = starts(np.random.default_rng(seed), 1.0, 0.1, count)
    other = [more + scale * seconds for seconds in cold]
    assert start_tail(other, 0.1 * scale) == pytest.approx(scale * start_tail(cold, 0.1), rel=1e-4, abs=1e-5 * scale)


@given(seconds=st.lists(st.floats(0, 100), min_size=2, max_size=20), invoke_tail=st.floats(0, 100))
def test_a_tail_is_a_number_of_seconds_whatever_was_measured(seconds, invoke_tail):
    assert 0 <= start_tail(seconds, invoke_tail) < 20_000


def test_starts_that_differ_no_more_than_invocations_have_no_tail():
    assert start_tail([2.0, 2.0], 0.0) == 0
    assert start_tail([2.0, 2.1, 2.2], 5.0) == 0


@pytest.mark.parametrize(("mean", "other", "count"), [(0.1, 1.0, 20), (1.0, 1.0, 84), (2.0, 0.5, 404), (1.0, 0.0, 5)])
def test_the_least_of_sums_is_what_drawn_ones_have(mean, other, count):
    draws = np.random.default_rng(3)
    least = (draws.exponential(mean, (4000, count)) + draws.exponential(other, (4000, count))).min(axis=1)
    assert least.mean() == pytest.approx(_least_of_sums(mean, other, count), rel=0.05)
