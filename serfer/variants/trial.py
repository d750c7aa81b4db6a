"""A process that reads and runs a network that was uploaded, before one with credentials does: bounded, and expendable.

A file of a hundred bytes may ask for a loop of hours or for all memory, or end the process that reads it. So a process
without credentials goes first, with bounds of nodes, memory, processor and wall-clock time: it reads the file, makes
the splitter's graph of it, and computes two images, as the registration will. What cannot be split runs as it is, but a
file with loops or branches is refused then: other images may take another time.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import traceback
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError, ModelError, SerferError
from serfer.core.units import MIB
from serfer.local.die_with_parent import dying_with_me

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import onnx
    from numpy.typing import NDArray

MOST_NODES: Final = 50_000
"""Nodes of a network, those of a function as often as it is called."""
LONGEST_S: Final = 300.0
PROCESSOR_S: Final = 240.0
_CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_MOST_DEPTH: Final = 32  # of functions and subgraphs in one another
_LEAST_MEMORY: Final = 3072 * MIB
_COPIES: Final = 4  # of the file in memory: as it is read, as the graph, and in two sessions
_MAX_JOB_BYTES: Final = 65_536
_SHOWN: Final = 300  # characters of what the process says
_IMAGES: Final = 2
_INHERITED: Final = ("PATH", "LANG", "LC_ALL", "TMPDIR")  # of the environment: none holds a secret


@dataclass(frozen=True, slots=True)
class TrialJob:
    """An ONNX file's path, its input's (channels, height, width) if they were given, and the bounds."""

    network: str
    size: tuple[int, int, int] | None
    processor_s: float
    memory_bytes: int


def try_network(
    path: Path, size: tuple[int, int, int] | None, seconds: float = LONGEST_S, processor_s: float = PROCESSOR_S
) -> None:
    """Have a process of its own read an ONNX file and compute two images; raises ModelError where it cannot.

    `size` is the input's (channels, height, width), None where the file fixes it. The process may take `seconds` of
    time, and `processor_s` of processors.
    """
    job = TrialJob(str(path), size, processor_s, _LEAST_MEMORY + _COPIES * path.stat().st_size)
    command = dying_with_me(sys.executable, "-P", "-m", "serfer.variants.trial")
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment = kept | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    try:
        done = subprocess.run(  # noqa: S603 - our own
            command,
            input=json.dumps(unstructure(job)).encode(),
            env=environment,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"{path.name} takes more than {seconds:g} s to read and to compute two images") from None
    if done.returncode == 0:
        return
    lines = done.stderr.decode(errors="replace").strip().splitlines() or [""]
    if done.returncode == ModelError.exit_code:
        raise ModelError(lines[-1])
    if done.returncode > 0:
        raise ModelError(f"{path.name} cannot be read: {lines[-1][:_SHOWN]}")
    raise ModelError(
        f"{path.name} ended the process that read it, by signal {-done.returncode}: it takes more than "
        f"{job.memory_bytes // MIB:,} MB of memory or {processor_s:g} s of processors, or makes ONNX Runtime fail"
    )


def check_bounds(path: Path) -> None:
    """Refuse an ONNX file that cannot be read, has too many nodes, or names other files, which would be this machine's.

    Raises ModelError.
    """
    import onnx  # noqa: PLC0415 - it takes a while to load

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own, which has no types
        raise ModelError(f"{path.name} is not an ONNX file: export the network again") from error
    if any(onnx.external_data_helper.uses_external_data(tensor) for tensor in _tensors(model)):
        raise ModelError(f"{path.name} has weights in other files: save it as one file, and send that")
    count, _ = _Nodes(model).count(model.graph.node)
    if count > MOST_NODES:
        raise ModelError(f"{path.name} has more than {MOST_NODES:,} nodes, those of functions at each call")


def check_control_flow(path: Path) -> None:
    """Refuse an ONNX file that runs as it is and whose operators loop or branch; raises ModelError.

    What they take may depend on the image, so that two images say nothing of a third.
    """
    import onnx  # noqa: PLC0415 - it takes a while to load

    model = onnx.load(path, load_external_data=False)
    node = next((node for node in _nodes(model) if node.op_type in _CONTROL_FLOW), None)
    if node is not None:
        raise ModelError(
            f"operator {node.name!r} ({node.op_type}) decides by its input what is computed: images may take any time "
            "and memory, so that only the command serfer register takes such a network"
        )


class _Nodes:
    """Counts nodes, in subgraphs and functions, too, and how deep these lie in one another."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(function.domain, function.name): function for function in model.functions}
        self._counted: dict[tuple[str, str], tuple[int, int]] = {}

    def count(self, nodes: Any, depth: int = 0) -> tuple[int, int]:  # noqa: ANN401 - protobuf's container
        """Return how many nodes there are, and how deep; raises ModelError where that is more than _MOST_DEPTH."""
        inside = [self._called((node.domain, node.op_type), depth) for node in nodes]
        for attribute in chain.from_iterable(node.attribute for node in nodes):
            inside += [self.count(graph.node, depth + 1) for graph in (attribute.g, *attribute.graphs) if graph.node]
        height = max((1 + deep for _, deep in inside), default=0)
        if depth + height > _MOST_DEPTH:
            raise ModelError(f"the network's functions or subgraphs are more than {_MOST_DEPTH} deep in one another")
        return len(nodes) + sum(count for count, _ in inside), height

    def _called(self, name: tuple[str, str], depth: int) -> tuple[int, int]:
        function = self._functions.get(name)
        if function is None:
            return 0, -1
        if depth > _MOST_DEPTH:  # one that calls itself
            return 0, depth
        if name not in self._counted:
            self._counted[name] = self.count(function.node, depth + 1)
        return self._counted[name]


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every operator of a model, of subgraphs and functions too."""
    waiting = [*model.graph.node, *chain.from_iterable(function.node for function in model.functions)]
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            waiting += chain.from_iterable(graph.node for graph in (attribute.g, *attribute.graphs))


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: initializers and attributes, of subgraphs and functions too."""
    graphs, nodes = [model.graph], [*chain.from_iterable(function.node for function in model.functions)]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes += graph.node
            continue
        for attribute in nodes.pop().attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            graphs += [attribute.g, *attribute.graphs]


