"""What an ONNX Resize does to one axis, as ONNX Runtime computes it: a band of weights, whatever mode and size.

Resizing is separable and linear, so resizing the columns of a unit matrix shows the weights; columns whose ones lie far
apart are added up and resized as one. Weights are read off ONNX Runtime rather than computed again: it rounds
coordinates to float32, which at a thousand rows moves a weight by 1e-5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference

from serfer.core.geometry import Span
from serfer.splitter.network.as_is import all_nodes
from serfer.splitter.network.graph import MAP_RANK, NCHW, ROW_AXIS, Graph, Node
from serfer.splitter.network.onnx_models import model_of, session_of

INTERPOLATION = (
    *("mode", "coordinate_transformation_mode", "nearest_mode"),
    *("cubic_coeff_a", "exclude_outside", "antialias"),
)
"""The attributes of a Resize that its weights depend on."""
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
        """Return the input rows that output rows `out` read, from the first to the last."""
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
    """Return what a Resize (see `is_separable`) does to ROW_AXIS or COL_AXIS."""
    return graph.once(_interpolation, node, axis)


def _interpolation(graph: Graph, node: Node, axis: int) -> Interpolation:
    sizes = graph.shapes[node.inputs[0]][axis], graph.shapes[node.output][axis]
    return interpolation_of(node.attributes, *sizes, _scale(graph, node, axis), graph.opset)


def is_runtimes(graph: Graph, node: Node) -> bool:
    """Return whether ONNX Runtime makes the rows and columns of a Resize itself: by scales torch may have others."""
    before, after = graph.shapes[node.inputs[0]], graph.shapes[node.output]
    scales = {axis: _scale(graph, node, axis) for axis in NCHW}
    return all(scale is None or runtime_size(scale, before[axis]) == after[axis] for axis, scale in scales.items())


def interpolation_of(
    attributes: Mapping[str, Any], inputs: int, outputs: int, scale: float | None, opset: int
) -> Interpolation:
    """Return what a Resize with these attributes does to an axis, given its `scale`, or else the numbers of rows."""
    modes = tuple((name, attributes[name]) for name in INTERPOLATION if name in attributes)
    return _measured(modes, inputs, outputs, scale, opset)


def _scale(graph: Graph, node: Node, axis: int) -> float | None:
    """Return the axis's scale where the operator has scales, None where it has sizes."""
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
        scale = scale if runtime_size(scale, inputs) >= outputs else upward  # of which torch makes one row more
        made = runtime_size(scale, inputs)
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
    weights[rows, columns - first[rows]] = values
    return Interpolation(inputs, first, stop, weights)


def runtime_size(scale: float, size: int) -> int:
    """Return how many rows ONNX Runtime makes of `size`."""
    return int(np.float32(scale) * np.float32(size))


def torch_size(scale: float, size: int) -> int:
    """Return how many rows torch makes of `size`: its scale is the plainest number that is this float32 one."""
    plain = float(Fraction(float(scale)).limit_denominator(_LARGEST_DENOMINATOR))
    return floor((plain if np.float32(plain) == np.float32(scale) else float(str(np.float32(scale)))) * size)


def with_moved_scales(model: onnx.ModelProto, *, exported: bool) -> Moved:
    """Move the scales of a model of static input by which another size is inferred than is made."""
    moved: Moved = {}
    resizes = [node for node in model.graph.node if node.op_type == "Resize" and _uneven(_scales_of(model, node))]
    for node in resizes:  # in order: each may change the size of the maps after it
        inferred = shape_inference.infer_shapes(model, data_prop=True).graph
        shapes = {value.name: value.type.tensor_type.shape.dim for value in (*inferred.value_info, *inferred.input)}
        shapes |= {value.name: value.type.tensor_type.shape.dim for value in inferred.output}
        before, after = ([dim.dim_value for dim in shapes.get(name, ())] for name in (node.input[0], node.output[0]))
        scales = _scales_of(model, node)
        axes = next((item.ints for item in node.attribute if item.name == "axes"), range(len(before)))
        if scales is None or len(axes) != scales.size or not all(before) or len(before) != len(after):
            continue
        own = scales.copy()
        for place, axis in enumerate(axes):
            wanted = (torch_size if exported else runtime_size)(scales[place], before[axis])
            if wanted != after[axis]:
                scales[place] = np.nextafter(scales[place], np.float32(np.inf if wanted > after[axis] else 0))
                moved[float(scales[place])] = float(own[place])
        if (scales != own).any():
            name = f"{node.output[0]}.moved_scales"
            model.graph.initializer.append(numpy_helper.from_array(scales, name))
            node.input[_SCALES] = name
    return moved


def keep_places(model: onnx.ModelProto) -> None:
    """Give the Resizes of a model that was converted from below opset 11 the places that these opsets have.

    ONNX's version converter leaves them those of later ones.
    """
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
    """Return the scales of a Resize, None where they are not constant."""
    name = node.input[_SCALES] if len(node.input) == _SCALES + 1 else ""
    tensors = [tensor for tensor in model.graph.initializer if name and tensor.name == name]
    tensors += [
        item.t
        for other in model.graph.node
        if name and other.op_type == "Constant" and other.output[0] == name
        for item in other.attribute
        if item.name == "value"
    ]
    if not tensors or tensors[0].data_type != TensorProto.FLOAT:
        return None
    return np.array(numpy_helper.to_array(tensors[0]), dtype=np.float32)


def _uneven(scales: NDArray[np.float32] | None) -> bool:
    """Return whether sizes may be rounded: products with quarters and the like are exact."""
    return scales is not None and scales.size > 0 and bool((scales * 64 % 1).any())
