"""Maps computed in tiles by their rules alone, without a plan: fast enough for thousands of examples."""

import numpy as np

from serfer.core.geometry import Grid, grid_rects
from serfer.splitter.network.graph import needed_for
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.plan_dir.emit import input_name, output_name, tile_graph
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.regions import infer_regions


def in_tiles(graph, output, grid, batch):
    """Return the map `output` of a graph, each tile computed from its part of the images by itself.

    Every operator must have a rule, so there can be no global pooling of a map.
    """
    graph = with_tile_pools(graph)
    nodes = needed_for(graph.nodes, [output])
    assert [node for node in nodes if not operators.tileable(graph, node)] == []
    shape = graph.shape(output)
    rects = grid_rects(shape.height, shape.width, Grid(*grid))
    result = np.empty(shape.of(shape.whole, len(batch)), np.float32)
    for rect, regions in zip(rects, infer_regions(graph, nodes, [{output: rect} for rect in rects]), strict=True):
        tile = tile_graph(graph, nodes, regions, [graph.input], {output: rect})
        part = np.ascontiguousarray(batch[:, :, *regions[graph.input].slices])
        result[shape.slices(rect)] = session_of(tile.model({})).run([output_name(0)], {input_name(0): part})[0]
    return result
