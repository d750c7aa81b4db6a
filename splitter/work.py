"""STUB."""

from serfer.core.profile import Work
from splitter import operators


def work(graph, node, region):
    shape = graph.shape(node.output)
    weights = sum(graph.weights[name].nbytes for name in graph.constants(node))
    share = region.area / (shape.height * shape.width) if operators.is_fully_connected(graph, node) else 1.0
    return Work(operators.macs(graph, node, region.area), 4 * shape.channels * region.area + int(weights * share))
