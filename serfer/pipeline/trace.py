"""The spans of a query: what OpenTelemetry gets, and what `serfer classify --trace` writes for trace viewers.

    query                       from its arrival until its answer
    ├── queue
    ├── decode
    ├── stage-0
    │   ├── task 0              an attempt: serfer.tile, serfer.attempt, serfer.cold, serfer.outcome
    │   └── task 1
    └── stage-1..2              a gang: its tasks are members, each one invocation
        └── task 0
            ├── stage-1         a member's part in a stage: serfer.wait_ms
            └── stage-2

Times are seconds of the driver's clock. A worker reports durations alone, so its work stands in the middle of its
invocation: what is left on both sides is network and Lambda service together.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from serfer.core.errors import UsageError
from serfer.core.run_machine import Attempt, Failure, StageRun, TileRun, gang_starts
from serfer.core.units import MS_PER_S
from serfer.core.wire import Report
from serfer.drivers.driver import Answer, WarmUpRecord
from serfer.files import check_place, write_whole
from serfer.pipeline.result import Result


@dataclass(frozen=True)
class Span:
    """A span, and the spans inside it; a viewer of files draws it in the named row of its query.

    `steps` are a worker's, for viewers of files: OpenTelemetry gets them as attributes.
    """

    name: str
    start: float
    end: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    children: Sequence[Span] = ()
    steps: Sequence[Span] = ()
    row: str = "query"
    failed: bool = False


class StageTime(NamedTuple):
    """A stage's part of an invocation that answered; its worker began with it at `begun`."""

    invocation: Report
    report: Report
    started: float
    begun: float
    ended: float


def query_span(name: str, result: Result, queued: tuple[float, float] | None = None) -> Span:
    report, answer = result.report, result.answer
    attributes = {
        "serfer.plan": report.plan,
        "serfer.target": report.target,
        "serfer.query": answer.query,
        "serfer.retries": report.retries,
        "serfer.hedges": report.hedges,
        "serfer.restarts": report.restarts,
        "serfer.usd": report.cost_usd,
    }
    children = [Span("queue", *queued)] if queued else []
    children.append(Span("decode", *result.split))
    for number, (stage, gang) in enumerate(zip(answer.stages, gang_starts(answer.stages), strict=True)):
        if gang in (None, number):
            children.append(_stage(number, stage, answer, report.stages[number].grid))
    started = queued[0] if queued else min(result.split[0], answer.started)
    return Span(name, started, result.answered, attributes, children)


def stage_times(attempt: Attempt) -> list[StageTime]:
    """Return the parts of an invocation that answered: several where it was that of a gang's member."""
    if not isinstance(attempt.result, Report):
        return []
    started = attempt.requested if attempt.started is None else attempt.started
    ended = max(started, attempt.ended or started)
    reports = attempt.result.stages
    queries = 1 if attempt.result.later else attempt.result.shared  # a report has its query's share of the time
    seconds = [report.billed_ms * queries / MS_PER_S for report in reports]
    left = max(0.0, ended - started - sum(seconds)) / 2
    begun = [min(mark, ended) for mark in itertools.accumulate(seconds[:-1], initial=started + left)]
    marks = [started, *begun[1:], ended]
    return [
        StageTime(attempt.result, report, start, begin, end)
        for report, begin, (start, end) in zip(reports, begun, itertools.pairwise(marks), strict=True)
    ]


def check_trace(path: Path) -> None:
    """Refuse what cannot become a trace, before the queries that it is to show.

    Raises UsageError for `-`, InputError for a directory, a device, and a place that is not writable.
    """
    if str(path) == "-":
        raise UsageError("--trace takes the path of a file: answers go to standard output, traces do not")
    check_place(path)


