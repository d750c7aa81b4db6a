"""The whole network of a map plan as one tile: unsplit.onnx, which results are compared with."""

from __future__ import annotations

from serfer.splitter.network.graph import STATISTICS, Graph
from serfer.splitter.plan_dir.emit import TileGraph, tile_graph
from serfer.splitter.tiling.regions import whole_regions

_SAME_CLASS = frozenset({"Cast", "Identity", "Squeeze", "Unsqueeze"})


def whole_tile(graph: Graph) -> TileGraph:
    """Write the whole network as one tile; behind its outputs come the scores of those that are classes.

    Statistics over the whole image are its second input, where the graph has them cut out.
    """
    inputs = [graph.input, *([STATISTICS] if graph.statistics else [])]
    regions = whole_regions(graph, graph.nodes) | {name: graph.shape(name).whole for name in inputs}
    outputs = dict.fromkeys((*graph.outputs, *_scores(graph)))
    return tile_graph(graph, graph.nodes, regions, inputs, {name: regions[name] for name in outputs})


def _scores(graph: Graph) -> list[str]:
    """Return the maps whose largest channel the outputs name that are whole numbers; none if one is something else."""
    made = {node.output: node for node in graph.nodes}
    found = []
    for output, tensor in zip(graph.outputs, graph.output_tensors, strict=True):
        if tensor.dtype.startswith("float"):
            continue
        node = made[output]
        while node.kind in _SAME_CLASS and node.inputs[0] in made:
            node = made[node.inputs[0]]
        if node.kind != "ArgMax":
            return []
        found.append(node.inputs[0])
    return found if len({*found}) == len(found) else []
