"""Gillis's and MPHB's planners, run from checkouts: what they are asked, and the plans that they answer.

Licences: MPHB's is MIT; Gillis's checkout has none, MPHB's NOTICE.md says MIT of it. Nothing of either is in this
repository, and a program runs in a process of its own (partition_script.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import onnx
from onnx import TensorProto, helper

from serfer.core.dataclass_codec import Bounds, structure
from serfer.core.errors import InputError, SerferError
from serfer.core.geometry import Grid
from serfer.core.units import MS_PER_S
from serfer.files import read_text
from serfer.splitter.network.graph import Graph
from serfer_bench.core.environments import environment
from serfer_bench.study.baselines.published_costs import Group, PublishedCosts
from serfer_bench.study.planner.peers.questions import Question

_MAX_BYTES: Final = 1 << 20
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MXNET_ENGINE_TYPE": "NaiveEngine"}
_SCRIPT: Final = Path(__file__).with_name("partition_script.py")
_LOCK: Final = "gillis.txt"
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
        ends = [0, *(stage.stop for stage in self.stages)]
        layers = len(costs.ends) - 1
        if [stage.start for stage in self.stages] != ends[:-1] or {ends[-1], self.layers} != {layers}:
            raise InputError(f"a plan of {self.layers} layers, up to {ends[-1]}, for {layers} layers")
        return tuple(stage.group() for stage in self.stages)


def program_of(checkout: Path) -> str:
    for program, folder in _FOLDERS.items():
        if (checkout / folder / "policy_dp.py").is_file():
            return program
    wanted = " or ".join(f"{folder} ({program})" for program, folder in _FOLDERS.items())
    raise InputError(f"{str(checkout)!r} is not a checkout of a planner: it has no policy_dp.py in {wanted}")


@dataclass(frozen=True)
class _Found:
    ms: float
    cost: float
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class _Answers:
    layers: _Count
    plans: tuple[_Found | None, ...]


def python_with_mxnet(cache: Path, progress: Callable[[str], None]) -> Path:
    """Return the interpreter of an environment for Gillis's SLO-aware policies, made on first use below `cache`."""
    packages = files("serfer_bench.study.planner.peers").joinpath(_LOCK).read_text(encoding="utf-8")
    return environment("gillis", packages, cache, progress)


def run_program(
    graph: Graph, checkout: Path, questions: Sequence[Question], seconds: float, python: Path | None = None
) -> list[TheirPlan | None]:
    """Plan a network with the program of a checkout, in at most so many seconds; None where a policy finds no plan.

    `python` has MXNet, which all policies but the dynamic programme import. Raises InputError for a directory that is
    neither program's, and SerferError with its last line where it fails.
    """
    folder = checkout / _FOLDERS[program_of(checkout)]
    asked = json.dumps([(each.policy, MS_PER_S * each.slo_s, each.seed) for each in questions])
    with tempfile.TemporaryDirectory() as home:
        network, answer = Path(home) / "network.onnx", Path(home) / "answer.json"
        onnx.save(in_their_form(graph), network)
        command = [
            str(python or sys.executable),
            "-B",
            "-W",
            "ignore",
            str(_SCRIPT.resolve()),
            str(network),
            str(answer),
            asked,
        ]
        try:
            done = subprocess.run(  # noqa: S603 - the checkout is the user's, and so is its code
                command,
                cwd=folder,
                env=os.environ | _ONE_THREAD,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SerferError(f"{folder}: no plan within {seconds:g} s: give --seconds") from error
        if done.returncode:
            said = [
                line for line in done.stderr.splitlines() if line.strip() and not line.startswith("[")
            ]  # MXNet's log
            last = said[-1] if said else "nothing on stderr"
            raise SerferError(f"{folder}: the planner ended with {done.returncode}: {last:.200}")
        found = structure(_Answers, json.loads(read_text(answer, _MAX_BYTES)), "the plan", error=InputError)
    return [TheirPlan(found.layers, plan.ms, plan.cost, plan.stages) if plan else None for plan in found.plans]


def in_their_form(graph: Graph) -> onnx.ModelProto:
    """Return a network as ONNX that both programs read: weights are inputs and initializers, without values.

    A rectifier behind a fully connected layer is followed by a dropout, as VGGs have one and the export removes it: by
    its last operator both tell a layer that may be spread over functions by its columns from one of maps.
    """

    def described(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    nodes, renamed, connected, shapes = [], dict[str, str](), set[str](), dict(graph.shapes)
    for node in graph.nodes:
        kind, attributes = node.kind, node.attributes
        inputs = [renamed.get(name, name) for name in node.inputs]
        if kind in _OWN_NAMES:
            kind, inputs, attributes = _OWN_NAMES[kind], inputs[:1], {}
        nodes.append(helper.make_node(kind, [*filter(None, inputs)], [node.output], name=node.output, **attributes))
        if kind == "Gemm":
            connected.add(node.output)
        elif kind == "Relu" and inputs[0] in connected:
            dropped = renamed[node.output] = f"{node.output}_dropout"
            shapes[dropped] = shapes[node.output]
            nodes.append(helper.make_node("Dropout", [node.output], [dropped], name=dropped))
    output = renamed.get(graph.output, graph.output)
    used = {name for node in nodes for name in node.input}
    weights: Mapping[str, tuple[int, ...]] = {k: v.shape for k, v in graph.weights.items() if k in used}
    body = helper.make_graph(
        nodes,
        "network",
        [described(name, shape) for name, shape in {graph.input: graph.shapes[graph.input], **weights}.items()],
        [described(output, shapes[output])],
        [TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT) for name, shape in weights.items()],
        value_info=[described(name, shape) for name, shape in shapes.items() if name not in (graph.input, output)],
    )
    return helper.make_model(body, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", graph.opset)])
