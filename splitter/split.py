"""A model to a plan directory: read, fit, write, and check against the whole before it appears."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from serfer.core.costs.aws import AwsFacts, LambdaFacts, shipped_aws
from serfer.core.costs.operator_costs import Profiles, shipped_profiles
from serfer.core.errors import ModelError, UsageError
from serfer.core.plan import ACTIVATIONS, ImageLimits, PackageLimit, Plan, Preprocess
from serfer.core.units import MIB
from serfer.extras import named_extras
from serfer.images import check_channels
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from splitter.head.calibration import Calibration, read_calibration
from splitter.network.description import read_labels, read_preprocess
from splitter.network.graph import Graph
from splitter.network.ingest import from_onnx
from splitter.network.source import Array, Progress, Source, load
from splitter.plan_dir.assemble import PackageOverflowError, assemble
from splitter.plan_dir.check import check_exact
from splitter.plan_dir.output_directory import appearing_whole, place_for
from splitter.planning.package_fit import SplitOptions, fit
from splitter.planning.planner import Budget, memory_sizes
from splitter.tiling.grids import GridLike, parse_grids

_CHECK_BATCH = 2
_CHOICES = 4
_TO_CHANNELS_FIRST = [0, 3, 1, 2]


@named_extras()
def split(  # noqa: PLR0913 - what a user may choose, each with a default
    model: Any,  # noqa: ANN401 - an nn.Module, or a path or name as text
    example: Any | None = None,  # noqa: ANN401 - an array or tensor
    out: Path | str = "plan",
    *,
    grids: GridLike | Sequence[GridLike] = "auto",
    stages: int | str = "auto",
    cuts: Sequence[str] = (),
    objective: str = "balanced",
    slo_ms: float | None = None,
    max_cost_usd: float | None = None,
    max_tiles: int | None = None,
    store: str = "redis",
    precision: str = "auto",
    gap: str = "auto",
    calibration: Calibration | Path | str | None = None,
    memory_mb: int | Sequence[int] | None = None,
    limit_mb: int | None = None,
    dependency_bytes: int = DEPENDENCY_ALLOWANCE,
    preprocess: Preprocess | Path | str | None = None,
    labels: Sequence[str] | Path | str = (),
    activation: str | None = None,
    facts: AwsFacts | None = None,
    profiles: Profiles | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Split a model into stages and tiles and write the plan directory `out`.

    `model` is an nn.Module, the path of an ONNX file, "module.py:factory" or a zoo name; `example` is an (N, C, H, W)
    float32 tensor or array that fixes the input's size (a zoo model has its own).

    `grids` is "auto", one grid for every stage that can be spread like that, or a list with one for each stage: (rows,
    cols) tiles, or "colN" for columns of a fully connected layer. `stages` is "auto" or a number; `cuts` names the
    operators after which to cut instead. `objective` is what the plan has least of: predicted "latency", "cost" in
    dollars, their product ("balanced"), or "work", multiply-accumulates over all tiles; `slo_ms` and `max_cost_usd`
    bound the predicted latency and dollars of a query, `max_tiles` the tasks of a stage. Plans are priced for a `store`
    of kind "redis", "s3" or "valkey" (ElastiCache Serverless), or two, "redis+s3" or "valkey+s3", between which each
    stage's output chooses; with prices and quotas of `facts` and compute times of `profiles` (default: those shipped).

    `precision` is "fp32", "fp16" (storage, everywhere) or "auto": fp16 where a stage would not fit its function. `gap`
    is "never", "always" or "auto": global average pooling in place of a fully connected head that does not fit even so,
    fitted to `calibration`, a folder with a folder of images for each class. What either loses is measured and kept in
    the plan.

    `preprocess` defines how an image becomes the input: a `serfer.Preprocess`, or the path of a TOML file
    (docs/how-to/preprocess.md). `labels` are the names of the outputs, or the path of a file with one a line.
    `activation` turns the outputs into scores: "softmax", "sigmoid" or "none". A zoo model has all three. `progress` is
    called with each step in words.

    `memory_mb` is what functions get, or what the planner may choose from for each stage (its default); `limit_mb`
    (default: AWS's 250) what a package may be, of which `dependency_bytes` are reserved for code and dependencies (the
    default covers every layer that `serfer package` builds). The plan is run
    against the model before it appears: a directory that exists is exact, and complete. An empty directory or a plan at
    `out` is replaced.

    Where one grid was requested and no stage can be spread like that, the stages have one tile: warns (PlanWarning).
    Raises ModelError, UsageError, InputError for an `out` that cannot be a plan's place, UnavailableError for a full
    disk, or WrongAnswerError if the parts do not equal the whole.
    """
    progress = progress or _in_silence
    preprocess, labels = _described(preprocess, labels)
    place = place_for(Path(out), [Path(item) for item in (model, calibration) if isinstance(item, Path | str)])
    facts = facts or shipped_aws()
    facts.stores(store)  # refuses what is none
    options = SplitOptions(
        parse_grids(grids),
        None if stages == "auto" else _whole_number(stages),
        tuple(cuts),
        objective,
        slo_ms,
        max_cost_usd,
        precision,
        gap,
    )
    limit = PackageLimit(_package_limit(limit_mb, dependency_bytes, facts.functions), dependency_bytes)
    budget = Budget(
        limit,
        facts,
        _memory(memory_mb, facts.functions),
        store,
        _most_tiles(max_tiles),
        profiles=profiles or shipped_profiles(),
    )
    progress("reading the network")
    source, sample = load(model, _as_array(example))
    source = replace(
        source,
        preprocess=preprocess or source.preprocess,
        labels=tuple(labels) or source.labels,
        activation=activation or source.activation,
    )
    graph = from_onnx(source.onnx, *sample.shape[2:])
    _check_layout(graph)
    _check_example(graph, sample)
    _check_answer(graph, source)
    images = _calibration(calibration, graph, source, progress)
    with appearing_whole(place) as directory:
        plan = _planned(source, graph, options, budget, images, directory, progress)
        progress("checking the parts against the whole")
        check_exact(plan, directory, source, _check_batch(sample), graph.rounding)
    return plan


