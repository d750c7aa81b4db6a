"""A network that computes in fp16 as the same network in float32.

Workers' processors have no fp16 arithmetic, and ONNX Runtime there computes an fp16 network in float32, rounding to
fp16 between operators where it has not fused them. Where it fuses differs between a tile and the whole network, so the
roundings are left out: the weights keep their fp16 values, and are stored as such.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

from serfer.splitter.network.external_weights import ExternalWeightsModel

ROUNDING = 1e-2
"""How far fp16's roundings may take a network's answer, relative to the range of its logits."""
_KINDS = frozenset({"to", "dtype", "output_dtype"})
"""The attributes that name a type."""


@dataclass(frozen=True)
class WideModel:
    """A model in float32, the constants whose values are fp16 numbers, and whether roundings to fp16 were left out."""

    model: ExternalWeightsModel
    half: frozenset[str] = frozenset()
    rounded: bool = False


def widened(model: ExternalWeightsModel) -> WideModel:
    """Return the model with float32 in place of fp16, if it computes in fp16 rather than only storing weights in it."""
    graph = model.proto.graph
    given = any(value.type.tensor_type.elem_type == TensorProto.FLOAT16 for value in model.inputs)
    if not given and not any(_rounds(node) for node in graph.node):
        return WideModel(model)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in proto.graph.initializer:
        _widen(tensor)
    for attribute in (attribute for node in proto.graph.node for attribute in node.attribute):
        if attribute.name in _KINDS and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
        elif attribute.type == AttributeProto.TENSOR:
            _widen(attribute.t)
    half = frozenset(name for name, value in model.large.items() if value.dtype == np.float16)
    large = {name: value.astype(np.float32) if name in half else value for name, value in model.large.items()}
    return WideModel(replace(model, proto=proto, large=large), half, rounded=True)


def _rounds(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and any(
        item.name == "to" and item.i == TensorProto.FLOAT16 for item in node.attribute
    )


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT16:
        value = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
