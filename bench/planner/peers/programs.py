"""Gillis's and MPHB's planners: their plans of some networks as recorded, or of any from a checkout of the program.

Licences: MPHB's is MIT; Gillis's checkout has none, MPHB's NOTICE.md says MIT of it. Nothing of either is in this
repository, and a program runs in a process of its own (partition_script.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import onnx
from onnx import TensorProto, helper

from serfer.core.dataclass_codec import Bounds, structure
from serfer.core.errors import InputError, SerferError
from serfer.core.geometry import Grid
from serfer.files import read_text
from serfer.splitter.network.graph import Graph
from serfer_bench.baselines.published_costs import Group, PublishedCosts

_MAX_BYTES: Final = 1 << 20
_SCRIPT: Final = Path(__file__).with_name("partition_script.py")
_OWN_NAMES: Final = {"ReduceMean": "GlobalAveragePool"}
_FOLDERS: Final = {"MPHB": "partitioning/partition", "Gillis": "partition"}
_IR_VERSION: Final = 10
_Count = Annotated[int, Bounds(0, 10_000)]


@dataclass(frozen=True)
class Stage:
    """Layers [start, stop) in rows and columns of maps, or, with `columns`, in columns of a fully connected layer.

    `here` says that the master computes a part.
    """

    start: _Count
    stop: _Count
    rows: _Count
    cols: _Count
    columns: bool
    here: bool

    def group(self) -> Group:
        """Return the stage as a group of layers."""
        return Group(self.start, self.stop, Grid(self.rows, self.cols, columns=self.columns), self.here)


@dataclass(frozen=True)
class TheirPlan:
    """A plan of one of the programs for a network of so many layers.

    `ms` and `cost` are what it predicts: Gillis's counts milliseconds, MPHB's dollars.
    """

    layers: _Count
    ms: Annotated[float, Bounds(0.0)]
    cost: Annotated[float, Bounds(0.0)]
    stages: tuple[Stage, ...]

    def groups(self, costs: PublishedCosts) -> tuple[Group, ...]:
        """Return its groups; raises InputError where its layers are not those of the network as read here."""
        ends = [0, *(stage.stop for stage in self.stages)]
        layers = len(costs.ends) - 1
        if [stage.start for stage in self.stages] != ends[:-1] or {ends[-1], self.layers} != {layers}:
            raise InputError(f"a plan of {self.layers} layers, up to {ends[-1]}, for {layers} layers")
        return tuple(stage.group() for stage in self.stages)


def program_of(checkout: Path) -> str:
    """Return which program a directory has; raises InputError for neither."""
    for program, folder in _FOLDERS.items():
        if (checkout / folder / "policy_dp.py").is_file():
            return program
    wanted = " or ".join(f"{folder} ({program})" for program, folder in _FOLDERS.items())
    raise InputError(f"{str(checkout)!r} is not a checkout of a planner: it has no policy_dp.py in {wanted}")


def run_program(graph: Graph, checkout: Path, seconds: float) -> TheirPlan:
    """Plan a network with the program of a checkout, in at most so many seconds.

    Raises InputError for a directory that is neither program's, and SerferError with its last line where it fails.
    """
    folder = checkout / _FOLDERS[program_of(checkout)]
    with tempfile.TemporaryDirectory() as home:
        network, answer = Path(home) / "network.onnx", Path(home) / "answer.json"
        onnx.save(in_their_form(graph), network)
        command = [sys.executable, str(_SCRIPT.resolve()), str(network), str(answer)]
        try:
            done = subprocess.run(  # noqa: S603 - the checkout is the user's, and so is its code
                command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise SerferError(f"{folder}: no plan within {seconds:g} s: give --seconds") from error
        if done.returncode:
            last = (done.stderr.strip() or "nothing on stderr").splitlines()[-1]
            raise SerferError(f"{folder}: the planner ended with {done.returncode}: {last:.200}")
        return structure(TheirPlan, json.loads(read_text(answer, _MAX_BYTES)), "the plan", error=InputError)


def in_their_form(graph: Graph) -> onnx.ModelProto:
    """Return a network as ONNX that both programs read: weights are inputs and initializers, without values."""

    def described(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    nodes = []
    for node in graph.nodes:
        kind, inputs, attributes = node.kind, node.inputs, node.attributes
        if kind in _OWN_NAMES:
            kind, inputs, attributes = _OWN_NAMES[kind], inputs[:1], {}
        nodes.append(helper.make_node(kind, [*filter(None, inputs)], [node.output], name=node.output, **attributes))
    used = {name for node in nodes for name in node.input}
    weights: Mapping[str, tuple[int, ...]] = {k: v.shape for k, v in graph.weights.items() if k in used}
    body = helper.make_graph(
        nodes,
        "network",
        [described(name, shape) for name, shape in {graph.input: graph.shapes[graph.input], **weights}.items()],
        [described(graph.output, graph.shapes[graph.output])],
        [TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT) for name, shape in weights.items()],
        value_info=[
            described(name, shape) for name, shape in graph.shapes.items() if name not in (graph.input, graph.output)
        ],
    )
    return helper.make_model(body, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", graph.opset)])
