"""What an operator's rule answers: can it be spread over tiles, what does a tile read, how is a tile written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from serfer.core.geometry import Rect, Span
from splitter.network.graph import ROW_AXIS, VECTOR_RANK, Axes, Graph, Node

if TYPE_CHECKING:
    from splitter.plan_dir.onnx_builder import TileWriter


class Rule:
    """The operators of one family; as it stands here, each position of the output reads that of the inputs."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        """Return where the output has its rows and columns.

        None where a rectangle of the output needs more than a rectangle of each input, or nobody knows.
        """
        raise NotImplementedError

    def needs(self, graph: Graph, node: Node, source: str, axis: int, out: Span) -> Span:  # noqa: ARG002 - the rules' interface
        """Return the rows (ROW_AXIS) or columns of input `source` that output rows `out` read, not clipped."""
        size, vector = extent(graph, source, axis), len(graph.shapes[source]) == VECTOR_RANK
        return out if size > 1 and (vector or graph.axes(source) is not None) else Span(0, size)

    def write(self, writer: TileWriter, node: Node, inputs: Sequence[str], region: Rect) -> None:  # noqa: ARG002 - same
        """Append the operator to a tile's graph; `inputs` are what the tile needs of each, and whole constants."""
        writer.append(node.kind, inputs, node.output, node.attributes)


def extent(graph: Graph, tensor: str, axis: int) -> int:
    """Return how many rows (or columns) an activation has."""
    shape = graph.shape(tensor)
    return shape.height if axis == ROW_AXIS else shape.width


def integers(graph: Graph, node: Node, index: int) -> list[int] | None:
    """Return the constant integers that input `index` holds; none for an absent one, None for a computed one."""
    name = node.inputs[index] if index < len(node.inputs) else ""
    if not name:
        return []
    return [int(value) for value in graph.weights[name].reshape(-1)] if name in graph.weights else None