def example_of(size: tuple[int, int, int] | None) -> NDArray[np.float32] | None:
    """Return an image of noise of a size, None for none."""
    if size is None:
        return None
    import numpy as np  # noqa: PLC0415 - only some networks need it

    return np.random.default_rng(0).standard_normal((1, *size), dtype=np.float32)


def _try(job: TrialJob) -> None:
    path = Path(job.network)
    check_bounds(path)
    import numpy as np  # noqa: PLC0415 - what is refused by now needs none of it

    from serfer.splitter.network.source import load  # noqa: PLC0415 - same
    from serfer.splitter.network.unsupported import CannotSplitError  # noqa: PLC0415 - same
    from serfer.splitter.tiling.from_onnx import from_onnx, split_graph, whole_graph  # noqa: PLC0415 - same

    source, example = load(path, example_of(job.size))
    source.run(np.repeat(example, _IMAGES, axis=0))
    if source.unread:
        check_control_flow(path)
        whole_graph(source, example)
        return
    try:
        from_onnx(source.onnx, example.shape[2], example.shape[3], source.outputs)
    except CannotSplitError as refusal:
        check_control_flow(path)
        split_graph(source, example, refusal)


def main() -> None:
    """Try the network within the bounds, or exit with what was wrong in a line."""
    job = structure(TrialJob, json.loads(sys.stdin.buffer.read(_MAX_JOB_BYTES)), "job", error=InputError)
    resource.setrlimit(resource.RLIMIT_DATA, (job.memory_bytes, job.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(job.processor_s), math.ceil(job.processor_s)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _try(job)
    except SerferError as error:
        print(" ".join(str(error).split())[:_SHOWN], file=sys.stderr)  # noqa: T201 - the process that waits reads it
        raise SystemExit(ModelError.exit_code) from error
    except Exception as error:
        traceback.print_exc()
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
