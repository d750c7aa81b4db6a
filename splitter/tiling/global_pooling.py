"""Global pooling as tiles see it: each pools its share of the map, and the readers combine the shares.

    map ─▶ GlobalAveragePool ─▶ (C, 1, 1)    becomes    map ─▶ TilePool ─▶ (C, rows, cols) ─▶ TileSum ─▶ (C, 1, 1)

A stage may end between the two. Then each of its tiles writes C values, not its share of the map: a few kilobytes.
"""

from __future__ import annotations

from dataclasses import replace

from serfer.core.geometry import Grid
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph, Node
from serfer.splitter.tiling.normalization import with_pooled_norms
from serfer.splitter.tiling.operators import TILE_POOL, TILE_SUM

_MAP = 4
_MODES = {
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "ReduceMean"), "mean"),
    **dict.fromkeys(("GlobalMaxPool", "MaxPool", "ReduceMax"), "max"),
    "ReduceSum": "sum",
}


def with_tile_pools(graph: Graph) -> Graph:
    """Write every global pooling of a map as a TilePool (of one tile, for now) and a TileSum, norms' poolings too."""
    graph = with_pooled_norms(graph)
    nodes: list[Node] = []
    shapes = dict(graph.shapes)
    for node in graph.nodes:
        if not _pools_whole_map(graph, node):
            nodes.append(node)
            continue
        channels = graph.shapes[node.inputs[0]][1]
        tiles, mode = f"{node.output}.tiles", {"mode": _MODES[node.kind]}
        flat = len(graph.shapes[node.output]) != _MAP
        pooled = f"{node.output}.pooled" if flat else node.output
        shapes[tiles] = shapes[pooled] = (1, channels, 1, 1)
        nodes.append(Node(f"{node.name}.tiles", TILE_POOL, node.inputs[:1], tiles, {**mode, "grid": (1, 1)}))
        nodes.append(Node(node.name, TILE_SUM, (tiles,), pooled, mode))
        if flat:
            nodes.append(Node(f"{node.name}.flat", "Flatten", (pooled,), node.output, {"axis": 1}))
    return replace(graph, nodes=tuple(nodes), shapes=shapes)


def _pools_whole_map(graph: Graph, node: Node) -> bool:
    if node.kind not in _MODES:
        return False
    before, after = graph.shapes[node.inputs[0]], graph.shapes[node.output]
    if len(before) != _MAP or before[2:] == (1, 1):
        return False
    if node.kind.startswith("Reduce"):
        given = graph.weights.get(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = [] if given is None else sorted(int(axis) % _MAP for axis in given)
        return axes == [ROW_AXIS, COL_AXIS] and graph.axes(node.inputs[0]) == (ROW_AXIS, COL_AXIS)
    if node.kind.startswith("Global"):
        return True
    whole = list(before[2:]) == list(node.attributes["kernel_shape"]) and not any(node.attributes["pads"])
    return whole and after[2:] == (1, 1)


def with_grid(graph: Graph, grid: Grid, pools: frozenset[str] | None = None) -> Graph:
    """Return the graph with its TilePools (or those whose outputs are `pools`) for a stage on `grid`.

    Pools of maps that are too small for the grid stay as they are.
    """
    nodes, shapes = [], dict(graph.shapes)
    for node in graph.nodes:
        wanted = node.kind == TILE_POOL and (pools is None or node.output in pools)
        if wanted and not grid.columns:
            _, channels, height, width = graph.shapes[node.inputs[0]]
            if height >= grid.rows and width >= grid.cols:
                shapes[node.output] = (1, channels, grid.rows, grid.cols)
                nodes.append(replace(node, attributes={**node.attributes, "grid": (grid.rows, grid.cols)}))
                continue
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), shapes=shapes)
