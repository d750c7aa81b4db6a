"""The instances of a function as levels, each with its own windows."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.environments import Environments, environments
from serfer.control.windows import WarmLevels, window_policies
from serfer.control.windows.levels import MOST_LEVELS
from tests.control.worlds import scenario

LOAD = st.lists(st.tuples(st.floats(1.0, 20_000.0), st.integers(0, 5)), max_size=60)


def levels(name="300"):
    return WarmLevels(window_policies(name))


def idle_times(made):
    return [level.policy._long.count for level in made._levels]


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
