"""An 8-bit network (QuantizeLinear and DequantizeLinear) as float32 arithmetic on whole numbers.

Rounding to 8 bits turns a difference in the last bit of a sum into one of a whole step, and float32 sums differ in the
last bit between a tile and the whole map. So sums are made exact. A convolution of x = sx * qx with w = sw * qw is
sx * sw * conv(qx, qw), and conv(qx, qw) adds whole numbers, which float32 does exactly, in any order, below 2**24:

    QuantizeLinear    clip(round(x / s), low, high), zero points left out
    DequantizeLinear  q * s
    Conv, Gemm        conv(qx, qw) / (1 / (sx * sw)) + bias     by a quotient: a product would be fused into qw
    mean              sum(qx) / (count / sx)

ONNX Runtime's own kernels for 8 bits are not such a reference: on x86 processors without VNNI they saturate sums of two
products, and where weights are folded to float32 beside quantised activations, they are quantised again, per tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.graph import COL_AXIS, MAP_RANK, ROW_AXIS, Weights
from serfer.splitter.network.operator_kinds import BROADCAST, POINTWISE
from serfer.splitter.network.unsupported import IN_8_BITS, refuse

ROUNDING = 5e-2
"""How far a network's answer may be from ONNX Runtime's own, relative to its range: a few steps of it."""
_WHOLE_NUMBERS = (np.int8, np.uint8)
_PLAIN = POINTWISE | BROADCAST | {"QuantizeLinear", "DequantizeLinear", "MaxPool", "GlobalMaxPool", "ReduceMax"}
_MOVING = frozenset(
    {
        *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice"),
        *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
_ONE_FROM_ONE = ("Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_PER_VALUE = (_PLAIN | _MOVING) - {"BatchNormalization", "LRN"}
"""The operators of which each value of the result comes from one value of each operand, or from the largest of some."""


def in_whole_numbers(model: ExternalWeightsModel) -> tuple[ExternalWeightsModel, bool]:
    """Return a model with 8-bit activations in float32, and whether it had any.

    Raises ModelError where what is rounded to 8 bits is not an exact sum. Weights alone in 8 bits are constants.
    """
    computed = {name for node in model.proto.graph.node for name in node.output} | {item.name for item in model.inputs}
    rounding = [
        node for node in model.proto.graph.node if node.op_type == "QuantizeLinear" and node.input[0] in computed
    ]
    if not rounding:
        return model, False
    return _Rewriting(model).done(), True


class _Rewriting:
    """Writes the operators of a model again, in order."""

    def __init__(self, model: ExternalWeightsModel) -> None:
        inferred = shape_inference.infer_shapes(model.proto, data_prop=True).graph
        self.model = model
        self.shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*inferred.value_info, *inferred.input)
        }
        small = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.proto.graph.initializer}
        self.constants: Weights = small | model.large
        self.nodes: list[onnx.NodeProto] = []
        self.added: Weights = {}
        self.zero: dict[str, int] = {}  # of quantised activations
        self.whole: dict[str, tuple[str, float]] = {}  # whole numbers and the scale that make an activation
        self.weights: dict[str, onnx.NodeProto] = {}
        self.maker: dict[str, onnx.NodeProto] = {}
        self.exact = {value.name for value in model.inputs} | self.constants.keys()

    def done(self) -> ExternalWeightsModel:
        """Return the rewritten model."""
        for node in self.model.proto.graph.node:
            self.maker |= dict.fromkeys(node.output, node)
            if node.op_type != "DequantizeLinear" and self.zero.keys() & set(node.input):
                raise _refused(node, IN_8_BITS)
            if not self._is_rewritten(node):
                self.nodes.append(node)
                if node.op_type in _PER_VALUE | {"Constant"} and self.exact.issuperset(filter(None, node.input)):
                    self.exact.update(node.output)
        proto = onnx.ModelProto()
        proto.CopyFrom(self.model.proto)
        del proto.graph.node[:], proto.graph.value_info[:]  # of which quantised activations have another type now
        proto.graph.node.extend(self.nodes)
        return replace(self.model, proto=proto).with_constants(self.added)

    def _is_rewritten(self, node: onnx.NodeProto) -> bool:
        rewrite: Callable[[onnx.NodeProto], bool] | None = {
            "QuantizeLinear": self._quantize,
            "DequantizeLinear": self._dequantize,
            "Conv": self._sum_of_products,
            "Gemm": self._sum_of_products,
            "MatMul": self._sum_of_products,
            "AveragePool": self._mean_of_windows,
            "GlobalAveragePool": self._mean,
            "ReduceMean": self._mean,
            **dict.fromkeys(_ONE_FROM_ONE, self._move),
        }.get(node.op_type)
        return rewrite is not None and rewrite(node)

    def _quantize(self, node: onnx.NodeProto) -> bool:
        x, q = node.input[0], node.output[0]
        if x in self.constants:
            return False
        scale, zero = self._constant(node, 1), self._zero_point(node)
        if scale is None or zero is None or scale.size != 1 or zero.dtype not in _WHOLE_NUMBERS:
            raise _refused(
                node,
                "its scale and zero point are not one constant number each, of 8 bits (wider ones have no exact sums)",
            )
        if x not in self.exact:
            kind = self.maker[x].op_type
            why = (
                f"it rounds what a {kind} in float32 computes, which a tile and the whole map have in different last "
                f"bits, so a value between two steps goes either way; quantise the {kind}'s input and weights as well"
            )
            raise _refused(node, why)
        limits = np.iinfo(zero.dtype)
        self.zero[q] = int(zero.reshape(()))
        low, high = (self._add(f"{q}.{name}", np.float32(limit - self.zero[q])) for name, limit in _named(limits))
        self._append("Div", [x, self._add(f"{q}.scale", scale.reshape(()))], f"{q}.quotient")
        self._append("Round", [f"{q}.quotient"], f"{q}.rounded")
        self._append("Clip", [f"{q}.rounded", low, high], q)
        return True

    def _dequantize(self, node: onnx.NodeProto) -> bool:
        q, y = node.input[0], node.output[0]
        if q in self.constants:
            self.weights[y] = node
            self.exact.add(y)
            return False
        scale, zero = self._constant(node, 1), self._zero_point(node)
        if q not in self.zero or scale is None or zero is None or scale.size != 1 or zero.reshape(()) != self.zero[q]:
            why = "it does not follow a QuantizeLinear with the same zero point"
            raise _refused(node, f"{why}; keep the two in pairs, with operators between pairs only")
        self._append("Mul", [q, self._add(f"{y}.scale", scale.reshape(()))], y)
        self.whole[y] = q, float(scale.reshape(()))
        return True

    def _sum_of_products(self, node: onnx.NodeProto) -> bool:
        """Write a convolution or a product with a matrix; one that has other operands stays as it is, inexact."""
        weight = self.weights.get(node.input[1])
        columns = {"Conv": 0, "Gemm": 0 if _attribute(node, "transB", 0) else 1, "MatMul": 1}[node.op_type]
        plain = _attribute(node, "alpha", 1.0) == _attribute(node, "beta", 1.0) == 1 and not _attribute(
            node, "transA", 0
        )
        scales = self._constant(weight, 1) if weight is not None else None
        if node.input[0] not in self.whole or weight is None or scales is None or scales.ndim > 1 or not plain:
            return False
        count = self.constants[weight.input[0]].shape[columns]
        if scales.size > 1 and (scales.size != count or _attribute(weight, "axis", 1) % self._rank(weight) != columns):
            return False
        q, scale = self.whole[node.input[0]]
        y, form = node.output[0], [1, -1, 1, 1] if node.op_type == "Conv" else [-1]
        ones = self._add(f"{y}.ones", np.ones_like(scales))
        self.nodes.append(_copy(weight, [weight.input[0], ones, *weight.input[2:]], f"{y}.weights"))
        self.nodes.append(_copy(node, [q, f"{y}.weights"], f"{y}.sum"))
        quotient = (1 / (np.float64(scale) * scales)).astype(np.float32)
        divisor = self._add(f"{y}.divisor", quotient.reshape(form) if quotient.size > 1 else quotient.reshape(()))
        bias = node.input[2] if len(node.input) > 2 else ""  # noqa: PLR2004 - the third input
        self._append("Div", [f"{y}.sum", divisor], f"{y}.product" if bias else y)
        if bias:
            axes = self._add(f"{y}.form", np.array(form))
            self._append("Reshape", [bias, axes], f"{y}.bias")
            self._append("Add", [f"{y}.product", f"{y}.bias"], y)
        return self._is_exact(y, exact=not bias or bias in self.exact)

    def _move(self, node: onnx.NodeProto) -> bool:
        """Pass whole numbers through operators that only move or select values."""
        if node.input[0] not in self.whole or len(node.output) > 1:
            return False
        q, scale = self.whole[node.input[0]]
        y = node.output[0]
        self.nodes.append(_copy(node, [q, *node.input[1:]], f"{y}.whole"))
        self._append("Mul", [f"{y}.whole", self._add(f"{y}.scale", np.float32(scale))], y)
        self.whole[y] = f"{y}.whole", scale
        return True

    def _mean_of_windows(self, node: onnx.NodeProto) -> bool:
        if node.input[0] not in self.whole:
            return False
        q, scale = self.whole[node.input[0]]
        y = node.output[0]
        self.nodes.append(_copy(node, [q], f"{y}.mean"))
        self._append("Mul", [f"{y}.mean", self._add(f"{y}.scale", np.float32(scale))], y)
        return self._is_exact(y, exact=True)

    def _mean(self, node: onnx.NodeProto) -> bool:
        """Write the mean of a whole map as a sum, of which tiles compute parts."""
        shape = self.shapes.get(node.input[0], [])
        given = [] if node.op_type == "GlobalAveragePool" else self._axes(node)
        if node.input[0] not in self.whole or len(shape) != MAP_RANK or given not in ([], [ROW_AXIS, COL_AXIS]):
            return False
        q, scale = self.whole[node.input[0]]
        y = node.output[0]
        axes = self._add(f"{y}.axes", np.array([ROW_AXIS, COL_AXIS]))
        self._append("ReduceSum", [q, axes], f"{y}.sum", keepdims=_attribute(node, "keepdims", 1))
        count = np.float32(prod(shape[ROW_AXIS:]) / scale)
        self._append("Div", [f"{y}.sum", self._add(f"{y}.count", count)], y)
        return self._is_exact(y, exact=True)

    def _axes(self, node: onnx.NodeProto) -> list[int]:
        given = self._constant(node, 1)
        return sorted(int(axis) % MAP_RANK for axis in given) if given is not None else [-1]

    def _is_exact(self, tensor: str, *, exact: bool) -> bool:
        if exact:
            self.exact.add(tensor)
        return True

    def _constant(self, node: onnx.NodeProto, index: int) -> NDArray[Any] | None:
        return self.constants.get(node.input[index]) if index < len(node.input) else None

    def _zero_point(self, node: onnx.NodeProto) -> NDArray[Any] | None:
        """Return a zero point; an absent one is 0, of 8 bits unless an attribute says otherwise."""
        if len(node.input) > 2 and node.input[2]:  # noqa: PLR2004 - the third input
            return self._constant(node, 2)
        kind = _attribute(node, "output_dtype", 0) if node.op_type == "QuantizeLinear" else 0
        return np.zeros((), helper.tensor_dtype_to_np_dtype(kind) if kind else np.uint8)

    def _rank(self, weight: onnx.NodeProto) -> int:
        return self.constants[weight.input[0]].ndim

    def _add(self, name: str, value: Any) -> str:  # noqa: ANN401 - numbers of any kind
        self.added[name] = np.asarray(value)
        return name

    def _append(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> None:  # noqa: ANN401 - as ONNX's
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        if kind in _PER_VALUE:
            self.exact.add(output)


def _refused(node: onnx.NodeProto, why: str) -> Exception:
    return refuse(node.name or node.output[0], node.op_type, why)


def _named(limits: np.iinfo[Any]) -> list[tuple[str, int]]:
    return [("low", limits.min), ("high", limits.max)]


def _attribute(node: onnx.NodeProto, name: str, default: float) -> Any:  # noqa: ANN401 - a number of any kind
    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), default)


def _copy(node: onnx.NodeProto, inputs: list[str], output: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = output
    copy.input[:] = inputs
    copy.output[:] = [output]
    return copy
