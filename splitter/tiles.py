"""From a rectangle of a stage's output back to everything that a tile must compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from serfer.core.geometry import Rect, hull
from serfer.core.plan import Padding
from splitter import operators
from splitter.graph import Graph, Node

Regions = dict[str, Rect]
Reads = Callable[[Graph, Node, Rect], Rect]


def needed_input(graph: Graph, node: Node, region: Rect) -> Rect:
    """Return the rectangle of each input that `region` of the node's output reads, clipped to the map.

    A region that reads nothing but padding gets the nearest row (or column) of the map: a tensor cannot be empty.
    """
    unclipped = unclipped_input(graph, node, region)
    height, width = graph.shapes[graph.activations(node)[0]][2:]
    return Rect(unclipped.rows.clip(height), unclipped.cols.clip(width))


def unclipped_input(graph: Graph, node: Node, region: Rect) -> Rect:
    """Return the rectangle that `region` of the node's output reads, the padding around the map included."""
    return Rect(
        operators.needs(graph, node, operators.ROW_AXIS, region.rows),
        operators.needs(graph, node, operators.COL_AXIS, region.cols),
    )


def clipped_away(graph: Graph, node: Node, region: Rect) -> Padding:
    """Return how far the rectangle that `region` reads leaves the map on each side: the node's padding there.

    A side is negative where the whole rectangle lies beyond the opposite one: so much of the padding is not read.
    """
    full, real = unclipped_input(graph, node, region), needed_input(graph, node, region)
    return Padding(
        top=real.rows.start - full.rows.start,
        left=real.cols.start - full.cols.start,
        bottom=full.rows.stop - real.rows.stop,
        right=full.cols.stop - real.cols.stop,
    )


def walk_back(graph: Graph, nodes: Sequence[Node], output: str, region: Rect, reads: Reads = needed_input) -> Regions:
    """Return the rectangle of every tensor of a stage that `region` of `output` depends on.

    Where several operators read one tensor, its rectangle is the hull of what they need.
    """
    regions: Regions = {output: region}
    for node in reversed(nodes):
        step_back(graph, node, regions, reads)
    return regions


def step_back(graph: Graph, node: Node, regions: Regions, reads: Reads = needed_input) -> None:
    """Add to `regions` what `node` reads for its own region."""
    need = reads(graph, node, regions[node.output])
    for name in graph.activations(node):
        known = [regions[name], need] if name in regions else [need]
        regions[name] = Rect(hull(rect.rows for rect in known), hull(rect.cols for rect in known))


def whole_regions(graph: Graph, nodes: Sequence[Node]) -> Regions:
    """Return the whole map of every image tensor of a stage: what a stage in one tile computes."""
    names = {name for node in nodes for name in (node.output, *graph.activations(node))}
    return {name: graph.shape(name).whole for name in names}


def tile_macs(graph: Graph, nodes: Sequence[Node], regions: Regions) -> int:
    """Count the multiply-accumulates of one image in a tile, halo included."""
    return sum(operators.macs(graph, node, regions[node.output].area) for node in nodes)


def input_padding(graph: Graph, nodes: Sequence[Node], source: str, output: str, region: Rect) -> Padding:
    """Return how far the receptive field of `region` on `source` leaves the map, were nothing clipped on the way."""
    field = walk_back(graph, nodes, output, region, unclipped_input)[source]
    height, width = graph.shapes[source][2:]
    return Padding(
        top=max(0, -field.rows.start),
        left=max(0, -field.cols.start),
        bottom=max(0, field.rows.stop - height),
        right=max(0, field.cols.stop - width),
    )
