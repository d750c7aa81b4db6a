"""A network that runs as it is, whole: nothing of it is read but its input and its outputs (as_is.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from serfer.core.errors import ModelError
from serfer.core.plan import OutputTensor, PlanSizes
from serfer.core.plan.answers import Answer, as_answer, padded_along, shaped
from serfer.splitter.network.as_is import (
    IN_8_BITS,
    SIZE,
    AsIsNodes,
    GivenTensor,
    Reason,
    Result,
    Varying,
    as_is_nodes,
    opset_of,
)
from serfer.splitter.network.description import Reduction
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.ingest import PlainNetwork, with_static_input
from serfer.splitter.network.open_sizes import opened
from serfer.splitter.network.outputs import default_names, numpy_type
from serfer.splitter.network.reductions import reduced
from serfer.splitter.network.source import Run
from serfer.splitter.network.varying_sizes import varying_outputs

_ROUNDING_IN_8_BITS = 5e-2
"""How far an answer may be from ONNX Runtime's own, relative to its range: a few steps of 8 bits."""


def whole_network(
    model: ExternalWeightsModel,
    answers: Sequence[Answer],
    size: tuple[int, int],
    names: tuple[str, ...] = (),
    reasons: Sequence[Reason] = (),
    reduction: Reduction | None = None,
    sizes: Callable[[Sequence[Result]], PlanSizes] | None = None,
) -> PlainNetwork:
    """Return a model as one part that runs as it is; `answers` are its own to images of `size`, one by one.

    With `sizes`, which gives those of its results, it takes images of all of these.

    Raises ModelError where it does not take one image, or gives what no plan can hold.
    """
    light = with_static_input(model, *size)
    image = light.inputs[0]
    tensor = image.type.tensor_type
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    results = results_of(light, answers)
    part = as_is_nodes(
        light,
        light.proto.graph.node,
        [GivenTensor(image.name, shape[1:], inside=tensor.elem_type)],
        results,
        reasons,
        one_size=sizes is None,
    )
    forms = sizes(results) if sizes else None
    graph = replace(_graph(light, opened(part, forms) if forms else part, image.name, shape), sizes=forms)
    return described(graph, light.proto, names, {result.name: result for result in results}, reduction)


def results_of(model: ExternalWeightsModel, answers: Sequence[Answer]) -> list[Result]:
    """Return a model's outputs, each once, by its own answers to images, one by one.

    Of outputs whose size depends on the image, `dims` have the bound.
    """
    outputs = model.proto.graph.output
    given = [in_order(answer) for answer in answers]
    arrays = dict(zip((value.name for value in outputs), given[0], strict=True))
    varying = varying_outputs(model, given)
    return [
        _result(value, arrays[name], varying.get(name))
        for name, value in {value.name: value for value in outputs}.items()
    ]


def described(
    graph: Graph,
    model: onnx.ModelProto,
    names: tuple[str, ...],
    results: Mapping[str, Result],
    reduction: Reduction | None,
) -> PlainNetwork:
    """Return a graph with its outputs reduced, with their names (the model's own without `names`) and types.

    The sizes of outputs that depend on the image come last.
    """
    own = tuple(value.name for value in model.graph.output)
    sized = [output for output in own if results[output].varying]
    given = names or own
    given = given if sized else default_names(given, tuple((1, *results[output].dims) for output in own))
    tensors = [_tensor(name, results[output]) for output, name in zip(own, given, strict=True)]
    tensors += [OutputTensor(f"{tensor.name}{SIZE}", (), "int64") for tensor in tensors if tensor.sized_by]
    graph = replace(graph, outputs=(*own, *(results[output].size_name for output in sized)))
    graph, changed = reduced(graph, reduction, [tensor.name for tensor in tensors]) if reduction else (graph, {})
    types = tuple(changed.get(number, tensor.dtype) for number, tensor in enumerate(tensors))
    return PlainNetwork(graph, tuple(tensor.name for tensor in tensors), types, tuple(tensors))


