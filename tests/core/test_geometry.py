import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.geometry import Grid, Rect, Span, even_parts, grid_rects, hull

SPANS = st.tuples(st.integers(-50, 50), st.integers(0, 50)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))


@given(st.integers(1, 500), st.integers(1, 20))
def test_even_parts_cover_in_order_and_differ_by_one_at_most(size, count):
    parts = even_parts(size, count)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(size))
    sizes = [part.size for part in parts]
    assert len(parts) == count
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5), st.integers(1, 5))
def test_grid_rects_tile_the_map_exactly_row_by_row(height, width, rows, cols):
    grid = Grid(min(rows, height), min(cols, width))
    seen = np.zeros((height, width), dtype=int)
    rects = grid_rects(height, width, grid)
    for rect in rects:
        seen[rect.slices] += 1
    assert len(rects) == grid.tiles
    assert (seen == 1).all()
    assert rects == sorted(rects)
    assert sum(rect.area for rect in rects) == height * width


@given(st.lists(SPANS, min_size=1, max_size=6))
def test_hull_is_the_smallest_span_that_contains_all(spans):
    found = hull(iter(spans))
    assert all(found.contains(span) for span in spans)
    assert found.start in {span.start for span in spans}
    assert found.stop in {span.stop for span in spans}


def test_clip_keeps_what_lies_on_the_map():
    assert Span(-3, 4).clip(3) == Span(0, 3)
    assert Span(1, 2).clip(3) == Span(1, 2)


def test_clip_keeps_the_nearest_row_of_what_lies_beside_the_map():
    assert Span(-5, -3).clip(3) == Span(0, 1)
    assert Span(7, 9).clip(3) == Span(2, 3)


def test_within_is_relative_to_the_other_rectangles_corner():
    assert Rect(Span(5, 8), Span(2, 3)).within(Rect(Span(4, 9), Span(1, 9))) == Rect(Span(1, 4), Span(1, 2))


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (Rect(Span(0, 2), Span(0, 2)), True),
        (Rect(Span(0, 3), Span(0, 2)), False),
        (Rect(Span(0, 2), Span(-1, 1)), False),
    ],
)
def test_contains_needs_both_axes(inner, expected):
    assert Rect.whole(2, 2).contains(inner) is expected


@pytest.mark.parametrize(
    ("grid", "text"), [(Grid(1, 1), "1"), (Grid(1, 2), "1x2"), (Grid(3, 2), "3x2"), (Grid(1, 4, columns=True), "col4")]
)
def test_a_grid_is_written_as_the_command_line_takes_it(grid, text):
    assert str(grid) == text
