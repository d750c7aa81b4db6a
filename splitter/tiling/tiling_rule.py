"""The contract of a tiling rule: whether an operator can be tiled, the region a tile reads, and its ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serfer.core.geometry import Rect, Span
from serfer.core.plan import Padding
from serfer.splitter.network.graph import ROW_AXIS, VECTOR_RANK, Axes, Graph, Node
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.receptive_field import ReceptiveField, all_rows, same_rows


@dataclass(frozen=True)
class InputRegion:
    """The region of one input that a region of the output reads: `full` with the padding, `clipped` to the map."""

    full: Rect
    clipped: Rect

    @property
    def padding(self) -> Padding:
        """How far the full rectangle leaves the map on each side.

        A side is negative where the rectangle lies beyond the opposite one: so much of the padding is not read.
        """
        return Padding(
            top=self.clipped.rows.start - self.full.rows.start,
            left=self.clipped.cols.start - self.full.cols.start,
            bottom=self.full.rows.stop - self.clipped.rows.stop,
            right=self.full.cols.stop - self.clipped.cols.stop,
        )


@dataclass(frozen=True)
class TileOperator:
    """One operator of one tile, which is all that its rule writes it from.

    `region` is the part of the operator's output that the tile computes, `reads` what that reads of each computed
    input. `inputs` are names in the tile's graph, in the operator's order: of exactly that part, or of a constant.
    `image` is what the tile reads of the image, None where it reads nothing of it.
    """

    graph: Graph
    node: Node
    region: Rect
    reads: Mapping[str, InputRegion]
    inputs: Sequence[str]
    image: Rect | None = None

    @property
    def read(self) -> InputRegion:
        return self.reads[self.node.inputs[0]]


class Rule:
    """The operators of one family; by default each position of the output reads that of the inputs."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        """Return where the output has its rows and columns.

        None where a rectangle of the output needs more than a rectangle of each input, or where that is not known.
        """
        raise NotImplementedError

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        """Return which rows (ROW_AXIS) or columns of input `source` the operator reads for rows of its output."""
        size, vector = extent(graph, source, axis), len(graph.shapes[source]) == VECTOR_RANK
        return same_rows if size > 1 and (vector or graph.axes(source) is not None) else all_rows(size)

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        builder.append(tile.node.kind, tile.inputs, tile.node.output, tile.node.attributes)


def extent(graph: Graph, tensor: str, axis: int) -> int:
    shape = graph.shape(tensor)
    return shape.height if axis == ROW_AXIS else shape.width


def append_slice(builder: OnnxBuilder, source: str, output: str, axis: int, span: Span) -> str:
    values = {"starts": span.start, "stops": span.stop, "axes": axis}
    constants = [builder.constant(f"{output}.{name}", np.array([value])) for name, value in values.items()]
    return builder.append("Slice", [source, *constants], output)


def join_spans(builder: OnnxBuilder, source: str, output: str, axis: int, spans: Sequence[Span]) -> str:
    if len(spans) == 1:
        return append_slice(builder, source, output, axis, spans[0])
    parts = [append_slice(builder, source, f"{output}.run{number}", axis, span) for number, span in enumerate(spans)]
    return builder.append("Concat", parts, output, {"axis": axis})
