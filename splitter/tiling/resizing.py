"""The rule of Resize: rows and columns are interpolated, each by constant weights (see interpolation.py).

A tile's part of it is written in the fastest form that is exact, as measured at 64 channels of 256 x 256 to 512 x 512
on one core (ORT 1.31, AVX-512):

    Resize of the crop       where the crop is resized as the whole map is: repetition 5 ms, linear 45 ms
    Gathers                  repetition of uneven counts: 70 ms
    products with matrices   everything else, 32 rows at a time: 35 ms (180 ms at once; Resize takes 1,600 for cubic)
"""

from __future__ import annotations

import numpy as np

from serfer.core.geometry import Rect, Span, even_parts
from serfer.splitter.network.graph import COL_AXIS, NCHW, ROW_AXIS, Axes, Graph, Node
from serfer.splitter.network.interpolation import (
    Interpolation,
    interpolation,
    interpolation_of,
    is_runtimes,
    is_separable,
)
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.receptive_field import ReceptiveField, tabulated
from serfer.splitter.tiling.tiling_rule import Rule, TileOperator, append_slice

MOST_ROWS = 32
"""Output rows (or columns) that one product computes."""
_SAME = 1e-7
"""How far a crop's weights may be from the whole map's."""


class Resize(Rule):
    """Nearest, linear and cubic, up and down, wherever the centres of pixels lie."""

    def axes(self, graph: Graph, node: Node) -> Axes | None:
        return NCHW if is_separable(graph, node) else None

    def receptive_field(self, graph: Graph, node: Node, source: str, axis: int) -> ReceptiveField:
        taps = interpolation(graph, node, axis)
        return tabulated(taps.first, taps.stop)

    def write(self, builder: OnnxBuilder, tile: TileOperator) -> None:
        graph, node = tile.graph, tile.node
        is_cubic = node.attributes.get("mode") == b"cubic"
        whole = tile.region == graph.shape(node.output).whole and tile.read.clipped == graph.shape(node.inputs[0]).whole
        if whole and not is_cubic and is_runtimes(graph, node) and not graph.exact_places:
            builder.append(node.kind, tile.inputs, node.output, node.attributes)
        elif is_cubic or not _resize_crop(builder, tile):
            _mix(builder, tile)


Side = tuple[int, Interpolation, Span, Span]
"""The axis, its interpolation, the tile's part of the output, and what it reads."""


def _sides(tile: TileOperator) -> list[Side]:
    need = tile.read.clipped
    spans = ((ROW_AXIS, tile.region.rows, need.rows), (COL_AXIS, tile.region.cols, need.cols))
    return [(axis, interpolation(tile.graph, tile.node, axis), out, have) for axis, out, have in spans]


def _resize_crop(builder: OnnxBuilder, tile: TileOperator) -> bool:
    """Append the operator on the crop, and a Slice of the tile's part, if that has the whole map's weights."""
    node, sides = tile.node, _sides(tile)
    scaled = all(taps.outputs % taps.inputs == 0 for _, taps, _, _ in sides)
    rows, cols = (_crop_part(tile, side, scaled=scaled) for side in sides)
    if rows is None or cols is None:
        return False
    part, have = Rect(rows[0], cols[0]), Rect(rows[1], cols[1])
    output = node.output if part == have else f"{node.output}.crop"
    attributes = {name: value for name, value in node.attributes.items() if name != "axes"}
    if scaled:
        factors = [1, 1, *(taps.outputs // taps.inputs for _, taps, _, _ in sides)]
        given = ["", builder.constant(f"{node.output}.scales", np.array(factors, dtype=np.float32))]
    else:  # of 3 rows, a scale of 5 / 3 makes 4 or 5, according to how it is rounded
        given = ["", "", builder.constant(f"{node.output}.sizes", np.array([have.rows.stop, have.cols.stop]))]
        attributes["axes"] = list(NCHW)
    builder.append(node.kind, [tile.inputs[0], *given], output, attributes)
    if part != have:
        builder.crop(output, part.within(have), NCHW, node.output)
    return True


def _crop_part(tile: TileOperator, side: Side, *, scaled: bool) -> tuple[Span, Span] | None:
    """Return the tile's rows among those of its resized crop, and the latter; None where their weights differ."""
    _, taps, out, have = side
    scale = taps.outputs / taps.inputs
    size, before = have.size * scale, have.start * scale
    if not size.is_integer() or not before.is_integer() or size < 1:
        return None
    part, crop = Span(out.start - int(before), out.stop - int(before)), Span(0, int(size))
    if not crop.contains(part):
        return None
    given = scale if scaled else None
    own = interpolation_of(tile.node.attributes, have.size, crop.stop, given, tile.graph.opset)
    difference = own.matrix(part, Span(0, have.size)) - taps.matrix(out, have)
    return (part, crop) if np.abs(difference).max() <= _SAME else None


def _mix(builder: OnnxBuilder, tile: TileOperator) -> None:
    copies = tile.node.attributes.get("mode", b"nearest") == b"nearest"
    sides = sorted(_sides(tile), key=lambda side: (side[2].size / side[3].size, -side[0]))
    source = tile.inputs[0]
    for number, (axis, taps, out, have) in enumerate(sides):
        output = f"{tile.node.output}.mixed" if number == 0 else tile.node.output
        if copies:
            chosen = builder.constant(f"{output}.{axis}.indices", taps.first[out.start : out.stop] - have.start)
            source = builder.append("Gather", [source, chosen], output, {"axis": axis})
        else:
            source = banded_product(builder, source, output, (axis, taps, out, have))


def banded_product(builder: OnnxBuilder, source: str, output: str, side: tuple[int, Interpolation, Span, Span]) -> str:
    axis, taps, out, have = side
    parts = even_parts(out.size, -(-out.size // MOST_ROWS))
    names = []
    for number, part in enumerate(parts):
        rows = Span(out.start + part.start, out.start + part.stop)
        read = taps.read(rows)
        name = output if len(parts) == 1 else f"{output}.block{number}"
        given = source
        if read != have:
            given = append_slice(builder, source, f"{name}.read", axis, read.within(have))
        matrix = taps.matrix(rows, read)
        operand = builder.constant(f"{name}.matrix", np.ascontiguousarray(matrix if axis == ROW_AXIS else matrix.T))
        names.append(builder.append("MatMul", [operand, given] if axis == ROW_AXIS else [given, operand], name))
    return names[0] if len(parts) == 1 else builder.append("Concat", names, output, {"axis": axis})
