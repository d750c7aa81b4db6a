"""What an ONNX Resize does to one axis, as ONNX Runtime computes it: a band of weights, whatever mode and size.

Resizing is separable and linear, so resizing the columns of a unit matrix shows the weights; columns whose ones lie far
apart are added up and resized as one. Weights are read off ONNX Runtime rather than computed again: it rounds
coordinates to float32, which at a thousand rows moves a weight by 1e-5. Windows of large images, which a network would
round much more, have the weights of exact places (`Graph.exact_places`).

Of a size that is resized by a factor, torch, ONNX Runtime and ONNX's shape inference make different ones: `made_size`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serfer.core.geometry import Span
from serfer.splitter.network.as_is import all_nodes
from serfer.splitter.network.graph import MAP_RANK, NCHW, ROW_AXIS, Graph, Node
from serfer.splitter.network.onnx_models import constants_of, inferred_shapes, model_of, session_of

INTERPOLATION = (
    *("mode", "coordinate_transformation_mode", "nearest_mode"),
    *("cubic_coeff_a", "exclude_outside", "antialias"),
)
"""The attributes of a Resize that its weights depend on."""
_HALF = (b"half_pixel", b"pytorch_half_pixel")
_SCALES = 2
_LARGEST_DENOMINATOR = 1000
Moved = dict[float, float]
"""Of each scale that was moved, what it was."""


@dataclass(frozen=True, eq=False)
class Interpolation:
    """One axis of a Resize: output row r is the sum of `weights[r, k]` times input row `first[r] + k`.

    Shapes are (outputs,) and (outputs, taps). Behind a row's last tap its weights are 0; `stop` has the row after it.
    """

    inputs: int
    first: NDArray[np.int64]
    stop: NDArray[np.int64]
    weights: NDArray[np.float32]

    @property
    def outputs(self) -> int:
        return len(self.first)

    @property
    def repeats(self) -> int | None:
        """How many times each input row is repeated, None where output rows are anything else."""
        times = self.outputs // self.inputs
        copied = self.weights.shape[1] == 1 and bool(np.all(self.weights == 1))
        plain = copied and np.array_equal(self.first, np.arange(self.outputs) // max(times, 1))
        return times if plain and times * self.inputs == self.outputs else None

    def matrix(self, out: Span, have: Span) -> NDArray[np.float32]:
        """Return the weights of output rows `out` as a matrix (outputs, inputs) over input rows `have`."""
        result = np.zeros((out.size, have.size), dtype=np.float32)
        columns = self.first[out.start : out.stop, None] + np.arange(self.weights.shape[1]) - have.start
        inside = (columns >= 0) & (columns < have.size)
        rows = np.broadcast_to(np.arange(out.size)[:, None], columns.shape)
        result[rows[inside], columns[inside]] = self.weights[out.start : out.stop][inside]
        return result

    def cut(self, outputs: int) -> Interpolation:
        return replace(self, first=self.first[:outputs], stop=self.stop[:outputs], weights=self.weights[:outputs])

    def read(self, out: Span) -> Span:
        part = slice(out.start, out.stop)
        return Span(int(self.first[part].min()), int(self.stop[part].max()))


def is_separable(graph: Graph, node: Node) -> bool:
    """Return whether a Resize changes rows and columns of an (N, C, H, W) map alone, by weights that are constant."""
    before, after = graph.shapes.get(node.inputs[0], ()), graph.shapes[node.output]
    crops = node.attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
    fits = node.attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    plain = len(before) == MAP_RANK and before[:2] == after[:2] and graph.axes(node.inputs[0]) == NCHW
    return plain and fits and not crops and graph.activations(node) == [node.inputs[0]]


def interpolation(graph: Graph, node: Node, axis: int) -> Interpolation:
    return graph.once(_interpolation, node, axis)


def _interpolation(graph: Graph, node: Node, axis: int) -> Interpolation:
    sizes = graph.shapes[node.inputs[0]][axis], graph.shapes[node.output][axis]
    if graph.exact_places and (exact := exact_interpolation(node.attributes, *sizes, ratio_of(graph, node, axis))):
        return exact
    return interpolation_of(node.attributes, *sizes, _scale(graph, node, axis), graph.opset)


def ratio_of(graph: Graph, node: Node, axis: int) -> Fraction:
    """Return how many rows of the input one row of the output stands for, but where corners are aligned."""
    scale = scale_of(graph, node, axis)
    return Fraction(graph.shapes[node.inputs[0]][axis], graph.shapes[node.output][axis]) if scale is None else 1 / scale


def scale_of(graph: Graph, node: Node, axis: int) -> Fraction | None:
    """Return the axis's scale, as plain a number as it was meant, where the operator has scales."""
    scale = _scale(graph, node, axis)
    return None if scale is None else _plain(scale)


