import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer_bench.study.policies.infless import dispatch as cases
from serfer_bench.study.policies.infless.dispatch import Case, threshold
from serfer_bench.study.policies.infless.rates import RateRange

ranges = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0.1, 200)).map(lambda one: RateRange(one[0], one[0] + one[1])),
    min_size=1,
    max_size=20,
)


def dispatch(rate, ranges):
    return cases.dispatch(rate, [(one, 1) for one in ranges])


def test_the_three_cases():
    two = [RateRange(28, 80), RateRange(0, 20)]
    assert dispatch(120, two).case is Case.SHORT
    assert dispatch(120, two).residual == 20
    assert dispatch(120, two).rates == (80, 20)
    assert threshold(28, 100) == pytest.approx(0.8 * 28 + 0.2 * 100)  # 42.4
    assert dispatch(43, two).case is Case.STEADY
    assert dispatch(42, two).case is Case.AMPLE


def test_equation_7_would_release_in_the_upper_half_of_the_range():
    low, up = 28.0, 100.0
    assert threshold(low, up) < (low + up) / 2 < 0.8 * up + 0.2 * low


def test_no_instance_is_short_of_all_that_comes():
    assert dispatch(5, []).residual == 5
    assert dispatch(0, []).case is Case.STEADY


@given(ranges=ranges, at=st.floats(0, 1))
def test_between_the_bounds_all_is_dispatched_within_each_range(ranges, at):
    low, up = sum(one.low for one in ranges), sum(one.up for one in ranges)
    rate = low + at * (up - low)
    found = dispatch(rate, ranges)
    assert sum(found.rates) == pytest.approx(rate)
    assert found.residual == pytest.approx(0, abs=1e-6)
    for one, given_rate in zip(ranges, found.rates, strict=True):
        assert one.low - 1e-6 <= given_rate <= one.up + 1e-6


@given(ranges=ranges, times=st.floats(0, 3))
def test_rates_and_residual_are_all_that_comes(ranges, times):
    rate = times * sum(one.up for one in ranges)
    found = dispatch(rate, ranges)
    assert sum(found.rates) + found.residual == pytest.approx(rate)
    assert all(0 <= each <= one.up * (1 + 1e-9) for one, each in zip(ranges, found.rates, strict=True))


@given(rate=st.floats(0, 400), one=st.floats(0, 50), count=st.integers(1, 9))
def test_like_instances_get_the_same(rate, one, count):
    kind = RateRange(one, one + 20)
    [alike] = cases.dispatch(rate, [(kind, count)]).rates
    assert dispatch(rate, [kind] * count).rates == pytest.approx((alike,) * count)
