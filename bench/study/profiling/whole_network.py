"""The operators of a whole network, as one session runs them: what its time on cores is predicted from."""

from __future__ import annotations

from pathlib import Path

from serfer.core.costs.operator_costs import Work
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.source import load
from serfer.splitter.planning.ort_kernels import conversion_work, operator_work, output_work
from serfer.splitter.tiling.from_onnx import from_onnx


def whole_works(graph: Graph) -> list[Work]:
    """Return the work of a network in one piece, for one image; whole maps are never cropped."""
    image = graph.shape(graph.input).whole
    readers = [(node, image) for node in graph.nodes if graph.input in graph.activations(node)]
    works = conversion_work(graph, graph.input, image, readers, is_input=True)
    for node in graph.nodes:
        work = operator_work(graph, node, graph.shape(node.output).whole)
        works += [work] if work else []
    for name in graph.outputs:
        works += output_work(graph, name, graph.shape(name).whole, graph.shape(name).whole)
    return works


def read_whole_works(path: Path, height: int, width: int) -> list[Work]:
    source, _ = load(path, None)
    return whole_works(from_onnx(source.onnx, height, width))
