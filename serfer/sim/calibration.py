"""Times of a plan's tasks, query by query: measured in a local run, or made of the published figures.

A query's tasks vary together (a machine that is slow now is slow for all of them), so whole queries are kept, a row
each, and whole rows are drawn: quantiles of one task alone would make stages of many tasks too slow, and the slowest
queries too rare.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from drivers.driver import Answer
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import CARRY_RATE, DISPATCH_SECONDS, Platform, cold_seconds, plan_load, task_seconds
from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.plan import Plan
from serfer.core.run_machine import Attempt
from serfer.core.structure import structure, unstructure
from serfer.core.wire import Report
from serfer.files import read_text, write_whole
from serfer.pipeline.pipeline import Pipeline
from serfer.pipeline.result import Result
from serfer.sim.rates import Progress, silent
from serfer.sim.service_times import Quantiles
from serfer.sim.traces import Floats

FORMAT: Final = 1
_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_TASKS: Final = 4096
_MS: Final = 1000.0
_WARM_UP: Final = 8  # queries that do not count
_PUBLISHED_ROWS: Final = 2000
_LONGEST_MS: Final = 1e9


@dataclass(frozen=True)
class Calibration:
    """Milliseconds of a plan's tasks: `service_ms` (what Lambda bills) and `overhead_ms` (all else) of each, by query.

    A row has the tasks of all stages in order; `driver_ms` is what the query takes besides its stages. `functions` are
    the numbers of the functions that each stage's tiles run in, `cold_ms` what cold starts add. `tag` is M for measured
    values, or those that aws.toml gives for the published ones.
    """

    format: int
    source: str
    tag: str
    date: str
    machine: str
    model: str
    plan: str
    memory_mb: tuple[int, ...]
    functions: tuple[tuple[int, ...], ...]
    service_ms: tuple[tuple[float, ...], ...]
    overhead_ms: tuple[tuple[float, ...], ...]
    driver_ms: tuple[float, ...]
    cold_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        tasks = sum(map(len, self.functions))
        if not 1 <= tasks <= _MAX_TASKS or len(self.functions) != len(self.memory_mb) or not all(self.functions):
            raise InputError(f"a calibration has 1 to {_MAX_TASKS:,} tasks, and a memory for each stage")
        rows = (*self.service_ms, *self.overhead_ms)
        if not self.driver_ms or not len(self.service_ms) == len(self.overhead_ms) == len(self.driver_ms):
            raise InputError("a calibration's service_ms, overhead_ms and driver_ms have as many queries, 1 at least")
        if any(len(row) != tasks for row in rows):
            raise InputError(f"every row of service_ms and overhead_ms has {tasks} tasks, as functions has")
        if not self.cold_ms:
            raise InputError("a calibration has one cold start in cold_ms at least")
        values = (*self.driver_ms, *self.cold_ms, *self.memory_mb, *(value for row in rows for value in row))
        if not all(0 <= value <= _LONGEST_MS for value in values):  # nor is any NaN
            raise InputError(f"a calibration's times are 0 to {_LONGEST_MS:g} ms")
        if any(not 0 <= number < _MAX_TASKS for stage in self.functions for number in stage):
            raise InputError(f"a calibration's functions are numbers from 0 to {_MAX_TASKS - 1:,}")

    @property
    def tiles(self) -> tuple[int, ...]:
        """The number of tasks of each stage."""
        return tuple(map(len, self.functions))

    @property
    def tasks(self) -> int:
        """The number of tasks of a query."""
        return sum(self.tiles)

    @property
    def tasks_s(self) -> NDArray[np.float64]:
        """Seconds from a task's release to its answer, in warm environments: (queries, tasks)."""
        return np.asarray(np.array(self.service_ms) + np.array(self.overhead_ms), dtype=np.float64) / _MS

    @property
    def latencies_s(self) -> Floats:
        """Seconds that each query took: of every stage its slowest task, and the driver: (queries,)."""
        ends = np.cumsum(self.tiles)
        stages = [self.tasks_s[:, end - count : end].max(axis=1) for count, end in zip(self.tiles, ends, strict=True)]
        return np.asarray(np.sum(stages, axis=0) + np.array(self.driver_ms) / _MS)

    @property
    def cold(self) -> Quantiles:
        """Seconds that cold starts add."""
        return Quantiles.of(np.array(self.cold_ms) / _MS)

    @property
    def label(self) -> str:
        """Return where the numbers come from."""
        return f"{self.source} ({self.tag}, {self.date}): {self.model} on {self.machine}"


@dataclass(frozen=True)
class Summary:
    """A calibration's figures: latencies of its queries, and the median of what cold starts add, in ms."""

    queries: int
    tasks: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cold_ms: float


def summary_of(calibration: Calibration) -> Summary:
    """Sum up a calibration."""
    p50, p95, p99 = (float(value) * _MS for value in np.quantile(calibration.latencies_s, (0.5, 0.95, 0.99)))
    cold = float(np.median(calibration.cold_ms))
    return Summary(len(calibration.driver_ms), calibration.tasks, p50, p95, p99, cold)


