"""The timeline of a query, task by task, and the progress of one that still runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from drivers.driver import Answer
from serfer.api.service import ServiceResult
from serfer.core.costs.aws import LambdaFacts
from serfer.core.costs.cost_model import invocation_usd
from serfer.core.plan import Plan
from serfer.core.report import QueryReport
from serfer.core.run_machine import Attempt, Failure, StageRun
from serfer.core.served import ServedReport, StageProgress, TaskTime, Timeline
from serfer.core.wire import Report

_MS_PER_S = 1000


def served_report(answered: ServiceResult, plan: Plan, facts: LambdaFacts, *, explain: bool) -> ServedReport:
    """Return a query's report for the client, its timeline counted from the request's arrival at admission."""
    result = answered.result
    timeline = _timeline(answered, plan, facts) if explain else None
    known = {field.name: getattr(result.report, field.name) for field in fields(QueryReport)}
    return ServedReport(**known, timeline=timeline)


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


def _timeline(answered: ServiceResult, plan: Plan, facts: LambdaFacts) -> Timeline:
    result, zero = answered.result, answered.admitted - answered.queued_s
    return Timeline(
        queue_ms=round(answered.queued_s * _MS_PER_S, 3),
        decode_ms=_ms(result.split[1], result.split[0]),
        answered_ms=_ms(result.answered, zero),
        tasks=tuple(_tasks(result.answer, plan, facts, zero)),
    )


def _tasks(answer: Answer, plan: Plan, facts: LambdaFacts, zero: float) -> Iterator[TaskTime]:
    for stage, run in enumerate(answer.stages):
        for tile, known in enumerate(run.tiles):
            for attempt in known.attempts:
                yield _task((stage, tile), attempt, plan.stages[stage].memory_mb, facts, zero)


def _task(place: tuple[int, int], attempt: Attempt, memory_mb: int, facts: LambdaFacts, zero: float) -> TaskTime:
    report = attempt.result if isinstance(attempt.result, Report) else None
    return TaskTime(
        *place,
        attempt=attempt.number,
        asked_ms=_ms(attempt.requested, zero),
        started_ms=None if attempt.started is None else _ms(attempt.started, zero),
        ended_ms=None if attempt.ended is None else _ms(attempt.ended, zero),
        outcome=_outcome(attempt),
        cold=report is not None and report.init_ms > 0,
        init_ms=round(report.init_ms, 3) if report else None,
        read_ms=round(report.read_ms, 3) if report else None,
        compute_ms=round(report.compute_ms, 3) if report else None,
        write_ms=round(report.write_ms, 3) if report else None,
        environment=report.environment if report else None,
        cost_usd=invocation_usd(memory_mb, report.billed_ms, facts, report.shared) if report else None,
    )


def _outcome(attempt: Attempt) -> str:
    match attempt.result:
        case Report():
            return "answered"
        case Failure(kind):
            return kind.value
    return "given up"


def _ms(time: float, zero: float) -> float:
    return round((time - zero) * _MS_PER_S, 3)
