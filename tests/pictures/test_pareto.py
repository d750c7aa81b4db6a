import math
from dataclasses import replace

import pytest

from serfer.core.errors import PlanError
from serfer.core.plan import Alternative
from serfer.pictures import choices
from tests.core.plans import small_plan


def competed(*others):
    """A plan of 100 ms and 4 dollars a million that competed with others: (ms, dollars a million, tasks, fits)."""
    mine = Alternative("2x2 at 1769 MB, then 1 at 1769 MB", 5, 100.0, 4e-6, fits=True, chosen=True)
    made = [
        Alternative(
            f"one function of {ms:g} MB" if tasks == 1 else f"{tasks} tasks", tasks, ms, usd / 1e6, fits, chosen=False
        )
        for ms, usd, tasks, fits in others
    ]
    return replace(small_plan(), alternatives=(*made, mine))


PLAN = competed((60, 9, 9, True), (80, 5, 1, False), (110, 5, 7, True), (200, 1, 1, True))


def test_alternatives_are_numbered_by_time_and_compared():
    rows = choices(PLAN)
    assert [choice.plan.ms for choice in rows] == [60, 80, 100, 110, 200]
    assert [choice.number for choice in rows] == [1, 2, 3, 4, 5]
    assert [choice.verdict for choice in rows] == ["best", "does not fit", "chosen", "beaten", "best"]
    assert rows[0].usd == pytest.approx(9)


def test_equal_plans_and_plans_that_do_not_fit_dominate_none():
    assert [choice.best for choice in choices(competed((100, 4, 2, True), (50, 1, 1, False)))] == [False, True, True]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_impossible_numbers_are_refused(value):
    with pytest.raises(PlanError, match="impossible figures"):
        choices(competed((value, 1, 2, True)))


def test_a_plan_without_alternatives_is_refused():
    with pytest.raises(PlanError, match="plan competed with"):
        choices(replace(small_plan(), alternatives=()))
