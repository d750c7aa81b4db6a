"""A network that runs as it is, whole: nothing of it is read but its input and its outputs (as_is.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.inliner
from numpy.typing import NDArray
from onnx import helper, shape_inference

from serfer.core.errors import ModelError
from serfer.core.plan.answers import Answer, Outputs
from splitter.network import whole_numbers
from splitter.network.as_is import (
    IN_8_BITS,
    SIZED_BY_DATA,
    AsIsNodes,
    Given,
    Reason,
    Result,
    as_is_nodes,
    names_read,
    opset_of,
)
from splitter.network.description import Reduction
from splitter.network.external_weights import ExternalWeightsModel
from splitter.network.graph import Graph
from splitter.network.ingest import PlainNetwork, with_static_input
from splitter.network.outputs import default_names, numpy_type
from splitter.network.reductions import reduced
from splitter.network.source import Run


def whole_network(
    model: ExternalWeightsModel,
    answer: Answer,
    size: tuple[int, int],
    names: tuple[str, ...] = (),
    reasons: Sequence[Reason] = (),
    reduction: Reduction | None = None,
) -> PlainNetwork:
    """Return a model as one part that runs as it is; `answer` is its own answer to one image of `size`.

    Raises ModelError where it does not take one image, or gives what no plan can hold.
    """
    light = _inlined(with_static_input(model, *size))
    image = light.inputs[0]
    tensor = image.type.tensor_type
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    results = results_of(light.proto, answer)
    _check_sizes(light)
    part = as_is_nodes(
        light,
        light.proto.graph.node,
        [Given(image.name, shape[1:], inside=tensor.elem_type)],
        results,
        reasons,
    )
    graph = _graph(light, part, image.name, shape)
    return described(graph, light.proto, names, {result.name: result for result in results}, reduction)


def results_of(model: onnx.ModelProto, answer: Answer) -> list[Result]:
    """Return a model's outputs, each once, as `answer`, its own answer to one image, has them."""
    arrays = dict(zip((value.name for value in model.graph.output), in_order(answer), strict=True))
    return [_result(value, arrays[name]) for name, value in {value.name: value for value in model.graph.output}.items()]


def described(
    graph: Graph,
    model: onnx.ModelProto,
    names: tuple[str, ...],
    results: Mapping[str, Result],
    reduction: Reduction | None,
) -> PlainNetwork:
    """Return a graph with its outputs reduced, with their names (the model's own without `names`) and types."""
    given = names or tuple(value.name for value in model.graph.output)
    outputs = zip(graph.outputs, given, strict=True)
    types = [numpy_type(results[output].kind, name, cast=True) for output, name in outputs]
    graph, changed = reduced(graph, reduction) if reduction else (graph, {})
    types = [changed.get(number, kind) for number, kind in enumerate(types)]
    return PlainNetwork(graph, default_names(given, tuple(graph.shapes[name] for name in graph.outputs)), tuple(types))


def in_order(answer: Answer) -> list[NDArray[Any]]:
    """Return the arrays of an answer in the order of the outputs."""
    return list(answer.values()) if isinstance(answer, dict) else [answer]


def image_by_image(run: Run, answer: Answer) -> Run:
    """Return a model as a function of a batch that computes one image at a time, as its part in a plan does.

    `answer` is the model's to one image: outputs without an axis for images get one.
    """
    known = {name: _dims(value) for name, value in _by_name(answer).items()}

    def alone(image: NDArray[np.float32]) -> Outputs:
        return {name: _of_one_image(value, known[name], name) for name, value in _by_name(run(image)).items()}

    def batched(batch: NDArray[np.float32]) -> Answer:
        answers = [alone(image[None]) for image in batch]
        outputs = {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}
        return outputs.get("", outputs)

    return batched


def _by_name(answer: Answer) -> Outputs:
    return answer if isinstance(answer, dict) else {"": answer}


def _dims(value: NDArray[Any]) -> tuple[int, ...]:
    """Return the shape of one image's output without an axis for images."""
    return value.shape[1:] if value.shape[:1] == (1,) else value.shape


def _of_one_image(value: NDArray[Any], dims: tuple[int, ...], name: str) -> NDArray[Any]:
    if value.shape not in (dims, (1, *dims)):
        raise ModelError(
            f"the size of the model's output {name} depends on the image: {value.shape} of one, "
            f"{(1, *dims)} of another; export it with outputs of one size"
        )
    wide = value.reshape(1, *dims)
    return wide.astype(np.float32) if wide.dtype in (np.float16, np.float64) else wide


def _result(value: onnx.ValueInfoProto, array: NDArray[Any]) -> Result:
    kind = value.type.tensor_type.elem_type or helper.np_dtype_to_tensor_dtype(array.dtype)
    numpy_type(kind, value.name, cast=True)
    if not array.size:
        raise ModelError(f"the model's output {value.name!r} is empty; give an example of larger images")
    return Result(value.name, kind, _dims(array), array.shape[:1] == (1,))


def _check_sizes(model: ExternalWeightsModel) -> None:
    """Refuse outputs whose size depends on the data."""
    sized = sized_by_data(model.proto)
    if sized:
        name, node = next(iter(sized.items()))
        kind = node.op_type
        raise ModelError(
            f"the size of the model's output {name!r} depends on the data, by operator {node.name or node.output[0]!r} "
            f"({kind}): export the network without it"
        )


def sized_by_data(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Return the outputs whose size ONNX does not infer, each with the operator before it that sizes by the data."""
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # noqa: BLE001 - it raises several kinds, and says nothing then
        inferred = model.graph
    known = {
        value.name: value.type.tensor_type
        for value in inferred.output
        if value.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
    makers = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for name in (value.name for value in model.graph.output if value.name not in known):
        before = [node for node in _before(makers, name) if node.op_type in SIZED_BY_DATA]
        if before:
            found[name] = before[0]
    return found


def _before(makers: Mapping[str, onnx.NodeProto], name: str) -> Iterator[onnx.NodeProto]:
    """Yield the operators that a tensor depends on, the nearest first."""
    waiting, seen = [name], set[str]()
    while waiting:
        node = makers.get(waiting.pop(0))
        if node is not None and node.output[0] not in seen:
            seen.add(node.output[0])
            yield node
            waiting.extend(names_read(node))


def _graph(model: ExternalWeightsModel, part: AsIsNodes, image: str, shape: tuple[int, ...]) -> Graph:
    kinds = {node.op_type for node in model.proto.graph.node}
    return Graph(
        part.nodes,
        part.weights,
        image,
        tuple(value.name for value in model.proto.graph.output),
        {image: shape, **part.shapes},
        opset_of(model.proto),
        others=part.bundles,
        rounding=whole_numbers.ROUNDING if kinds & IN_8_BITS else 0.0,
    )


def _inlined(model: ExternalWeightsModel) -> ExternalWeightsModel:
    """Return a model whose own functions are written out: a part is operators alone."""
    if not model.proto.functions:
        return model
    return replace(model, proto=onnx.inliner.inline_local_functions(model.proto))
