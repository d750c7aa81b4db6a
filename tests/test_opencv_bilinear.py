import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.opencv_bilinear import resize

# (height, width), resized to, and the SHA-256 of what cv2.resize of opencv-python-headless 5.0.0.93 makes of pattern().
BY_OPENCV = [
    ((1, 1), (7, 5), "156e53f31ce2e1d6"),
    ((480, 640), (240, 320), "2b71fe3a4e4299a3"),
    ((480, 641), (240, 320), "300c83548eaf584a"),
    ((61, 97), (40, 64), "0c50167c444fe9cc"),
    ((97, 61), (416, 262), "95b1d8f22008f65f"),
    ((333, 500), (213, 320), "3f8f87e5d3e4cd64"),
    ((9, 13), (9, 41), "9f2586161aee7526"),
    ((64, 48), (1, 1), "f0ca98b8904352af"),
    ((40, 40), (80, 80), "ae4861ef45ed923a"),
    ((30, 1200), (16, 640), "13dbcdf2be91c0a9"),
    ((255, 256), (254, 257), "5c7e90109efb9c4d"),
]
sides = st.integers(1, 60)


def pattern(height, width):
    row, col, channel = np.ogrid[:height, :width, :3]
    return ((row * row * 31 + col * col * 17 + row * col * 7 + channel * 101) % 256).astype(np.uint8)


@pytest.mark.exact
@pytest.mark.parametrize(("size", "resized", "digest"), BY_OPENCV)
def test_equals_opencv_bit_for_bit(size, resized, digest):
    assert hashlib.sha256(resize(pattern(*size), resized).tobytes()).hexdigest()[:16] == digest


@pytest.mark.exact
@given(size=st.tuples(sides, sides), resized=st.tuples(sides, sides), data=st.data())
def test_a_window_is_that_of_the_whole(size, resized, data):
    top, left = (data.draw(st.integers(0, side - 1)) for side in resized)
    bottom, right = (data.draw(st.integers(start + 1, side)) for start, side in zip((top, left), resized, strict=True))
    window = (slice(top, bottom), slice(left, right))
    assert np.array_equal(resize(pattern(*size), resized, window=window), resize(pattern(*size), resized)[window])


@pytest.mark.exact
@given(size=st.tuples(sides, sides), resized=st.tuples(sides, sides), more=st.tuples(sides, sides))
def test_the_last_row_and_column_are_repeated(size, resized, more):
    of = (size[0] + more[0], size[1] + more[1])
    whole = np.pad(pattern(*size), [(0, more[0]), (0, more[1]), (0, 0)], mode="edge")
    assert np.array_equal(resize(pattern(*size), resized, of=of), resize(whole, resized))
