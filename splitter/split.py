"""A model to a plan directory: plan.json, one weights file for each stage, one ONNX graph for each tile shape.

DIR/plan.json
DIR/unsplit.onnx                the whole network, pointing into the stages' weights
DIR/stage-0/weights.bin
DIR/stage-0/3f2a....onnx        named by content: tiles of the same shape share a graph
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from serfer.core.aws import LambdaFacts, shipped_aws
from serfer.core.errors import InputError, ModelError, UsageError
from serfer.core.geometry import Grid, Rect, grid_rects
from serfer.core.plan import (
    ACTIVATIONS,
    FORMAT,
    PLAN_FILE,
    Artefact,
    Operator,
    Padding,
    Plan,
    Preprocess,
    Shape,
    Stage,
    Tile,
    dump_plan,
    file_sha256,
    sealed,
)
from splitter import operators
from splitter.bundle import DEPENDENCY_LIMIT
from splitter.cells import lay_out, pieces_for
from splitter.check import check_exact
from splitter.cuts import Choice, Limits, choose
from splitter.emit import WeightsFile, tile_model
from splitter.graph import Graph, Node
from splitter.grids import GridLike, parse_grids
from splitter.ingest import from_onnx
from splitter.load import Array, Source, load
from splitter.tiles import Regions, input_padding, tile_macs, walk_back, whole_regions

Progress = Callable[[str], None]
_MB = 1024 * 1024
_CHECK_BATCH = 2
_NO_PADDING = Padding(0, 0, 0, 0)


@dataclass(frozen=True)
class _TilePart:
    """A tile before it has a place in the plan: what it covers and its ONNX graph."""

    input: Rect
    output: Rect
    padding: Padding
    macs: int
    model: bytes


def split(  # noqa: PLR0913 - what a user may choose, each with a default
    model: Any,  # noqa: ANN401 - an nn.Module, or a path or name as text
    example: Any | None = None,  # noqa: ANN401 - an array or tensor
    out: Path | str = "plan",
    *,
    grids: GridLike | Sequence[GridLike] = "auto",
    stages: int | str = "auto",
    memory_mb: int | None = None,
    limit_mb: int | None = None,
    preprocess: Preprocess | None = None,
    labels: Sequence[str] = (),
    activation: str | None = None,
    facts: LambdaFacts | None = None,
    progress: Progress = lambda _: None,
) -> Plan:
    """Split a model into stages and tiles and write the plan directory `out`.

    `model` is an nn.Module, the path of an ONNX file, "module.py:factory" or a zoo name; `example` is an (N, C, H, W)
    float32 tensor or array that fixes the input's size (a zoo model has its own). `grids` is "auto", one grid (rows,
    cols) for every stage that can be tiled, or a list with one for each stage; `stages` is "auto" or a number;
    `memory_mb` is what each function gets (one vCPU's share by default) and `limit_mb` (default: AWS's 250) what its
    package may be. The plan is run against the model before it appears: a directory that exists is exact, and complete.

    Raises ModelError, UsageError, or WrongAnswerError if the parts do not equal the whole.
    """
    facts = facts or shipped_aws()
    grid_choice = parse_grids(grids)
    stage_count = None if stages == "auto" else _whole_number(stages)
    memory_mb = _memory(facts.memory_per_vcpu if memory_mb is None else memory_mb, facts)
    limit = _package_limit(limit_mb, facts)
    progress("reading the network")
    source, sample = load(model, _as_array(example))
    source = replace(
        source,
        preprocess=preprocess or source.preprocess,
        labels=tuple(labels) or source.labels,
        activation=activation or source.activation,
    )
    graph = from_onnx(source.onnx, *sample.shape[2:])
    _check_example(graph, sample)
    _check_answer(graph, source)
    progress("choosing cuts and grids")
    choices = choose(graph, grid_choice, stage_count, Limits(limit, DEPENDENCY_LIMIT, memory_mb), facts)
    with _appearing_whole(Path(out)) as directory:
        plan = _write(graph, source, choices, memory_mb, directory, progress)
        progress("checking the parts against the whole")
        check_exact(plan, directory, source.run, _check_batch(sample))
    return plan


def _as_array(example: Any | None) -> Array | None:  # noqa: ANN401 - an array or tensor
    try:
        return None if example is None else np.asarray(example)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"the example is no array: {str(error).splitlines()[0]}") from error


def _whole_number(stages: int | str) -> int:
    if isinstance(stages, bool) or not (isinstance(stages, int) or str(stages).isdecimal()):
        raise UsageError(f'stages must be "auto" or a number, not {stages!r}')
    return int(stages)


def _memory(memory_mb: int, facts: LambdaFacts) -> int:
    if not facts.memory_min <= memory_mb <= facts.memory_max:
        raise UsageError(f"memory must be {facts.memory_min} to {facts.memory_max} MB, not {memory_mb}")
    return memory_mb


def _package_limit(limit_mb: int | None, facts: LambdaFacts) -> int:
    limit = facts.package_limit if limit_mb is None else limit_mb * _MB
    if limit <= DEPENDENCY_LIMIT:
        least = -(-DEPENDENCY_LIMIT // _MB)
        raise UsageError(f"a function's package needs at least {least} MB for its dependencies, not {limit // _MB}")
    return limit


def _check_example(graph: Graph, sample: Array) -> None:
    channels = graph.shape(graph.input).channels
    if sample.shape[1] != channels:
        raise ModelError(f"the model takes images of {channels} channels, the example has {sample.shape[1]}")


def _check_answer(graph: Graph, source: Source) -> None:
    classes = graph.shape(graph.output).channels
    if source.labels and len(source.labels) != classes:
        raise ModelError(f"there are {len(source.labels)} labels for a network with {classes} outputs")
    if source.activation not in ACTIVATIONS:
        raise UsageError(f"the output is softmax, sigmoid or none, not {source.activation!r}")


def _check_batch(sample: Array) -> Array:
    """Return two different images, so that a network which is tied to one image or mixes them is caught."""
    noise = np.random.default_rng(1).standard_normal((_CHECK_BATCH - 1, *sample.shape[1:]), dtype=np.float32)
    return np.concatenate([sample[:1], noise])


@contextmanager
def _appearing_whole(out: Path) -> Iterator[Path]:
    """Give a directory to fill that becomes `out` when all went well, and vanishes otherwise."""
    out = out.absolute()
    if out == Path.cwd():
        raise InputError(f"{out} is the working directory, which cannot be replaced; choose another --out")
    if out.exists() and not (out / PLAN_FILE).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is no plan directory; choose another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}") from error
    try:
        yield directory
        directory.chmod(0o777 & ~_umask())
        with _alone_in(out.parent):
            _replace(out, directory)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Let one process at a time replace a plan in this directory."""
    handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(out: Path, directory: Path) -> None:
    """Give `directory` the name `out`; what had it comes back if that fails, and goes if it does not."""
    old = directory.with_name(f"{directory.name}.old")
    if not out.exists():
        directory.rename(out)
        return
    out.rename(old)
    try:
        directory.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write(
    graph: Graph, source: Source, choices: Sequence[Choice], memory_mb: int, directory: Path, progress: Progress
) -> Plan:
    parts = [_tile_parts(graph, choice, index) for index, choice in enumerate(choices)]
    stages, files = [], {}
    for index, (choice, tiles) in enumerate(zip(choices, parts, strict=True)):
        progress(f"writing stage {index} of {len(choices)}")
        readers = [tile.input for tile in parts[index + 1]] if index + 1 < len(choices) else []
        before = [tile.output for tile in parts[index - 1]] if index else []
        weights = _weights(graph, choice)
        files[f"stage-{index}/weights.bin"] = weights
        stages.append(_stage(graph, choice, tiles, readers, before, memory_mb, directory / f"stage-{index}"))
    unsplit = tile_model(graph, graph.nodes, whole_regions(graph, graph.nodes), files).SerializeToString()
    (directory / "unsplit.onnx").write_bytes(unsplit)
    plan = sealed(
        Plan(
            format=FORMAT,
            model=source.name,
            weights=source.weights,
            input=graph.shape(graph.input),
            output=graph.shape(graph.output),
            activation=source.activation,
            preprocess=source.preprocess,
            labels=source.labels,
            stages=tuple(stages),
            unsplit=_artefact(directory / "unsplit.onnx", directory),
            digest="",
        )
    )
    (directory / PLAN_FILE).write_text(dump_plan(plan), encoding="utf-8")
    return plan


