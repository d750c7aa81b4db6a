"""Costs of what runs as it is: no profile knows its operators, so it is timed once here, when a network is split."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from serfer.splitter.network.as_is import PART, AsIsPart, Measured, scan
from serfer.splitter.network.graph import Graph, Node, Weights, needed_for
from serfer.splitter.network.onnx_models import model_of, run_once
from serfer.splitter.plan_dir.emit import input_name, tile_graph
from serfer.splitter.plan_dir.weights import WeightsFile
from serfer.splitter.profiling.part_trial import measured
from serfer.splitter.tiling.as_is import part_of
from serfer.splitter.tiling.regions import whole_regions

_WEIGHTS = "part.bin"


def with_measured_part(graph: Graph, sample: NDArray[np.float32]) -> Graph:
    """Return the graph with what its part takes on this machine, for an image (1, C, H, W); itself without a part.

    Raises ModelError where the part does not run by itself.
    """
    node = next((node for node in graph.nodes if part_of(node)), None)
    if node is None:
        return graph
    with tempfile.TemporaryDirectory() as directory:
        seconds, peak = measured(*_write_part(graph, node, sample, Path(directory)))
    part = replace(node.attributes[PART], measured=Measured(seconds, peak))
    known = replace(node, attributes={**node.attributes, PART: part})
    return replace(graph, nodes=tuple(known if other is node else other for other in graph.nodes))


def _write_part(graph: Graph, node: Node, sample: NDArray[np.float32], directory: Path) -> tuple[Path, Path]:
    part: AsIsPart = node.attributes[PART]
    reads, weights = graph.activations(node), WeightsFile(_WEIGHTS, _constants(graph, node), frozenset())
    weights.write(directory / _WEIGHTS)
    inside = [
        weights.reference(name, name, _WEIGHTS) if name in weights else numpy_helper.from_array(value, name)
        for name, value in _constants(graph, node).items()
    ]
    outputs = [f"result{number}" for number in range(part.results)]
    whole = model_of(
        [scan(part, reads, outputs, inside)],
        [_batched(value, name) for value, name in zip(part.body.input, reads, strict=True)],
        [_batched(value, name) for value, name in zip(part.body.output, outputs, strict=True)],
        opset=graph.opset,
        domains=part.domains,
    )
    model, inputs = directory / "part.onnx", directory / "inputs.npz"
    model.write_bytes(whole.SerializeToString())
    np.savez(inputs, allow_pickle=False, **dict(zip(reads, _read_by(graph, reads, sample), strict=True)))
    return model, inputs


def _constants(graph: Graph, node: Node) -> Weights:
    return {name: graph.weights[name] for name in graph.constants(node)}


def _batched(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    dims = [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
    return helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, [1, *dims])


def _read_by(graph: Graph, names: list[str], sample: NDArray[np.float32]) -> list[NDArray[Any]]:
    made = [name for name in names if name != graph.input]
    known: dict[str, NDArray[Any]] = {graph.input: sample}
    if made:
        nodes = needed_for(graph.nodes, made)
        targets = {name: graph.shape(name).whole for name in made}
        before = tile_graph(graph, nodes, whole_regions(graph, nodes), [graph.input], targets)
        model = before.model({})
        for value in model.graph.output:  # what no stage hands on has another form than stages' outputs
            value.type.tensor_type.ClearField("shape")
        known |= dict(zip(made, run_once(model, {input_name(0): sample}), strict=True))
    return [known[name] for name in names]
