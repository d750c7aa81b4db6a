"""Rules of operators that choose, mix or rearrange rows and columns: slices, selections, matrices, larger pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect, Span
from serfer.splitter.network.graph import COL_AXIS, MAP_RANK, NCHW, ROW_AXIS, VECTOR_RANK, Axes, Graph, Node, integers
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.receptive_field import ReceptiveField, Spans, tabulated
from serfer.splitter.tiling.tiling_rule import Rule, TileOperator, extent, join_spans
from serfer.splitter.tiling.windowed import works_on_maps

_Picks = dict[int, NDArray[Any]]
_FAR = np.iinfo(np.int64).max
_MOST_RUNS = 8
"""Runs of neighbouring rows up to which Slices and a Concat are faster than a Gather: of columns, 8 times."""


class _Selection(Rule):
    """Each row of the output is one row of the input, and each column one column; `picks` says which."""

    def picks(self, graph: Graph, node: Node) -> _Picks | None:
        raise NotImplementedError

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        places, picks = graph.axes(source), self.picks(graph, node) or {}
        chosen = picks.get(places[axis - ROW_AXIS]) if places else None
        if chosen is None:
            return super().receptive_field(graph, node, source, axis)
        return tabulated(chosen, chosen + 1)

    def local(self, tile: TileOperator) -> _Picks:
        region, need = tile.region, tile.read.clipped
        picks = dict(self.picks(tile.graph, tile.node) or {})
        places = tile.graph.axes(tile.node.inputs[0]) or NCHW
        for axis, out, have in zip(places, (region.rows, region.cols), (need.rows, need.cols), strict=True):
            if axis in picks:
                picks[axis] = picks[axis][out.start : out.stop] - have.start
        return picks


class Slice(_Selection):
    """A part of the channels, or of the rows and columns; steps may be any."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        picks = self.picks(graph, node)
        return graph.axes(node.inputs[0]) if picks is not None and 0 not in picks else None

    def picks(self, graph: Graph, node: Node) -> _Picks | None:
        given = [integers(graph, node, index) for index in range(1, 5)]
        if any(values is None for values in given) or node.inputs[0] in graph.weights:
            return None
        starts, stops, axes, steps = (values or [] for values in given)
        shape = graph.shapes[node.inputs[0]]
        axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
        return {
            axis % len(shape): np.arange(shape[axis])[_clamped(start, stop, step)]
            for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True)
        }

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        picks, output = self.local(tile), tile.node.output
        steps = [int(chosen[1] - chosen[0]) if len(chosen) > 1 else 1 for chosen in picks.values()]
        starts = [int(chosen[0]) for chosen in picks.values()]
        ends = [int(chosen[-1]) + step for chosen, step in zip(picks.values(), steps, strict=True)]
        stops = [end if end >= 0 else -_FAR for end in ends]
        names = ("starts", "stops", "axes", "steps")
        values = (starts, stops, list(picks), steps)
        constants = [
            builder.constant(f"{output}.{name}", np.array(value)) for name, value in zip(names, values, strict=True)
        ]
        builder.append("Slice", [tile.inputs[0], *constants], output)


def _clamped(start: int, stop: int, step: int) -> slice:
    """Write ONNX's bounds as Python's: beyond the beginning, going backwards, is None there."""
    return slice(start, None if step < 0 and stop < -_FAR // VECTOR_RANK else stop, step)


class Gather(_Selection):
    """Constant indices along an axis: a permutation of the channels, one channel, or chosen rows."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        places = graph.axes(node.inputs[0]) if node.inputs[0] not in graph.weights else None
        axis = self._axis(graph, node) if places else 0
        indices = graph.weights.get(node.inputs[1])
        if places is None or indices is None or axis == 0:
            return None
        if axis in places:
            return places if indices.ndim == 1 else None
        shift = indices.ndim - 1
        return places[0] + shift * (places[0] > axis), places[1] + shift * (places[1] > axis)

    def picks(self, graph: Graph, node: Node) -> _Picks | None:
        axis, source = self._axis(graph, node), node.inputs[0]
        indices = graph.weights[node.inputs[1]]
        return {axis: indices % graph.shapes[source][axis]} if axis in (graph.axes(source) or ()) else {}

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        """Append it with the tile's own indices; a few runs of rows (or columns) as Slices, which are faster."""
        node, (source, indices) = tile.node, tile.inputs
        for axis, chosen in self.local(tile).items():
            runs = np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1)
            if len(runs) <= _MOST_RUNS:
                join_spans(builder, source, node.output, axis, [Span(int(run[0]), int(run[-1]) + 1) for run in runs])
                return
            indices = builder.constant(f"{node.output}.indices", chosen)
        builder.append("Gather", [source, indices], node.output, node.attributes)

    @staticmethod
    def _axis(graph: Graph, node: Node) -> int:
        return int(node.attributes.get("axis", 0)) % len(graph.shapes[node.inputs[0]])


def matrix_of(graph: Graph, node: Node) -> tuple[int, str] | None:
    """Return (axis, name of the constant) of a product of a map with a constant matrix, None for any other product.

    x @ A mixes what the last axis has and A @ x what the last but one has.
    """
    left, right = node.inputs[:2]
    for matrix, other, back in ((right, left, 1), (left, right, 2)):
        if matrix in graph.weights and graph.weights[matrix].ndim == VECTOR_RANK and other not in graph.weights:
            return len(graph.shapes[other]) - back, matrix
    return None


