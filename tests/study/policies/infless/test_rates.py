import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer_bench.study.policies.infless import dispatch as cases
from serfer_bench.study.policies.infless.dispatch import Case, threshold
from serfer_bench.study.policies.infless.rates import RateRange, exact_range, keeps_slo, whole_batches

half = st.floats(0.001, 0.5)  # of the SLO, or less


def test_the_example_of_section_3_2():
    assert whole_batches(0.050, 0.200, 4) == RateRange(28.0, 80.0)
    exact = exact_range(0.050, 0.200, 4)
    assert (exact.low, exact.up) == (pytest.approx(4 / 0.15), pytest.approx(80.0))


def test_the_floor_leaves_nothing_to_batches_of_more_than_a_second_which_the_exact_rate_does_not():
    assert whole_batches(1.2, 4.0, 8).up == 0
    assert exact_range(1.2, 4.0, 8).up == pytest.approx(8 / 1.2)


def test_rounding_can_put_the_lower_bound_above_the_upper_one():
    printed = whole_batches(0.070, 0.145, 4)  # 14 batches a second against 14 of 13.3
    assert printed.low >= printed.up
    exact = exact_range(0.070, 0.145, 4)
    assert exact.low < exact.up


@given(slo_s=st.floats(0.01, 10), share=half, batch=st.integers(2, 64))
def test_bounds_are_in_order_wherever_a_batch_takes_half_of_the_slo(slo_s, share, batch):
    exec_s = slo_s * share
    assert keeps_slo(exec_s, slo_s, batch)
    exact = exact_range(exec_s, slo_s, batch)
    assert 0 < exact.low <= exact.up * (1 + 1e-9)
    printed = whole_batches(exec_s, slo_s, batch)
    assert printed.up <= exact.up * (1 + 1e-6)
    assert printed.low >= exact.low * (1 - 1e-6)


@given(slo_s=st.floats(0.01, 10), share=half, batch=st.integers(2, 64), at=st.floats(0, 1))
def test_between_the_bounds_waiting_and_execution_keep_the_slo(slo_s, share, batch, at):
    exec_s = slo_s * share
    exact = exact_range(exec_s, slo_s, batch)
    rate = exact.low + at * (exact.up - exact.low)
    assert batch / rate + exec_s <= slo_s * (1 + 1e-9)  # constraint (3)
    assert exec_s <= batch / rate * (1 + 1e-9)  # constraint (4)


def test_a_batch_of_one_has_the_whole_slo_and_no_lower_bound():
    assert keeps_slo(0.19, 0.2, 1)
    assert not keeps_slo(0.11, 0.2, 2)
    assert exact_range(0.19, 0.2, 1).low == 0


@pytest.mark.parametrize("exec_s", [0.0, 0.2, 0.3])
def test_times_that_leave_nothing_of_the_slo_are_refused(exec_s):
    with pytest.raises(ValueError, match="less than the SLO"):
        exact_range(exec_s, 0.2, 4)


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
