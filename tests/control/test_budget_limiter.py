"""The ceiling holds in every hour, wherever it begins, and all of it can be spent."""

import math
from copy import deepcopy
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serfer.control.budget_limiter import BudgetLimiter

HOUR = 3600.0
CEILING = 10.0
PRICE = 1.0  # dollars an hour
STEP = st.tuples(
    st.one_of(st.integers(1, 20), st.integers(1, 2400)),  # seconds until then
    st.one_of(st.just(0.0), st.floats(0.01, 0.5), st.floats(0.01, CEILING)),  # requested dollars on Lambda
    st.one_of(st.none(), st.integers(0, 12)),  # instances wanted; None: no decision
)


def affordable(limiter, now, price):
    return math.floor(limiter.max_usd_per_hour(now) / price)


def obey(requests, ceiling=CEILING, start=0.0):
    """Return payments as (when, dollars), and the instances that were on as (since, how many), who obey the ceiling."""
    limiter, now, ticked, on = BudgetLimiter(ceiling), start, start, 0
    paid, course = [], [(start, 0)]
    for seconds, usd, wanted in requests:
        now += seconds
        if wanted is not None:
            limiter.instances_cost(now, now - ticked, on * PRICE)
            assert affordable(limiter, now, PRICE) >= on  # those that run may stay, whatever was paid meanwhile
            on = min(wanted, affordable(limiter, now, PRICE))
            limiter.instances_go_on(now, on * PRICE)
            ticked = now
            course.append((now, on))
        if usd and limiter.allows(now, usd):
            limiter.pay(now, usd)
            paid.append((now, usd))
    return paid, [*course, (now, 0)]


def spent(paid, course, begin):
    """Return what the hour from `begin` on cost, events at either end included."""
    end = begin + HOUR
    instances = sum(on * max(min(until, end) - max(since, begin), 0.0) for (since, on), (until, _) in pairwise(course))
    return sum(usd for when, usd in paid if begin <= when <= end) + instances * PRICE / HOUR


def dearest(paid, course):
    """Return what the dearest hour cost: one that begins or ends where something happens."""
    events = [when for when, _ in (*paid, *course)]
    return max(spent(paid, course, begin) for when in events for begin in (when, when - HOUR))


@settings(max_examples=60, derandomize=True)
@given(st.lists(STEP, min_size=1, max_size=40), st.sampled_from([0.0, 1234.5, 1.7e9]))
# Instances take half of an hour's dollars in half of it, Lambda the other half, and instances again.
@example([(1, 0, 10), (1800, 0, 0), (1, 5.0, None), (59, 0, 12), (1800, 0, 0)], 0.0)
@example([(1, 0, 10), (1800, 5.0, 5), (1800, 0, 0)], 0.0)
@example([(1, 0, 10), (30, 9.0, None), (1, 0, 10), (3600, 0, 0)], 0.0)  # Lambda while instances are being started
def test_no_hour_costs_more_than_the_ceiling(requests, start):
    paid, course = obey(requests, start=start)
    assert dearest(paid, course) <= CEILING * (1 + 1e-6)


@settings(max_examples=15, derandomize=True)
@given(st.integers(0, 30), st.sampled_from([1.0, 7.3, 59.9, 60.0, 300.0, 5000.0]), st.floats(0.2, 3.0))
def test_instances_that_cost_exactly_the_ceiling_may_stay_on(count, period_s, price):
    limiter, now = BudgetLimiter(count * price), 17.0
    for _ in range(75):
        assert affordable(limiter, now, price) == count
        limiter.instances_go_on(now, count * price)
        assert limiter.allows(now, 0.0)
        assert not limiter.allows(now, 0.01 * price)
        now += period_s
        limiter.instances_cost(now, period_s, count * price)


def test_payments_count_exactly_for_an_hour_and_a_minute():
    limiter = BudgetLimiter(1.0)
    assert limiter.allows(0.0, 1.0)
    for _ in range(10):
        assert limiter.allows(0.0, 0.1)
        limiter.pay(0.0, 0.1)
    assert not limiter.allows(0.0, 0.01)
    assert affordable(limiter, 0.0, 0.5) == 0
    limiter = BudgetLimiter(1.0)
    limiter.pay(30.0, 1.0)
    assert not limiter.allows(30.0 + HOUR, 0.5)
    assert limiter.allows(60.0 + HOUR, 1.0)