class MatMul(Rule):
    """A product with a constant matrix.

    Along rows or columns that is how pooling with uneven windows (adaptive pooling) and interpolation are written;
    along any other axis it is a fully connected layer of every position.
    """

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        product = matrix_of(graph, node)
        return graph.axes(graph.activations(node)[0]) if product and product[0] > 0 else None

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        if self._mixed(graph, node) != axis:
            return super().receptive_field(graph, node, source, axis)
        count, size = extent(graph, node.output, axis), extent(graph, source, axis)
        part = self._part(graph, node, Span(0, count), Span(0, size))
        used = (part.T if self._is_right(graph, node) else part) != 0
        read = used.any(axis=1)
        return tabulated(
            np.where(read, used.argmax(axis=1), size), np.where(read, size - used[:, ::-1].argmax(axis=1), 0)
        )

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        graph, node, region = tile.graph, tile.node, tile.region
        mixed, operands = self._mixed(graph, node), list(tile.inputs)
        if mixed is not None:
            need = tile.reads[graph.activations(node)[0]].clipped
            spans = (region.rows, need.rows) if mixed == ROW_AXIS else (region.cols, need.cols)
            part = np.ascontiguousarray(self._part(graph, node, *spans))
            operands[int(self._is_right(graph, node))] = builder.constant(f"{node.output}.matrix", part)
        builder.append("MatMul", operands, node.output)

    @staticmethod
    def _is_right(graph: Graph, node: Node) -> bool:
        return node.inputs[1] in graph.weights

    def _mixed(self, graph: Graph, node: Node) -> int | None:
        product, places = matrix_of(graph, node), graph.axes(graph.activations(node)[0])
        if product is None or places is None or product[0] not in places:
            return None
        return ROW_AXIS + places.index(product[0])

    def _part(self, graph: Graph, node: Node, out: Span, have: Span) -> NDArray[Any]:
        matrix = graph.weights[node.inputs[int(self._is_right(graph, node))]]
        outs, haves = slice(out.start, out.stop), slice(have.start, have.stop)
        return matrix[haves, outs] if self._is_right(graph, node) else matrix[outs, haves]


class _Blocks(Rule):
    def axes(self, graph: Graph, node: Node) -> Axes | None:
        return NCHW if graph.axes(node.inputs[0]) == NCHW and len(graph.shapes[node.inputs[0]]) == MAP_RANK else None


class DepthToSpace(_Blocks):
    """Channels become blocks of pixels; a tile computes whole blocks and crops them."""

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        block = node.attributes["blocksize"]
        return lambda out: np.array([out[0] // block, -(-out[1] // block)])

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        node, region, need = tile.node, tile.region, tile.read.clipped
        block = node.attributes["blocksize"]
        have = Rect(*(Span(span.start * block, span.stop * block) for span in (need.rows, need.cols)))
        output = node.output if have == region else f"{node.output}.blocks"
        builder.append(node.kind, tile.inputs, output, node.attributes)
        if have != region:
            builder.crop(output, region.within(have), NCHW, node.output)


class SpaceToDepth(_Blocks):
    """Blocks of pixels become channels."""

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        block = node.attributes["blocksize"]
        return lambda out: out * block


class TransposedConvolution(Rule):
    """Every input row is spread over as many output rows as the kernel has; their pads cut the result."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        explicit = not {"auto_pad", "output_shape"} & node.attributes.keys()
        return NCHW if explicit and works_on_maps(graph, node) else None

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        stride, reach, before = _spread(node, axis)

        def rows(out: Spans) -> Spans:
            first, last = out[0] + before, out[1] - 1 + before
            starts = np.minimum(first // stride, -(-(first - reach + 1) // stride))
            return np.array([starts, np.maximum(last // stride, 0) + 1])

        return rows

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        """Append it with pads that cut the tile's own rows and columns out, or add those that nothing is spread to."""
        node, region, need = tile.node, tile.region, tile.read.clipped
        starts, stops = [], []
        for axis, out, have in ((ROW_AXIS, region.rows, need.rows), (COL_AXIS, region.cols, need.cols)):
            stride, reach, before = _spread(node, axis)
            starts.append(out.start + before - have.start * stride)
            stops.append((have.stop - 1) * stride + reach - (out.stop + before))
        attributes = {key: value for key, value in node.attributes.items() if key != "output_padding"}
        if min(stops) < 0:
            attributes["output_padding"] = [max(0, -stop) for stop in stops]
        pads = [*starts, *(max(0, stop) for stop in stops)]
        builder.append(node.kind, tile.inputs, node.output, {**attributes, "pads": pads})


def _spread(node: Node, axis: int) -> tuple[int, int, int]:
    index, attributes = axis - ROW_AXIS, node.attributes
    dilation = (attributes.get("dilations") or [1, 1])[index]
    reach = dilation * (attributes["kernel_shape"][index] - 1) + 1
    return (attributes.get("strides") or [1, 1])[index], reach, attributes["pads"][index]
