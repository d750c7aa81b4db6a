"""Grids as users write them ("auto", one for all stages, or one for each), and the parts of tensors on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from serfer.core.errors import UsageError
from serfer.core.geometry import Grid, Rect, grid_rects
from serfer.splitter.network.graph import Graph

ONE = Grid(1, 1)
COLUMNS = tuple(Grid(1, count, columns=True) for count in (2, 4, 8, 16))
AUTO = (ONE, Grid(1, 2), *(Grid(side, side) for side in (2, 3, 4, 6, 8)), Grid(2, 4), *COLUMNS)
_TILES = re.compile(r"([1-9]\d?)x([1-9]\d?)")
_COLUMNS = re.compile(r"col([1-9]\d?)")

GridLike = str | int | tuple[int, int] | Grid


@dataclass(frozen=True)
class GridChoice:
    """Which grids the planner may give a stage.

    With `per_stage`, stage k has exactly the k-th; otherwise every stage has one of `options` where its operators can
    be spread like that, and a single tile where they cannot, or one of `for_large` where that is too large.
    """

    options: tuple[Grid, ...] = AUTO
    per_stage: tuple[Grid, ...] = ()
    for_large: tuple[Grid, ...] = ()

    @property
    def requested(self) -> Grid | None:
        return self.options[0] if len(self.options) == 1 and not self.per_stage else None


def parse_grid(grid: GridLike) -> Grid:
    """Read a grid: (rows, cols), "RxC", "colN" or "1"; raises UsageError for anything else."""
    if isinstance(grid, Grid):
        return grid
    if isinstance(grid, tuple) and len(grid) == 2 and all(type(n) is int and 0 < n < 100 for n in grid):  # noqa: PLR2004
        return Grid(*grid)
    if grid == "1" or (type(grid) is int and grid == 1):
        return ONE
    text = grid if isinstance(grid, str) else ""
    if tiles := _TILES.fullmatch(text):
        return Grid(int(tiles[1]), int(tiles[2]))
    if columns := _COLUMNS.fullmatch(text):
        return Grid(1, int(columns[1]), columns=columns[1] != "1")
    raise UsageError(
        f"{grid!r} is not a grid: write ROWSxCOLS such as 2x2, colN for N groups of a fully connected layer's columns, "
        "or 1 for a single tile"
    )


def parse_grids(grids: GridLike | Sequence[GridLike] | GridChoice) -> GridChoice:
    """Read the option `grids`: "auto", one grid, a list or tuple of them, or a list as text with commas."""
    if isinstance(grids, GridChoice):
        return grids
    if grids == "auto":
        return GridChoice()
    if isinstance(grids, str) and "," in grids:
        grids = [part.strip() for part in grids.split(",")]
    if isinstance(grids, list) or (isinstance(grids, tuple) and not all(isinstance(part, int) for part in grids)):
        return GridChoice(per_stage=tuple(parse_grid(grid) for grid in grids))
    return GridChoice(options=(parse_grid(grids),))  # type: ignore[arg-type]  # lists were handled above


def can_part(graph: Graph, tensor: str, grid: Grid, least: int = 1) -> bool:
    """Return whether a tensor can be cut like that: maps into rows and columns (`least` each), vectors into columns.

    What tiles pool of a map is one value each.
    """
    shape = graph.shape(tensor)
    pooled = (shape.height, shape.width) == (grid.rows, grid.cols)
    side = 1 if grid.columns or pooled else least
    return shape.flat == grid.columns and shape.height >= side * grid.rows and shape.width >= side * grid.cols


def tile_rects(graph: Graph, tensor: str, grid: Grid) -> list[Rect]:
    shape = graph.shape(tensor)
    if grid == ONE:
        return [shape.whole]
    if not can_part(graph, tensor, grid):
        return []
    return grid_rects(shape.height, shape.width, grid)
