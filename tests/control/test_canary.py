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


@pytest.mark.parametrize(
    ("tried", "live", "age_s", "verdict"),
    [
        (conduct(60), LIVE, 30.0, Verdict.GOES_ON),
        (conduct(60), LIVE, 60.0, Verdict.PASSED),
        (conduct(49), LIVE, 600.0, Verdict.GOES_ON),  # too few queries do not pass
        (conduct(0, 2), LIVE, 1.0, Verdict.GOES_ON),
        (conduct(0, 3), LIVE, 1.0, Verdict.TAKE_BACK),  # before it has answered enough
        (conduct(80, 20), conduct(800, 200), 30.0, Verdict.GOES_ON),  # the live release fails as often
        (conduct(49, ms=400.0), LIVE, 10.0, Verdict.GOES_ON),
        (conduct(50, ms=400.0), LIVE, 10.0, Verdict.TAKE_BACK),
        (conduct(50, ms=400.0), conduct(10), 10.0, Verdict.GOES_ON),  # too few to compare with
        (Conduct(), Conduct(), 1e6, Verdict.GOES_ON),
        (Conduct(), LIVE, 1e6, Verdict.GOES_ON),
    ],
)
def test_a_canary_that_is_worse_is_taken_back_and_one_that_is_not_passes(tried, live, age_s, verdict):
    judged, why = judge(tried, live, age_s, LIMITS)
    assert judged is verdict
    assert ("100.0%" in why) == (tried.error_rate == 1.0 and verdict is Verdict.TAKE_BACK)


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
