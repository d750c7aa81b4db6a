"""Measures operator profiles on this machine (INFless, section 3.3: operators are profiled, not networks).

Tasks of a fixed set of networks, and of small graphs with drawn shapes, run in sessions as workers build them, and ONNX
Runtime reports how long each operator took. So operators are measured as they run in a task: fused, with the maps that
the one before left in the cache. Each kind's coefficients are then the non-negative ones with the least relative error.

A machine is hardly ever quiet. A small reference convolution runs before and after each repetition; repetitions go on
until enough of them were undisturbed, and of each operator the shortest time counts.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from serfer.core.costs.operator_costs import COUNTED, Kind, Profile, Profiles, Work, counts
from serfer.core.costs.sessions import register_arena, set_threads, share_arena
from serfer.core.errors import ModelError
from serfer.core.geometry import Grid, Rect
from serfer.extras import installed
from serfer.splitter.network.graph import MAP_RANK, VECTOR_RANK, Graph, Node
from serfer.splitter.network.onnx_models import model_of, session_of
from serfer.splitter.network.source import Progress, load
from serfer.splitter.plan_dir.emit import tile_graph
from serfer.splitter.planning.ort_kernels import (
    FUSABLE_ACTIVATIONS,
    convolution_kind,
    edge_columns,
    kind_of,
    tile_works,
    with_activation,
)
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.cuts import Cut, cut_points
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_grid, with_tile_pools
from serfer.splitter.tiling.grids import ONE, tile_rects
from serfer.splitter.tiling.regions import Regions, infer_regions, whole_regions
from serfer.system import processor_name
from serfer_bench.study.profiling.synthetic_models import synthetic_models

NETWORKS = (
    *(("resnet18", 224), ("squeezenet", 224), ("mobilenet-v2", 224), ("densenet121", 224), ("efficientnet-lite1", 240)),
    *(("vgg11", 160), ("resnet18", 352), ("mobilenet-v2", 448), ("squeezenet", 416), ("efficientnet-b0", 224)),
)
"""The networks, with the heights and widths of their images, that the profiles are filled from."""
GRIDS = (ONE, Grid(2, 2), Grid(1, 4), Grid(3, 3))
_DRAWN_ROUNDS = 16
_SPANS = 4
_QUIET_ROUNDS, _LEAST_ROUNDS = 6, 8
_MOST_SECONDS, _WARM_UP_SECONDS = 3.0, 3.0
_DISTURBED = 1.15
"""A repetition counts as undisturbed while the reference takes at most so many times its best."""
_WAITED = 0.03
"""It does not where its thread waited for a processor for more than this share of its time."""
_RESOLUTION = 1e-6  # ONNX Runtime reports whole microseconds, rounded down
_SLOWED = 1.3  # measured to predicted, from which on a sample counts as disturbed and is left out
_THREADS, _BATCH = 2, 8
_CHAIN = 100
_CONVOLUTIONS = tuple(kind for kind in Kind if kind.endswith("convolution"))
_REORDERS = {
    "ReorderInput": Kind.REORDER_INPUT,
    "ReorderOutput": Kind.REORDER_OUTPUT,
    "ReorderInput of input": Kind.REORDER_TASK_INPUT,
}
_MATRIX_PRODUCTS = frozenset({"FusedGemm", "FusedMatMul", "Gemm", "MatMul"})
_WORTH_THREADS = 2e-4  # seconds; waking a thread takes so long that shorter operators give no information about sharing
_US = 1e6
_NS = 1e9


@dataclass(frozen=True)
class Task:
    """One tile of a stage: its operators and regions, its inputs and its outputs."""

    graph: Graph
    nodes: tuple[Node, ...]
    regions: Regions
    inputs: tuple[str, ...]
    outputs: Mapping[str, Rect]

    @property
    def works(self) -> list[Work]:
        return tile_works(self.graph, self.nodes, self.regions, self.inputs, self.outputs)

    def model(self) -> onnx.ModelProto:
        return tile_graph(self.graph, self.nodes, self.regions, self.inputs, self.outputs).model({})


def stage_tasks(graph: Graph, left: Cut, right: Cut, grid: Grid) -> list[Task]:
    """Return the tasks of the stage between two cuts, none where it cannot be spread over `grid`."""
    graph = with_grid(graph, grid)
    nodes = graph.nodes[left.position : right.position]
    made = {node.output for node in nodes}
    read = {name for node in nodes for name in graph.activations(node)}
    inputs = tuple(name for name in left.tensors if name in read)
    rects = {name: tile_rects(graph, name, grid) for name in right.tensors if name in made}
    spread = all(
        operators.column_splittable(graph, node) if grid.columns else operators.tileable(graph, node) for node in nodes
    )
    if not all(rects.values()) or (grid.tiles > 1 and not spread):
        return []
    tiles = [{name: parts[number] for name, parts in rects.items()} for number in range(grid.tiles)]
    regions = infer_regions(graph, nodes, tiles) if spread else [whole_regions(graph, nodes)]
    return [Task(graph, nodes, needed, inputs, targets) for targets, needed in zip(tiles, regions, strict=True)]


def worker_session(model: onnx.ModelProto, threads: int = 1, events: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    set_threads(options, threads)
    register_arena()
    share_arena(options)
    if events:
        options.enable_profiling = True
        options.profile_file_prefix = str(events)
    return session_of(model, options)


class Meter:
    """Repeats a measurement until enough repetitions were undisturbed.

    A repetition was, if a small convolution before and after it took hardly longer than it ever did, and if this thread
    did not have to wait for a processor meanwhile. The convolution runs on as many threads as what is measured, so that
    all of the processors have to be free.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        rng = np.random.default_rng(0)
        weight = numpy_helper.from_array(rng.standard_normal((64, 64, 3, 3), dtype=np.float32), "w")
        value = helper.make_tensor_value_info
        model = model_of(
            [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
            [value("x", TensorProto.FLOAT, [1, 64, 32, 32])],
            [value("y", TensorProto.FLOAT, [1, 64, 32, 32])],
            [weight],
        )
        self._session = worker_session(model, threads)
        self._given = {"x": rng.standard_normal((1, 64, 32, 32), dtype=np.float32)}
        ended, self._best = time.monotonic() + _WARM_UP_SECONDS, self._reference()
        while time.monotonic() < ended:
            self._best = min(self._best, self._reference())

    def _reference(self) -> float:
        return min(timed(self._session, self._given) for _ in range(2))

    def repeat(self, once: Callable[[], float], most_s: float = _MOST_SECONDS) -> Repetitions:
        """Run `once`, which returns seconds, until `_QUIET_ROUNDS` were undisturbed or `most_s` have passed."""
        ended, quiet, times = time.monotonic() + most_s, 0, list[float]()
        after = self._reference()
        while quiet < _QUIET_ROUNDS or len(times) < _LEAST_ROUNDS:
            before, wall, processor = after, time.perf_counter(), time.thread_time()
            times.append(once())
            waited = (time.perf_counter() - wall) - (time.thread_time() - processor)
            after = self._reference()
            self._best = min(self._best, before, after)
            steady = max(before, after) < _DISTURBED * self._best
            quiet += steady and (self._threads > 1 or waited < _WAITED * times[-1] + _RESOLUTION)
            if time.monotonic() > ended and len(times) >= _LEAST_ROUNDS:
                break
        return Repetitions(tuple(times), quiet)


@dataclass(frozen=True)
class Repetitions:
    """Seconds of every repetition, and how many of them were undisturbed."""

    times: tuple[float, ...]
    quiet: int

    @property
    def best(self) -> float:
        return min(self.times)


def timed(session: ort.InferenceSession, given: Mapping[str, NDArray[Any]]) -> float:
    started = time.perf_counter()
    session.run(None, given)
    return time.perf_counter() - started


def given_to(session: ort.InferenceSession, batch: int = 1) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return {
        tensor.name: rng.standard_normal((batch, *tensor.shape[1:]), dtype=np.float32)
        for tensor in session.get_inputs()
    }


@dataclass(frozen=True)
class Sample:
    """An operator and its shortest time in seconds for `batch` images."""

    work: Work
    seconds: float
    batch: int = 1


def observe(model: onnx.ModelProto, meter: Meter, threads: int = 1, batch: int = 1) -> list[Sample]:
    for node in model.graph.node:
        node.name = node.output[0]  # ONNX Runtime's reports then name the operator
    with tempfile.TemporaryDirectory() as directory:
        session = worker_session(model, threads, Path(directory) / "events")
        given = given_to(session, batch)
        repeated = meter.repeat(lambda: timed(session, given))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    if not repeated.quiet:
        return []
    steps = _steps(events)
    windows = _windows(model)
    steps = _with_inputs(steps, {value.shape for value in given.values()})
    return [Sample(work, seconds, batch) for step, seconds in steps if (work := _work_of(step, windows))]


_Step = tuple[str, str, tuple[tuple[int, ...], ...], tuple[int, ...]]
"""An operator that ran: its name, its kind, the shapes of what it read and of what it wrote, the batch included."""


def _steps(events: Iterable[Mapping[str, Any]]) -> list[tuple[_Step, float]]:
    best: dict[tuple[str, str], tuple[_Step, float]] = {}
    for event in events:
        if event["cat"] != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        args = event["args"]
        read, written = (_shapes(args[key]) for key in ("input_type_shape", "output_type_shape"))
        step = event["name"].removesuffix("_kernel_time"), args["op_name"], read, written[0]
        key, seconds = (event["name"], args["node_index"]), event["dur"] / _US + _RESOLUTION / 2
        if key not in best or seconds < best[key][1]:
            best[key] = step, seconds
    return list(best.values())


def _with_inputs(
    steps: Iterable[tuple[_Step, float]], given: AbstractSet[tuple[int, ...]]
) -> list[tuple[_Step, float]]:
    """Mark the operators that reorder a task's inputs to NCHWc: those maps are not cached yet."""
    left, marked = set(given), []
    for (name, operator, read, written), seconds in steps:
        first = operator == "ReorderInput" and read[0] in left
        left -= {read[0]} if first else set()
        marked.append(((name, f"{operator} of input" if first else operator, read, written), seconds))
    return marked


def _shapes(tensors: Iterable[Mapping[str, Sequence[int]]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(next(iter(tensor.values()))) for tensor in tensors)


@dataclass(frozen=True)
class _Window:
    taps: int
    stride: int
    edges: int = 0
    last: str = ""


def _windows(model: onnx.ModelProto) -> dict[str, _Window]:
    windows: dict[str, _Window] = {}
    for node in model.graph.node:
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        if "kernel_shape" in attributes:
            stride = (attributes.get("strides") or [1, 1])[-1]
            pads = attributes.get("pads") or [0] * MAP_RANK
            edges = edge_columns(pads[1], pads[3], stride)
            windows[node.output[0]] = _Window(prod(attributes["kernel_shape"]), stride, edges)
        else:
            before = [windows[name] for name in node.input if name in windows]
            windows |= {node.output[0]: replace(before[-1], last=node.op_type)} if before else {}
    return windows


def _work_of(step: _Step, windows: Mapping[str, _Window]) -> Work | None:
    name, operator, all_read, all_written = step
    images = all_written[0]  # what is read second may be a weight
    read = tuple(
        (1, *shape[1:]) if shape[:1] == (images,) and index != 1 else shape for index, shape in enumerate(all_read)
    )
    written = (1, *all_written[1:])
    window = windows.get(name.removesuffix("_nchwc"), _Window(1, 1))
    if operator in ("Flatten", "Reshape", "Identity"):
        return None
    rows, cols = (written[-2], written[-1]) if len(written) > VECTOR_RANK else (1, written[-1])
    moved = Work(
        Kind.REORDER_OUTPUT, read=prod(read[0]), written=prod(written), rows=rows, cols=cols, channels_out=written[1]
    )
    if operator in _REORDERS:
        return replace(moved, kind=_REORDERS[operator])
    if operator in ("Conv", "FusedConv"):
        return _convolution(moved, read, window, in_blocks=name.endswith("_nchwc"))
    if operator in _MATRIX_PRODUCTS:  # a constant matrix is packed and no longer reported; the last axes have its size
        summed, columns = read[0][-1], written[-1]
        kind = Kind.FULLY_CONNECTED if len(written) == VECTOR_RANK else Kind.PRODUCT
        macs, weights = prod(written) * summed, summed * columns
        return replace(moved, kind=kind, macs=macs, weights=weights, channels_in=summed)
    kind = Kind.CROP if operator == "Slice" else kind_of(operator)
    if kind in (Kind.ELEMENTWISE, Kind.COPY):
        moved = replace(moved, read=sum(prod(shape) for shape in read if len(shape) == len(written)))
    return replace(moved, kind=kind, taps=window.taps if kind == Kind.POOL else 1)


def _convolution(moved: Work, read: Sequence[Sequence[int]], window: _Window, *, in_blocks: bool) -> Work | None:
    weight, channels = read[1], read[0][1]
    if len(weight) != MAP_RANK:  # batch normalisation in blocks is a convolution without a window
        return replace(moved, kind=Kind.ELEMENTWISE)
    groups = max(1, channels // weight[1])
    kind = convolution_kind(weight, groups) if in_blocks else Kind.OTHER_CONVOLUTION
    if kind == Kind.DEPTHWISE and prod(weight[2:]) == 1:
        return replace(moved, kind=Kind.ELEMENTWISE)
    counted = replace(
        moved,
        kind=kind,
        macs=moved.rows * moved.cols * prod(weight),
        weights=prod(weight),
        channels_in=channels,
        channels_out=weight[0],
        groups=groups,
        taps=prod(weight[2:]),
        stride=window.stride,
        edges=window.edges,
    )
    return with_activation(counted, window.last if window.last in FUSABLE_ACTIVATIONS else "")


def measure(
    progress: Progress = lambda _: None,
    networks: Sequence[tuple[str, int]] = NETWORKS,
    drawn_rounds: int = _DRAWN_ROUNDS,
) -> Profiles:
    """Fill the profiles on this machine: three to five minutes with the default networks, more on a busy machine."""
    installed("sklearn")  # before minutes of measuring
    meter = Meter()
    samples: list[Sample] = []
    for number, (what, model) in enumerate(_models(networks, drawn_rounds, progress)):
        progress(f"measuring {what} (task {number + 1})")
        is_vector = len(model.graph.input[0].type.tensor_type.shape.dim) == VECTOR_RANK
        batches = (1, _BATCH) if is_vector else (1,)
        samples += [sample for batch in batches for sample in observe(model, meter, batch=batch)]
    progress("measuring two threads")
    shares = _parallel_shares(meter, drawn_rounds)
    progress("fitting")
    return fit(samples, shares, overheads(meter))


def _models(
    networks: Sequence[tuple[str, int]], drawn_rounds: int, progress: Progress
) -> Iterator[tuple[str, onnx.ModelProto]]:
    rng = np.random.default_rng(0)
    for model in synthetic_models(rng, drawn_rounds):
        yield "drawn shapes", model
    for name, size in networks:
        progress(f"reading {name} at {size}")
        source, _ = load(name, np.zeros((1, 3, size, size), dtype=np.float32))
        for task in _drawn_tasks(with_tile_pools(from_onnx(source.onnx, size, size)), rng):
            yield f"{name} at {size}", task.model()


def _drawn_tasks(graph: Graph, rng: np.random.Generator) -> Iterator[Task]:
    cuts = cut_points(graph)
    yield stage_tasks(graph, cuts[0], cuts[-1], ONE)[0]
    inner = sorted(rng.choice(np.arange(1, len(cuts) - 1), size=min(_SPANS - 1, len(cuts) - 2), replace=False))
    ends = [0, *map(int, inner), len(cuts) - 1]
    for left, right in pairwise(ends):
        for grid in GRIDS:
            tasks = stage_tasks(graph, cuts[left], cuts[right], grid)
            yield from tasks[:: max(1, len(tasks) // 2)][:2]


def _parallel_shares(meter: Meter, drawn_rounds: int) -> dict[Kind, float]:
    """Return the share of each kind's time that two threads divide, from synthetic shapes on one thread and on two.

    Convolutions of which none took long enough get the least share of the others; anything else counts as serial.
    """
    meters = {1: meter, _THREADS: Meter(_THREADS)}
    one_s, two_s = defaultdict[Kind, float](float), defaultdict[Kind, float](float)
    for model in synthetic_models(np.random.default_rng(1), max(1, drawn_rounds // 4)):
        alone, together = (observe(model, used, threads) for threads, used in meters.items())
        if len(alone) != len(together):  # the machine was never quiet for one of them
            continue
        for by_one, by_two in zip(alone, together, strict=True):
            if by_one.seconds > _WORTH_THREADS:
                one_s[by_one.work.kind] += by_one.seconds
                two_s[by_one.work.kind] += by_two.seconds
    shares = {kind: min(1.0, max(0.0, _THREADS * (1 - two_s[kind] / one_s[kind]))) for kind in one_s}
    least = min((shares[kind] for kind in _CONVOLUTIONS if kind in shares), default=0.0)
    return dict.fromkeys(_CONVOLUTIONS, least) | shares


def _chain(length: int) -> onnx.ModelProto:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1]) for name in ("t0", f"t{length}")]
    nodes = [helper.make_node("Abs" if step % 2 else "Neg", [f"t{step}"], [f"t{step + 1}"]) for step in range(length)]
    return model_of(nodes, value[:1], value[1:])


@dataclass(frozen=True)
class Overheads:
    """Seconds that running a session costs besides its operators, and that watching an operator adds to its time."""

    run: float
    watching: float


def overheads(meter: Meter) -> Overheads:
    one, many = worker_session(_chain(1)), worker_session(_chain(_CHAIN))
    given = given_to(one)
    run = meter.repeat(lambda: timed(one, given)).best
    turn = (meter.repeat(lambda: timed(many, given)).best - run) / (_CHAIN - 1)
    with tempfile.TemporaryDirectory() as directory:
        watched = worker_session(_chain(_CHAIN), events=Path(directory) / "events")
        meter.repeat(lambda: timed(watched, given))
        events = json.loads(Path(watched.end_profiling()).read_text(encoding="utf-8"))
    seconds = [seconds for _, seconds in _steps(events)]
    return Overheads(run - turn, max(0.0, sum(seconds) / len(seconds) - turn))


def fit(samples: Iterable[Sample], shares: Mapping[Kind, float], extra: Overheads) -> Profiles:
    by_kind = defaultdict[Kind, list[Sample]](list)
    for sample in samples:
        by_kind[sample.work.kind].append(sample)
    missing = [str(kind) for kind in Kind if not by_kind[kind]]
    if missing:
        raise ModelError(f"the machine was never quiet enough to measure {', '.join(missing)}; try again later")
    return Profiles(
        machine=f"{processor_name()}, {os.cpu_count() or 1} vCPUs",
        runtime=f"onnxruntime {ort.__version__}, Python {platform.python_version()}",
        date=datetime.now(UTC).date().isoformat(),
        run_ns=extra.run * _NS,
        kinds={kind: _fitted(kind, by_kind[kind], shares.get(kind, 0.0), extra.watching) for kind in Kind},
    )


def _fitted(kind: Kind, samples: Sequence[Sample], parallel: float, watching: float) -> Profile:
    names = sorted(COUNTED[kind])
    rows = np.array(
        [[counts(sample.work, sample.batch)[name] for name in names] for sample in samples], dtype=np.float64
    )
    seconds = np.array([max(sample.seconds - watching, _RESOLUTION / 2) for sample in samples])
    kept = np.ones(len(samples), dtype=bool)
    for _ in range(4):
        coefficients = _coefficients(rows[kept], seconds[kept], 1 / (seconds[kept] + 2 * _RESOLUTION))
        kept = seconds < _SLOWED * (rows @ coefficients + 2 * _RESOLUTION)
    error = np.abs(rows[kept] @ coefficients - seconds[kept]).sum() / seconds[kept].sum()
    return Profile(
        coefficients_ns={name: float(value * _NS) for name, value in zip(names, coefficients, strict=True)},
        parallel=float(parallel),
        samples=int(kept.sum()),
        error=float(error),
    )


def _coefficients(rows: NDArray[Any], seconds: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    from sklearn.linear_model import LinearRegression  # noqa: PLC0415 - slow to import, and only a fit needs it

    scale = np.maximum(rows.max(axis=0), 1e-30)
    model = LinearRegression(positive=True, fit_intercept=False)
    model.fit(rows / scale * weights[:, None], seconds * weights)
    coefficients: NDArray[Any] = model.coef_ / scale
    return coefficients
