"""Batched inference: a graph as one plain ONNX model, run over many images for a head's inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serfer.splitter.network.graph import Graph, Node, needed_for
from serfer.splitter.network.onnx_models import model_of, session_of
from serfer.splitter.tiling import operators

Array = NDArray[np.float32]
Progress = Callable[[str], None]
_BATCH_BYTES = 256 * 1024 * 1024
_MOST_IMAGES = 64


def onnx_of(graph: Graph, *outputs: str) -> onnx.ModelProto:
    """Write the part of a graph that `outputs` depend on, with a free batch axis and constants inside."""
    nodes = needed_for(graph.nodes, outputs)
    read = {name for node in nodes for name in node.inputs}
    return model_of(
        [_proto(node) for node in nodes],
        [_value(graph, graph.input)],
        [_value(graph, name) for name in outputs],
        [numpy_helper.from_array(np.ascontiguousarray(graph.weights[n]), n) for n in graph.weights if n in read],
        opset=graph.opset,
    )


def _proto(node: Node) -> onnx.NodeProto:
    return helper.make_node(node.kind, list(node.inputs), [node.output], name=node.name, **node.attributes)


def _value(graph: Graph, name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *graph.shapes[name][1:]])


def batch_size(graph: Graph) -> int:
    """Return the images in a batch: as many as keep all activations within a quarter of a GiB."""
    values = sum(int(np.prod(shape)) for shape in graph.shapes.values())
    return int(np.clip(_BATCH_BYTES // (4 * values), 1, _MOST_IMAGES))


def macs(graph: Graph, nodes: Sequence[Node]) -> int:
    return sum(operators.macs(graph, node, int(np.prod(graph.shapes[node.output][2:]))) for node in nodes)


def pooled_and_logits(
    graph: Graph, trunk_end: str, logits: str, images: Array, progress: Progress
) -> tuple[Array, Array]:
    """Return the means (N, C) of the map `trunk_end` and the vectors (N, K) `logits` for images (N, C, H, W)."""
    session = session_of(onnx_of(graph, trunk_end, logits))
    pooled, answers = [], []
    size = batch_size(graph)
    for start in range(0, len(images), size):
        progress(f"{start} of {len(images)} images looked at")
        maps, scores = session.run(None, {graph.input: images[start : start + size]})
        pooled.append(maps.mean(axis=(2, 3), dtype=np.float64).astype(np.float32))
        answers.append(scores)
    return np.concatenate(pooled), np.concatenate(answers)


def answers(graph: Graph, images: Array) -> Array:
    session = session_of(onnx_of(graph, graph.output))
    size = batch_size(graph)
    batches = (images[start : start + size] for start in range(0, len(images), size))
    return np.concatenate([session.run(None, {graph.input: batch})[0] for batch in batches])