def _in_silence(_step: str) -> None:
    """Report no progress."""


def _described(
    preprocess: Preprocess | Path | str | None, labels: Sequence[str] | Path | str
) -> tuple[Preprocess | None, Sequence[str]]:
    """Read what was given as a path; raises InputError for a file that cannot be used, UsageError for another type."""
    if isinstance(preprocess, Path | str):
        preprocess = read_preprocess(Path(preprocess))
    if preprocess is not None and not isinstance(preprocess, Preprocess):
        raise UsageError(
            f"preprocess must be a serfer.Preprocess or the path of a TOML file, not {type(preprocess).__name__}"
        )
    return preprocess, read_labels(Path(labels)) if isinstance(labels, Path | str) else labels


def _planned(
    source: Source,
    graph: Graph,
    options: SplitOptions,
    budget: Budget,
    images: Calibration | None,
    directory: Path,
    progress: Progress,
) -> Plan:
    """Choose a plan and write it; the bytes of its graphs are known only then, so it may have to be chosen again."""
    reserve, limit, tries = 0, budget.limit, 0
    while True:
        tries += 1
        tighter = replace(budget, limit=PackageLimit(limit.package, limit.dependencies + reserve))
        decision = fit(graph, options, tighter, images, progress)
        try:
            return assemble(decision, source, graph, budget, directory, progress, reserve)
        except PackageOverflowError as overflow:
            if tries == _CHOICES:
                raise
            reserve += overflow.excess
            for entry in directory.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _calibration(
    given: Calibration | Path | str | None, graph: Graph, source: Source, progress: Progress
) -> Calibration | None:
    shape, classes = graph.shape(graph.input), graph.shape(graph.output).elements
    if isinstance(given, Path | str):
        labels = source.labels or tuple(map(str, range(classes)))
        given = read_calibration(Path(given), source.preprocess, shape, labels, ImageLimits(), progress)
    elif given is not None:
        given.check(shape, classes)
    return given


def _as_array(example: Any | None) -> Array | None:  # noqa: ANN401 - an array or tensor
    try:
        return None if example is None else np.asarray(example)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"the example is not an array: {str(error).splitlines()[0]}") from error


def _whole_number(stages: int | str) -> int:
    if isinstance(stages, bool) or not (isinstance(stages, int) or str(stages).isdecimal()):
        raise UsageError(f'stages must be "auto" or a number, not {stages!r}')
    return int(stages)


def _memory(given: int | Sequence[int] | None, facts: LambdaFacts) -> tuple[int, ...]:
    sizes = memory_sizes(facts) if given is None else (given,) if isinstance(given, int) else tuple(given)
    for size in sizes:
        if not facts.memory_min <= size <= facts.memory_max:
            raise UsageError(f"memory must be {facts.memory_min} to {facts.memory_max} MB, not {size}")
    if not sizes:
        raise UsageError("memory must be a number of MB, or several to choose from")
    return tuple(sorted(set(sizes)))


def _most_tiles(tiles: int | None) -> int | None:
    if tiles is not None and tiles < 1:
        raise UsageError(f"a stage has at least 1 tile, not {tiles}")
    return tiles


def _package_limit(limit_mb: int | None, dependency_bytes: int, facts: LambdaFacts) -> int:
    limit = facts.package_limit if limit_mb is None else limit_mb * MIB
    if limit <= dependency_bytes:
        least = dependency_bytes // MIB + 1
        raise UsageError(
            f"a function's package has {dependency_bytes / MIB:.1f} MB of code and dependencies: its limit must be at "
            f"least {least} MB, not {limit // MIB}"
        )
    return limit


def _check_layout(graph: Graph) -> None:
    """Refuse a model that turns (N, H, W, C) images round itself: its rows would be taken for channels."""
    readers = [node for node in graph.nodes if graph.input in graph.activations(node)]
    if all(node.kind == "Transpose" and node.attributes.get("perm") == _TO_CHANNELS_FIRST for node in readers):
        given = graph.shape(graph.input)
        raise ModelError(
            f"the model takes (N, {given.channels}, {given.height}, {given.width}), images with their channels last: "
            "export it with (N, C, H, W)"
        )


def _check_example(graph: Graph, sample: Array) -> None:
    channels = graph.shape(graph.input).channels
    if sample.shape[1] != channels:
        raise ModelError(f"the model takes images of {channels} channels, the example has {sample.shape[1]}")


def _check_answer(graph: Graph, source: Source) -> None:
    classes = graph.shape(graph.output).elements
    if source.preprocess:
        check_channels(source.preprocess, graph.shape(graph.input))
    if source.labels and len(source.labels) != classes:
        raise ModelError(f"there are {len(source.labels)} labels for a network with {classes} outputs")
    if source.activation not in ACTIVATIONS:
        raise UsageError(f"the output is softmax, sigmoid or none, not {source.activation!r}")


def _check_batch(sample: Array) -> Array:
    """Return two different images, so that a network which is tied to one image or mixes them is caught."""
    noise = np.random.default_rng(1).standard_normal((_CHECK_BATCH - 1, *sample.shape[1:]), dtype=np.float32)
    return np.concatenate([sample[:1], noise])
