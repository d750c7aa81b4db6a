"""Processor time of the whole warm pipeline against the unsplit forward pass, in turn, in one run.

The pipeline's time is that of this process (client, driver, Lambda service) and of every process below it (Redis,
workers), read before and after a block of queries, one at a time; the other processes' is known in steps of 10 ms. The
image is decoded beforehand: the unsplit pass gets the same pixels and normalises them too. The tiles alone, in this
process, are what halos make of the arithmetic; the rest is orchestration. Ratios of measurements made in turn hardly
notice what else the machine does.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from numpy.typing import NDArray

from serfer.cli.shared.options import JsonOption, opened, status_line
from serfer.core.plan import Plan
from serfer.lambdas.sessions import SessionCache
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.reference import unsplit
from serfer.system import processor_name
from serfer.wiring.pipeline_options import PipelineOptions
from serfer_bench.core.options import AtMostOption, ModelOption, PlanOption, plan_of
from serfer_bench.core.processes import descendants, used_s
from serfer_bench.core.results import require_at_most
from serfer_bench.core.tables import Results, Table, publish

_WARM_UP = 30
_MS_PER_S = 1e3


@dataclass(frozen=True)
class Overhead:
    """Processor milliseconds a query, medians over rounds."""

    model: str
    rounds: int
    queries: int
    ratio: float
    ratios: tuple[float, ...]
    pipeline_ms: float
    unsplit_ms: float
    tiles_ms: float
    tasks: int
    shares_ms: dict[str, float]
    polls: int
    bytes_per_query: int
    weight_loads: int
    machine: str


def measure(
    pipeline: Pipeline,
    reference: Callable[[NDArray[Any]], Any],
    tiles: Sequence[Callable[[], Any]],
    rounds: int,
    queries: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Overhead:
    shape = pipeline.plan.input
    pixels = np.random.default_rng(0).integers(0, 256, (1, shape.height, shape.width, shape.channels), dtype=np.uint8)
    progress("warming up")
    for _ in range(_WARM_UP):
        pipeline.run(pixels)
        reference(pixels)
        for tile in tiles:
            tile()
    blocks: list[dict[str, float]] = []
    whole: list[float] = []
    alone: list[float] = []
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}")
        before = _processor_s()
        for _ in range(queries):
            pipeline.run(pixels)
        after = _processor_s()
        blocks.append({name: (after[name] - before[name]) * _MS_PER_S / queries for name in after})
        whole.append(_thread_ms(lambda: reference(pixels), queries))
        alone.append(_thread_ms(lambda: [tile() for tile in tiles], queries))
    store = pipeline.last_report.store
    ratios = tuple(sum(block.values()) / unsplit_ms for block, unsplit_ms in zip(blocks, whole, strict=True))
    return Overhead(
        model=pipeline.plan.model,
        rounds=rounds,
        queries=queries,
        ratio=median(ratios),
        ratios=ratios,
        pipeline_ms=median(sum(block.values()) for block in blocks),
        unsplit_ms=median(whole),
        tiles_ms=median(alone),
        tasks=len(tiles),
        shares_ms={name: median(block[name] for block in blocks) for name in blocks[0]},
        polls=store.exists,
        bytes_per_query=store.bytes_put + store.bytes_get,
        weight_loads=pipeline.last.weight_loads,
        machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, {processor_name()}",
    )


def tiles_of(plan: Plan, directory: Path) -> list[Callable[[], Any]]:
    """Return a call for each task, which computes its tile of zeros with the session that a worker has."""
    sessions = SessionCache(directory, threads=1)
    calls: list[Callable[[], Any]] = []
    for stage in plan.stages:
        for tile in stage.tiles:
            shapes = [read.shape.of(rect, 1) for read, rect in zip(stage.inputs, tile.inputs, strict=True)]
            inputs = {f"input{at}": np.zeros(shape, np.float32) for at, shape in enumerate(shapes)}
            calls.append(partial(sessions.run, stage, tile, inputs))
    return calls


def _thread_ms(call: Callable[[], Any], times: int) -> float:
    started = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - started) * _MS_PER_S / times


def _processor_s() -> dict[str, float]:
    spent: dict[str, float] = defaultdict(float)
    spent["client, driver, Lambda service"] = time.process_time()
    for process in descendants():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            spent["Redis" if process.name() == "valkey-server" else "workers"] += used_s([process])
    return spent


def results(result: Overhead) -> Results:
    alone = {"the tiles alone": result.tiles_ms, "unsplit forward pass": result.unsplit_ms}
    times = {**result.shares_ms, "pipeline, all of it": result.pipeline_ms, **alone}
    overheads = {**result.shares_ms, "workers": result.shares_ms["workers"] - result.tiles_ms}
    low, high = min(result.ratios), max(result.ratios)
    rows = {
        **{f"processor ms: {name}": f"{ms:.1f}" for name, ms in times.items()},
        "times the unsplit pass (pairs from, to)": f"{result.ratio:.2f} ({low:.2f} to {high:.2f})",
        **{
            f"us a task beside its tile: {name}": f"{ms * _MS_PER_S / result.tasks:,.0f}"
            for name, ms in overheads.items()
        },
        "bytes through the store": f"{result.bytes_per_query:,}",
    }
    return Results(
        [asdict(result)],
        [Table(("of a warm query", result.model), [*rows.items()])],
        [f"medians of {result.rounds} rounds of {result.queries} queries; {result.machine}"],
    )


def command(
    model: ModelOption = None,
    plan: PlanOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of measurements.")] = 7,
    queries: Annotated[int, typer.Option(min=1, help="Queries in each measurement.")] = 20,
    at_most: AtMostOption = None,
    as_json: JsonOption = False,
) -> None:
    """Processor time of the warm pipeline (driver, Lambda service, Redis, workers) against the unsplit forward pass."""
    directory = plan_of(model, plan)
    with opened(directory, PipelineOptions(), "local") as pipeline, status_line() as progress:
        whole, tiles = unsplit(pipeline.plan, directory), tiles_of(pipeline.plan, directory)
        result = measure(pipeline, whole, tiles, rounds, queries, progress)
    publish(results(result), as_json=as_json)
    require_at_most(result.ratio, at_most, f"the pipeline takes {result.ratio:.2f} times the unsplit pass")
