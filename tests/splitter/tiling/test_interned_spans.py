"""Spans that are computed once, against the rules that they come from."""

import numpy as np

from serfer.splitter.network.sliding_window import Window
from serfer.splitter.tiling.receptive_field import clipped, hull, under
from serfer.splitter.tiling.regions import InternedSpans


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