def is_runtimes(graph: Graph, node: Node) -> bool:
    """Return whether ONNX Runtime makes the rows and columns of a Resize itself: by scales torch may have others."""
    before, after = graph.shapes[node.inputs[0]], graph.shapes[node.output]
    scales = {axis: _scale(graph, node, axis) for axis in NCHW}
    return all(
        scale is None or made_size(scale, before[axis], by_torch=False) == after[axis] for axis, scale in scales.items()
    )


def interpolation_of(
    attributes: Mapping[str, Any], inputs: int, outputs: int, scale: float | None, opset: int
) -> Interpolation:
    """Return what a Resize with these attributes does to an axis, given its `scale`, or else the numbers of rows."""
    modes = tuple((name, attributes[name]) for name in INTERPOLATION if name in attributes)
    return _measured(modes, inputs, outputs, scale, opset)


def _scale(graph: Graph, node: Node, axis: int) -> float | None:
    scales = graph.weights.get(node.inputs[2]) if len(node.inputs) > 2 else None  # noqa: PLR2004 - X, roi, scales
    if scales is None or not scales.size:
        return None
    axes = [given % MAP_RANK for given in node.attributes.get("axes") or range(MAP_RANK)]
    return float(scales[axes.index(axis)]) if axis in axes else 1.0


