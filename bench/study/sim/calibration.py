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

from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import (
    CARRY_RATE,
    DISPATCH_SECONDS,
    TASK_SECONDS,
    GangLoad,
    Platform,
    gang_load,
    moving_seconds,
    plan_load,
    task_seconds,
)
from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.plan import Plan
from serfer.core.wire import Report
from serfer.cost.loads.steps import Progress, silent
from serfer.cost.loads.trace import Floats
from serfer.cost.service_times import Quantiles
from serfer.drivers.driver import Answer
from serfer.files import read_text, write_whole
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.result import Result

FORMAT: Final = 2
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
    the numbers of the functions that each stage's tiles run in, `cold_ms` what cold starts of each stage add: those of
    all stages where it has none. `tag` is M for measured values, or those that aws.toml gives for the published ones.

    `gangs` are the plan's, as (start, stop). Their stages' service_ms is what a member does in that stage, its waits
    for others apart; overhead_ms is that of its invocation in each of them, and counts once.
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
    cold_ms: tuple[tuple[float, ...], ...]
    gangs: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        tasks = sum(map(len, self.functions))
        if not 1 <= tasks <= _MAX_TASKS or len(self.functions) != len(self.memory_mb) or not all(self.functions):
            raise InputError(f"a calibration has 1 to {_MAX_TASKS:,} tasks, and a memory for each stage")
        rows = (*self.service_ms, *self.overhead_ms)
        if not self.driver_ms or not len(self.service_ms) == len(self.overhead_ms) == len(self.driver_ms):
            raise InputError("a calibration's service_ms, overhead_ms and driver_ms have as many queries, 1 at least")
        if any(len(row) != tasks for row in rows):
            raise InputError(f"every row of service_ms and overhead_ms has {tasks} tasks, as functions has")
        if not any(self.cold_ms) or len(self.cold_ms) != len(self.functions):
            raise InputError("a calibration has a row of cold_ms for each stage, and one cold start at least")
        rows += self.cold_ms
        values = (*self.driver_ms, *self.memory_mb, *(value for row in rows for value in row))
        if not all(0 <= value <= _LONGEST_MS for value in values):  # nor is any NaN
            raise InputError(f"a calibration's times are 0 to {_LONGEST_MS:g} ms")
        if any(not 0 <= number < _MAX_TASKS for stage in self.functions for number in stage):
            raise InputError(f"a calibration's functions are numbers from 0 to {_MAX_TASKS - 1:,}")
        self._check_gangs()

    def _check_gangs(self) -> None:
        end = 0
        for start, stop in self.gangs:
            if not (end <= start < stop - 1 < len(self.functions)):
                raise InputError("a calibration's gangs are two stages or more each, in order")
            if max(self.tiles[start:stop]) > self.tiles[start] or len(set(self.memory_mb[start:stop])) > 1:
                raise InputError("a calibration's gangs have the most tasks in their first stage, and one memory")
            end = stop

    @property
    def tiles(self) -> tuple[int, ...]:
        return tuple(map(len, self.functions))

    @property
    def tasks(self) -> int:
        return sum(self.tiles)

    @property
    def tasks_s(self) -> NDArray[np.float64]:
        """Seconds from a task's release to its answer, in warm environments: (queries, tasks)."""
        return np.asarray(np.array(self.service_ms) + np.array(self.overhead_ms), dtype=np.float64) / _MS

    @property
    def latencies_s(self) -> Floats:
        """Seconds that each query took: of every stage its slowest task, and the driver: (queries,)."""
        later = {stage for start, stop in self.gangs for stage in range(start + 1, stop)}
        gangs = dict(self.gangs)
        total = np.array(self.driver_ms) / _MS
        for stage in range(len(self.tiles)):
            if stage in gangs:
                total = total + self.overhead_s(stage).max(axis=1) + self.inside_s(stage, gangs[stage])
            elif stage not in later:
                total = total + (self.service_s(stage) + self.overhead_s(stage)).max(axis=1)
        return np.asarray(total)

    def service_s(self, stage: int) -> Floats:
        """Seconds that Lambda bills for each task of a stage, in warm environments: (queries, tasks)."""
        return self._of_stage(self.service_ms, stage)

    def overhead_s(self, stage: int) -> Floats:
        """Seconds that the invocations of a stage's tasks take besides: (queries, tasks)."""
        return self._of_stage(self.overhead_ms, stage)

    def inside_s(self, start: int, stop: int) -> Floats:
        """Seconds that a gang takes once all members run, each stage as long as its slowest: (queries,)."""
        return np.asarray(np.sum([self.service_s(stage).max(axis=1) for stage in range(start, stop)], axis=0))

    def _of_stage(self, rows: tuple[tuple[float, ...], ...], stage: int) -> Floats:
        first = sum(self.tiles[:stage])
        return np.array(rows)[:, first : first + self.tiles[stage]] / _MS

    def cold_s(self, stage: int) -> Quantiles:
        return Quantiles.of(np.array(self.cold_ms[stage] or [ms for row in self.cold_ms for ms in row]) / _MS)

    @property
    def label(self) -> str:
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
    p50, p95, p99 = (float(value) * _MS for value in np.quantile(calibration.latencies_s, (0.5, 0.95, 0.99)))
    cold = float(np.median([ms for row in calibration.cold_ms for ms in row]))
    return Summary(len(calibration.driver_ms), calibration.tasks, p50, p95, p99, cold)


