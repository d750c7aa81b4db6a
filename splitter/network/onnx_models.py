"""Builders of ONNX models, and one-off sessions that run a model or a part of one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, shape_inference

from serfer.core.costs.sessions import set_threads
from serfer.core.errors import ModelError

IR_VERSION = 10
_ERRORS = 3
OPSET = 20
"""The opset of models that are written from nothing."""


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Iterable[onnx.TensorProto] = (),
    *,
    opset: int = OPSET,
    name: str = "graph",
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(*item) for item in (domains or {}).items())]
    graph = helper.make_graph(nodes, name, inputs, outputs, list(constants))
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def plain_options(*, optimized: bool = True) -> ort.SessionOptions:
    """Return options of a session whose threads do not spin: that took two thirds of a small model's processor time.

    It prints no warnings, such as that a resized map has another size than ONNX's shape inference says.
    """
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    set_threads(options, threads=0)
    return options


def session_of(
    model: onnx.ModelProto | Path, options: ort.SessionOptions | None = None, *, without: Collection[str] = ()
) -> ort.InferenceSession:
    """Return a session on the processor for a model or the file of one; `options` are `plain_options` unless given."""
    options = options or plain_options()
    source = model if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(source, options, ["CPUExecutionProvider"], disabled_optimizers=without)


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = (node for node in graph.node if node.op_type == "Constant" and node.attribute[0].name == "value")
    return constants | {node.output[0]: node.attribute[0].t for node in nodes}


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def static_shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Return a tensor's shape, with -1 for a size that is not known; that of a shape that is not known is ()."""
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims)


def inferred_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the `static_shape` of each tensor that has one in ONNX's inference."""
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    values = (*graph.value_info, *graph.output, *graph.input)
    return {value.name: static_shape(value) for value in values if value.type.tensor_type.HasField("shape")}


def run_once(
    model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None
) -> list[NDArray[Any]]:
    results: list[NDArray[Any]] = session_of(model).run(outputs, inputs)
    return results


def plain_message(error: Exception) -> str:
    """Return ONNX Runtime's message without its status, its own source's places and the path."""
    if wrong := re.findall(r"index: (\d+) Got: (\d+) Expected: (\d+)", str(error)):
        axes = ", ".join(f"{expected} on axis {axis}, not {got}" for axis, got, expected in wrong)
        return f"its input is fixed to {axes}: give that size, or none"
    place = r"/onnxruntime_src/.*?\) (?:const )?(?:\[.*?\] )?"
    inside = rf"^\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from .* failed:|{place}"
    return re.sub(inside, "", str(error).strip().partition("\n")[0])


@contextmanager
def naming_failure(what: str) -> Iterator[None]:
    """Raise ModelError that names `what` did not run, for whatever ONNX Runtime raises: for want of memory, say."""
    try:
        yield
    except Exception as error:  # ONNX Runtime has a class for each status, and none that they have in common
        raise ModelError(f"{what} does not run in ONNX Runtime: {plain_message(error)}") from error