@lru_cache(maxsize=256)
def _measured(
    modes: tuple[tuple[str, Any], ...], inputs: int, outputs: int, scale: float | None, opset: int
) -> Interpolation:
    made = outputs
    if scale is not None:
        upward = float(np.nextafter(np.float32(scale), np.float32(np.inf)))
        if made_size(scale, inputs, by_torch=False) < outputs:
            scale = upward  # of which torch makes one row more
        made = made_size(scale, inputs, by_torch=False)
    wide = inputs == outputs  # resized to the size that it has, a map is copied whatever its scales: it gets a column
    axes = [*NCHW] if wide else [ROW_AXIS]
    given = ["", "", "given"] if scale is None else ["", "given"]
    value = np.array([outputs, 2], dtype=np.int64) if scale is None else np.array([scale, 2], dtype=np.float32)
    session = session_of(
        model_of(
            [helper.make_node("Resize", ["x", *given], ["y"], **dict(modes), axes=axes)],
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, None, inputs, None])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value[: len(axes)], "given")],
            opset=opset,
        )
    )
    period = _period(inputs, outputs)
    comb = (np.arange(inputs)[:, None] % period == np.arange(period)).astype(np.float32)
    image = np.ascontiguousarray(comb.T)[None, :, :, None] if wide else comb[None, None]
    result = session.run(None, {"x": image})[0]
    weights = result[0, :, :, 0].T if wide else result[0, 0]
    row, tooth = np.nonzero(weights)
    near = row / (scale or outputs / inputs)
    nearest = np.rint((near - tooth) / period).astype(np.int64)
    column = tooth + period * np.clip(nearest, 0, (inputs - 1 - tooth) // period)
    return _banded(inputs, made, row, column, weights[row, tooth]).cut(outputs)


def _period(inputs: int, outputs: int) -> int:
    """Return how far apart input rows have to be for no output row to read, or lie near, two of them.

    An output row reads at most four input rows, or four times the factor of a reduction, beside its own place, from
    which coordinate transformations differ by two rows or two such factors.
    """
    return min(inputs, 16 * (2 + -(-inputs // outputs)))


def _banded(
    inputs: int, outputs: int, rows: NDArray[np.int64], columns: NDArray[np.int64], values: NDArray[np.float32]
) -> Interpolation:
    first, stop = np.full(outputs, inputs - 1), np.zeros(outputs, dtype=np.int64)
    np.minimum.at(first, rows, columns)
    np.maximum.at(stop, rows, columns + 1)
    stop = np.maximum(stop, first + 1)
    weights = np.zeros((outputs, int((stop - first).max())), dtype=np.float32)
    np.add.at(weights, (rows, columns - first[rows]), values)  # at an end, several taps are of one row
    return Interpolation(inputs, first, stop, weights)


def exact_interpolation(
    attributes: Mapping[str, Any], inputs: int, outputs: int, ratio: Fraction
) -> Interpolation | None:
    """Return linear or cubic weights without rounded places, None for other modes: a row stands for `ratio` rows."""
    mode, where = attributes.get("mode"), attributes.get("coordinate_transformation_mode", b"half_pixel")
    other = attributes.get("antialias") or attributes.get("exclude_outside") or inputs == outputs
    if other or mode not in (b"linear", b"cubic") or where not in (*_HALF, b"asymmetric", b"align_corners"):
        return None
    if where == b"align_corners":
        ratio = Fraction(inputs - 1, max(1, outputs - 1))
    shift = (ratio - 1) / 2 if where in _HALF and (outputs > 1 or where == b"half_pixel") else Fraction(0)
    unit = ratio.denominator * shift.denominator
    places = np.arange(outputs) * int(ratio * unit) + int(shift * unit)
    if mode == b"linear":
        places = places.clip(0, (inputs - 1) * unit)
    columns, rest = places[:, None] // unit + np.arange(-1, 3), places[:, None] % unit / unit
    if mode == b"linear":
        weights = np.maximum(0, 1 - np.abs(np.arange(-1, 3) - rest))
    else:
        far, a = np.abs(np.arange(-1, 3) - rest), float(attributes.get("cubic_coeff_a", -0.75))
        near = ((a + 2) * far - (a + 3)) * far**2 + 1
        weights = np.where(far <= 1, near, ((far - 5) * far + 8) * far * a - 4 * a) * (far < 2)  # noqa: PLR2004
    row, tap = np.nonzero(weights)
    return _banded(inputs, outputs, row, columns[row, tap].clip(0, inputs - 1), weights[row, tap])


def made_size(scale: float, size: Any, *, by_torch: bool) -> Any:  # noqa: ANN401 - a number, or an array of them
    """Return how many rows torch makes of `size`, in float64, or ONNX Runtime, in float32.

    ONNX's own shape inference has yet another rule, whose sizes are of no use here.
    """
    made = np.float64(_plain(scale)) * size if by_torch else np.float32(scale) * np.asarray(size, np.float32)
    return np.floor(made).astype(np.int64) if np.ndim(size) else int(made)


def _plain(scale: float) -> Fraction:
    """Return the plainest number that is a scale in float32: that which was written in Python."""
    plain = Fraction(float(scale)).limit_denominator(_LARGEST_DENOMINATOR)
    return plain if np.float32(plain) == np.float32(scale) else Fraction(str(np.float32(scale)))


def with_moved_scales(model: onnx.ModelProto, *, exported: bool) -> Moved:
    """Move the scales of a model of static input by which another size is inferred than is made."""
    moved: Moved = {}
    resizes = [node for node in model.graph.node if node.op_type == "Resize" and _uneven(_scales_of(model, node))]
    for node in resizes:  # in order: each may change the size of the maps after it
        shapes = inferred_shapes(model)
        before, after = (shapes.get(name, ()) for name in (node.input[0], node.output[0]))
        scales = _scales_of(model, node)
        axes = next((item.ints for item in node.attribute if item.name == "axes"), range(len(before)))
        if scales is None or len(axes) != scales.size or min(before, default=0) < 1 or len(before) != len(after):
            continue
        own = scales.copy()
        for place, axis in enumerate(axes):
            wanted = made_size(scales[place], before[axis], by_torch=exported)
            if wanted != after[axis]:
                scales[place] = np.nextafter(scales[place], np.float32(np.inf if wanted > after[axis] else 0))
                moved[float(scales[place])] = float(own[place])
        if (scales != own).any():
            name = f"{node.output[0]}.moved_scales"
            model.graph.initializer.append(numpy_helper.from_array(scales, name))
            node.input[_SCALES] = name
    return moved


def keep_places(model: onnx.ModelProto) -> None:
    """Give Resizes that were converted from below opset 11 the places of these, which ONNX's converter leaves out."""
    for node in all_nodes(model.graph.node):
        if node.op_type == "Resize":
            scales = _scales_of(model, node)
            down = scales is not None and bool((scales < 1).any())
            node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            # ONNX Runtime reduces by the next value there, and enlarges by the one before.
            node.attribute.append(helper.make_attribute("nearest_mode", "ceil" if down else "floor"))


def with_own_scales(graph: Graph, moved: Moved) -> Graph:
    """Give Resizes the scales that they had before these were moved."""
    for node in graph.nodes if moved else ():
        if node.kind == "Resize" and len(node.inputs) > _SCALES and node.inputs[_SCALES] in graph.weights:
            name = node.inputs[_SCALES]
            values = [moved.get(float(scale), float(scale)) for scale in graph.weights[name]]
            graph.weights[name] = np.array(values, dtype=np.float32)
    return graph


def _scales_of(model: onnx.ModelProto, node: onnx.NodeProto) -> NDArray[np.float32] | None:
    name = node.input[_SCALES] if len(node.input) == _SCALES + 1 else ""
    tensor = constants_of(model.graph).get(name) if name else None
    if tensor is None or tensor.data_type != TensorProto.FLOAT:
        return None
    return np.array(numpy_helper.to_array(tensor), dtype=np.float32)


def _uneven(scales: NDArray[np.float32] | None) -> bool:
    """Return whether sizes may be rounded: products with quarters and the like are exact."""
    return scales is not None and scales.size > 0 and bool((scales * 64 % 1).any())
