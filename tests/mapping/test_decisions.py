"""What decides without doing: dollars in flight, pixels without data, and where results lie."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.geometry import Rect, Span
from serfer.core.plan.windows import AxisWindow, AxisWindows
from serfer.mapping.engine import Spending
from serfer.mapping.no_data import Gaps, Place, Sampling, missing_written


def test_what_is_in_flight_counts_against_the_ceiling():
    spending = Spending(10.0)
    assert spending.reserve(4.0)
    assert spending.reserve(4.0)
    assert not spending.reserve(4.0)
    spending.settle(4.0, 1.0)
    assert spending.reserve(4.0)
    assert spending.spent == 1.0


def test_windows_dearer_than_predicted_make_those_in_flight_dearer():
    spending = Spending(10.0)
    assert spending.reserve(1.0)
    spending.settle(1.0, 4.0)
    assert spending.reserve(1.0)
    assert not spending.reserve(1.0)


def test_a_query_that_failed_counts_as_predicted_and_one_that_was_not_sent_does_not():
    spending = Spending(10.0)
    assert spending.reserve(9.0)
    spending.release(9.0)
    assert spending.reserve(9.0)
    spending.settle(9.0, None)
    assert spending.spent == 9.0
    assert not spending.reserve(2.0)


@given(
    st.lists(st.tuples(st.floats(0.01, 2), st.floats(0, 1)), max_size=60),
    st.floats(0.1, 20),
)
def test_no_ceiling_is_passed_by_windows_that_cost_no_more_than_predicted(windows, ceiling):
    spending = Spending(ceiling)
    for predicted, share in windows:
        if spending.reserve(predicted):
            spending.settle(predicted, predicted * share)
    assert spending.spent <= ceiling + 1e-9


@given(st.data())
def test_a_written_pixel_is_missing_where_all_that_it_covers_is(data):
    step = data.draw(st.sampled_from([0.5, 1.0, 2.0, 4.0]))
    result = data.draw(st.integers(2, 12)), data.draw(st.integers(2, 12))
    height, width = (int(np.ceil(each * step)) for each in result)
    missing = np.array(data.draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width)))
    missing = missing.reshape(height, width)
    place = Place(Sampling(0.0, step), Sampling(0.0, step))
    whole = missing_written(missing, Rect.whole(height, width), Rect.whole(*result), place)
    for row in range(result[0]):
        for col in range(result[1]):
            top, left = int(row * step), int(col * step)
            bottom, right = int(np.ceil((row + 1) * step)), int(np.ceil((col + 1) * step))
            assert whole[row, col] == missing[top:bottom, left:right].all()
    half = result[0] // 2
    lower = Rect(Span(half, result[0]), Span(0, result[1]))
    read = Rect(Span(int(half * step), height), Span(0, width))
    np.testing.assert_array_equal(missing_written(missing[read.rows.start :], read, lower, place), whole[half:])


def test_a_result_lies_where_the_plan_says():
    windows = (AxisWindow(0, Span(0, 101), Span(0, 51)),)
    assert Sampling.of(AxisWindows(101, 51, windows, start=-0.5, step=2.0)) == Sampling(-0.5, 2.0)
    assert Sampling.of(AxisWindows(101, 51, windows, step=2.0)) is None


@pytest.mark.parametrize("no_data", [0.0, float("nan")])
def test_pixels_are_missing_where_none_of_the_networks_bands_holds_data_or_one_does_not(no_data):
    pixels = np.full((3, 2, 2), 5.0, np.float32)
    pixels[:2, 0, 1] = no_data
    pixels[0, 1, 1] = no_data
    missing, partly = Gaps((0, 1), (no_data, no_data)).missing(pixels, None)
    assert missing.tolist() == [[False, True], [False, False]]
    assert partly.tolist() == [[False, False], [False, True]]
    missing, partly = Gaps((0, 1), (no_data, no_data), any_band=True).missing(pixels, None)
    assert (missing.tolist(), partly) == ([[False, True], [False, True]], None)
    assert not Gaps((0, 1, 2), (no_data,) * 3).missing(pixels, None)[0].any()
    assert not Gaps((0, 1), (None, None)).possible
