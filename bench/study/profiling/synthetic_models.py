"""Synthetic models: small ONNX graphs with random shapes, for shapes and operators that the networks lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.random import Generator
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serfer.splitter.network.onnx_models import model_of

_CHANNELS = (16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512)
_WINDOWS = ((1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (5, 5), (1, 7), (7, 1), (1, 3))
_ACTIVATIONS = ("Relu", "Relu", "Clip", "Clip", "HardSwish", "Sigmoid")
_MOST_MACS, _MOST_ELEMENTS = 2e8, 1_500_000


class _GraphBuilder:
    def __init__(self, rng: Generator, shape: Sequence[int]) -> None:
        self.rng = rng
        self._shape = list(shape)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[TensorProto] = []

    def constant(self, value: NDArray[Any] | np.float32) -> str:
        self._constants.append(numpy_helper.from_array(np.asarray(value), f"c{len(self._constants)}"))
        return self._constants[-1].name

    def floats(self, *shape: int) -> str:
        return self.constant(self.rng.standard_normal(shape, dtype=np.float32) * np.float32(prod(shape[1:]) ** -0.5))

    def add(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:  # noqa: ANN401 - ONNX's attributes
        name = f"t{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def convolution(self, source: str, inputs: int, outputs: int, window: Sequence[int], **attributes: Any) -> str:  # noqa: ANN401
        weight = self.floats(outputs, inputs // attributes.get("group", 1), *window)
        pads = [size // 2 for size in window] * 2
        return self.add("Conv", [source, weight], kernel_shape=list(window), pads=pads, **attributes)

    def activation(self, source: str) -> str:
        kind = str(self.rng.choice(_ACTIVATIONS))
        bounds = [self.constant(np.float32(0)), self.constant(np.float32(6))] if kind == "Clip" else []
        return self.add(kind, [source, *bounds])

    def model(self, output: str) -> onnx.ModelProto:
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *self._shape[1:]])
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        return model_of(self._nodes, [given], [result], self._constants)


def synthetic_models(rng: Generator, rounds: int) -> Iterator[onnx.ModelProto]:
    for _ in range(rounds):
        for sort in _SORTS:
            yield sort(rng)


def _side(rng: Generator, largest: float) -> int:
    return int(np.exp(rng.uniform(np.log(4), np.log(max(5.0, largest)))))


def _map(rng: Generator, channels: int, most: float = _MOST_ELEMENTS) -> _GraphBuilder:
    side = min(120.0, (most / channels) ** 0.5)
    return _GraphBuilder(rng, (1, channels, _side(rng, side), _side(rng, side)))


def _dense(rng: Generator) -> onnx.ModelProto:
    inputs, outputs = (int(count) for count in rng.choice(_CHANNELS, 2))
    window = _WINDOWS[int(rng.integers(len(_WINDOWS)))]
    builder = _map(rng, inputs, min(_MOST_ELEMENTS, _MOST_MACS / (outputs * prod(window))))
    stride = int(rng.choice((1, 1, 1, 2)))
    first = builder.convolution("x", inputs, outputs, window, strides=[stride, stride])
    return builder.model(builder.convolution(builder.activation(first), outputs, 32, (1, 1)))


def _image(rng: Generator) -> onnx.ModelProto:
    inputs, outputs = int(rng.choice((1, 3, 3, 4))), int(rng.choice((16, 24, 32, 48, 64, 96)))
    window, stride = int(rng.choice((3, 3, 5, 7, 11))), int(rng.choice((1, 2, 2, 4)))
    most = min(200_000 * stride, _MOST_MACS * stride**2 / (outputs * window**2))
    builder = _map(rng, inputs, most)
    first = builder.convolution("x", inputs, outputs, (window, window), strides=[stride, stride])
    return builder.model(builder.activation(first))


def _depthwise(rng: Generator) -> onnx.ModelProto:
    channels, window = int(rng.choice(_CHANNELS)), int(rng.choice((3, 3, 5, 7)))
    builder, stride = _map(rng, channels), int(rng.choice((1, 1, 2)))
    wide = builder.activation(builder.convolution("x", channels, channels, (1, 1)))
    thin = builder.convolution(wide, channels, channels, (window, window), group=channels, strides=[stride, stride])
    return builder.model(builder.convolution(builder.activation(thin), channels, 16, (1, 1)))


def _grouped(rng: Generator) -> onnx.ModelProto:
    groups, each = int(rng.choice((2, 4, 8, 32))), int(rng.choice((4, 16, 16, 32, 48, 64)))
    channels = groups * each
    builder = _map(rng, channels, _MOST_MACS / (each * 9))
    return builder.model(builder.activation(builder.convolution("x", channels, channels, (3, 3), group=groups)))


def _unaligned(rng: Generator) -> onnx.ModelProto:
    inputs, outputs = int(rng.choice((18, 30, 50, 75))), int(rng.choice(_CHANNELS))
    builder = _map(rng, inputs, _MOST_MACS / (outputs * 9))
    return builder.model(builder.convolution("x", inputs, outputs, (3, 3)))


def _fully_connected(rng: Generator) -> onnx.ModelProto:
    inputs = int(rng.choice((256, 512, 1024, 1280, 2048, 4096, 9216)))
    outputs = int(rng.choice((10, 100, 256, 512, 1000, 1000, 2048, 4096)))
    builder = _GraphBuilder(rng, (1, inputs))
    vector = builder.add("Gemm", ["x", builder.floats(outputs, inputs), builder.floats(outputs)], transB=1)
    return builder.model(builder.add("Relu", [vector]))


def _matrix(rng: Generator) -> onnx.ModelProto:
    builder = _map(rng, int(rng.choice(_CHANNELS)), 300_000)
    width = builder._shape[3]  # noqa: SLF001 - the same module
    return builder.model(builder.add("MatMul", ["x", builder.floats(width, int(rng.choice((6, 7, 14, 32))))]))


def _pool(rng: Generator) -> onnx.ModelProto:
    channels, window, stride = int(rng.choice(_CHANNELS)), int(rng.choice((2, 3, 3, 5))), int(rng.choice((1, 2, 2)))
    builder, kind = _map(rng, channels), str(rng.choice(("MaxPool", "AveragePool")))
    wide = builder.convolution("x", channels, channels, (1, 1))
    attributes = {"kernel_shape": [window, window], "strides": [stride, stride], "pads": [window // 2] * 4}
    return builder.model(builder.add(kind, [wide], **attributes))


def _reduce(rng: Generator) -> onnx.ModelProto:
    builder = _map(rng, int(rng.choice(_CHANNELS)))
    mean = builder.add("ReduceMean", ["x", builder.constant(np.array([2, 3]))])
    pooled = builder.add("GlobalAveragePool", ["x"])
    return builder.model(builder.add("Add", [mean, pooled]))


def _elementwise(rng: Generator) -> onnx.ModelProto:
    builder = _map(rng, int(rng.choice(_CHANNELS)))
    total = builder.add("Add", ["x", builder.add("Relu", ["x"])])
    return builder.model(builder.add("Mul", [total, builder.add("GlobalAveragePool", [total])]))


def _functions(rng: Generator) -> onnx.ModelProto:
    builder = _map(rng, int(rng.choice(_CHANNELS)), 300_000)
    value = "x"
    for kind in rng.choice(("HardSwish", "Sigmoid", "Tanh", "Exp", "Erf", "HardSigmoid"), 3, replace=False):
        value = builder.add(str(kind), [value])
    return builder.model(value)


def _copies(rng: Generator) -> onnx.ModelProto:
    channels = int(rng.choice((12, 20, 40, 72)))
    builder = _map(rng, channels)
    joined = builder.add("Concat", ["x", builder.add("Relu", ["x"])], axis=1)
    bounds = [builder.constant(np.array(value)) for value in ([1, 1], [np.iinfo(np.int64).max] * 2, [2, 3])]
    part = builder.add("Slice", [joined, *bounds])
    padded = builder.add("Pad", [part, builder.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))])
    return builder.model(builder.add("Transpose", [padded], perm=[0, 2, 3, 1]))


def _cropped(rng: Generator) -> onnx.ModelProto:
    channels = int(rng.choice(_CHANNELS))
    builder = _map(rng, channels, 300_000)
    wide = builder.convolution("x", channels, channels, (1, 1))
    bounds = [builder.constant(np.array(value)) for value in ([1, 1], [np.iinfo(np.int64).max] * 2, [2, 3])]
    return builder.model(builder.convolution(builder.add("Slice", [wide, *bounds]), channels, 16, (1, 1)))


_SORTS: tuple[Callable[[Generator], onnx.ModelProto], ...] = (
    *(_dense, _dense, _dense, _image, _depthwise, _depthwise, _grouped, _grouped, _unaligned, _fully_connected),
    *(_fully_connected, _matrix, _pool, _reduce, _elementwise, _functions, _copies, _cropped),
)
