"""LSTH, the hybrid histogram policy and fixed windows, their histograms, and levels with windows."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.environments import Environments, environments
from serfer.control.windows import WarmLevels, Windows, window_policies
from serfer.control.windows.histograms import (
    BINS,
    RANGE_S,
    SLOTS,
    STANDARD,
    IdleHistogram,
    LongShortHistogram,
    LsthOptions,
)
from serfer.control.windows.levels import MOST_LEVELS
from serfer.control.windows.windows import MOST_S
from serfer.core.errors import UsageError
from tests.control.worlds import scenario

NAMES = ("lsth", "lsth:gamma=0.3", "lsth:gamma=0", "hybrid", "hybrid:hours=4", "300", "0")
STEPS = st.lists(st.tuples(st.floats(0.0, 20_000.0), st.floats(0.0, 100_000.0)), max_size=40)
HOUR = 3600.0


def taught(name, steps):
    """Return a policy that has seen idle times, each after so many busy seconds, and the time."""
    policy, now = window_policies(name)(), 1e6
    for busy, idle in steps:
        now += busy + idle
        policy.observe(now, idle)
    return policy, now


def every(policy, times, idle, begin=1e6):
    """Have a policy see the same idle time over and over; return when that was over."""
    for _ in range(times):
        begin += idle
        policy.observe(begin, idle)
    return begin


contract = pytest.mark.parametrize("name", NAMES)


@contract
@given(steps=STEPS)
def test_windows_are_bounded_and_those_of_the_same_idle_times_the_same(name, steps):
    (policy, now), (other, _) = taught(name, steps), taught(name, steps)
    windows = policy.windows(now)
    assert (policy.name, windows) == (name, other.windows(now))
    assert 0 <= windows.prewarm_s <= MOST_S
    assert 0 <= windows.keepalive_s <= MOST_S


@contract
def test_a_clock_that_goes_back_is_survived(name):
    policy, now = taught(name, [(10.0, 600.0)] * 5)
    policy.observe(now - 5000.0, 60.0)
    assert policy.windows(now - 9000.0).until_s >= 0


@pytest.mark.parametrize("name", ["lsth", "hybrid", "hybrid:hours=4"])
def test_a_period_is_met_by_prewarming(name):
    policy = window_policies(name)()
    windows = policy.windows(every(policy, 10, 1800.0))
    assert windows.warm_at(1800.0)
    assert 1500 < windows.prewarm_s < 1800
    assert windows.kept_s(1800.0) < 300


@pytest.mark.parametrize("name", ["lsth", "hybrid"])
def test_a_function_of_which_nothing_is_known_is_kept_for_four_hours(name):
    assert window_policies(name)().windows(0.0) == STANDARD == Windows(0.0, RANGE_S)


def test_idle_times_beyond_the_histogram_are_forecast():
    policy = window_policies("hybrid")()
    windows = policy.windows(every(policy, 5, 24 * HOUR))
    assert windows.prewarm_s == pytest.approx(0.85 * 24 * HOUR)
    assert windows.until_s == pytest.approx(1.15 * 24 * HOUR)


def test_a_histogram_that_is_spread_out_evenly_is_not_used_by_the_hybrid_policy():
    policy, now = window_policies("hybrid")(), 1e6
    for minute in range(240):
        now += 60.0 * minute
        policy.observe(now, 60.0 * minute)
    assert policy.windows(now) == STANDARD


def test_lsth_is_the_weighted_sum_of_both_histograms_windows():
    long, short = IdleHistogram(86400.0), IdleHistogram(3600.0)
    policy = LongShortHistogram(LsthOptions(0.3))
    times = [(1e6 + 600.0 * number, 600.0) for number in range(1, 30)]
    times += [(times[-1][0] + 2 * HOUR + 120.0 * number, 120.0) for number in range(1, 20)]
    for now, idle in times:
        for one in (long, short):
            one.add(now, idle)
        policy.observe(now, idle)
    far, near, found = long.windows(), short.windows(), policy.windows(times[-1][0])
    assert far != near
    assert found.prewarm_s == pytest.approx(0.3 * far.prewarm_s + 0.7 * near.prewarm_s)
    assert found.keepalive_s == pytest.approx(0.3 * far.keepalive_s + 0.7 * near.keepalive_s)


def test_lsth_without_an_idle_time_in_the_last_hour_has_the_days_windows():
    policy = window_policies("lsth:gamma=0")()
    end = every(policy, 10, 600.0)
    assert policy.windows(end + 3 * HOUR).warm_at(600.0)
    assert policy.windows(end + 30 * HOUR) == STANDARD


@pytest.mark.parametrize(
    "name", ["lsht", "lsth:gamma=2", "lsth:gama=0.5", "lsth:gamma=x", "hybrid:hours=0", "-1", "inf", "nan", "1e99", ""]
)
def test_a_name_or_value_that_cannot_be_is_refused(name):
    with pytest.raises(UsageError):
        window_policies(name)


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
    assert histogram([59.9]).windows().prewarm_s == 0  # below a minute, the function stays loaded


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


LOAD = st.lists(st.tuples(st.floats(1.0, 20_000.0), st.integers(0, 5)), max_size=60)


def levels(name="300"):
    return WarmLevels(window_policies(name))


def test_an_instance_that_was_let_go_starts_cold_and_one_that_was_kept_does_not():
    made = levels()
    assert made.observe(0.0, 2).first == 2
    made.observe(10.0, 0)
    (kept,) = made.observe(310.0, 1).ended
    assert (kept.cold, kept.kept_s) == (False, 300.0)
    (gone,) = made.observe(320.0, 2).ended
    assert (gone.cold, gone.kept_s) == (True, 300.0)


def test_as_many_are_wanted_as_are_busy_or_within_their_windows():
    made = levels()
    made.observe(0.0, 3)
    made.observe(100.0, 1)
    assert [made.wanted(now) for now in (100.0, 400.0, 400.1)] == [3, 3, 1]
    made.observe(500.0, 0)
    assert [made.wanted(now) for now in (500.0, 800.0, 801.0)] == [1, 1, 0]


def test_between_keep_alive_and_prewarming_none_is_wanted():
    made, now = levels("hybrid"), 0.0
    for _ in range(20):
        made.observe(now, 1)
        made.observe(now + 10.0, 0)
        now += 1810.0
    made.observe(now, 1)
    made.observe(now + 10.0, 0)
    assert [made.wanted(now + 10.0 + idle) for idle in (0.0, 1500.0, 1700.0, 1800.0, 2500.0)] == [0, 0, 1, 1, 0]


@given(LOAD)
def test_no_more_levels_are_wanted_than_were_ever_busy_and_no_fewer_than_are(load):
    made, now, most = levels("lsth"), 1e6, 0
    for wait, busy in load:
        now += wait
        made.observe(now, busy)
        most = max(most, busy)
        assert busy <= made.wanted(now) <= most


@given(LOAD)
def test_the_time_of_all_levels_is_busy_idle_or_before_their_first_use(load):
    made, now, busy_s, idle_s, first_s, last = levels("lsth"), 1e6, 0.0, 0.0, [], 0
    for wait, busy in load:
        busy_s += last * wait
        now, last = now + wait, busy
        change = made.observe(now, busy)
        first_s += [now] * change.first
        idle_s += sum(one.until_s - one.since_s for one in change.ended)
    idle_s += sum(one.until_s - one.since_s for one in made.idle(now))
    assert busy_s + idle_s == pytest.approx(sum(now - begin for begin in first_s))


def test_levels_beyond_the_bound_are_passed_over():
    made = levels()
    assert made.observe(0.0, 10_000).first == MOST_LEVELS
    assert made.wanted(1.0) == MOST_LEVELS


TARGET = replace(scenario().serverless, keep_alive_s=600.0, concurrency=50)
EVENTS = st.lists(st.tuples(st.floats(0.0, 700.0), st.floats(0.0, 1000.0), st.integers(0, 60)), max_size=30)


@given(events=EVENTS)
def test_pings_are_those_of_a_list_of_environments(events):
    now, used, kept = 0.0, [], Environments(TARGET)  # when each was used, the longest ago first
    for seconds, qps, wanted in events:
        now += seconds
        count = environments(TARGET, qps)
        if count:
            used = [when for when in used if when + 600.0 > now]
            used = used[: max(0, len(used) - count)] + [now] * count
        kept.use(now, count)
        used = [when for when in used if when + 600.0 > now]
        missing = max(0, min(wanted, 50) - len(used))
        used += [now] * missing
        assert kept.keep(now, wanted) == missing


def test_a_load_uses_its_queries_in_flight_and_two_deviations_as_far_as_the_account_allows():
    assert [environments(TARGET, qps) for qps in (-1.0, 0.0, 0.01, 50.0, 1e9)] == [0, 0, 1, 7, 50]
