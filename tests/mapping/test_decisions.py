"""What decides without doing: dollars in flight, pixels without data, and where results lie."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.geometry import Rect, Span
from serfer.core.plan.windows import AxisWindow, AxisWindows
from serfer.mapping.engine import Spending
from serfer.mapping.no_data import Gaps, Place, Sampling, missing_written


@pytest.mark.parametrize(
    ("usd", "steps", "spent"),
    [
        (4.0, ["reserve", "reserve", "full", 1.0, "reserve"], 1.0),  # what is in flight counts
        (1.0, ["reserve", 4.0, "reserve", "full"], 4.0),  # dearer than predicted: those in flight are dearer too
        (9.0, ["reserve", "release", "reserve", None, "full"], 9.0),  # failed counts as predicted, not sent does not
    ],
)
def test_spending_is_reserved_within_the_ceiling(usd, steps, spent):
    spending = Spending(10.0)
    for step in steps:
        if step in ("reserve", "full"):
            assert spending.reserve(usd) == (step == "reserve")
        elif step == "release":
            spending.release(usd)
        else:
            spending.settle(usd, step)
    assert spending.spent == spent


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
