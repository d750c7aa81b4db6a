from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambdas.worker import cells_to_bytes, pieces_to_input
from serfer.core.geometry import Grid, Rect, Span, grid_rects
from serfer.core.plan import Artefact, Padding, Shape, Stage, Tile
from splitter.cells import lay_out, pieces_for

NONE = Padding(0, 0, 0, 0)


@st.composite
def maps(draw):
    """Return (height, width, tiles before, rectangles that the next tiles read)."""
    height, width = draw(st.integers(3, 14)), draw(st.integers(3, 14))
    before = grid_rects(height, width, Grid(draw(st.integers(1, 3)), draw(st.integers(1, 3))))

    def span(size):
        start = draw(st.integers(0, size - 1))
        return Span(start, draw(st.integers(start + 1, size)))

    return height, width, before, [Rect(span(height), span(width)) for _ in range(draw(st.integers(1, 5)))]


def halo(height, width, grid, rows, border=1):
    """Return a grid's rectangles, each grown by a border inside the map."""
    return [
        Rect(
            Span(rect.rows.start - border, rect.rows.stop + border).clip(height),
            Span(rect.cols.start - border, rect.cols.stop + border).clip(width),
        )
        for rect in grid_rects(height, width, Grid(grid, rows))
    ]


def ranges(order):
    """Count ranges over all readers, straight from their definition."""
    readers = set().union(*order) if order else set()
    return sum(
        wanted and not (index and reader in order[index - 1])
        for reader in readers
        for index, wanted in enumerate(reader in who for who in order)
    )


@settings(max_examples=80)
@given(maps())
def test_cells_are_disjoint_and_cover_exactly_what_is_read(world):
    height, width, before, wanted = world
    read, written = np.zeros((height, width), dtype=bool), np.zeros((height, width), dtype=int)
    for rect in wanted:
        read[rect.slices] = True
    for output, cells in zip(before, lay_out(before, wanted), strict=True):
        for rect, readers in cells:
            assert output.contains(rect)
            assert readers == {index for index, other in enumerate(wanted) if other.contains(rect)}
            written[rect.slices] += 1
    assert (written == read).all()


@settings(max_examples=80)
@given(maps(), st.integers(1, 3))
def test_a_piece_is_runs_of_whole_cells_in_order_inside_the_object(world, channels):
    _, _, before, wanted = world
    layout = lay_out(before, wanted)
    for reader, rect in enumerate(wanted):
        area = 0
        for piece in pieces_for(reader, channels, layout):
            rects = [cell for cell, _ in layout[piece.source]]
            starts = {cell: channels * sum(r.area for r in rects[:index]) for index, cell in enumerate(rects)}
            end = -1
            for run in piece.ranges:
                first = rects.index(run.cells[0])
                assert list(run.cells) == rects[first : first + len(run.cells)]
                assert run.offset == starts[run.cells[0]]
                assert run.offset > end, "two ranges that touch would be one"
                end = run.offset + channels * run.area
                assert end <= channels * sum(r.area for r in rects)
                area += run.area
        assert area == rect.area


@settings(max_examples=60, deadline=None)
@given(maps())
def test_the_order_of_few_cells_is_the_best_there_is(world):
    _, _, before, wanted = world
    for cells in lay_out(before, wanted):
        if 0 < len(cells) <= 6:
            best = min(ranges(order) for order in permutations([readers for _, readers in cells]))
            assert ranges([readers for _, readers in cells]) == best


def test_at_two_by_two_every_reader_needs_one_range_of_every_tile():
    before, wanted = grid_rects(20, 20, Grid(2, 2)), halo(20, 20, 2, 2)
    layout = lay_out(before, wanted)
    assert [len(cells) for cells in layout] == [4, 4, 4, 4]
    for reader in range(4):
        pieces = pieces_for(reader, 8, layout)
        assert [piece.source for piece in pieces] == [0, 1, 2, 3]
        assert [len(piece.ranges) for piece in pieces] == [1, 1, 1, 1]


@pytest.mark.parametrize("grid", [(3, 3), (4, 4)])
def test_many_cells_are_ordered_better_than_row_by_row(grid):
    before, wanted = grid_rects(40, 40, Grid(*grid)), halo(40, 40, *grid)
    for cells in lay_out(before, wanted):
        if len(cells) > 6:
            plain = sorted(cells, key=lambda cell: (cell[0].rows, cell[0].cols))
            assert ranges([who for _, who in cells]) < ranges([who for _, who in plain])


def test_a_part_that_nobody_reads_is_never_written():
    before = grid_rects(4, 4, Grid(2, 1))
    layout = lay_out(before, [Rect(Span(0, 1), Span(0, 4))])
    assert [[rect for rect, _ in cells] for cells in layout] == [[Rect(Span(0, 1), Span(0, 4))], []]
    assert [piece.source for piece in pieces_for(0, 1, layout)] == [0]


def tile(rect, cells, pieces):
    return Tile("g", rect, rect, NONE, tuple(cells), pieces, 0)


@settings(max_examples=60)
@given(maps(), st.integers(1, 3), st.integers(1, 3))
def test_pieces_put_together_are_slices_of_the_whole_map(world, channels, batch):
    height, width, before, wanted = world
    whole = np.random.default_rng(0).standard_normal((batch, channels, height, width), dtype=np.float32)
    layout = lay_out(before, wanted)
    shape = Shape(channels, height, width, flat=False)
    objects = []
    for output, cells in zip(before, layout, strict=True):
        view = whole[:, :, *output.slices]
        objects.append(bytes(cells_to_bytes(view, tile(output, [rect for rect, _ in cells], ()))))
    for reader, rect in enumerate(wanted):
        pieces = pieces_for(reader, channels, layout)
        scale = 4 * batch
        values = [
            objects[piece.source][scale * run.offset : scale * (run.offset + channels * run.area)]
            for piece in pieces
            for run in piece.ranges
        ]
        empty = Artefact("w", 0, "")
        stage = Stage((), Grid(1, 1), 1769, 1.0, shape, shape, (), empty, ())
        found = pieces_to_input(values, batch, stage, tile(rect, (), pieces))
        assert np.array_equal(found, whole[:, :, *rect.slices])
