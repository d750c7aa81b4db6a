from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.geometry import Grid, Rect, Span, grid_rects
from serfer.core.keys import output_key
from serfer.core.plan import CACHE, Artefact, Function, Input, Padding, Shape, Stage, Tile
from serfer.core.wire import Task
from serfer.lambdas.cell_codec import cells_to_bytes, pieces_to_inputs
from serfer.splitter.tiling.byte_layout import lay_out, pieces_for

QUERY = "0123456789abcdef" * 2
NONE = Padding(0, 0, 0, 0)


def rect(draw, *sides):
    starts = [draw(st.integers(0, side - 1)) for side in sides]
    return Rect(*(Span(start, draw(st.integers(start + 1, side))) for start, side in zip(starts, sides, strict=True)))


@st.composite
def maps(draw, *, flat=False):
    """Return (height, width, tiles before, rectangles that the next tiles read)."""
    height, width = 1 if flat else draw(st.integers(3, 14)), draw(st.integers(3, 14))
    before = grid_rects(height, width, Grid(1 if flat else draw(st.integers(1, 3)), draw(st.integers(1, 3))))

    return height, width, before, [rect(draw, height, width) for _ in range(draw(st.integers(1, 5)))]


@st.composite
def stages(draw):
    """Return (shapes of a stage's outputs, each tile's rectangles of them, what each of the readers wants)."""
    grid = Grid(draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    shapes = [
        Shape(draw(st.integers(1, 3)), draw(st.integers(3, 9)), draw(st.integers(3, 9)), flat=False)
        for _ in range(draw(st.integers(1, 3)))
    ]
    outputs = list(zip(*(grid_rects(shape.height, shape.width, grid) for shape in shapes), strict=True))

    readers = []
    for _ in range(draw(st.integers(1, 5))):
        numbers = draw(st.sets(st.integers(0, len(shapes) - 1)))
        readers.append({number: rect(draw, shapes[number].height, shapes[number].width) for number in numbers})
    return shapes, outputs, readers


def alone(before, wanted):
    """Lay out a stage of one output: rectangles of its tiles, rectangles that are read."""
    layout = lay_out([(rect,) for rect in before], [{0: rect} for rect in wanted])
    assert all(cell.output == 0 for cells in layout for cell, _ in cells)
    return [[(cell.rect, who) for cell, who in cells] for cells in layout], layout


def halo(height, width, grid, rows, border=1):
    """Return a grid's rectangles, each grown by a border inside the map."""
    return [
        Rect(
            Span(max(rect.rows.start - border, 0), min(rect.rows.stop + border, height)),
            Span(max(rect.cols.start - border, 0), min(rect.cols.stop + border, width)),
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


@pytest.mark.exact
@settings(max_examples=80)
@given(maps())
def test_cells_are_disjoint_and_cover_exactly_the_regions_read(world):
    height, width, before, wanted = world
    read, written = np.zeros((height, width), dtype=bool), np.zeros((height, width), dtype=int)
    for rect in wanted:
        read[rect.slices] = True
    for output, cells in zip(before, alone(before, wanted)[0], strict=True):
        for rect, readers in cells:
            assert output.contains(rect)
            assert readers == {index for index, other in enumerate(wanted) if other.contains(rect)}
            written[rect.slices] += 1
    assert (written == read).all()


@settings(max_examples=80)
@given(stages())
def test_a_piece_is_runs_of_whole_cells_in_order_inside_the_object(world):
    shapes, outputs, readers = world
    layout = lay_out(outputs, readers)

    def size(cell):
        return shapes[cell.output].channels * cell.rect.area

    for reader, wanted in enumerate(readers):
        read = 0
        for piece in pieces_for(reader, 4, shapes, layout):
            assert piece.stage == 4
            cells = [cell for cell, _ in layout[piece.tile]]
            starts = {cell: sum(map(size, cells[:index])) for index, cell in enumerate(cells)}
            end = -1
            for run in piece.ranges:
                first = cells.index(run.cells[0])
                assert list(run.cells) == cells[first : first + len(run.cells)]
                assert run.offset == starts[run.cells[0]]
                assert run.first == first
                assert run.offset > end, "two ranges that touch would be one"
                assert run.elements == sum(map(size, run.cells))
                end = run.offset + run.elements
                assert end <= sum(map(size, cells))
                read += run.elements
        assert read == sum(shapes[number].channels * rect.area for number, rect in wanted.items())


@settings(max_examples=60)
@given(maps())
def test_the_order_of_few_cells_is_optimal(world):
    _, _, before, wanted = world
    for cells in alone(before, wanted)[0]:
        if 0 < len(cells) <= 6:
            best = min(ranges(order) for order in permutations([readers for _, readers in cells]))
            assert ranges([readers for _, readers in cells]) == best


@pytest.mark.parametrize("grid", [(2, 2), (3, 3), (4, 4)])
def test_many_cells_are_ordered_better_than_row_by_row_and_few_read_in_one_range(grid):
    before, wanted = grid_rects(40, 40, Grid(*grid)), halo(40, 40, *grid)
    cells_of, layout = alone(before, wanted)
    if grid == (2, 2):
        pieces = [pieces_for(reader, 0, [Shape(8, 40, 40, flat=False)], layout) for reader in range(4)]
        assert [[(piece.tile, len(piece.ranges)) for piece in of] for of in pieces] == [[(n, 1) for n in range(4)]] * 4
    for cells in cells_of:
        if len(cells) > 6:
            plain = sorted(cells, key=lambda cell: (cell[0].rows, cell[0].cols))
            assert ranges([who for _, who in cells]) < ranges([who for _, who in plain])


def tile(inputs, outputs, cells, pieces):
    return Tile("g", 0, tuple(inputs), (NONE,) * len(inputs), tuple(outputs), tuple(cells), tuple(pieces), 0)


def stage(inputs):
    return Stage((), Grid(1, 1), 1769, tuple(inputs), (), (), (Function(Artefact("w", 0, ""), ()),), CACHE)


def written(wholes, outputs, layout, stage=0):
    """Return what each tile of stage `stage` puts into the store, given the whole tensors of its outputs."""
    objects = []
    for rects, cells in zip(outputs, layout, strict=True):
        views = [
            whole[..., rect.slices[1]] if whole.ndim == 2 else whole[:, :, *rect.slices]
            for whole, rect in zip(wholes, rects, strict=True)
        ]
        key = output_key(QUERY, stage, len(objects))
        objects.append(bytes(cells_to_bytes(views, tile((), rects, [cell for cell, _ in cells], ()), key)))
    return objects


def read(pieces, objects, batch):
    """Return the bytes of every range of `pieces`; `objects` are by stage and tile."""
    return [
        objects[piece.stage][piece.tile][run.start(batch) : run.start(batch) + run.length(batch)]
        for piece in pieces
        for run in piece.ranges
    ]


def put_together(pieces, objects, batch, here, rects):
    """Return a tile's inputs from the objects of the tiles before it."""
    task = Task("", QUERY, 9, 0, batch, 60.0)
    return pieces_to_inputs(read(pieces, objects, batch), task, here, tile(rects, (), (), pieces))


def random_tensors(shapes, batch):
    random = np.random.default_rng(0)
    return [random.standard_normal(shape.of(shape.whole, batch), dtype=np.float32) for shape in shapes]


@settings(max_examples=60)
@given(maps(flat=True), st.integers(1, 3))
def test_pieces_of_a_vector_put_together_are_its_columns(world, batch):
    _, width, before, wanted = world
    shape = Shape.vector(width)
    (whole,) = random_tensors([shape], batch)
    _, layout = alone(before, wanted)
    objects = [written([whole], [(rect,) for rect in before], layout)]
    for reader, rect in enumerate(wanted):
        pieces = pieces_for(reader, 0, [shape], layout)
        (columns,) = put_together(pieces, objects, batch, stage([Input(0, 0, shape)]), [rect])
        assert np.array_equal(columns, whole[:, rect.slices[1]])


@settings(max_examples=80)
@given(stages(), stages(), st.integers(1, 2))
def test_a_tile_reads_inputs_of_several_stages_in_any_order(one, other, batch):
    worlds, objects, pieces, wholes, inputs = (one, other), [], [], [], {}
    for number, (shapes, outputs, readers) in enumerate(worlds):
        layout = lay_out(outputs, readers)
        wholes.append(random_tensors(shapes, batch))
        objects.append(written(wholes[-1], outputs, layout, number))
        pieces += pieces_for(0, number, shapes, layout)
        inputs |= {Input(number, output, shapes[output]): rect for output, rect in readers[0].items()}
    turned = dict(reversed(inputs.items()))
    if turned:
        values = put_together(pieces, objects, batch, stage(turned), turned.values())
        for value, (source, rect) in zip(values, turned.items(), strict=True):
            assert np.array_equal(value, wholes[source.stage][source.output][:, :, *rect.slices])
