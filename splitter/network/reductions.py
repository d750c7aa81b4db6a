"""Reductions that make answers small: the first map of a network's outputs is resized, and becomes scores or classes.

They are appended to the graph, so that each tile of the last stage reduces its own part. `reduced_answer` does the same
to a model's own answer in numpy: what a plan with a reduction is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ModelError, UsageError
from serfer.core.plan import OutputTensor
from serfer.core.plan.answers import Answer
from serfer.core.units import FLOAT_BYTES
from serfer.splitter.network.canonicalize import Rewriter
from serfer.splitter.network.description import ARGMAX, SIGMOID, SOFTMAX, Reduction
from serfer.splitter.network.graph import MAP_RANK, Graph, Node
from serfer.splitter.network.source import Source

_Array = NDArray[np.float32]
_CHANNELS = 1  # the axis
_BYTE = 256
_KINDS = {SOFTMAX: "Softmax", SIGMOID: "Sigmoid", ARGMAX: "ArgMax"}
_ATTRIBUTES = {SOFTMAX: {"axis": _CHANNELS}, SIGMOID: {}, ARGMAX: {"axis": _CHANNELS, "keepdims": 0}}


def reduced(graph: Graph, reduction: Reduction, names: Sequence[str]) -> tuple[Graph, dict[int, str]]:
    """Return the graph with an output (N, C, H, W) reduced, and the numpy type of each output that has another.

    `names` are those of the outputs. Raises ModelError where the output that is reduced is not a map of float32, or has
    one channel, so that there are no classes to choose from.
    """
    shapes = [graph.shapes[name] if name not in graph.others else () for name in graph.outputs]
    number = _place(shapes, names, reduction.output)
    before = graph.shapes[graph.outputs[number]]
    if (reduction.kind, reduction.size) != (SIGMOID, None) and _has_channels_last(before, graph.shapes[graph.input]):
        raise ModelError(
            f"--reduce takes (N, C, H, W), and the output {names[number]!r}, {before}, has its channels last: leave "
            "reduce out and reduce the answers' last axis, or export the network with channels first"
        )
    if reduction.kind == ARGMAX and before[_CHANNELS] == 1:
        raise ModelError("--reduce argmax: the output has one channel, so there are no classes to choose from")
    rewriter = Rewriter(graph)
    rewriter.nodes.extend(graph.nodes)
    tensor, shape = graph.outputs[number], before
    if reduction.size is not None:
        tensor, shape = _resized(rewriter, tensor, (*shape[:2], *reduction.size))
    if reduction.kind is not None:
        shape = (shape[0], *shape[2:]) if reduction.kind == ARGMAX else shape
        name = f"{tensor}.{reduction.kind}"
        kind, attributes = _KINDS[reduction.kind], _ATTRIBUTES[reduction.kind]
        tensor = rewriter.add(Node(name, kind, (tensor,), name, dict(attributes)), shape)
    outputs = (*graph.outputs[:number], tensor, *graph.outputs[number + 1 :])
    chosen = {tensor} if reduction.kind == ARGMAX else set()
    made = replace(
        rewriter.done(),
        outputs=outputs,
        others=graph.others | chosen,
        unreduced=(number, FLOAT_BYTES * prod(before[1:])),
    )
    return made, {number: class_type(before[_CHANNELS])} if chosen else {}


def _has_channels_last(shape: tuple[int, ...], image: tuple[int, ...]) -> bool:
    """Return whether the image's ratio of sides, up to what a stride rounds off, is that of a map's first two axes."""
    first, last = (abs(rows * image[3] - columns * image[2]) < max(image[2:]) for rows, columns in pairwise(shape[1:]))
    return first and not last


def check_one_to_reduce(tensors: Sequence[OutputTensor]) -> None:
    if len(tensors) > 1:
        names = [tensor.name for tensor in tensors]
        outputs = ", ".join(names)
        raise UsageError(f"the network has the outputs {outputs}: say which, such as --reduce {names[0]}=argmax")


def class_type(classes: int) -> str:
    return "uint8" if classes <= _BYTE else "int64"


def reduced_answer(answer: Answer, reduction: Reduction) -> Answer:
    if not isinstance(answer, Mapping):
        _place([answer.shape if answer.dtype == np.float32 else ()], [reduction.output or ""], reduction.output)
        return _reduced(answer, reduction)
    shapes = [values.shape if values.dtype == np.float32 else () for values in answer.values()]
    name = [*answer][_place(shapes, [*answer], reduction.output)]
    return {**answer, name: _reduced(answer[name], reduction)}


def _place(shapes: Sequence[tuple[int, ...]], names: Sequence[str], wanted: str | None) -> int:
    """Return the number of the `wanted` output, or of the first map; outputs of other types have no shape here."""
    if wanted is not None and wanted not in names:
        raise ModelError(f"--reduce {wanted}=...: the network has no such output: its outputs are {', '.join(names)}")
    for number, shape in enumerate(shapes):
        if len(shape) == MAP_RANK and wanted in (None, names[number]):
            return number
    raise ModelError("reduce and resize_output need an output that is a map, (N, C, H, W) float32")


def _resized(rewriter: Rewriter, tensor: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    name = f"{tensor}.resized"
    sizes = rewriter.constant(f"{name}.sizes", np.array(shape))
    attributes = {"mode": b"linear", "coordinate_transformation_mode": b"half_pixel"}
    return rewriter.add(Node(name, "Resize", (tensor, "", "", sizes), name, attributes), shape), shape


def _reduced(values: _Array, reduction: Reduction) -> NDArray[Any]:
    if reduction.size is not None:
        for axis, size in zip((2, 3), reduction.size, strict=True):
            values = _linear(values, axis, size)
    result: NDArray[Any] = values
    if reduction.kind == ARGMAX:
        result = values.argmax(_CHANNELS).astype(class_type(values.shape[_CHANNELS]))
    elif reduction.kind == SOFTMAX:
        powers = np.exp(values - values.max(_CHANNELS, keepdims=True))
        result = powers / powers.sum(_CHANNELS, keepdims=True)
    elif reduction.kind == SIGMOID:
        result = np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * values))  # exp would overflow
    return result


def _linear(values: _Array, axis: int, size: int) -> _Array:
    have = values.shape[axis]
    places = np.clip((np.arange(size) + 0.5) * (have / size) - 0.5, 0, have - 1)
    first = np.floor(places).astype(np.int64)
    second = np.minimum(first + 1, have - 1)
    shares = (places - first).astype(np.float32).reshape([-1 if other == axis else 1 for other in range(values.ndim)])
    mixed: _Array = values.take(first, axis) * (1 - shares) + values.take(second, axis) * shares
    return mixed


def of_one_class(answer: Answer) -> bool:
    """Return whether all maps of whole numbers in an answer, of which there are some, have one value everywhere.

    Comparing others with such maps says little: they agree as long as the same class is largest.
    """
    outputs = answer.values() if isinstance(answer, Mapping) else [answer]
    masks = [values for values in outputs if values.ndim > 1 and values.dtype.kind in "ui"]
    return bool(masks) and all(mask.min() == mask.max() for mask in masks)


def of_probabilities(graph: Graph) -> bool:
    made = {node.output: node.kind for node in graph.nodes}
    return all(made.get(name) == "Sigmoid" for name in graph.outputs)


def with_reduction(source: Source, reduction: Reduction | None) -> Source:
    if reduction is None:
        return source
    run, chosen = source.run, reduction
    return replace(source, run=lambda batch: reduced_answer(run(batch), chosen))
