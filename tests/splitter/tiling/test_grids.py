import pytest

from serfer.core.errors import UsageError
from serfer.core.geometry import Grid
from serfer.splitter.tiling.grids import parse_grid, parse_grids


@pytest.mark.parametrize(
    "grid",
    [
        *("", "0x2", "2x", "x2", "2X2", "100x1", "2x2x2", "two", (0, 1), (1, 100), (2,), (1.0, 2), 4, None, "-1"),
        *("col", "col0", "col100", "col-2", "COL4", "col4x2", "col 4", "4col", "col01"),
        *((True, 2), True, 2),
    ],
)
def test_text_that_is_not_a_grid_is_refused(grid):
    with pytest.raises(UsageError, match="is not a grid"):
        parse_grids(grid)


@pytest.mark.parametrize(
    ("given", "options", "per_stage"),
    [
        ("2x2", [(2, 2)], []),
        ((1, 2), [(1, 2)], []),
        ("1", [(1, 1)], []),
        ("col4", [(1, 4, True)], []),
        ("col1", [(1, 1)], []),
        (Grid(1, 3, columns=True), [(1, 3, True)], []),
        ("2x2,col3", None, [(2, 2), (1, 3, True)]),
        (["col2", (1, 2)], None, [(1, 2, True), (1, 2)]),
        ("2x2, 1x3,1", None, [(2, 2), (1, 3), (1, 1)]),
        ([(2, 2), "1"], None, [(2, 2), (1, 1)]),
        (((2, 2), (1, 2), 1), None, [(2, 2), (1, 2), (1, 1)]),
    ],
)
def test_grids_are_read_as_users_write_them(given, options, per_stage):
    choice = parse_grids(given)
    assert choice.per_stage == tuple(Grid(*grid) for grid in per_stage)
    if options:
        assert choice.options == tuple(Grid(*grid) for grid in options)


def test_columns_differ_from_a_row_of_tiles():
    assert parse_grid("col4") != parse_grid("1x4")
    assert parse_grid(str(parse_grid("col4"))) == parse_grid("col4")
    assert parse_grid("col1") == parse_grid("1x1") == parse_grid(1)
