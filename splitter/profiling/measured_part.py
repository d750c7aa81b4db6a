"""Costs of what runs as it is: no profile knows its operators, so it is timed once here, when a network is split."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitter.network.as_is import PART, Measured
from splitter.network.graph import Graph, Node, needed_for
from splitter.network.onnx_models import run_once
from splitter.plan_dir.emit import input_name, tile_graph
from splitter.plan_dir.weights import WeightsFile
from splitter.profiling.part_trial import measured
from splitter.tiling.as_is import part_of, runs_as_it_is
from splitter.tiling.regions import whole_regions

_WEIGHTS = "part.bin"


def with_measured_part(graph: Graph, sample: NDArray[np.float32]) -> Graph:
    """Return the graph with what its part takes on this machine, for an image (1, C, H, W); itself without a part.

    Raises ModelError where the part does not run by itself.
    """
    node = next((node for node in graph.nodes if part_of(node)), None)
    if node is None:
        return graph
    with tempfile.TemporaryDirectory() as directory:
        seconds, peak = measured(*_written(graph, node, sample, Path(directory)))
    part = replace(node.attributes[PART], measured=Measured(seconds, peak))
    known = replace(node, attributes={**node.attributes, PART: part})
    return replace(graph, nodes=tuple(known if other is node else other for other in graph.nodes))


def _written(graph: Graph, node: Node, sample: NDArray[np.float32], directory: Path) -> tuple[Path, Path]:
    """Write the part's model, and what it reads of an image."""
    reads = graph.activations(node)
    outputs = [other.output for other in graph.nodes if runs_as_it_is(other) and other.output not in graph.others]
    whole = tile_graph(
        graph,
        [other for other in graph.nodes if runs_as_it_is(other)],
        whole_regions(graph, graph.nodes),
        reads,
        {name: graph.shape(name).whole for name in outputs},
    )
    weights = WeightsFile(_WEIGHTS, whole.weights, frozenset())
    weights.write(directory / _WEIGHTS)
    model, inputs = directory / "part.onnx", directory / "inputs.npz"
    model.write_bytes(whole.model({_WEIGHTS: weights}).SerializeToString())
    given = {input_name(number): value for number, value in enumerate(_read_by(graph, reads, sample))}
    np.savez(inputs, allow_pickle=False, **given)
    return model, inputs


def _read_by(graph: Graph, names: list[str], sample: NDArray[np.float32]) -> list[NDArray[Any]]:
    """Return the values of tensors for an image."""
    made = [name for name in names if name != graph.input]
    known: dict[str, NDArray[Any]] = {graph.input: sample}
    if made:
        nodes = needed_for(graph.nodes, made)
        targets = {name: graph.shape(name).whole for name in made}
        before = tile_graph(graph, nodes, whole_regions(graph, nodes), [graph.input], targets)
        known |= dict(zip(made, run_once(before.model({}), {input_name(0): sample}), strict=True))
    return [known[name] for name in names]
