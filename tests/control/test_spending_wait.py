"""When there is money again."""

from copy import deepcopy

import pytest

from serfer.control.spending import Spending

HOUR = 3600.0


def test_there_is_money_again_when_enough_of_what_was_paid_is_an_hour_old():
    spending = Spending(1.0)
    for minute in range(10):
        spending.pay(60.0 * minute, 0.1)
    now = 600.0
    assert not spending.allows(now, 0.15)
    wait_s = spending.wait_s(now, 0.15)  # two of the payments have to go
    assert wait_s == 60 + 60 + HOUR - now
    assert not spending.allows(now + wait_s - 1, 0.15)
    assert spending.allows(now + wait_s, 0.15)


def test_what_can_be_paid_now_needs_no_waiting():
    spending = Spending(1.0)
    spending.pay(0.0, 0.5)
    assert spending.wait_s(10.0, 0.4) == 0


def test_instances_that_take_all_there_is_leave_an_hour_to_wait():
    spending = Spending(1.0)
    spending.instances_cost(100.0, 100.0, 2.0)
    assert spending.wait_s(100.0, 0.1) == HOUR


@pytest.mark.parametrize("usd", [0.01, 0.3, 0.9])
def test_waiting_is_always_enough(usd):
    spending, now = Spending(1.0), 0.0
    for step in range(200):
        now = 37.0 * step
        if spending.allows(now, 0.05):
            spending.pay(now, 0.05)
        if not spending.allows(now, usd):
            other = deepcopy(spending)
            assert other.allows(now + spending.wait_s(now, usd), usd - 1e-9)
