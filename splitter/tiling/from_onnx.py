"""The graph of an ONNX model: plain operators, of whose tensors it is known where they have rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx

from splitter.network.as_is import Reason
from splitter.network.as_is_tail import with_as_is_tail
from splitter.network.description import Reduction
from splitter.network.external_weights import ExternalWeightsModel
from splitter.network.graph import MAP_RANK, NCHW, Axes, Graph
from splitter.network.ingest import plain_network
from splitter.network.outputs import with_described_outputs
from splitter.network.source import Array, Source
from splitter.network.unsupported import CannotSplitError
from splitter.network.whole_network import image_by_image, whole_network
from splitter.tiling.operators import axes_of_output


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
    source: Source, sample: Array, reasons: Sequence[Reason] = (), reduction: Reduction | None = None
) -> tuple[Graph, Source]:
    """Return the graph of a network that runs as it is, whole, from its answer to an image, (N, C, H, W) float32.

    With it comes the source, which then computes one image at a time, as that part does. `reasons` say what keeps it
    together. Raises ModelError where it does not take one image, or does not run.
    """
    answer = source.run(sample[:1])
    height, width = sample.shape[2:]
    plain = whole_network(source.onnx, answer, (height, width), source.outputs, reasons, reduction)
    graph = _with_axes(with_described_outputs(_with_axes(plain.graph), plain.outputs, plain.types))
    return graph, replace(source, run=image_by_image(source.run, answer))


def split_graph(
    source: Source, sample: Array, refusal: CannotSplitError, reduction: Reduction | None = None
) -> tuple[Graph, Source]:
    """Return the graph of a network of which the least part runs as it is, and the source, as `whole_graph` does.

    `refusal` says why not all of it can be split.
    """
    answer = source.run(sample[:1])
    height, width = sample.shape[2:]
    plain = with_as_is_tail(source.onnx, answer, (height, width), source.outputs, refusal, reduction)
    if plain is None:
        return whole_graph(source, sample, [refusal.reason], reduction)
    graph = _with_axes(with_described_outputs(_with_axes(plain.graph), plain.outputs, plain.types))
    return graph, replace(source, run=image_by_image(source.run, answer))


def _with_axes(graph: Graph) -> Graph:
    """Follow rows and columns through transposes, reshapes and the like."""
    axes: dict[str, Axes] = {}
    for node in graph.nodes:
        own = axes_of_output(replace(graph, places=axes), node)
        default = NCHW if len(graph.shapes[node.output]) == MAP_RANK else None
        if own is not None and own != default:
            axes[node.output] = own
    return replace(graph, places=axes)
