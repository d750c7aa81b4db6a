import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from serfer.core.geometry import Span
from serfer.splitter.network.sliding_window import Window, explicit_pads
from serfer.splitter.tiling.receptive_field import clipped, hull, spans_of, tabulated, under
from serfer.splitter.tiling.regions import InternedSpans

WINDOWS = st.builds(
    Window,
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    pad_before=st.integers(0, 4),
    pad_after=st.integers(0, 4),
)
SPANS = st.tuples(st.integers(-50, 50), st.integers(0, 50)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))


def slide(values, window, outputs):
    """Sum over a sliding window, straight from the definition; past the padding there are zeros (ceil mode)."""
    padded = np.concatenate([np.zeros(window.pad_before), values, np.zeros(100)])
    taps = window.dilation * np.arange(window.kernel)
    return np.array([padded[index * window.stride + taps].sum() for index in range(outputs)])


def output_count(window, size, *, ceil):
    free = size + window.pad_before + window.pad_after - window.reach
    outputs = (math.ceil if ceil else math.floor)(free / window.stride) + 1
    if ceil and (outputs - 1) * window.stride >= size + window.pad_before:
        outputs -= 1  # no window may start in the padding at the end
    return outputs


@pytest.mark.exact
@settings(max_examples=300)
@given(WINDOWS, st.integers(1, 20), st.booleans(), st.data())
def test_a_window_reads_exactly_the_rows_that_affect_its_output(window, size, ceil, data):
    outputs = output_count(window, size, ceil=ceil)
    assume(outputs >= 1)
    start = data.draw(st.integers(0, outputs - 1))
    stop = data.draw(st.integers(start + 1, outputs))
    base = slide(np.zeros(size), window, outputs)
    seen = []
    for row in range(size):
        changed = np.flatnonzero(slide(np.eye(size)[row], window, outputs) != base)
        if any(start <= index < stop for index in changed):
            seen.append(row)
    read = under(window)(np.array([[start], [stop]]))
    ((first,), (after,)) = read
    assert after - first == (stop - start - 1) * window.stride + window.reach
    ((first,), (after,)) = clipped(read, size)
    assert all(first <= row < after for row in seen)
    if seen and window.dilation == 1 and window.stride <= window.kernel:  # no holes, so what is read is exact
        assert seen == list(range(first, after))


@pytest.mark.parametrize(
    ("span", "inside"), [((-3, 4), (0, 3)), ((1, 2), (1, 2)), ((-5, -3), (0, 1)), ((7, 9), (2, 3))]
)
def test_spans_are_clipped_to_the_map_and_are_never_empty(span, inside):
    assert clipped(np.array([span]).T, 3).T.tolist() == [list(inside)]


@given(st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=6))
def test_the_hull_is_each_tiles_smallest_span_that_contains_both(pairs):
    hulls = hull(*(spans_of(side) for side in zip(*pairs, strict=True)))
    for (start, stop), (one, other) in zip(hulls.T.tolist(), pairs, strict=True):
        assert start == min(one.start, other.start)
        assert stop == max(one.stop, other.stop)


def test_rows_in_any_order_are_read_from_the_first_to_the_last_and_for_an_output_that_reads_none_the_first():
    mirrored = np.array([4, 3, 2, 1, 0])
    read = tabulated(mirrored, mirrored + 1)
    assert read(spans_of([Span(0, 2), Span(2, 5), Span(4, 8)])).T.tolist() == [[3, 5], [0, 3], [0, 1]]
    read = tabulated(np.array([5, 2, 5]), np.array([0, 4, 0]))
    assert read(spans_of([Span(0, 1), Span(0, 2), Span(2, 3)])).T.tolist() == [[0, 1], [2, 4], [0, 1]]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"auto_pad": b"SAME_UPPER", "pads": [9] * 4}, [1, 0, 1, 1]),
        ({"auto_pad": b"SAME_LOWER", "pads": [9] * 4}, [1, 1, 1, 0]),
        ({"auto_pad": b"VALID", "pads": [9] * 4}, [0, 0, 0, 0]),
        ({}, [0, 0, 0, 0]),
    ],
)
def test_padding_is_made_explicit(given, expected):
    assert explicit_pads({"kernel_shape": [3, 2], "strides": [1, 1], **given}, (7, 7)) == expected


def test_equal_spans_are_one_array_and_equal_their_rules():
    known, field = InternedSpans(), under(Window(3, 2, 1, 1, 1))
    one, again = (known.one(np.array([[0, 4], [4, 9]])) for _ in range(2))
    assert one is again
    read = known.read(field, 17, one)
    assert read is known.read(field, 17, one)
    assert read.tolist() == clipped(field(one), 17).tolist()
    assert known.read(field, None, one).tolist() == field(one).tolist()
    assert known.hull(one, read).tolist() == hull(one, read).tolist()
    assert known.sizes(one).tolist() == [4, 5]


def test_views_of_shifted_spans_are_one_array():
    known = InternedSpans()
    near, far = (known.one(np.array([[0, 4], [4, 9]]) + shift) for shift in (0, 3))
    wide = [known.one(np.add(spans, [[0], [2]])) for spans in (near, far)]
    views = known.views([near, wide[0]])
    assert views is known.views([far, wide[1]])
    assert views.tolist() == [[[0, 4], [0, 6]], [[0, 5], [0, 7]]]
