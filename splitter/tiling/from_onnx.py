"""The graph of an ONNX model: plain operators, of whose tensors it is known where they have rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx

from serfer.core.errors import ModelError
from serfer.core.plan import InputSizes, PlanSizes
from serfer.core.plan.answers import Answer
from serfer.core.plan.sizes import Size
from serfer.splitter.network.as_is import BRANCHING, SIZED_BY_DATA, Reason, Result
from serfer.splitter.network.as_is_tail import with_as_is_tail
from serfer.splitter.network.description import Reduction
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.graph import MAP_RANK, NCHW, Axes, Graph
from serfer.splitter.network.ingest import PlainNetwork, plain_network
from serfer.splitter.network.open_sizes import plan_sizes
from serfer.splitter.network.outputs import with_described_outputs
from serfer.splitter.network.source import Array, Source
from serfer.splitter.network.unsupported import CannotSplitError
from serfer.splitter.network.whole_network import image_by_image, whole_network
from serfer.splitter.tiling.operators import axes_of_output, reduced_axes


def from_onnx(
    model: onnx.ModelProto | ExternalWeightsModel,
    height: int,
    width: int,
    names: tuple[str, ...] = (),
    reduction: Reduction | None = None,
    *,
    any_size: bool = False,
) -> Graph:
    """Make the graph of an ONNX model at an input of height x width; `names` are the outputs', if not the model's own.

    A `reduction` is appended to it. With `any_size`, no operator has a form that it has on small maps alone, so that
    graphs of all sizes are alike.
    Raises ModelError for a model that is not one image in, and tensors with images on their first axis out.
    """
    plain = plain_network(model, height, width, names, reduction, any_size=any_size)
    return _with_axes(with_described_outputs(_with_axes(plain.graph), plain.outputs, plain.types))


def whole_graph(
    source: Source,
    sample: Array,
    reasons: Sequence[Reason] = (),
    reduction: Reduction | None = None,
    sizes: InputSizes | None = None,
) -> tuple[Graph, Source]:
    """Return the graph of a network that runs as it is, whole, from its answers to an image, (N, C, H, W) float32.

    With `sizes`, of which the image has the largest, it takes images of all of them.
    With it comes the source, which then computes one image at a time, as that part does. `reasons` say what keeps it
    together. Raises ModelError where it does not take one image, or does not run.
    """
    height, width = sample.shape[2:]
    forms = partial(_forms, source, sample, sizes) if sizes else None
    answers = _answers(source, sample)
    plain = whole_network(source.onnx, answers, (height, width), source.outputs, reasons, reduction, forms)
    return _finished(source, plain)


def split_graph(
    source: Source, sample: Array, refusal: CannotSplitError, reduction: Reduction | None = None
) -> tuple[Graph, Source]:
    """Return the graph of a network of which the least part runs as it is, and the source, as `whole_graph` does.

    `refusal` says why not all of it can be split.
    """
    answers, (height, width) = _answers(source, sample), sample.shape[2:]
    plain = with_as_is_tail(source.onnx, answers, (height, width), source.outputs, refusal, reduction)
    if plain is None:
        plain = whole_network(source.onnx, answers, (height, width), source.outputs, [refusal.reason], reduction)
    return _finished(source, plain)


def _forms(source: Source, sample: Array, sizes: InputSizes, results: Sequence[Result]) -> PlanSizes:
    if source.exported:
        raise ModelError(
            "a range of sizes is for .onnx files whose rows and columns are open: export the module with dynamic axes, "
            "and give that file"
        )
    random = np.random.default_rng(3)

    def image(size: Size) -> Array:
        return source.like_images(random.random((1, sample.shape[1], *size), dtype=np.float32))

    return plan_sizes(source.run, image, sizes, results)


def _answers(source: Source, sample: Array) -> list[Answer]:
    """Return the model's answers to the sample; and where sizes may depend on the image, to others, one by one."""
    answers = [source.run(sample[:1])]
    if any(node.op_type in SIZED_BY_DATA | BRANCHING for node in source.onnx.proto.graph.node):
        noise = np.random.default_rng(2).random((1, *sample.shape[1:]), dtype=np.float32)
        answers += [source.run(image) for image in (noise, np.zeros_like(noise))]
    return answers


def _finished(source: Source, plain: PlainNetwork) -> tuple[Graph, Source]:
    graph = _with_axes(with_described_outputs(_with_axes(plain.graph), plain.outputs, plain.types))
    sized = {tensor.name: tensor for tensor in plain.given if tensor.sized_by}
    answers = tuple(
        replace(tensor, sized_by=sized[tensor.name].sized_by, axis=sized[tensor.name].axis)
        if tensor.name in sized
        else tensor
        for tensor in graph.answers
    )
    run = image_by_image(source.run, plain.given, any_size=graph.sizes is not None)
    return replace(graph, answers=answers), replace(source, run=run)


def _with_axes(graph: Graph) -> Graph:
    axes: dict[str, Axes] = {}
    for node in graph.nodes:
        known = replace(graph, places=axes)
        own = axes_of_output(known, node) or reduced_axes(known, node)
        default = NCHW if len(graph.shapes[node.output]) == MAP_RANK else None
        if own is not None and own != default:
            axes[node.output] = own
    return replace(graph, places=axes)
