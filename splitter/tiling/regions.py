"""From rectangles of a stage's outputs back to everything that a tile must compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from serfer.core.geometry import Rect, hull
from serfer.core.plan import Padding
from splitter.network.graph import Graph, Node
from splitter.tiling import operators
from splitter.tiling.receptive_field import COL_AXIS, ROW_AXIS
from splitter.tiling.rule import InputRegion

Regions = dict[str, Rect]
Reads = Callable[[Graph, Node, str, Rect], Rect]


def input_region(graph: Graph, node: Node, source: str, region: Rect) -> Rect:
    """Return the rectangle of input `source` that `region` of the node's output reads, clipped to the map.

    A region that reads nothing but padding gets the nearest row (or column) of the map: a tensor cannot be empty.
    """
    return read_region(graph, node, source, region).clipped


def unclipped_region(graph: Graph, node: Node, source: str, region: Rect) -> Rect:
    """Return the rectangle that `region` of the node's output reads, the padding around the map included."""
    return Rect(
        operators.input_span(graph, node, source, ROW_AXIS, region.rows),
        operators.input_span(graph, node, source, COL_AXIS, region.cols),
    )


def read_region(graph: Graph, node: Node, source: str, region: Rect) -> InputRegion:
    """Return what `region` of the node's output reads of input `source`, with and without the padding."""
    full, shape = unclipped_region(graph, node, source, region), graph.shape(source)
    return InputRegion(full, Rect(full.rows.clip(shape.height), full.cols.clip(shape.width)))


def infer_input_regions(
    graph: Graph, nodes: Sequence[Node], outputs: Mapping[str, Rect], reads: Reads = input_region
) -> Regions:
    """Return the rectangle of every tensor of a stage that rectangles of its `outputs` depend on.

    Where several operators read one tensor, its rectangle is the hull of what they need.
    """
    regions: Regions = dict(outputs)
    for node in reversed(nodes):
        add_input_regions(graph, node, regions, reads)
    return regions


def add_input_regions(graph: Graph, node: Node, regions: Regions, reads: Reads = input_region) -> None:
    """Add to `regions` what `node` reads for its own region."""
    if operators.is_replicated(graph, node):
        regions[node.output] = graph.shape(node.output).whole
    region = regions[node.output]
    for source in graph.activations(node):
        regions[source] = union(regions.get(source), reads(graph, node, source, region))


def union(one: Rect | None, other: Rect) -> Rect:
    """Return the smallest rectangle that holds both."""
    return Rect(hull((one.rows, other.rows)), hull((one.cols, other.cols))) if one else other


def whole_regions(graph: Graph, nodes: Iterable[Node]) -> Regions:
    """Return the whole map of every tensor of a stage: what a stage in one tile computes."""
    names = {name for node in nodes for name in (node.output, *graph.activations(node))}
    return {name: graph.shape(name).whole for name in names}


def tile_macs(graph: Graph, nodes: Iterable[Node], regions: Regions) -> int:
    """Count the multiply-accumulates of one image in a tile, halo included."""
    return sum(operators.macs(graph, node, regions[node.output].area) for node in nodes)


def input_padding(graph: Graph, nodes: Sequence[Node], source: str, outputs: Mapping[str, Rect]) -> Padding:
    """Return how far the receptive field of `outputs` on `source` leaves the map, were nothing clipped on the way."""
    field, shape = infer_input_regions(graph, nodes, outputs, unclipped_region)[source], graph.shape(source)
    return Padding(
        top=max(0, -field.rows.start),
        left=max(0, -field.cols.start),
        bottom=max(0, field.rows.stop - shape.height),
        right=max(0, field.cols.stop - shape.width),
    )
