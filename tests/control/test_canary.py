"""A canary that is worse is taken back, one that is not worse stays, whichever process counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.canary import BUCKETS, Conduct, ConductCounter, Verdict, bucket_of, judge, total
from serfer.core.variants import CanaryLimits

LIMITS = CanaryLimits(window_s=60.0, queries=50, max_error_rate=0.05, max_latency_ratio=1.5)


def conduct(answers=0, failed=0, ms=80.0):
    counter = ConductCounter()
    for _ in range(answers):
        counter.answer(ms)
    for _ in range(failed):
        counter.fail()
    return counter.conduct


LIVE = conduct(1000)


def test_a_canary_as_good_as_the_live_release_goes_on_and_passes_with_its_window():
    assert judge(conduct(60), LIVE, 30.0, LIMITS)[0] is Verdict.GOES_ON
    assert judge(conduct(60), LIVE, 60.0, LIMITS)[0] is Verdict.PASSED


def test_too_few_queries_do_not_pass():
    assert judge(conduct(49), LIVE, 600.0, LIMITS)[0] is Verdict.GOES_ON


def test_failures_take_a_canary_back_before_it_has_answered_enough():
    assert judge(conduct(0, 2), LIVE, 1.0, LIMITS)[0] is Verdict.GOES_ON
    verdict, why = judge(conduct(0, 3), LIVE, 1.0, LIMITS)
    assert verdict is Verdict.TAKE_BACK
    assert "100.0%" in why


def test_failures_that_the_live_release_has_too_are_no_reason():
    assert judge(conduct(80, 20), conduct(800, 200), 30.0, LIMITS)[0] is Verdict.GOES_ON


def test_slow_answers_take_a_canary_back_once_there_are_enough_to_compare():
    assert judge(conduct(49, ms=400.0), LIVE, 10.0, LIMITS)[0] is Verdict.GOES_ON
    assert judge(conduct(50, ms=400.0), LIVE, 10.0, LIMITS)[0] is Verdict.TAKE_BACK
    assert judge(conduct(50, ms=400.0), conduct(10), 10.0, LIMITS)[0] is Verdict.GOES_ON


@given(st.lists(st.floats(0.0, 1e7), min_size=1, max_size=200))
def test_the_percentile_is_the_upper_end_of_the_bucket_that_has_it(latencies):
    counter = ConductCounter()
    for ms in latencies:
        counter.answer(ms)
    exact = sorted(latencies)[-(-95 * len(latencies) // 100) - 1]
    found = counter.conduct.p95_ms
    if 1.0 < exact < 2.0 ** ((BUCKETS - 2) / 4):
        assert exact <= found * (1 + 1e-9)
        assert found <= exact * 2**0.25 * (1 + 1e-9)


def test_buckets_grow_with_latency_and_end():
    assert [bucket_of(0.0), bucket_of(1.0), bucket_of(2.0), bucket_of(1e12)] == [0, 0, 4, BUCKETS - 1]


def test_drivers_together_judge_as_one_that_saw_all():
    parts = [conduct(7 * number % 30, number % 3, 10.0 + 60.0 * number) for number in range(8)]
    counted = total(parts)
    assert (counted.queries, counted.failed) == (sum(p.queries for p in parts), sum(p.failed for p in parts))
    assert total([]) == Conduct()


@pytest.mark.parametrize("conducts", [(Conduct(), Conduct()), (Conduct(), LIVE)])
def test_nothing_answered_is_neither_good_nor_bad(conducts):
    assert judge(*conducts, 1e6, LIMITS)[0] is Verdict.GOES_ON
