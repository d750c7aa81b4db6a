"""Cost of orchestration in elapsed time: the pipeline against the same tiles on threads of one process.

One query at a time; the pipeline has as many single-threaded workers as there are threads, each a process behind the
local Lambda service, and Redis. Both answer the same pixels in turn: ratios of interleaved measurements cancel drift.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import typer
from numpy.typing import NDArray

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import SerferError
from serfer.core.plan import IMAGE, Plan, Stage, Tile
from serfer.lambdas.sessions import SessionCache
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.reference import normalised
from serfer.settings import Settings, load_settings
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.core.options import DEFAULT_MODEL, AtMostOption, FixedPlanOption, FixedPlansOption
from serfer_bench.core.plans import bench_plan
from serfer_bench.core.results import require_at_most
from serfer_bench.core.tables import Column, Measurement, Results, publish, table_of

Array = NDArray[np.float32]
_Maps = dict[tuple[int, int], Array]


class Threads:
    """Runs a plan on `threads` threads, each a worker's session options with one thread."""

    def __init__(self, plan: Plan, directory: Path, threads: int) -> None:
        self._plan = plan
        self._sessions = SessionCache(directory, threads=1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="serfer-bench")

    def __call__(self, pixels: NDArray[Any]) -> Array:
        maps: _Maps = {(IMAGE, IMAGE): normalised(self._plan, pixels)}
        for number, stage in enumerate(self._plan.stages):
            for output, shape in enumerate(stage.outputs):
                maps[number, output] = np.empty(shape.of(shape.whole, len(pixels)), dtype=np.float32)
            done = [self._pool.submit(self._tile, number, stage, tile, maps) for tile in stage.tiles]
            for future in done:
                future.result()
        return maps[len(self._plan.stages) - 1, 0]

    def _tile(self, number: int, stage: Stage, tile: Tile, maps: _Maps) -> None:
        given = {
            f"input{index}": np.ascontiguousarray(
                maps[source.stage, source.output][source.shape.slices(tile.inputs[index])]
            )
            for index, source in enumerate(stage.inputs)
        }
        outputs = self._sessions.get(stage, tile).run(None, given)
        for output, value in enumerate(outputs):
            maps[number, output][stage.outputs[output].slices(tile.outputs[output])] = value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()


_WARM_UP = 8
_TOLERANCE = 1e-4  # of the logits' range
_MS_PER_S = 1000
Progress = Callable[[str], None]
_Way = Callable[[NDArray[Any]], Any]


@dataclass(frozen=True)
class Orchestration(Measurement):
    """Median milliseconds of a query either way, and the median, least and greatest of the rounds' ratios."""

    plan: Annotated[str, Column("plan")]
    workers: Annotated[int, Column("workers")]
    pipeline_ms: Annotated[float, Column("pipeline ms", ".1f")]
    threads_ms: Annotated[float, Column("threads ms", ".1f")]
    ratio: Annotated[float, Column("times", ".2f")]
    least: Annotated[float, Column("from", ".2f")]
    greatest: Annotated[float, Column("to", ".2f")]
    rounds: Annotated[int, Column("rounds")]
    bytes_per_query: Annotated[int, Column("bytes through the store", ",")]
    polls: Annotated[int, Column("polls")]


def measure(
    name: str, settings: Settings, rounds: int = 15, workers: int = 2, progress: Progress = lambda _: None
) -> Orchestration:
    directory = bench_plan(name, settings, progress)
    progress(f"starting {workers} workers")
    with (
        _pipeline(directory, settings, workers) as pipeline,
        Threads(pipeline.plan, directory, workers) as threads,
    ):
        pixels = _random_pixels(pipeline.plan)
        _check_same(pipeline.run(pixels), threads(pixels))
        compared = _compare((pipeline.run, threads), pixels, rounds, progress)
        store = pipeline.last_report.store
    return Orchestration(name, workers, *compared, rounds, store.bytes_put + store.bytes_get, store.exists)


