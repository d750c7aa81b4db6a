"""Histograms of idle times: percentiles, bounds, forgetting."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.windows.histograms import BINS, RANGE_S, SLOTS, IdleHistogram

DAY = 86400.0
IDLE = st.floats(0.0, 2 * RANGE_S)


def histogram(idle, span_s=DAY, now=0.0):
    made = IdleHistogram(span_s)
    for each in idle:
        made.add(now, each)
    return made


def test_head_and_tail_are_the_5th_and_99th_percentile_rounded_outwards_with_a_margin_of_a_tenth():
    windows = histogram([60.0 * minute + 30 for minute in range(1, 101)]).windows()
    assert windows.prewarm_s == pytest.approx(5 * 60 * 0.9)
    assert windows.until_s == pytest.approx(100 * 60 * 1.1)


def test_an_idle_time_below_a_minute_leaves_the_function_loaded():
    assert histogram([59.9]).windows().prewarm_s == 0


def test_idle_times_of_four_hours_and_more_are_counted_and_have_no_bin():
    made = histogram([RANGE_S - 1, RANGE_S, 10 * RANGE_S])
    assert (made.count, made.within) == (3, 1)
    assert made.share_beyond == pytest.approx(2 / 3)
    assert made.percentile(0.99)[1] == RANGE_S


@given(st.lists(IDLE.filter(lambda idle: idle < RANGE_S), min_size=1, max_size=60), st.lists(st.floats(0.001, 1.0)))
def test_percentiles_are_monotone_and_bound_the_idle_times(idle, shares):
    made = histogram(idle)
    found = [made.percentile(share) for share in sorted(shares)]
    assert found == sorted(found)
    assert made.percentile(1e-9)[0] <= min(idle) < made.percentile(1e-9)[1]
    assert made.percentile(1.0)[0] <= max(idle) < made.percentile(1.0)[1]


@given(st.lists(IDLE.filter(lambda idle: idle < RANGE_S), min_size=1, max_size=60))
def test_the_percentile_is_numpys_of_the_bins(idle):
    minutes = [math.floor(each / 60) for each in idle]
    expected = np.percentile(minutes, 99, method="inverted_cdf")
    assert histogram(idle).percentile(0.99)[0] == expected * 60


def test_the_coefficient_of_variation_is_that_of_the_bins():
    assert histogram([60.0 * minute for minute in range(BINS)]).variation == 0
    assert histogram([90.0, 100.0]).variation == pytest.approx(math.sqrt(BINS - 1))
    assert IdleHistogram(DAY).variation == 0


def test_what_is_older_than_the_span_is_forgotten_and_what_is_younger_by_a_slot_is_not():
    made = histogram([60.0], span_s=3600.0, now=10_000.0)
    made.pass_time(10_000.0 + 3600.0 * (1 - 1 / SLOTS))
    assert made.count == 1
    made.pass_time(10_000.0 + 3600.0)
    assert made.count == 0


@given(st.lists(st.tuples(st.floats(0.0, 5000.0), IDLE), max_size=80))
def test_counts_are_those_of_the_slots_that_are_remembered(steps):
    made, now, seen = IdleHistogram(3600.0), 0.0, []
    slot_s = 3600.0 / SLOTS
    for wait, idle in steps:
        now += wait
        made.add(now, idle)
        seen.append(math.floor(now / slot_s))
    latest = math.floor(now / slot_s)
    assert made.count == sum(latest - slot < SLOTS for slot in seen)


def test_a_clock_that_goes_back_forgets_nothing():
    made = histogram([60.0], span_s=3600.0, now=10_000.0)
    made.add(5_000.0, 120.0)
    assert made.count == 2
