"""The parts of a tensor on a grid: rows and columns of a map, or columns of a vector."""

from __future__ import annotations

from serfer.core.geometry import Grid, Rect, grid_rects
from splitter.network.graph import Graph
from splitter.tiling.grids import ONE


def can_part(graph: Graph, tensor: str, grid: Grid, least: int = 1) -> bool:
    """Return whether a tensor can be cut like that: maps into rows and columns (`least` each), vectors into columns.

    What tiles pool of a map is one value each.
    """
    shape = graph.shape(tensor)
    pooled = (shape.height, shape.width) == (grid.rows, grid.cols)
    side = 1 if grid.columns or pooled else least
    return shape.flat == grid.columns and shape.height >= side * grid.rows and shape.width >= side * grid.cols


def tile_rects(graph: Graph, tensor: str, grid: Grid) -> list[Rect]:
    """Return each tile's part of a tensor on a grid; none where it cannot be cut like that."""
    shape = graph.shape(tensor)
    if grid == ONE:
        return [shape.whole]
    if not can_part(graph, tensor, grid):
        return []
    return grid_rects(shape.height, shape.width, grid)
