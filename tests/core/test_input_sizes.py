"""The size at which an image of a plan of many sizes becomes its input."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import PlanError
from serfer.core.plan import InputSizes, Pad, Preprocess, SideLimit

PLAIN = Preprocess(None, "opencv-bilinear", "RGB", 1 / 255, (0.0,) * 3, (1.0,) * 3)
DETECTION = InputSizes.of("32..2016x32..2016,multiple=32,pixels=1048576")
PADDED = [Pad("centre", 114), Pad("corner", 114)]
limits = st.none() | st.builds(SideLimit, st.sampled_from(["shorter", "longer"]), st.integers(1, 3000))
sides = st.integers(1, 4000)


def text_detections(height, width, kind, limit):
    """PaddleOCR's and RapidOCR's resize: `limit_type` and `limit_side_len`, then multiples of 32."""
    ratio = 1.0
    if kind == "max" and max(height, width) > limit:
        ratio = float(limit) / height if height > width else float(limit) / width
    if kind == "min" and min(height, width) < limit:
        ratio = float(limit) / height if height < width else float(limit) / width
    return tuple(int(round(int(side * ratio) / 32) * 32) for side in (height, width))


@given(sides, sides, limits, st.sampled_from([None, *PADDED]))
def test_any_image_has_one_of_the_sizes(height, width, limit, pad):
    assert replace(PLAIN, limit=limit, pad=pad).size_for(height, width, DETECTION) in DETECTION


@given(sides, sides, st.sampled_from([("max", "longer"), ("min", "shorter")]), st.integers(32, 1500))
def test_sizes_within_the_bounds_are_those_of_text_detection(height, width, names, pixels):
    theirs = text_detections(height, width, names[0], pixels)
    ours = replace(PLAIN, limit=SideLimit(names[1], pixels)).size_for(height, width, DETECTION)
    scale = SideLimit(names[1], pixels).scale(height, width)
    fits = height * scale * width * scale <= DETECTION.most_pixels and max(height, width) * scale <= 2016
    if theirs in DETECTION and fits:
        assert ours == theirs


@given(sides, sides, st.sampled_from([1, 8]))
def test_a_line_of_text_has_the_width_of_text_recognition(height, width, multiple):
    sizes = InputSizes.of(f"48x320..2400,multiple={multiple}")
    rows, columns = replace(PLAIN, pad=Pad("height", 127)).size_for(height, width, sizes)
    theirs = min(2400, int(48 * max(320 / 48, width / height)))
    assert rows == 48
    assert theirs <= columns < theirs + multiple


@given(sides, sides, st.sampled_from(PADDED))
def test_a_padded_image_keeps_its_size_where_that_fits(height, width, pad):
    rows, columns = replace(PLAIN, pad=pad).size_for(height, width, DETECTION)
    if height <= 1000 and width <= 1000:
        assert (rows, columns) == (-(-height // 32) * 32, -(-width // 32) * 32)
        assert (pad.place, replace(PLAIN, pad=pad).placement(height, width, (rows, columns)).top == 0) != (
            "corner",
            False,
        )


@pytest.mark.parametrize(
    ("preprocess", "sizes", "why"),
    [
        (replace(PLAIN, resize=32), DETECTION, "by the crop"),
        (replace(PLAIN, pad=Pad("square", 0)), DETECTION, "by pad square"),
        (replace(PLAIN, pad=Pad("height", 0)), DETECTION, "needs one height"),
        (replace(PLAIN, limit=SideLimit("shorter", 8)), None, "the limit of the shorter side.*many sizes"),
    ],
)
def test_descriptions_of_other_plans_are_refused(preprocess, sizes, why):
    with pytest.raises(PlanError, match=why):
        preprocess.check_sizes(sizes)
    for side, pixels in (("upper", 8), ("longer", 0), ("shorter", 1 << 20)):
        with pytest.raises(PlanError, match="side"):
            SideLimit(side, pixels)