@dataclass(frozen=True)
class Scaling(Measurement):
    """Median milliseconds of a query over one worker and over several; the rounds' median, least, greatest ratio."""

    plan: Annotated[str, Column("plan")]
    workers: Annotated[int, Column("workers")]
    one_ms: Annotated[float, Column("one worker ms", ".1f")]
    several_ms: Annotated[float, Column("several ms", ".1f")]
    speedup: Annotated[float, Column("times faster", ".2f")]
    least: Annotated[float, Column("from", ".2f")]
    greatest: Annotated[float, Column("to", ".2f")]
    rounds: Annotated[int, Column("rounds")]


def measure_scaling(
    name: str, settings: Settings, rounds: int = 9, workers: int = 2, progress: Progress = lambda _: None
) -> Scaling:
    directory = bench_plan(name, settings, progress)
    progress(f"starting {workers} workers, and one")
    with _pipeline(directory, settings, 1) as one, _pipeline(directory, settings, workers) as several:
        compared = _compare((one.run, several.run), _random_pixels(one.plan), rounds, progress)
    return Scaling(name, workers, *compared, rounds)


def _pipeline(directory: Path, settings: Settings, workers: int) -> Pipeline:
    mine = settings.model_copy(update={"local_concurrency": workers})
    return open_pipeline(directory, workers="local", settings=mine)


def _random_pixels(plan: Plan) -> NDArray[np.uint8]:
    shape = plan.input
    return np.random.default_rng(0).integers(0, 256, (1, shape.height, shape.width, shape.channels), dtype=np.uint8)


def _compare(
    ways: tuple[_Way, _Way], pixels: NDArray[Any], rounds: int, progress: Progress
) -> tuple[float, float, float, float, float]:
    """Return either way's median in ms, and the median, least and greatest ratio of the first's time to the other's."""
    times = np.empty((_WARM_UP + rounds, len(ways)))
    for number in range(len(times)):
        progress(f"round {number + 1} of {len(times)}")
        times[number] = [_seconds(way, pixels) for way in ways]
    first_ms, other_ms = np.median(times[_WARM_UP:], axis=0) * _MS_PER_S
    ratios = times[_WARM_UP:, 0] / times[_WARM_UP:, 1]
    return float(first_ms), float(other_ms), float(np.median(ratios)), float(ratios.min()), float(ratios.max())


def _seconds(way: _Way, pixels: NDArray[Any]) -> float:
    started = time.perf_counter()
    way(pixels)
    return time.perf_counter() - started


def _check_same(one: NDArray[Any], other: NDArray[Any]) -> None:
    if np.abs(one - other).max() > _TOLERANCE * (other.max() - other.min()):
        raise SerferError("the pipeline and the threads give different answers")


def command(
    plan: FixedPlansOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of queries.")] = 15,
    workers: Annotated[int, typer.Option(min=1, help="Single-threaded workers, and threads.")] = 2,
    at_most: AtMostOption = None,
    as_json: JsonOption = False,
) -> None:
    """Elapsed time of a query through the pipeline against the same tiles on threads of one process."""
    settings = load_settings()
    with status_line() as progress:
        found = [measure(name, settings, rounds, workers, progress) for name in plan or [DEFAULT_MODEL]]
    publish(Results([asdict(one) for one in found], [table_of(found)]), as_json=as_json)
    most = max(one.ratio for one in found)
    require_at_most(most, at_most, f"the pipeline takes {most:.2f} times the threads' time")


def scaling(
    plan: FixedPlanOption = "vgg16-448",
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of queries.")] = 9,
    workers: Annotated[int, typer.Option(min=2, help="Single-threaded workers.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Elapsed time of a query over several single-threaded workers against one, orchestration included."""
    with status_line() as progress:
        result = measure_scaling(plan, load_settings(), rounds, workers, progress)
    publish(Results([asdict(result)], [table_of([result])]), as_json=as_json)
