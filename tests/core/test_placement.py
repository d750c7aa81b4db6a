from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serfer.core.errors import PlanError
from serfer.core.plan import OPENCV_BILINEAR, PAD_PLACES, Pad, Preprocess

sides = st.integers(1, 5000)
inputs = st.tuples(st.integers(1, 700), st.integers(1, 700))
ways = st.one_of(
    st.builds(lambda place: {"pad": Pad(place, 114)}, st.sampled_from(PAD_PLACES)),
    st.builds(lambda resize: {"resize": resize}, st.none() | st.integers(1, 800)),
)


def preprocess(resize=None, pad=None):
    return Preprocess(resize, OPENCV_BILINEAR, "RGB", 1.0, (0.0,) * 3, (1.0,) * 3, pad)


@given(height=sides, width=sides, into=inputs, way=ways, data=st.data())
def test_boxes_come_back_to_where_they_were(height, width, into, way, data):
    placement = preprocess(**way).placement(height, width, into)
    left, right = sorted(data.draw(st.tuples(*[st.floats(0, width)] * 2)))
    top, bottom = sorted(data.draw(st.tuples(*[st.floats(0, height)] * 2)))
    box = np.array([[left, top, right, bottom]])
    scales, offsets = ([placement.scale_x, placement.scale_y] * 2, [placement.left, placement.top] * 2)
    assert placement.to_image(box * scales + offsets) == pytest.approx(box, abs=1e-6 * max(height, width))


@given(height=sides, width=sides, into=inputs, place=st.sampled_from(PAD_PLACES))
@example(7, 1, (29, 29), "square").via("7 * (29 / 7) is more than 29")
def test_a_padded_image_is_inside_whole(height, width, into, place):
    placement = preprocess(pad=Pad(place, 114)).placement(height, width, into)
    assert placement.top >= 0 <= placement.left
    assert 1 <= placement.rows <= into[0] - placement.top
    assert 1 <= placement.columns <= into[1] - placement.left
    assert place == "height" or placement.rows == into[0] or placement.columns == into[1] or place == "corner"
    # Its corners are within a pixel of the input of where the scales have them, or of a side of one pixel.
    assert abs(placement.rows - height * placement.scale_y) <= 1
    assert abs(placement.columns - width * placement.scale_x) <= 1


@given(height=sides, width=sides, into=inputs, resize=st.integers(1, 800))
def test_a_crop_fills_the_input(height, width, into, resize):
    placement = preprocess(resize).placement(height, width, into)
    assert placement.top <= 0 >= placement.left
    assert placement.rows + placement.top >= into[0]
    assert placement.columns + placement.left >= into[1]


def test_boxes_are_clipped_to_the_image_and_keep_their_type():
    placement = preprocess(pad=Pad("centre", 114)).placement(300, 600, (640, 640))
    assert (placement.top, placement.left, placement.rows, placement.columns) == (160, 0, 320, 640)
    boxes = np.array([[-5.0, 0.0, 700.0, 400.0], [64.0, 170.0, 64.0, 640.0]], dtype=np.float32)
    mapped = placement.to_image(boxes)
    assert mapped.dtype == np.float32
    assert np.allclose(mapped, [[0, 0, 600, 225], [60, 9.375, 60, 300]])
    assert np.array_equal(placement.to_image(np.array([[64, 160, 128, 170]])), [[60, 0, 120, 9.375]])
    assert boxes[0, 0] == -5  # the argument stays


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: preprocess(resize=5, pad=Pad("centre", 0)), "either padded or cropped"),
        (lambda: replace(preprocess(pad=Pad("square", 0)), interpolation="bilinear"), "needs .* opencv-bilinear"),
        (lambda: Pad("middle", 0), "one of centre, corner"),
        (lambda: Pad("centre", 256), "0 to 255"),
    ],
)
def test_padding_unknown_or_contradicted_is_refused(make, words):
    with pytest.raises(PlanError, match=words):
        make()