def write_trace(path: Path, queries: Sequence[tuple[str, Result]]) -> None:
    """Write named queries for chrome://tracing and ui.perfetto.dev, whole or not at all; raises InputError."""
    write_whole(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": trace_events(queries)}).encode())


def trace_events(queries: Sequence[tuple[str, Result]]) -> list[dict[str, Any]]:
    """Return named queries in the Chrome trace event format: each is a process, what runs side by side its threads."""
    epoch = min((result.split[0] for _, result in queries), default=0.0)
    events: list[dict[str, Any]] = []
    for pid, (name, result) in enumerate(queries, 1):
        text = name.encode(errors="backslashreplace").decode()  # names of files need not be text
        rows: dict[str, int] = {}
        root = query_span(text, result)
        for span in [root, *map(_warm_up_span, itertools.count(), result.answer.overheads.warm_ups)]:
            events.extend(_events(span, pid, rows, epoch))
        names = [("process_name", 0, text), *(("thread_name", tid, row) for row, tid in rows.items())]
        events.extend(
            {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": to}} for kind, tid, to in names
        )
    return events


def _stage(number: int, run: StageRun, answer: Answer, grid: str) -> Span:
    last = (run.gang_stop or number + 1) - 1
    ended = answer.stages[last].ended
    tasks = [
        _task(number, tile, tile_run, attempt, answer)
        for tile, tile_run in enumerate(run.tiles)
        for attempt in tile_run.attempts
    ]
    name = f"stage-{number}..{last}" if run.gang_stop else f"stage-{number}"
    attributes = {"serfer.stage": number, "serfer.grid": grid, "serfer.tasks": len(run.tiles)}
    return Span(name, run.started, answer.ended if ended is None else ended, attributes, tasks)


def _task(stage: int, tile: int, run: TileRun, attempt: Attempt, answer: Answer) -> Span:
    ends = [other.ended for other in run.attempts if other.ended is not None]
    ended = max(attempt.ended or max(ends, default=answer.ended), attempt.requested)
    row = f"tile {tile}, attempt {attempt.number}" if attempt.number else f"tile {tile}"
    parts = stage_times(attempt)
    children, steps = [], []
    if answer.stages[stage].gang_stop:
        for later, part in enumerate(parts, stage):
            attributes = {"serfer.stage": later, "serfer.tile": tile, **_durations(part.report)}
            times = (part.started, part.ended)
            children.append(Span(f"stage-{later}", *times, attributes, steps=_steps(part, row), row=row))
    else:
        steps = [step for part in parts for step in _steps(part, row)]
    attributes = {"serfer.stage": stage, "serfer.tile": tile, "serfer.attempt": attempt.number, **_outcome(attempt)}
    failed = isinstance(attempt.result, Failure)
    return Span(f"task {tile}", attempt.requested, ended, attributes, children, steps, row, failed)


def _steps(part: StageTime, row: str) -> list[Span]:
    report = part.report
    waited = {"wait": report.wait_ms, "read": report.read_ms - report.wait_ms}
    durations = {"cold start": report.init_ms, **waited, "compute": report.compute_ms, "write": report.write_ms}
    queries = 1 if part.invocation.later else report.shared
    done = itertools.accumulate((ms * queries / MS_PER_S for ms in durations.values()), initial=part.begun)
    marks = itertools.pairwise(min(mark, part.ended) for mark in done)
    return [
        Span(step, start, end, {"ms": ms}, row=row)
        for (step, ms), (start, end) in zip(durations.items(), marks, strict=True)
        if ms
    ]


def _warm_up_span(number: int, record: WarmUpRecord) -> Span:
    function, row = f"plan {record.plan[:12]}" if record.plan else f"stage-{record.stage}", f"warm-up {number}"
    start, end = record.started, record.started + record.ms / MS_PER_S
    init_ms = record.result.init_ms if record.result and record.cold else 0.0
    init_end = min(end, start + init_ms / MS_PER_S)
    steps = [Span("cold start", start, init_end, {"ms": init_ms}, row=row)] if init_ms else []
    return Span(f"{function} warm-up", start, end, {"serfer.cold": record.cold}, steps=steps, row=row)


def _outcome(attempt: Attempt) -> dict[str, Any]:
    match attempt.result:
        case Report() as report:
            attributes = {
                "serfer.outcome": "answered",
                "serfer.cold": report.init_ms > 0,
                "serfer.environment": report.environment,
                "serfer.init_ms": report.init_ms,
                **({"serfer.fetch_ms": report.fetch_ms} if report.fetch_ms else {}),
            }
            return attributes if report.later else {**attributes, **_durations(report)}
        case Failure(kind):
            return {"serfer.outcome": kind.value}
    return {"serfer.outcome": "given up"}


def _durations(report: Report) -> dict[str, float]:
    steps = {"read": report.read_ms, "compute": report.compute_ms, "write": report.write_ms, "wait": report.wait_ms}
    return {f"serfer.{step}_ms": ms for step, ms in steps.items() if step != "wait" or ms}


def _events(span: Span, pid: int, rows: dict[str, int], epoch: float) -> Iterator[dict[str, Any]]:
    """Yield a span and what is inside, in whole microseconds, so that a child ends where its parent does."""
    start, end = (round((time - epoch) * 1e6) for time in (span.start, span.end))
    place = {"pid": pid, "tid": rows.setdefault(span.row, len(rows) + 1)}
    yield {"ph": "X", "name": span.name, **place, "ts": start, "dur": end - start, "args": dict(span.attributes)}
    for inside in (*span.children, *span.steps):
        yield from _events(inside, pid, rows, epoch)
