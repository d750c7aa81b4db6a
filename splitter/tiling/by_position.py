"""Operators whose weights depend on where in the image a window is: a window's graph computes them from its position.

    resizing with aligned corners    output row i reads the map around i * (inputs - 1) / (outputs - 1)
    resizing of k x k bins           the same: a window enlarges its own part of them
    pooling into k x k bins          row i belongs to bin b where floor(b * rows / k) <= i < ceil((b + 1) * rows / k)

Windows of a kind read the same rows, shifted, and one or two more: their weights, a matrix, are other ones in each.
Positions are whole numbers and weights float64 until they are multiplied, so that no digits are lost in a large image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from serfer.core.geometry import Span, even_parts
from serfer.splitter.network.graph import COL_AXIS, NCHW, ROW_AXIS, STATISTICS, Axes, Bins, Graph, Node, bin_bounds
from serfer.splitter.network.interpolation import interpolation, ratio_of
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.receptive_field import ReceptiveField, Spans, all_rows
from serfer.splitter.tiling.resizing import MOST_ROWS, Resize, banded_product
from serfer.splitter.tiling.tiling_rule import TileOperator, append_slice, extent

RESIZE_BY_POSITION = "serfer.ResizeByPosition"
"""A linear Resize whose last input is STATISTICS, which ends with a window's position."""
RATES = "rates"
"""Its attribute besides those of a Resize: the growths of its output and of its input."""
_Any = TypeVar("_Any", Span, str)
Growth = tuple[Fraction, Fraction]
"""How many rows, and columns, of a map one row or column of the image makes."""


@dataclass(frozen=True)
class Place:
    """Rows (or columns) `part` of a tensor, which a tile has that reads `image` of the image's.

    In another window of its kind they begin `growth` rows later for each row that the image does. `vector` is the
    tensor, (N, values), that ends with that window's first row and column of the image.
    """

    axis: int
    part: Span
    image: Span
    growth: Fraction
    vector: str = STATISTICS

    def first(self, builder: OnnxBuilder, name: str) -> str:
        """Append the number of the first row in the window that is computed, (N, 1) int64, and return its name."""
        end = self.axis - ROW_AXIS - len(NCHW)
        row = append_slice(builder, self.vector, f"{name}.position", 1, Span(end, end + 1 or np.iinfo(np.int64).max))
        row = builder.append("Cast", [row], f"{name}.pixel", {"to": TensorProto.INT64})
        up, down = self.growth.as_integer_ratio()
        steps = ("Mul", up), ("Add", self.part.start * down - self.image.start * up), ("Div", down)
        return _calculated(builder, row, name, [(kind, np.array(value)) for kind, value in steps])

    def rows(self, builder: OnnxBuilder, name: str) -> str:
        """Append the numbers of the rows, (N, rows) int64, and return their name."""
        return _calculated(
            builder, self.first(builder, name), f"{name}.rows", [("Add", np.arange(self.part.size)[None])]
        )


def _calculated(builder: OnnxBuilder, value: str, name: str, steps: Sequence[tuple[str, NDArray[Any]]]) -> str:
    for number, (kind, operand) in enumerate(steps):
        step = f"{name}.{number}"
        value = builder.append(kind, [value, builder.constant(f"{step}.by", operand)], step)
    return value


