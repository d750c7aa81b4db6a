"""What drivers and Lambda allow: environments grow as Lambda lets them, and duplicates stay a small share of tasks."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.costs.aws import shipped_aws
from serfer.core.hedging import LearntHedging
from serfer.cost.driver_limits import DriverLimits, Growth, KnownHedging


@settings(max_examples=60)
@given(most=st.integers(1, 20), gaps=st.lists(st.sampled_from([0.0, 0.01, 0.4, 3.0, 60.0]), max_size=80))
def test_no_time_gains_more_environments_than_are_refilled_in_it_and_those_at_once(most, gaps):
    growth, now, taken = Growth(most), 0.0, []
    for gap in gaps:
        now += gap
        if growth.take(now):
            taken.append(now)
    for first, begin in enumerate(taken):
        for last, end in enumerate(taken[first:], first):
            assert last - first + 1 <= most * (1 + (end - begin) / 10) + 1e-6


def test_what_is_not_used_does_not_add_up():
    growth = Growth(10)
    assert [growth.take(1e6) for _ in range(11)] == [True] * 10 + [False]
    assert not growth.take(1e6 + 0.9)
    assert growth.take(1e6 + 1.0)


def test_without_a_limit_any_number_is_gained():
    growth = Growth(math.inf)
    assert all(growth.take(0.0) for _ in range(10_000))


def test_lambda_gains_a_thousand_in_ten_seconds():
    assert shipped_aws().functions.growth == 1000


def test_known_hedging_is_what_drivers_arrive_at():
    learnt, answered = LearntHedging(), 0
    known = KnownHedging([0.1, math.inf], lambda: answered)
    for _ in range(100):
        learnt.learn(0, 0.1)
        answered += 1
    assert known.late_after(0) == learnt.late_after(0) == pytest.approx(0.2)
    assert known.late_after(1) is None
    spent = [sum(each.spend() for _ in range(200)) for each in (learnt, known)]
    assert spent == [9, 9]  # a handful, and one in twenty
    answered += 100
    assert sum(known.spend() for _ in range(200)) == 5


def test_a_task_that_will_be_in_time_needs_no_timer():
    known = KnownHedging([0.1], lambda: 0)
    known.ends_in_s = 0.15
    assert known.late_after(0) is None
    known.ends_in_s = 0.3
    assert known.late_after(0) == pytest.approx(0.2)


def test_drivers_have_the_accounts_concurrency_unless_they_are_given_slots():
    assert DriverLimits().slots_of_each(1000) == 1000
    assert DriverLimits(slots=16).slots_of_each(1000) == 16
