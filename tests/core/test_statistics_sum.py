"""Partial results of windows, put together, are the statistics of the whole map."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.plan.statistics import (
    KINDS,
    MAX,
    MEAN,
    MIN,
    SUM,
    VARIANCE,
    MapStatistics,
    check_statistics,
    partial_form,
)
from serfer.core.statistics_sum import StatisticsSum


def partial(values):
    """The partial result of a part (channels, elements), as a window computes it."""
    mean = values.mean(1)
    squares = ((values - mean[:, None]) ** 2).sum(1)
    found = [mean, squares, values.sum(1), values.max(1), values.min(1)]
    return np.concatenate([[values.shape[1]], *found]).astype(np.float32)


@given(
    parts=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    offset=st.sampled_from([0.0, 3.0, 1000.0]),
    seed=st.integers(0, 1000),
)
def test_parts_of_any_size_make_the_statistics_of_the_whole(parts, offset, seed):
    rng = np.random.default_rng(seed)
    whole = (rng.standard_normal((3, sum(parts))) + offset).astype(np.float32).astype(np.float64)
    total = StatisticsSum([MapStatistics(0, 3, KINDS)])
    for stop, size in zip(np.cumsum(parts), parts, strict=True):
        total.add(partial(whole[:, stop - size : stop]))
    mean, variance, summed, most, least = total.values().reshape(5, 3)
    np.testing.assert_allclose(mean, whole.mean(1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(variance, whole.var(1), rtol=1e-4, atol=1e-4 + 1e-6 * offset)
    np.testing.assert_allclose(summed, whole.sum(1), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(most, whole.max(1).astype(np.float32))
    np.testing.assert_array_equal(least, whole.min(1).astype(np.float32))


def test_a_variance_keeps_its_digits_where_the_mean_is_large():
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((1, 4096)).astype(np.float32) + np.float32(10_000)
    total = StatisticsSum([MapStatistics(0, 1, (MEAN, VARIANCE))])
    for part in np.split(whole.astype(np.float64), 16, axis=1):
        total.add(partial(part)[:3])
    assert total.values()[1] == pytest.approx(whole.astype(np.float64).var(), rel=1e-2)


@given(st.integers(1, 100_000), st.integers(1, 2000))
def test_the_form_of_a_partial_result_holds_it(size, channels):
    rows, cols = partial_form(size, channels)
    assert channels * rows * cols >= size
    assert rows * cols <= 2 * -(-size // channels)


@pytest.mark.parametrize(
    "maps",
    [
        [MapStatistics(1, 2, (MEAN,))],
        [MapStatistics(0, 2, (MEAN,)), MapStatistics(3, 2, (MAX,))],
        [MapStatistics(0, 2, (VARIANCE,))],
        [MapStatistics(0, 2, (VARIANCE, MEAN))],
        [MapStatistics(0, 2, (MIN, MIN))],
        [MapStatistics(0, 2, ("median",))],
        [MapStatistics(0, 0, (SUM,))],
        [MapStatistics(0, 2, ())],
    ],
)
def test_statistics_that_no_plan_has_are_refused(maps):
    assert not check_statistics(maps)
    assert check_statistics([MapStatistics(0, 2, (MEAN, VARIANCE)), MapStatistics(4, 1, (SUM,))])