def _nodes(graph: Graph, choice: Choice) -> tuple[Node, ...]:
    return graph.nodes[choice.start : choice.stop]


def _weights(graph: Graph, choice: Choice) -> WeightsFile:
    names = {name: None for node in _nodes(graph, choice) for name in graph.constants(node)}
    return WeightsFile(graph.weights, list(names))


def _tile_parts(graph: Graph, choice: Choice, index: int) -> list[_TilePart]:
    """Return the parts of a stage, each with its exact input rectangle and its graph."""
    nodes = _nodes(graph, choice)
    source, target = graph.activations(nodes[0])[0], nodes[-1].output
    files = {"weights.bin": _weights(graph, choice)}
    shape = graph.shape(target)

    def part(regions: Regions, region: Rect, padding: Padding) -> _TilePart:
        model = tile_model(graph, nodes, regions, files)
        return _TilePart(regions[source], region, padding, tile_macs(graph, nodes, regions), model.SerializeToString())

    if choice.grid.tiles == 1 and not all(operators.tileable(graph, node) for node in nodes):
        return [part(whole_regions(graph, nodes), shape.whole, _NO_PADDING)]
    return [
        part(
            walk_back(graph, nodes, target, region),
            region,
            input_padding(graph, nodes, source, target, region),
        )
        for region in _grid(shape, choice.grid, index)
    ]


