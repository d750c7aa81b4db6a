"""Outputs whose size depends on the image: which they are, along which axis, and at most how large.

A tensor of a plan has one size, so such an output is padded to a bound, and its size is an output too (as_is.py). The
bound follows from the operator that sizes it, where its input has a known size:

    NonMaxSuppression    classes * max_output_boxes_per_class, at most the number of boxes
    NonZero              as many as its input has values
    Compress, Unique     as many as its input has along the axis, or values

and otherwise from the model's answers to a few images, times a margin. Both are capped, since an answer travels padded;
an image whose output is larger fails by name (serfer/core/plan/answers.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, shape_inference

from serfer.core.errors import ModelError
from serfer.splitter.network.as_is import SIZED_BY_DATA, Varying, names_read
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.onnx_models import attributes_of, constants_of

_MARGIN, _LEAST = 4, 256
_MOST, _MOST_VALUES = 1 << 16, 1 << 20
"""What a bound is capped at: along the axis, and values of the output."""
_Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class _Inferred:
    shapes: Mapping[str, _Shape]
    makers: Mapping[str, onnx.NodeProto]
    constants: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, model: ExternalWeightsModel) -> _Inferred:
        graph = model.proto.graph
        try:
            inferred = shape_inference.infer_shapes(model.proto, data_prop=True).graph
        except Exception:  # noqa: BLE001 - it raises several kinds, and says nothing then
            inferred = graph
        values = (*inferred.value_info, *inferred.output, *inferred.input)
        constants = {name: numpy_helper.to_array(tensor) for name, tensor in constants_of(graph).items()}
        shapes: dict[str, _Shape] = {
            value.name: tuple(
                dim.dim_value if dim.HasField("dim_value") else None for dim in value.type.tensor_type.shape.dim
            )
            for value in values
            if value.type.tensor_type.HasField("shape")
        }
        shapes |= {name: value.shape for name, value in (constants | model.large).items()}
        return cls(shapes, {name: node for node in graph.node for name in node.output}, constants)

    def size(self, name: str) -> int | None:
        shape = self.shapes.get(name)
        return None if shape is None or None in shape else prod(size for size in shape if size is not None)

    def before(self, name: str) -> Iterator[onnx.NodeProto]:
        waiting, seen = [name], set[str]()
        while waiting:
            node = self.makers.get(waiting.pop(0))
            if node is not None and node.output[0] not in seen:
                seen.add(node.output[0])
                yield node
                waiting.extend(names_read(node))


def varying_outputs(model: ExternalWeightsModel, answers: Sequence[Sequence[NDArray[Any]]]) -> dict[str, Varying]:
    """Return the outputs whose size depends on the image, of a model with a static input.

    `answers` has the model's outputs, in order, for a few images one by one. Raises ModelError that names an output of
    which more than one size depends on the image.
    """
    inferred = _Inferred.of(model)
    names = [value.name for value in model.proto.graph.output]
    unknown = [(number, name) for number, name in enumerate(names) if inferred.size(name) is None]
    found = {name: _varying(inferred, name, [arrays[number] for arrays in answers]) for number, name in unknown}
    return {name: varying for name, varying in found.items() if varying}


def _varying(inferred: _Inferred, name: str, arrays: Sequence[NDArray[Any]]) -> Varying | None:
    ranks = {array.ndim for array in arrays}
    if len(ranks) > 1:
        raise ModelError(f"the number of axes of the model's output {name!r} depends on the image")
    sizer = next((node for node in inferred.before(name) if node.op_type in SIZED_BY_DATA), None)
    differing = [axis for axis in range(ranks.pop()) if len({array.shape[axis] for array in arrays}) > 1]
    unknown = [axis for axis, size in enumerate(inferred.shapes.get(name) or ()) if size is None]
    axes = differing or ([axis for axis in unknown if axis or len(unknown) == 1] if sizer else [])
    if not axes and not sizer:
        return None
    if len(axes) != 1:
        raise ModelError(
            f"the size of the model's output {name!r} depends on the image along {len(axes) or 'unknown'} axes: one "
            "is possible; export it with one"
        )
    [axis] = axes
    seen = max(array.shape[axis] for array in arrays)
    bound = _bound(inferred, sizer) if sizer else None
    others = prod(size for number, size in enumerate(arrays[0].shape) if number != axis)
    most = max(1, min(_MOST, _MOST_VALUES // max(1, others)))
    if bound is None or bound < seen:
        bound = max(_LEAST, _MARGIN * seen)
    return Varying(axis, max(1, min(bound, most)))


def _bound(inferred: _Inferred, node: onnx.NodeProto) -> int | None:
    if node.op_type == "NonMaxSuppression":
        scores = inferred.shapes.get(node.input[1])
        if scores is None or None in scores:
            return None
        classes, boxes = scores[1] or 0, scores[2] or 0
        most = inferred.constants.get(node.input[2]) if len(node.input) > 2 else None  # noqa: PLR2004 - the third
        return boxes if most is None else min(boxes, classes * max(0, int(most.reshape(-1)[0])))
    attributes = attributes_of(node)
    shape = inferred.shapes.get(node.input[0])
    if shape is not None and "axis" in attributes:
        axis: int = attributes["axis"]
        return shape[axis]
    return inferred.size(node.input[0])