def _tensor(name: str, result: Result) -> OutputTensor:
    kind = numpy_type(result.kind, name, cast=True)
    if result.varying is None:
        return OutputTensor(name, result.dims, kind)
    return OutputTensor(name, result.dims, kind, f"{name}{SIZE}", result.varying.axis - result.leading)


def in_order(answer: Answer) -> list[NDArray[Any]]:
    return list(answer.values()) if isinstance(answer, dict) else [answer]


def image_by_image(run: Run, tensors: Sequence[OutputTensor], *, any_size: bool = False) -> Run:
    """Return a model as a function of a batch that computes one image at a time, as its part in a plan does.

    `tensors` describe the plan's outputs: those without an axis for images get one, those whose size depends on the
    image are as large as the largest of the batch. With `any_size`, they have other sizes for images of other sizes.
    """
    own = [tensor for tensor in tensors if not any(other.sized_by == tensor.name for other in tensors)]

    def alone(image: NDArray[np.float32]) -> list[NDArray[Any]]:
        values = list(zip(own, in_order(run(image)), strict=True))
        sizes = [np.array([_whole(value, tensor).shape[tensor.axis]]) for tensor, value in values if tensor.sized_by]
        if any_size:
            return [_whole(value, tensor)[None] for tensor, value in values]
        return [*(_of_one_image(value, tensor) for tensor, value in values), *sizes]

    def batched(batch: NDArray[np.float32]) -> Answer:
        parts = [np.concatenate(values) for values in zip(*(alone(image[None]) for image in batch), strict=True)]
        given = [replace(tensor, dims=value.shape[1:]) for tensor, value in zip(tensors, parts, strict=True)]
        return as_answer(shaped(given if any_size else tensors, parts))

    return batched


def _whole(value: NDArray[Any], tensor: OutputTensor) -> NDArray[Any]:
    return value[0] if value.ndim > len(tensor.dims) and len(value) == 1 else value


def _of_one_image(value: NDArray[Any], tensor: OutputTensor) -> NDArray[Any]:
    whole = _whole(value, tensor)
    if tensor.sized_by:
        whole = padded_along(whole, tensor.axis, tensor.dims[tensor.axis])
    if whole.shape != tensor.dims:
        raise ModelError(
            f"the size of the model's output {tensor.name!r} depends on the image: {whole.shape} of one, {tensor.dims} "
            "of another, and ONNX does not tell by which operator; export it with outputs of one size"
        )
    return whole[None]


def _dims(value: NDArray[Any]) -> tuple[int, ...]:
    return value.shape[1:] if value.shape[:1] == (1,) else value.shape


def _result(value: onnx.ValueInfoProto, array: NDArray[Any], varying: Varying | None) -> Result:
    kind = value.type.tensor_type.elem_type or helper.np_dtype_to_tensor_dtype(array.dtype)
    numpy_type(kind, value.name, cast=True)
    if varying is None:
        if not array.size:
            raise ModelError(f"the model's output {value.name!r} is empty; give an example of larger images")
        return Result(value.name, kind, _dims(array), array.shape[:1] == (1,))
    leading = varying.axis > 0 and array.shape[:1] == (1,)
    shape = [varying.bound if axis == varying.axis else size for axis, size in enumerate(array.shape)]
    return Result(value.name, kind, tuple(shape[leading:]), leading, varying)


def _graph(model: ExternalWeightsModel, part: AsIsNodes, image: str, shape: tuple[int, ...]) -> Graph:
    kinds = {node.op_type for node in model.proto.graph.node}
    return Graph(
        part.nodes,
        part.weights,
        image,
        (),
        {image: shape, **part.shapes},
        opset_of(model.proto),
        others=part.bundles,
        rounding=_ROUNDING_IN_8_BITS if kinds & IN_8_BITS else 0.0,
    )
