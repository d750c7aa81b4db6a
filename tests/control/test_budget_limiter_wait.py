"""The wait until spending is allowed again."""

from copy import deepcopy

import pytest

from serfer.control.budget_limiter import BudgetLimiter

HOUR = 3600.0


def test_spending_resumes_when_enough_payments_are_an_hour_old():
    limiter = BudgetLimiter(1.0)
    for minute in range(10):
        limiter.pay(60.0 * minute, 0.1)
    now = 600.0
    assert not limiter.allows(now, 0.15)
    wait_s = limiter.wait_s(now, 0.15)  # two of the payments have to go
    assert wait_s == 60 + 60 + HOUR - now
    assert not limiter.allows(now + wait_s - 1, 0.15)
    assert limiter.allows(now + wait_s, 0.15)


def test_an_affordable_amount_needs_no_wait():
    limiter = BudgetLimiter(1.0)
    limiter.pay(0.0, 0.5)
    assert limiter.wait_s(10.0, 0.4) == 0


def test_instances_that_use_the_whole_ceiling_leave_an_hour_to_wait():
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
            other = deepcopy(limiter)
            assert other.allows(now + limiter.wait_s(now, usd), usd - 1e-9)