def test_instances_and_lambda_count_against_each_other():
    limiter = BudgetLimiter(10.0)
    limiter.instances_cost(360.0, 360.0, 8.0)
    assert not limiter.allows(360.0, 2.1)
    assert limiter.allows(360.0, 2.0)
    limiter.instances_cost(361.0, 1.0, 0.0)  # they took 0.8 dollars of the hour
    assert limiter.allows(361.0, 9.2)
    assert not limiter.allows(361.0, 9.21)
    limiter = BudgetLimiter(10.0)
    limiter.pay(5.0, 3.5)
    assert affordable(limiter, 5.0, 1.0) == 6
    assert affordable(limiter, 5.0, 7.0) == 0
    assert affordable(limiter, 5.0 + HOUR + 60, 1.0) == 10
    limiter = BudgetLimiter(10.0)
    limiter.pay(59.0, 5.0)
    # 3,598 seconds of those that are on from second 61 on fall into the hour that begins with the payment.
    assert affordable(limiter, 61.0, 0.01) == 500
    limiter.instances_go_on(61.0, 5.0)
    assert not limiter.allows(61.0, 0.005)
    others = BudgetLimiter(10.0)
    others.instances_cost(60.0, 10.0, 10.0)
    others.instances_go_on(60.0, 5.0)
    # Ten seconds at 10 dollars an hour and the rest of that hour at 5 are 5.014 dollars.
    assert not others.allows(60.0, 4.99)
    assert others.allows(60.0, 4.98)


@pytest.mark.parametrize("ceiling", [0.0, 1e-9])
def test_a_ceiling_of_zero_allows_only_free_spending(ceiling):
    limiter = BudgetLimiter(ceiling)
    assert not limiter.allows(0.0, 1e-6)
    assert limiter.allows(0.0, 0.0)
    assert affordable(limiter, 0.0, 0.5) == 0


def test_record_of_payments_is_bounded():
    limiter = BudgetLimiter(10.0)
    limiter.instances_cost(36_000.0, 36_000.0, 4.0)
    assert limiter.allows(36_000.0, 6.0)
    assert not limiter.allows(36_000.0, 6.01)
    assert affordable(limiter, 36_000.0, 1.0) == 10
    assert len(limiter._slices) <= 62
    limiter, now = BudgetLimiter(1.0), 0.0
    for _ in range(1000):
        now += 30.0
        if limiter.allows(now, 0.01):
            limiter.pay(now, 0.01)
        limiter.instances_cost(now, 30.0, 0.3)
    assert len(limiter._slices) <= 62


def test_everything_is_allowed_and_nothing_recorded_without_a_ceiling():
    limiter = BudgetLimiter()
    for minute in range(300):
        limiter.pay(60.0 * minute, 1e6)
        limiter.instances_cost(60.0 * minute, 60.0, 1e6)
    assert limiter.allows(0.0, 1e300)
    assert limiter.max_usd_per_hour(0.0) == math.inf
    assert not limiter._slices


def test_wait_lasts_until_payments_are_an_hour_old():
    limiter = BudgetLimiter(1.0)
    for minute in range(10):
        limiter.pay(60.0 * minute, 0.1)
    now = 600.0
    assert not limiter.allows(now, 0.15)
    wait_s = limiter.wait_s(now, 0.15)  # two of the payments have to go
    assert wait_s == 60 + 60 + HOUR - now
    assert not limiter.allows(now + wait_s - 1, 0.15)
    assert limiter.allows(now + wait_s, 0.15)
    limiter = BudgetLimiter(1.0)
    limiter.pay(0.0, 0.5)
    assert limiter.wait_s(10.0, 0.4) == 0
    limiter = BudgetLimiter(1.0)
    limiter.instances_cost(100.0, 100.0, 2.0)
    assert limiter.wait_s(100.0, 0.1) == HOUR


@pytest.mark.parametrize("usd", [0.01, 0.3, 0.9])
def test_the_returned_wait_is_sufficient(usd):
    limiter, now = BudgetLimiter(1.0), 0.0
    for step in range(200):
        now = 37.0 * step
        if limiter.allows(now, 0.05):
            limiter.pay(now, 0.05)
        if not limiter.allows(now, usd):
            assert deepcopy(limiter).allows(now + limiter.wait_s(now, usd), usd - 1e-9)
