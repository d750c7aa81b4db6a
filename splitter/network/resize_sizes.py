"""The sizes that a Resize by scales makes where rounding decides: 0.7 times 210 rows are 147, which are 146 to ONNX.

ONNX's shape inference rounds down the exact product with the float32 scale, ONNX Runtime that product as float32, torch
that with the scale before it was float32. A network that was exported from a module has torch's sizes, a file ONNX
Runtime's. So shapes are inferred with scales that are moved to the next float32 number; the network keeps its own.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper, shape_inference

from serfer.splitter.network.graph import Graph

_SCALES = 2
_LARGEST_DENOMINATOR = 1000
Moved = dict[float, float]
"""Of each scale that was moved, what it was."""


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
