import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.geometry import Grid, Rect, Span, even_parts, grid_rects


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


def test_a_rectangle_is_seen_from_another_and_a_grid_written_as_the_command_line_takes_it():
    assert Rect(Span(5, 8), Span(2, 3)).within(Rect(Span(4, 9), Span(1, 9))) == Rect(Span(1, 4), Span(1, 2))
    inner = [Rect(Span(0, 2), Span(0, 2)), Rect(Span(0, 3), Span(0, 2)), Rect(Span(0, 2), Span(-1, 1))]
    assert [Rect.whole(2, 2).contains(rect) for rect in inner] == [True, False, False]
    grids = [Grid(1, 1), Grid(1, 2), Grid(3, 2), Grid(1, 4, columns=True)]
    assert list(map(str, grids)) == ["1", "1x2", "3x2", "col4"]
