"""Figures 10 and 12 up to 1,000 at once: the true driver, over functions that wait as long as others were measured.

    one query at a time, here ──▶ the milliseconds of each stage's task ──▶ null workers, up to 1,000 at once
    the paper's Table 2 ───────────────────────────────────────────────────▶

Two processors cannot compute 1,000 queries at once; a platform that grows with the load can. What the driver takes is
measured, what functions take is simulated, and neither network nor store takes any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import QueryError, UsageError
from serfer.plan_directory import load_plan
from serfer.settings import Settings, load_settings
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.core.null_workers import null_pipeline
from serfer_bench.core.options import NetworkOption, PlanOption, network
from serfer_bench.core.plans import Progress
from serfer_bench.core.results import stamp_now
from serfer_bench.core.tables import Results, publish, table_of
from serfer_bench.load.pipeline_system import PipelineSystem
from serfer_bench.load.rounds import Plan, measure_rounds
from serfer_bench.load.systems import Setup, examples
from serfer_bench.study.papers.serfer.costs import TABLE_2
from serfer_bench.study.papers.serfer.loads import BURSTS, Load, LoadRow, Measured, limited, load_rows

SIMULATED: Final = "simulated"
_HERE, _PAPER = "times measured here", "Table 2's times"
_CONCURRENCY = 1000  # at once across all functions: the limit of the paper's account (section 6.1)
_QUERIES = 20
_WARM_UP = 3
_PATIENCE_S = 600.0
_MS_PER_S = 1000.0


def measured_ms(directory: Path, settings: Settings, queries: int = _QUERIES) -> list[float]:
    shape = load_plan(directory).input
    pixels = np.zeros((1, shape.height, shape.width, shape.channels), np.uint8)
    single = settings.model_copy(update={"local_concurrency": 1})
    times: list[list[float]] = []
    with open_pipeline(directory, workers="local", settings=single) as pipeline:
        for _ in range(_WARM_UP + queries):
            pipeline.run(pixels)
            stages = pipeline.last.answer.stages
            times.append([median(report.total_ms for report in stage.reports) for stage in stages])
    return [median(stage) for stage in zip(*times[_WARM_UP:], strict=True)]


def paper_ms(stages: int) -> list[float]:
    """Return Table 2's times for a plan of so many stages: those beyond the third are parts of the third function."""
    if stages < len(TABLE_2):
        raise UsageError(f"Table 2 has {len(TABLE_2)} functions, this plan {stages} stages")
    return [*(layer.ms for layer in TABLE_2), *[0.0] * (stages - len(TABLE_2))]


def emulate(
    directory: Path, name: str, task_ms: Sequence[float], loads: Sequence[Load], settings: Settings, progress: Progress
) -> list[Measured]:
    inputs = examples(directory, Setup("null", _CONCURRENCY))
    limits = settings.model_copy(update={"local_concurrency": _CONCURRENCY})
    seconds = [ms / _MS_PER_S for ms in task_ms]
    pipeline = null_pipeline(directory, limits, oldest_first=True, service_s=seconds)
    measured = []
    with PipelineSystem(name, pipeline, _PATIENCE_S) as system:
        for load in loads:
            rounds, logs = measure_rounds([system], inputs, Plan(load.arrivals, 1, _PATIENCE_S), progress)
            measured.append(Measured(load, name, rounds, logs))
    return measured


def command(
    model: NetworkOption = None,
    plan: PlanOption = None,
    most: Annotated[int, typer.Option(min=1, help="Leave out larger bursts.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Put bursts of up to 1,000 to our driver over functions that wait, and compute nothing."""
    with status_line() as progress:
        settings = load_settings()
        directory = network(model, plan, settings, progress)
        progress("timing each stage")
        times = {_HERE: measured_ms(directory, settings), _PAPER: paper_ms(len(load_plan(directory).stages))}
        measured = [
            one
            for name, task_ms in times.items()
            for one in emulate(directory, name, task_ms, _loads(name, most), settings, progress)
        ]
    rows = [_simulated(row) for row in load_rows(measured)]
    notes = [
        f"{name}: {', '.join(f'{ms:,.1f}' for ms in task_ms)} ms a task, by stage" for name, task_ms in times.items()
    ]
    notes.append(f"at most {_CONCURRENCY:,} tasks at once")
    publish(Results(map(asdict, rows), [table_of(rows)], [*notes, *stamp_now().lines]), as_json=as_json)
    if failed := sum(row.failed for row in rows):
        raise QueryError(f"{failed:,} queries had no answer")


def _loads(name: str, most: int) -> list[Load]:
    bursts = [Load(load.images, load.gap_s, (name,)) for load in BURSTS]
    return limited(bursts, most, ())


def _simulated(row: LoadRow) -> LoadRow:
    return replace(row, figures=SIMULATED)
