"""Histograms of lengths and the hazards computed from them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies.windows_guess import LengthHistogram, hazards

MOST = 40
SEEN = st.lists(st.integers(0, 2 * MOST), max_size=60)


def counted(lengths):
    histogram = LengthHistogram(MOST)
    for ticks in lengths:
        histogram.add(ticks)
    return histogram.shares()


def only(tick):
    shares = np.zeros(MOST)
    shares[tick] = 1.0
    return shares


@settings(derandomize=True, max_examples=40)
@given(SEEN)
def test_shares_lie_between_zero_and_one_and_sum_to_one_within_the_clock(lengths):
    shares = counted(lengths)
    assert shares.shape == (MOST,)
    assert (shares >= 0).all()
    assert shares.sum() <= 1 + 1e-9
    within = [ticks for ticks in lengths if ticks < MOST]
    assert counted(within).sum() == pytest.approx(1.0 if within else 0.0)


def test_a_length_counts_at_and_around_itself():
    shares = counted([10] * 5)
    assert shares.argmax() == 10
    assert shares[8:13].sum() == pytest.approx(1.0)
    assert shares[9] == pytest.approx(shares[11])


def test_lengths_beyond_the_clock_only_reduce_the_sum():
    shares = counted([10, 100] * 200)
    assert shares.sum() == pytest.approx(0.5, abs=0.02)
    assert shares[20:].sum() == 0
    assert counted([100] * 9).sum() == 0
    assert counted([]).sum() == 0


def test_recent_lengths_weigh_more_and_older_ones_still_count():
    shares = counted([10] * 300 + [30] * 30)
    assert shares[28:33].sum() > 2 * 30 / 330
    assert 0.5 < shares[8:13].sum() < 0.9


@settings(derandomize=True, max_examples=40)
@given(SEEN, SEEN)
def test_hazards_lie_between_zero_and_one(bursts, gaps):
    for chances in hazards(counted(bursts), counted(gaps)):
        assert chances.shape == (MOST,)
        assert ((chances >= 0) & (chances <= 1)).all()


@settings(derandomize=True, max_examples=40)
@given(st.integers(0, MOST - 2), st.integers(1, MOST - 1))
def test_a_constant_length_is_certain_at_its_tick_and_impossible_before(burst, more):
    gap = min(burst + more, MOST - 1)
    ending, beginning = hazards(only(burst), only(gap))
    assert ending[burst] == pytest.approx(1.0)
    assert not ending[:burst].any()
    assert beginning[gap] == pytest.approx(1.0)
    assert not beginning[:gap].any()


def test_a_repeated_length_is_almost_certain_around_its_tick():
    ending, beginning = hazards(counted([10] * 4), counted([30] * 4))
    for chances, tick in ((ending, 10), (beginning, 30)):
        assert not chances[: tick - 2].any()
        assert chances[tick] >= 0.5
        assert chances[tick + 2] == pytest.approx(1.0)


def test_the_hazard_of_an_end_counts_only_bursts_that_last():
    shares = np.zeros(MOST)
    shares[[3, 7]] = 0.5
    ending, _ = hazards(shares, np.zeros(MOST))
    assert ending[3] == pytest.approx(0.5)
    assert ending[7] == pytest.approx(1.0)


def test_the_hazard_of_a_start_counts_only_finished_bursts():
    bursts, gaps = np.zeros(MOST), np.zeros(MOST)
    bursts[5], gaps[[10, 20]] = 1.0, (0.25, 0.25)  # the other half comes beyond the clock
    _, beginning = hazards(bursts, gaps)
    assert beginning[10] == pytest.approx(0.25)
    assert beginning[20] == pytest.approx(1 / 3)
    bursts[[5, 15]] = 0.5
    _, beginning = hazards(bursts, gaps)
    assert beginning[10] == pytest.approx(0.5)  # half of the bursts last still
