"""A graph as differentiable torch operations with trainable convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from serfer.core.geometry import Span
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph, Node, Weights
from serfer.splitter.network.sliding_window import average_scale, window
from serfer.splitter.tiling import operators

_Rule = Callable[[Graph, Node, list[Any]], Tensor]


class Trainable:
    """The nodes of a graph, run by torch; `parameters` are the convolutions' constants by name."""

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self._graph, self._nodes = graph, nodes
        moving = {name for node in nodes if node.kind == "Conv" for name in graph.constants(node)}
        self.parameters: dict[str, Tensor] = {}
        self._values: dict[str, Any] = {}
        for name in {name for node in nodes for name in graph.constants(node)}:
            value = torch.tensor(np.ascontiguousarray(graph.weights[name]))
            if name in moving:
                self.parameters[name] = value.requires_grad_()
            self._values[name] = value

    def __call__(self, images: Tensor) -> Tensor:
        """Return the last node's output for images (N, C, H, W)."""
        values = {**self._values, self._graph.input: images}
        result = images
        for node in self._nodes:
            inputs = [values[name] if name else None for name in node.inputs]
            result = values[node.output] = _RULES[node.kind](self._graph, node, inputs)
        return result

    def constants(self) -> Weights:
        return {name: value.detach().numpy().copy() for name, value in self.parameters.items()}


def unknown_kinds(nodes: Sequence[Node]) -> list[str]:
    return sorted({node.kind for node in nodes if node.kind not in _RULES or _refused(node)})


def _refused(node: Node) -> bool:
    return (node.kind == "Pad" and node.attributes.get("mode", b"constant") != b"constant") or (
        node.kind in ("BatchNormalization", "Dropout") and bool(node.attributes.get("training_mode"))
    )


def _padded(graph: Graph, node: Node, x: Tensor, fill: float) -> Tensor:
    amounts: list[int] = []
    for axis in (COL_AXIS, ROW_AXIS):
        taps = window(node, axis)
        reach = (graph.shapes[node.output][axis] - 1) * taps.stride + taps.reach
        amounts += [taps.pad_before, reach - taps.pad_before - x.shape[axis]]
    return functional.pad(x, amounts, value=fill) if any(amounts) else x


def _pair(node: Node, name: str) -> list[int]:
    return list(node.attributes.get(name) or [1, 1])


def _conv(graph: Graph, node: Node, inputs: list[Any]) -> Tensor:
    x = _padded(graph, node, inputs[0], 0.0)
    bias = inputs[2] if len(inputs) > 2 else None  # noqa: PLR2004 - the third input is the bias
    strides, dilations = _pair(node, "strides"), _pair(node, "dilations")
    return functional.conv2d(
        x, inputs[1], bias, stride=strides, dilation=dilations, groups=node.attributes.get("group", 1)
    )


def _max_pool(graph: Graph, node: Node, inputs: list[Any]) -> Tensor:
    x = _padded(graph, node, inputs[0], -torch.inf)
    kernel = node.attributes["kernel_shape"]
    return functional.max_pool2d(x, kernel, _pair(node, "strides"), dilation=_pair(node, "dilations"))


def _average_pool(graph: Graph, node: Node, inputs: list[Any]) -> Tensor:
    x = _padded(graph, node, inputs[0], 0.0)
    kernel = node.attributes["kernel_shape"]
    mean = torch.full((x.shape[1], 1, *kernel), 1 / float(np.prod(kernel)))
    y = functional.conv2d(x, mean, stride=_pair(node, "strides"), dilation=_pair(node, "dilations"), groups=x.shape[1])
    size = graph.shapes[node.output]
    rows, cols = (average_scale(graph, node, axis, Span(0, size[axis])) for axis in (ROW_AXIS, COL_AXIS))
    return y * torch.from_numpy(np.outer(rows, cols))