def read_calibration(path: Path) -> Calibration:
    """Read a calibration's JSON file; raises InputError that names the file and what is wrong."""
    text = read_text(path, _MAX_BYTES)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        version = document.get("format") if isinstance(document, dict) else None
        raise InputError(f"{path} is not a calibration of format {FORMAT}, but {str(version)[:40]!r}: calibrate again")
    try:
        return structure(Calibration, document, "calibration")
    except (PlanError, InputError) as error:
        raise InputError(f"{path}: {error}") from error


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration; raises InputError where that cannot be."""
    write_whole(path, (json.dumps(unstructure(calibration)) + "\n").encode())


class LocalRun:
    """Queries one after the other through a pipeline that was just opened, and what their tasks took."""

    def __init__(self, pipeline: Pipeline) -> None:
        shape = pipeline.plan.input
        size = (1, shape.height, shape.width, shape.channels)
        self._pixels = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
        self._pipeline = pipeline
        self._colds: list[Result] = []
        self._warm: list[Result] = []
        self.warm_up(_WARM_UP)

    def warm_up(self, queries: int) -> None:
        """Run queries that count for cold starts only."""
        self._colds += [self._query() for _ in range(queries)]

    def take(self, queries: int, progress: Progress = silent) -> None:
        """Run queries; those that met a cold start tell of nothing else."""
        for number in range(queries):
            progress(f"query {number + 1} of {queries}")
            result = self._query()
            (self._colds if _is_cold(result) else self._warm).append(result)

    def calibration(self, machine: str, date: str) -> Calibration:
        """Return what was measured; raises UsageError where nothing was warm."""
        if not self._warm:
            raise UsageError("every query met a cold start: give more --queries")
        return _calibration(self._pipeline.plan, self._colds, self._warm, machine, date)

    def _query(self) -> Result:
        self._pipeline.run(self._pixels)
        return self._pipeline.last


def _attempts(answer: Answer) -> Iterator[tuple[int, Attempt, Report]]:
    """Yield each task's number, its attempt that answered, and that one's report."""
    tiles = [tile for stage in answer.stages for tile in stage.tiles]
    for number, tile in enumerate(tiles):
        for attempt in tile.attempts:
            if attempt.result is tile.report and tile.report is not None:
                yield number, attempt, tile.report


def _is_cold(result: Result) -> bool:
    return any(report.init_ms for _, _, report in _attempts(result.answer))


def _took_ms(attempt: Attempt) -> float:
    return ((attempt.ended or attempt.requested) - attempt.requested) * _MS


def _calibration(plan: Plan, colds: Sequence[Result], warm: Sequence[Result], machine: str, date: str) -> Calibration:
    service, overhead, driver = [], [], []
    for result in warm:
        rows = [(report.total_ms, _took_ms(attempt)) for _, attempt, report in _attempts(result.answer)]
        service.append(tuple(round(total, 3) for total, _ in rows))
        overhead.append(tuple(round(max(0.0, took - total), 3) for total, took in rows))
        stages = sum((stage.ended or stage.started) - stage.started for stage in result.answer.stages)
        driver.append(round((result.answered - result.split[0] - stages) * _MS, 3))
    usual = np.median(np.array(service) + np.array(overhead), axis=0)
    starts = [
        round(max(0.0, _took_ms(attempt) - float(usual[number])), 3)
        for result in colds
        for number, attempt, report in _attempts(result.answer)
        if report.init_ms
    ]
    return Calibration(
        format=FORMAT,
        source="measured",
        tag="M",
        date=date,
        machine=machine,
        model=plan.model,
        plan=plan.digest,
        memory_mb=tuple(stage.memory_mb for stage in plan.stages),
        functions=_functions(plan),
        service_ms=tuple(service),
        overhead_ms=tuple(overhead),
        driver_ms=tuple(driver),
        cold_ms=tuple(starts) or (0.0,),
    )


def _functions(plan: Plan) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tile.function for tile in stage.tiles) for stage in plan.stages)


def published_calibration(plan: Plan, facts: AwsFacts, store: str = "redis", seed: int = 0) -> Calibration:
    """Return what the cost model predicts of a plan on AWS, invocations drawn as aws.toml has them."""
    platform, rng = Platform.over(facts, store), np.random.default_rng(seed)
    loads = [plan_load(plan, number) for number in range(len(plan.stages))]
    plan_s = [task_seconds(load, stage.memory_mb, platform) for load, stage in zip(loads, plan.stages, strict=True)]
    service = np.tile(np.concatenate([np.atleast_1d(each) for each in plan_s]) * _MS, (_PUBLISHED_ROWS, 1))
    functions = platform.functions
    tails = rng.exponential(functions.invoke_tail, service.shape)
    overhead = (functions.invoke_floor + tails) * _MS
    colds = [cold_seconds(load.weight_bytes, platform) * _MS for load in loads]
    carried = sum(float((load.carried_in + load.carried_out).sum()) for load in loads)
    driver_s = DISPATCH_SECONDS * service.shape[1] + carried / CARRY_RATE
    sources = [facts.sources[f"lambda.{name}"] for name in ("invoke_floor", "invoke_tail", "init", "bandwidth")]
    return Calibration(
        format=FORMAT,
        source="published",
        tag="".join(sorted({source.tag for source in sources})),
        date=max(source.date for source in sources),
        machine="AWS Lambda, as aws.toml and the operator profiles have it",
        model=plan.model,
        plan=plan.digest,
        memory_mb=tuple(stage.memory_mb for stage in plan.stages),
        functions=_functions(plan),
        service_ms=_rows(service),
        overhead_ms=_rows(overhead),
        driver_ms=(driver_s * _MS,) * _PUBLISHED_ROWS,
        cold_ms=tuple(colds),
    )


def _rows(values: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in np.round(values, 3).tolist())
