"""A network's outputs in the form in which the last stage writes them: float32 maps (N, C, H, W) and vectors (N, K).

What the network gives in another form, of another type or rank, is brought to it by operators at the end, and described
so that the answer gets its own form back.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from onnx import TensorProto

from serfer.core.plan import MAX_RANK, OUTPUT_TYPES, SCORES, OutputTensor
from serfer.splitter.network.canonicalize import Rewriter
from serfer.splitter.network.graph import MAP_RANK, NCHW, VECTOR_RANK, Graph, Node
from serfer.splitter.network.unsupported import CannotSplitError

MOST_OUTPUTS = 16
_FLOAT = OUTPUT_TYPES[0]
_NEAREST: dict[int, str] = {
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.BFLOAT16), _FLOAT),
    **dict.fromkeys((TensorProto.INT8, TensorProto.INT16, TensorProto.UINT16), "int32"),
    **dict.fromkeys((TensorProto.UINT32, TensorProto.UINT64), "int64"),
}
"""The types that outputs of other types are brought to."""


def with_described_outputs(graph: Graph, names: tuple[str, ...], types: tuple[str, ...]) -> Graph:
    """Return the graph with each output as a float32 map or vector, all made at its end, and described.

    `names` are what callers know the outputs by, `types` their numpy types. A network with one output (N, K) float32 is
    returned as it is: it classifies. Raises ModelError for an output whose first axis does not count images.
    """
    answers = tuple(
        OutputTensor(name, _dims(graph, tensor, name), kind)
        for tensor, name, kind in zip(graph.outputs, names, types, strict=True)
    )
    only = answers[0]
    if len(answers) == 1 and (len(only.dims), only.dtype) == (1, _FLOAT) and graph.last_use(graph.output) < 0:
        return graph
    rewriter = Rewriter(graph)
    rewriter.nodes.extend(graph.nodes)
    outputs = tuple(_finished(rewriter, tensor, alone=len(answers) == 1) for tensor in graph.outputs)
    return replace(rewriter.done(), outputs=outputs, answers=answers)


def default_names(given: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
    """Return the names of outputs: those given, but for the only output of a network that classifies."""
    return (SCORES,) if len(shapes) == 1 and len(shapes[0]) == VECTOR_RANK else given


def numpy_type(kind: int, name: str, *, cast: bool = False) -> str:
    """Return the numpy type of an output by its ONNX type; with `cast`, the nearest one that a plan can hold.

    Raises ModelError where no plan can hold it.
    """
    types: dict[int, str] = {
        TensorProto.FLOAT: _FLOAT,
        TensorProto.FLOAT16: _FLOAT,
        TensorProto.INT64: "int64",
        TensorProto.INT32: "int32",
        TensorProto.UINT8: "uint8",
        TensorProto.BOOL: "bool",
    }
    if cast:
        types = _NEAREST | types
    if kind not in types:
        known = ", ".join(OUTPUT_TYPES)
        raise CannotSplitError(
            f"the model's output {name!r} is {TensorProto.DataType.Name(kind)}; outputs may be {known}: cast it"
        )
    return types[kind]


def _dims(graph: Graph, tensor: str, name: str) -> tuple[int, ...]:
    images, *dims = graph.shapes[tensor] or (0,)
    if images != 1 or len(dims) > MAX_RANK:
        raise CannotSplitError(
            f"the model's output {name!r} has shape {graph.shapes[tensor]} for one image: outputs have images on their "
            f"first axis, (N, ...), and at most {MAX_RANK} axes besides"
        )
    return tuple(dims)


def _finished(rewriter: Rewriter, tensor: str, *, alone: bool) -> str:
    graph, shape, last = rewriter.graph, rewriter.graph.shapes[tensor], tensor
    if tensor in graph.others:
        last = rewriter.add(
            Node(f"{tensor}.float", "Cast", (last,), f"{tensor}.float", {"to": TensorProto.FLOAT}), shape
        )
    axes = graph.axes(tensor)
    if len(shape) == MAP_RANK - 1 and axes == (1, 2):
        place = rewriter.constant(f"{tensor}.channel", np.array([1]))
        last = rewriter.add(Node(f"{tensor}.map", "Unsqueeze", (last, place), f"{tensor}.map"), (1, 1, *shape[1:]))
    elif len(shape) != VECTOR_RANK and axes != NCHW:
        last = rewriter.add(
            Node(f"{tensor}.flat", "Flatten", (last,), f"{tensor}.flat", {"axis": 1}), (1, prod(shape[1:]))
        )
    if last == tensor and (not alone or graph.last_use(tensor) >= 0):
        last = rewriter.add(Node(f"{tensor}.output", "Identity", (last,), f"{tensor}.output"), shape)
    return last