def _pad(graph: Graph, node: Node, inputs: list[Any]) -> Tensor:
    given = operators.pad_amounts(graph, node)
    amounts = [given[side] for axis in (3, 2, 1, 0) for side in (axis, axis + 4)]
    value = float(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else 0.0  # noqa: PLR2004 - third: the value
    return functional.pad(inputs[0], amounts, value=value)


def _normalise(_: Graph, node: Node, inputs: list[Any]) -> Tensor:
    x, scale, bias, mean, variance = inputs
    return functional.batch_norm(x, mean, variance, scale, bias, eps=node.attributes.get("epsilon", 1e-5))


def _local_response(_: Graph, node: Node, inputs: list[Any]) -> Tensor:
    x, size = inputs[0], node.attributes["size"]
    before = (size - 1) // 2
    squares = functional.pad(x * x, [0, 0, 0, 0, before, size - 1 - before]).unfold(1, size, 1).mean(-1)
    scale = node.attributes.get("bias", 1.0) + node.attributes.get("alpha", 1e-4) * squares
    return torch.div(x, torch.pow(scale, node.attributes.get("beta", 0.75)))


def _clip(_: Graph, node: Node, inputs: list[Any]) -> Tensor:
    low, high = [*inputs[1:], None, None][:2]
    low = node.attributes.get("min") if low is None else low
    high = node.attributes.get("max") if high is None else high
    return inputs[0] if low is None and high is None else torch.clamp(inputs[0], low, high)


def _axes(node: Node, inputs: list[Any]) -> list[int]:
    given = inputs[1].tolist() if len(inputs) > 1 and inputs[1] is not None else node.attributes.get("axes")
    return list(given) if given is not None else []


def _reduce_mean(_: Graph, node: Node, inputs: list[Any]) -> Tensor:
    axes = _axes(node, inputs) or list(range(inputs[0].ndim))
    return torch.mean(inputs[0], dim=axes, keepdim=bool(node.attributes.get("keepdims", 1)))


def _squeeze(_: Graph, node: Node, inputs: list[Any]) -> Tensor:
    axes = _axes(node, inputs) or [axis for axis in range(1, inputs[0].ndim) if inputs[0].shape[axis] == 1]
    return torch.squeeze(inputs[0], tuple(axes))


def _reshape(_: Graph, _node: Node, inputs: list[Any]) -> Tensor:
    shape = [inputs[0].shape[axis] if size == 0 else size for axis, size in enumerate(inputs[1].tolist())]
    return torch.reshape(inputs[0], shape)


def _slice(_: Graph, _node: Node, inputs: list[Any]) -> Tensor:
    x, starts, stops = inputs[0], inputs[1].tolist(), inputs[2].tolist()
    axes = inputs[3].tolist() if len(inputs) > 3 and inputs[3] is not None else range(len(starts))  # noqa: PLR2004 - axes
    steps = inputs[4].tolist() if len(inputs) > 4 and inputs[4] is not None else [1] * len(starts)  # noqa: PLR2004 - steps
    cut = [slice(None)] * x.ndim
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        cut[axis] = slice(start, stop, step)
    return x[tuple(cut)]  # type: ignore[no-any-return]


def _gemm(_: Graph, node: Node, inputs: list[Any]) -> Tensor:
    left = inputs[0].T if node.attributes.get("transA") else inputs[0]
    right = inputs[1].T if node.attributes.get("transB") else inputs[1]
    product = node.attributes.get("alpha", 1.0) * (left @ right)
    if len(inputs) > 2 and inputs[2] is not None:  # noqa: PLR2004 - the third input is the bias
        product = product + node.attributes.get("beta", 1.0) * inputs[2]
    return torch.as_tensor(product)


def _prelu(_: Graph, _node: Node, inputs: list[Any]) -> Tensor:
    return torch.add(torch.clamp(inputs[0], min=0), inputs[1] * torch.clamp(inputs[0], max=0))


def _hard_sigmoid(_: Graph, node: Node, inputs: list[Any]) -> Tensor:
    alpha, beta = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    return torch.clamp(alpha * inputs[0] + beta, 0, 1)


def _gelu(_: Graph, node: Node, inputs: list[Any]) -> Tensor:
    return functional.gelu(inputs[0], approximate=bytes(node.attributes.get("approximate", b"none")).decode())


def _of_one(function: Callable[[Tensor], Tensor]) -> _Rule:
    return lambda _, _node, inputs: function(inputs[0])


def _of_all(function: Callable[[Any, Any], Any]) -> _Rule:
    return lambda _, _node, inputs: reduce(function, inputs)


_RULES: dict[str, _Rule] = {
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "Pad": _pad,
    "BatchNormalization": _normalise,
    "LRN": _local_response,
    "Clip": _clip,
    "ReduceMean": _reduce_mean,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Slice": _slice,
    "Gemm": _gemm,
    "PRelu": _prelu,
    "HardSigmoid": _hard_sigmoid,
    "Gelu": _gelu,
    **{kind: _of_all(getattr(torch, kind.lower())) for kind in ("MatMul", "Add", "Sub", "Mul", "Div", "Pow")},
    "Sum": _of_all(torch.add),
    "Max": _of_all(torch.maximum),
    "Min": _of_all(torch.minimum),
    "Concat": lambda _, node, inputs: torch.cat(inputs, dim=node.attributes["axis"]),
    "Flatten": lambda _, node, inputs: torch.flatten(inputs[0], node.attributes.get("axis", 1)),
    "Softmax": lambda _, node, inputs: torch.softmax(inputs[0], node.attributes.get("axis", -1)),
    "LeakyRelu": lambda _, node, inputs: functional.leaky_relu(inputs[0], node.attributes.get("alpha", 0.01)),
    "Elu": lambda _, node, inputs: functional.elu(inputs[0], node.attributes.get("alpha", 1.0)),
    "GlobalAveragePool": _of_one(lambda x: x.mean(dim=(2, 3), keepdim=True)),
    "GlobalMaxPool": _of_one(lambda x: x.amax(dim=(2, 3), keepdim=True)),
    **dict.fromkeys(("Identity", "Dropout"), _of_one(lambda x: x)),
    **{kind: _of_one(getattr(functional, kind.lower())) for kind in ("HardSwish", "Mish", "Softplus", "Softsign")},
    **{kind: _of_one(getattr(torch, kind.lower())) for kind in ("Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt")},
    **{kind: _of_one(getattr(torch, kind.lower())) for kind in ("Abs", "Neg", "Erf", "Reciprocal")},
}
