"""Costs of what runs as it is, of which no profile knows the operators as they are.

Operators that could be split are predicted as those of a plan that is split. What no profile knows is timed once, here,
and beside it a network that the profiles know: the quotient of both holds on other machines, and beside other work.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from serfer.core.costs.operator_costs import Kind, Profiles, Work
from serfer.core.costs.sessions import WORKER_MB
from serfer.core.plan import TIMED
from serfer.core.units import MIB
from serfer.splitter.network.as_is import PART, STEP_BY_STEP, AsIsPart, PartCosts, scan
from serfer.splitter.network.graph import Graph, Node, Weights, needed_for
from serfer.splitter.network.onnx_models import model_of, run_once
from serfer.splitter.plan_dir.emit import input_name, tile_graph
from serfer.splitter.plan_dir.weights import WeightsFile
from serfer.splitter.planning.limits import memory_needed
from serfer.splitter.planning.ort_kernels import tile_works
from serfer.splitter.profiling.part_trial import measured
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.as_is import part_of, times_of
from serfer.splitter.tiling.cuts import weight_bytes
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.regions import infer_regions, whole_regions

_WEIGHTS = "part.bin"
_CHANNELS, _SIDE = 64, 56  # of the network that the profiles know: two milliseconds


def with_costs_of(graph: Graph, known: Graph) -> Graph:
    """Return a network that runs as it is, whole, with the costs of the graph of its operators in one task."""
    times = times_of(known)
    if times == TIMED:
        return _with_costs(graph, _part_in(known).attributes[PART].costs)
    known = with_tile_pools(known)
    count = len(known.nodes)
    peak = MIB * (memory_needed(known, 0, count, weight_bytes(known, 0, count)) - WORKER_MB)
    return _with_costs(graph, PartCosts(Work(Kind.PRODUCT, parts=_works(known)), peak, times))


def with_timed_part(graph: Graph, sample: NDArray[np.float32], profiles: Profiles) -> Graph:
    """Return the graph with what its part takes on this machine, for an image (1, C, H, W); itself without a part.

    More threads shorten it as they do convolutions, where it has any and no operators that go step by step.
    Raises ModelError where the part does not run by itself.
    """
    if not any(map(part_of, graph.nodes)):
        return graph
    node, known = _part_in(graph), _known_network()
    works = _works(from_onnx(known, _SIDE, _SIDE))
    known_s = profiles.run_s + sum(profiles.seconds(work) for work in works)
    with tempfile.TemporaryDirectory() as directory:
        beside = Path(directory, "known.onnx")
        beside.write_bytes(known.SerializeToString())
        times, peak = measured(*_write_part(graph, node, sample, Path(directory)), beside)
    kinds = {kind for _, kind in node.attributes[PART].operators}
    kind = Kind.OTHER_CONVOLUTION if "Conv" in kinds and not kinds & STEP_BY_STEP else Kind.PRODUCT
    return _with_costs(graph, PartCosts(Work(kind, measured_s=times * known_s / (1 + profiles.safety)), peak))


def _part_in(graph: Graph) -> Node:
    return next(node for node in graph.nodes if part_of(node))


def _with_costs(graph: Graph, costs: PartCosts) -> Graph:
    node = _part_in(graph)
    known = replace(node, attributes={**node.attributes, PART: replace(node.attributes[PART], costs=costs)})
    return replace(graph, nodes=tuple(known if other is node else other for other in graph.nodes))


def _works(graph: Graph) -> tuple[Work, ...]:
    targets = {name: graph.shape(name).whole for name in graph.outputs}
    tiled = all(operators.tileable(graph, node) for node in graph.nodes)
    regions = infer_regions(graph, graph.nodes, [targets])[0] if tiled else whole_regions(graph, graph.nodes)
    return tuple(tile_works(graph, graph.nodes, regions, [graph.input], targets))


def _known_network() -> onnx.ModelProto:
    shape = [1, _CHANNELS, _SIDE, _SIDE]
    weight = np.full((_CHANNELS, _CHANNELS, 3, 3), 1 / (9 * _CHANNELS), np.float32)
    return model_of(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, "w")],
    )


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