@dataclass(frozen=True)
class LinearResize:
    """What a linear Resize does to one axis: output row i reads the input at i * `ratio` + `shift`, within its ends."""

    inputs: int
    outputs: int
    ratio: Fraction
    aligned: bool

    @property
    def shift(self) -> Fraction:
        """What the first row reads, before it is moved into the map."""
        return Fraction(0) if self.aligned else (self.ratio - 1) / 2

    def drifts(self, step: Fraction) -> bool:
        """Whether it does not shift with the map: that has `step` rows for one of the output."""
        return self.ratio != step

    def reads(self, step: Fraction) -> ReceptiveField:
        """Return the rows that it reads, which shift by `step`: wherever it is, all of them that it may need."""
        ends = [self.shift + row * (self.ratio - step) for row in (0, self.outputs - 1)]
        least, most = floor(min(ends)), ceil(max(ends)) + 2
        up, down = step.as_integer_ratio()

        def rows(out: Spans) -> Spans:
            return np.stack([out[0] * up // down + least, (out[1] - 1) * up // down + most])

        return rows


class ResizeByPosition(Resize):
    """Products with matrices, for columns and for rows: constant ones, or such as follow from a window's position."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        return NCHW

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        if source == STATISTICS:
            return all_rows(extent(graph, source, axis))
        how, (made, read) = linear_resize(graph, node, axis), _growths(node, axis)
        return how.reads(read / made) if how.drifts(read / made) else super().receptive_field(graph, node, source, axis)

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        """Append it for the axis first after which less is left."""
        graph, node, image = tile.graph, tile.node, tile.image
        assert image is not None  # noqa: S101 - a window reads of the image
        source, *_, vector = tile.inputs
        region, need = tile.region, tile.read.clipped
        sides = ((ROW_AXIS, region.rows, need.rows, image.rows), (COL_AXIS, region.cols, need.cols, image.cols))
        for number, side in enumerate(sorted(sides, key=lambda side: side[1].size / side[2].size)):
            axis, out, have, pixels = side
            output = f"{node.output}.mixed" if number == 0 else node.output
            how, (made, read) = linear_resize(graph, node, axis), _growths(node, axis)
            if how.drifts(read / made):
                places = (Place(axis, *names, vector) for names in ((out, pixels, made), (have, pixels, read)))
                source = _resized(builder, source, output, how, (*places,), how.reads(read / made))
            else:
                source = banded_product(builder, source, output, (axis, interpolation(graph, node, axis), out, have))


def linear_resize(graph: Graph, node: Node, axis: int) -> LinearResize:
    aligned = node.attributes.get("coordinate_transformation_mode") == b"align_corners"
    inputs, outputs = extent(graph, node.inputs[0], axis), extent(graph, node.output, axis)
    ratio = Fraction(inputs - 1, max(1, outputs - 1)) if aligned else ratio_of(graph, node, axis)
    return LinearResize(inputs, outputs, ratio, aligned)


def _growths(node: Node, axis: int) -> tuple[Fraction, Fraction]:
    made, read = (attribute[axis - ROW_AXIS] for attribute in node.attributes[RATES])
    return made, read


def _resized(
    builder: OnnxBuilder, source: str, output: str, how: LinearResize, places: tuple[Place, ...], field: ReceptiveField
) -> str:
    """Append the rows `places[0]` of a map of which `source` is the rows `places[1]`, some of them at a time."""
    out, have, axis = places[0].part, places[1].part, places[0].axis
    parts = even_parts(out.size, 1 if have.size <= MOST_ROWS else -(-out.size // MOST_ROWS))
    reads = [_within(field, part.moved(out.start), have) for part in parts]
    first = np.repeat([read.start for read in reads], [part.size for part in parts])
    weights = _weights(builder, f"{output}.{axis}", how, places, first, max(read.size for read in reads))
    names = []
    for number, (part, read) in enumerate(zip(parts, reads, strict=True)):
        name = output if len(parts) == 1 else f"{output}.block{number}"
        given, matrix = append_slice(builder, source, f"{name}.read", axis, read), weights
        for along, span in zip(NCHW, _turned((part, Span(0, read.size)), axis), strict=True):
            matrix = append_slice(builder, matrix, f"{name}.matrix{along}", along, span)
        names.append(builder.append("MatMul", _turned((matrix, given), axis), name))
    return names[0] if len(parts) == 1 else builder.append("Concat", names, output, {"axis": axis})


def _turned(pair: tuple[_Any, _Any], axis: int) -> tuple[_Any, _Any]:
    """Return a pair as rows have it, the other way round for columns: their matrices are transposed."""
    return pair if axis == ROW_AXIS else (pair[1], pair[0])


def _within(field: ReceptiveField, part: Span, have: Span) -> Span:
    start, stop = field(np.array([[part.start], [part.stop]]))[:, 0].tolist()
    return Span(min(max(start, have.start), have.stop - 1), max(min(stop, have.stop), have.start + 1)).within(have)


def _weights(
    builder: OnnxBuilder, name: str, how: LinearResize, places: tuple[Place, ...], first: NDArray[np.int64], width: int
) -> str:
    """Append the weights of rows, each of so many input rows from its `first` on among those that the tile has.

    They are (N, 1, rows, width) for rows, (N, 1, width, columns) for columns: 1 less the distance to what is read.
    """
    made, had = places
    place = builder.append("Cast", [made.rows(builder, f"{name}.out")], f"{name}.out.real", _DOUBLE)
    steps = [("Mul", float(how.ratio)), ("Add", float(how.shift)), ("Max", 0.0), ("Min", how.inputs - 1.0)]
    place = _calculated(builder, place, f"{name}.read", [(kind, np.array(value)) for kind, value in steps])
    begin = _calculated(builder, had.first(builder, f"{name}.in"), f"{name}.begin", [("Add", first[None])])
    begin = builder.append("Cast", [begin], f"{name}.begin.real", _DOUBLE)
    place = builder.append("Sub", [place, begin], f"{name}.behind")
    inner = -1 if made.axis == ROW_AXIS else -2
    columns = np.expand_dims(np.arange(width, dtype=np.float64), 0 if inner == -1 else 1)
    place = _calculated(builder, place, f"{name}.apart", [("Unsqueeze", np.array([1, inner])), ("Sub", columns)])
    place = builder.append("Abs", [place], f"{name}.distance")
    steps = [("Mul", -1.0), ("Add", 1.0), ("Max", 0.0)]
    place = _calculated(builder, place, f"{name}.weight", [(kind, np.array(value)) for kind, value in steps])
    return builder.append("Cast", [place], f"{name}.weights", {"to": TensorProto.FLOAT})


_DOUBLE = {"to": TensorProto.DOUBLE}


def append_bins(builder: OnnxBuilder, source: str, name: str, bins: Bins, places: Sequence[Place]) -> str:
    """Append what a part of a map, (N, C, rows, cols), gives to the means of bins of all of it, (N, C, k, l).

    `places` are those of its rows and columns. Bins are those of adaptive average pooling.
    """
    for count, size, place in zip(bins.counts, bins.sizes, places, strict=True):
        along, lie = f"{name}.{place.axis}", 1 if place.axis == ROW_AXIS else 0
        begin, end = (np.expand_dims(bound, lie) for bound in bin_bounds(size, count))
        form = "Unsqueeze", np.array([1, 3 - lie])
        rows = _calculated(builder, place.rows(builder, along), f"{along}.form", [form])
        after = _calculated(builder, rows, f"{along}.after", [("GreaterOrEqual", begin)])
        before = _calculated(builder, rows, f"{along}.before", [("Less", end)])
        inside = builder.append("And", [after, before], f"{along}.inside")
        inside = builder.append("Cast", [inside], f"{along}.weight", {"to": TensorProto.FLOAT})
        matrix = _calculated(builder, inside, f"{along}.matrix", [("Mul", (1 / (end - begin)).astype(np.float32))])
        source = builder.append("MatMul", _turned((matrix, source), place.axis), f"{along}.sums")
    return source