def read_calibration(path: Path) -> Calibration:
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
        self._colds += [self._query() for _ in range(queries)]

    def take(self, queries: int, progress: Progress = silent) -> None:
        """Run queries; those that met a cold start tell of nothing else."""
        for number in range(queries):
            progress(f"query {number + 1} of {queries}")
            result = self._query()
            cold = any(task.init_ms for task in _measured(result.answer))
            (self._colds if cold else self._warm).append(result)

    def calibration(self, machine: str, date: str) -> Calibration:
        if not self._warm:
            raise UsageError("every query met a cold start: give more --queries")
        return _calibration(self._pipeline.plan, self._colds, self._warm, machine, date)

    def _query(self) -> Result:
        self._pipeline.run(self._pixels)
        return self._pipeline.last


@dataclass(frozen=True)
class _TaskMeasurement:
    """A task as it was measured: its number, what its worker did, waits for other members apart, and all else, in ms.

    `took_ms` is that of its whole invocation, `init_ms` of a cold start.
    """

    number: int
    service_ms: float
    overhead_ms: float
    took_ms: float
    init_ms: float


def _measured(answer: Answer) -> Iterator[_TaskMeasurement]:
    tiles = [tile for stage in answer.stages for tile in stage.tiles]
    for number, tile in enumerate(tiles):
        for attempt in tile.attempts:
            invocation = attempt.result
            reports = invocation.stages if isinstance(invocation, Report) else ()
            for report in (one for one in reports if one is tile.report):
                took_ms = ((attempt.ended or attempt.requested) - attempt.requested) * _MS
                left_ms = max(0.0, took_ms - sum(one.total_ms for one in reports))
                yield _TaskMeasurement(number, report.total_ms - report.wait_ms, left_ms, took_ms, report.init_ms)


def _calibration(plan: Plan, colds: Sequence[Result], warm: Sequence[Result], machine: str, date: str) -> Calibration:
    service, overhead, took, driver = [], [], [], []
    for result in warm:
        tasks = [*_measured(result.answer)]
        service.append(tuple(round(task.service_ms, 3) for task in tasks))
        overhead.append(tuple(round(task.overhead_ms, 3) for task in tasks))
        took.append([task.took_ms for task in tasks])
        stages = sum((stage.ended or stage.started) - stage.started for stage in result.answer.stages)
        driver.append(round((result.answered - result.split[0] - stages) * _MS, 3))
    usual = np.median(np.array(took), axis=0)
    starts: list[list[float]] = [[] for _ in plan.stages]
    stage_of = [number for number, stage in enumerate(plan.stages) for _ in stage.tiles]
    for task in (task for result in colds for task in _measured(result.answer) if task.init_ms):
        starts[stage_of[task.number]].append(round(max(0.0, task.took_ms - float(usual[task.number])), 3))
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
        cold_ms=tuple(map(tuple, starts if any(starts) else [[0.0]] * len(starts))),
        gangs=tuple((at, ran.gang_stop) for at, ran in enumerate(warm[0].answer.stages) if ran.gang_stop),
    )


def _functions(plan: Plan) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tile.function for tile in stage.tiles) for stage in plan.stages)


def published_calibration(plan: Plan, facts: AwsFacts, store: str = "redis", seed: int = 0) -> Calibration:
    platform, rng = Platform.over(facts, store), np.random.default_rng(seed)
    gangs = {gang.start: gang_load(plan, gang) for gang in plan.gangs}
    loads = {stage: gangs[stage].outer if stage in gangs else plan_load(plan, stage) for stage, _ in plan.functions}
    plan_s: list[Floats] = []
    for stage, load in loads.items():
        memory_mb = plan.stages[stage].memory_mb
        if stage in gangs:
            tiles = [len(plan.stages[number].tiles) for number in range(stage, stage + len(gangs[stage].serial_s))]
            plan_s += _member_seconds(gangs[stage], tiles, memory_mb, platform)
        else:
            plan_s.append(np.atleast_1d(task_seconds(load, memory_mb, platform)))
    service = np.tile(np.concatenate(plan_s) * _MS, (_PUBLISHED_ROWS, 1))
    functions = platform.functions
    tails = rng.exponential(functions.invoke_tail, service.shape)
    overhead = (functions.invoke_floor + tails) * _MS
    colds = {stage: (load.cold_start(platform).seconds * _MS,) for stage, load in loads.items()}
    carried = sum(float((load.carried_in + load.carried_out).sum()) for load in loads.values())
    driver_s = DISPATCH_SECONDS * sum(load.tasks for load in loads.values()) + carried / CARRY_RATE
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
        cold_ms=tuple(colds.get(stage, ()) for stage in range(len(plan.stages))),
        gangs=tuple((gang.start, gang.stop) for gang in plan.gangs),
    )


def _member_seconds(load: GangLoad, tiles: Sequence[int], memory_mb: int, platform: Platform) -> list[Floats]:
    """Return what the members of a gang, `tiles` of them in each stage, do there: halos received and sent count too."""
    seconds = load.compute(memory_mb, platform)
    reading, writing = moving_seconds(load.outer, platform)
    seconds[0] += TASK_SECONDS + reading
    seconds[-1] += writing
    for stage, exchange in enumerate(load.exchanges, 1):
        sending, receiving = exchange.own_seconds(platform)
        seconds[stage - 1] += sending.max()  # what is received has been sent by the slowest
        seconds[stage] += receiving
    return [row[:count] for row, count in zip(seconds, tiles, strict=True)]


def _rows(values: Floats) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in np.round(values, 3).tolist())
