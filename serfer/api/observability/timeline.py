"""The timeline of a query, task by task, and the progress of one that still runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from serfer.api.service import ServiceResult
from serfer.core.costs.aws import LambdaFacts
from serfer.core.http_messages import StageProgress, TaskTime, Timeline
from serfer.core.plan import Plan
from serfer.core.run_machine import Attempt, Failure, StageRun, TileRun, gang_starts
from serfer.core.units import MS_PER_S
from serfer.core.wire import Report
from serfer.drivers.driver import Answer
from serfer.pipeline.report import task_usd
from serfer.pipeline.trace import stage_times


def progress(plan: Plan, stages: Sequence[StageRun], zero: float) -> tuple[StageProgress, ...]:
    """Return how far each stage is; `zero` is when the request came, on the clock of the stages."""
    return tuple(
        _progress(f"stage-{number}", stage.grid.tiles, stages[number] if number < len(stages) else None, zero)
        for number, stage in enumerate(plan.stages)
    )


def _progress(name: str, tasks: int, run: StageRun | None, zero: float) -> StageProgress:
    if run is None:
        return StageProgress(name, tasks, 0, None, None, (0,) * tasks)
    tiles = tuple(int(tile.report is not None) for tile in run.tiles)
    ended = None if run.ended is None else _ms(run.ended, zero)
    return StageProgress(name, tasks, sum(tiles), _ms(run.started, zero), ended, tiles)


def timeline_of(answered: ServiceResult, plan: Plan, facts: LambdaFacts) -> Timeline:
    result, zero = answered.result, answered.admitted - answered.queued_s
    return Timeline(
        queue_ms=round(answered.queued_s * MS_PER_S, 3),
        decode_ms=_ms(result.split[1], result.split[0]),
        answered_ms=_ms(result.answered, zero),
        tasks=tuple(_tasks(result.answer, plan, facts, zero)),
    )


def _tasks(answer: Answer, plan: Plan, facts: LambdaFacts, zero: float) -> Iterator[TaskTime]:
    for stage, (run, gang) in enumerate(zip(answer.stages, gang_starts(answer.stages), strict=True)):
        memory_mb = plan.stages[stage].memory_mb
        for tile, known in enumerate(run.tiles):
            if gang is not None:
                yield _member_stage((stage, tile), gang, known, memory_mb, facts, zero)
            for attempt in known.attempts:
                if gang is None or (gang == stage and attempt.result is not known.report):
                    yield _task((stage, tile), attempt, memory_mb, facts, zero)


def _member_stage(
    place: tuple[int, int], gang: int, run: TileRun, memory_mb: int, facts: LambdaFacts, zero: float
) -> TaskTime:
    attempt, part = next(
        (attempt, part) for attempt in run.attempts for part in stage_times(attempt) if part.report is run.report
    )
    report, whole = part.report, part.invocation
    ms = whole.invocation_ms
    return replace(
        _task(place, attempt, memory_mb, facts, zero),
        asked_ms=_ms(attempt.requested if report is whole else part.started, zero),
        started_ms=_ms(part.started, zero),
        ended_ms=_ms(part.ended, zero),
        **_durations(report),
        cost_usd=task_usd(memory_mb, whole, facts) * (report.billed_ms / ms if ms else 1 / len(whole.stages)),
        gang=gang,
        wait_ms=round(report.wait_ms, 3),
    )


def _task(place: tuple[int, int], attempt: Attempt, memory_mb: int, facts: LambdaFacts, zero: float) -> TaskTime:
    report = attempt.result if isinstance(attempt.result, Report) else None
    return TaskTime(
        *place,
        attempt=attempt.number,
        asked_ms=_ms(attempt.requested, zero),
        started_ms=None if attempt.started is None else _ms(attempt.started, zero),
        ended_ms=None if attempt.ended is None else _ms(attempt.ended, zero),
        outcome=_outcome(attempt),
        **_durations(report),
        environment=report.environment if report else None,
        cost_usd=task_usd(memory_mb, report, facts) if report else None,
    )


def _durations(report: Report | None) -> dict[str, Any]:
    names = ("init_ms", "fetch_ms", "read_ms", "compute_ms", "write_ms")
    if report is None:
        return {"cold": False, **dict.fromkeys(names)}
    return {"cold": report.init_ms > 0, **{name: round(getattr(report, name), 3) for name in names}}


def _outcome(attempt: Attempt) -> str:
    match attempt.result:
        case Report():
            return "answered"
        case Failure(kind):
            return kind.value
    return "given up"


def _ms(time: float, zero: float) -> float:
    return round((time - zero) * MS_PER_S, 3)