def _grid(shape: Shape, grid: Grid, index: int) -> list[Rect]:
    if shape.height < grid.rows or shape.width < grid.cols:
        raise UsageError(f"stage {index} ends in a map of {shape}: too small for {grid} tiles")
    return grid_rects(shape.height, shape.width, grid)


def _stage(
    graph: Graph,
    choice: Choice,
    parts: Sequence[_TilePart],
    readers: Sequence[Rect],
    before: Sequence[Rect],
    memory_mb: int,
    directory: Path,
) -> Stage:
    nodes = _nodes(graph, choice)
    source, target = graph.shape(graph.activations(nodes[0])[0]), graph.shape(nodes[-1].output)
    directory.mkdir()
    _weights(graph, choice).write(directory / "weights.bin")
    root = directory.parent
    layout = lay_out([part.output for part in parts], readers)
    previous = lay_out(before, [part.input for part in parts])
    graphs: dict[str, Artefact] = {}
    tiles = []
    for number, part in enumerate(parts):
        path = directory / f"{hashlib.sha256(part.model).hexdigest()[:16]}.onnx"
        if str(path) not in graphs:
            path.write_bytes(part.model)
            graphs[str(path)] = _artefact(path, root)
        tiles.append(
            Tile(
                graph=graphs[str(path)].path,
                input=part.input,
                output=part.output,
                padding=part.padding,
                cells=tuple(rect for rect, _ in layout[number]),
                pieces=pieces_for(number, source.channels, previous),
                macs=part.macs,
            )
        )
    return Stage(
        operators=tuple(_operator(graph, node) for node in nodes),
        grid=choice.grid,
        memory_mb=memory_mb,
        predicted_ms=round(choice.seconds * 1000, 3),
        input=source,
        output=target,
        tiles=tuple(tiles),
        weights=_artefact(directory / "weights.bin", root),
        graphs=tuple(graphs.values()),
    )


def _operator(graph: Graph, node: Node) -> Operator:
    return Operator(node.name, node.kind, operators.macs(graph, node, graph.shape(node.output).whole.area))


def _artefact(path: Path, root: Path) -> Artefact:
    return Artefact(path.relative_to(root).as_posix(), path.stat().st_size, file_sha256(path))
