"""A trace of queries as a file for chrome://tracing and ui.perfetto.dev (docs/how-to/trace.md).

    driver           queries      | split | stage-0 ................................... | stage-1 ... | merge |
                     invocations          | queue | invoke ............................ |
                                                   ╲ an arrow
    stage-0 workers  environment 1cb1c25d            | cold start | read | compute | write |

Viewers drop spans that overlap in a row without nesting, so what runs side by side gets rows of its own, and times are
whole microseconds: a child ends where its parent does, whatever a viewer does to fractions.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Self

from serfer.core.errors import UsageError
from serfer.core.keys import StoreCounts
from serfer.core.plan import Plan
from serfer.core.plan.borders import Member
from serfer.core.run_machine import Attempt, Failure, StageRun, TileRun, gang_starts
from serfer.core.units import MS_PER_S
from serfer.core.wire import Report
from serfer.drivers.driver import Answer, WarmUpRecord
from serfer.files import check_place, write_whole
from serfer.pipeline.result import Result

Row = tuple[str, str]  # a process of the viewer and a thread in it, whatever they are here
_QUERIES, _INVOCATIONS = ("driver", "queries"), ("driver", "invocations")
_CLOCKS = (
    "Times are the driver's. A worker's clock is not, so its work stands in the middle of its invocation: what is left "
    "on both sides, network_and_service_ms, is network and service together."
)


@dataclass(frozen=True)
class TracedQuery:
    """An answered query and what to call it; in seconds on the driver's clock, when it came, was cut, was answered.

    `target` is where the answer came from, where no stage ran; `plan` is the one that it ran on, where that may be
    another than the trace's.
    """

    name: str
    submitted: float
    cut: float
    answered: float
    answer: Answer
    target: str = "cache"
    plan: Plan | None = None

    @classmethod
    def of(cls, name: str, result: Result) -> Self:
        """Return what a trace shows of a pipeline's result."""
        return cls(name, *result.split, result.answered, result.answer, result.report.target, result.plan)


@dataclass(frozen=True)
class Span:
    """A span from `start` to `end`, in whole microseconds since the trace began, and the spans inside it.

    `arrow` is the number of the arrow that begins ("s") or ends ("f") here.
    """

    name: str
    kind: str
    start: int
    end: int
    args: dict[str, Any] = field(default_factory=dict)
    children: Sequence[Span] = ()
    arrow: tuple[str, int] | None = None


def check_trace(path: Path) -> None:
    """Refuse what cannot become a trace, before the queries that it is to show.

    Raises UsageError for `-`, InputError for a directory, a device, and a place that is not writable.
    """
    if str(path) == "-":
        raise UsageError("--trace takes the path of a file: answers go to standard output, traces do not")
    check_place(path)


def write_trace(path: Path, plan: Plan, queries: Sequence[TracedQuery]) -> None:
    """Write a trace of a plan's queries, whole or not at all; raises InputError where that cannot be."""
    trace = {
        "displayTimeUnit": "ms",
        "otherData": {"model": plan.model, "plan": plan.digest, "clocks": _CLOCKS},
        "traceEvents": trace_events(plan, queries),
    }
    write_whole(path, json.dumps(trace).encode())


def trace_events(plan: Plan, queries: Sequence[TracedQuery]) -> list[dict[str, Any]]:
    """Return queries in the Chrome trace event format: names of rows, spans, and arrows from driver to workers."""
    epoch, arrows = min((query.submitted for query in queries), default=0.0), itertools.count(1)
    rows = _rows([placed for query in queries for placed in _Spans(query.plan or plan, query, epoch, arrows)])
    pids = {process: pid for pid, process in enumerate(dict.fromkeys(process for process, _ in rows), 1)}
    events = [event for process, pid in pids.items() for event in _named("process", process, pid, 0, pid)]
    for tid, ((process, thread), spans) in enumerate(rows.items(), 1):
        events.extend(_named("thread", thread, pids[process], tid, tid))
        for span in spans:
            events.extend(_events(span, pids[process], tid))
    return events


@dataclass(frozen=True)
class _Spans:
    """One query's spans, each with the row that it belongs to."""

    plan: Plan
    query: TracedQuery
    epoch: float
    arrows: Iterator[int]

    def __iter__(self) -> Iterator[tuple[Row, Span]]:
        yield _QUERIES, self._whole()
        stages = self.query.answer.stages
        for number, (stage, gang) in enumerate(zip(stages, gang_starts(stages), strict=True)):
            if gang not in (None, number):
                continue  # in the members' invocations
            for tile, run in enumerate(stage.tiles):
                for attempt in run.attempts:
                    yield from self._attempt(number, tile, run, attempt)
        for record in self.query.answer.overheads.warm_ups:
            yield self._warm_up(record)

    def _warm_up(self, record: WarmUpRecord) -> tuple[Row, Span]:
        """Return a warm-up request in its environment's row; one without a response is the driver's."""
        if record.plan:
            return _INVOCATIONS, self._span(
                f"plan {record.plan[:12]} warm-up", "warm-up", record.started, record.started + record.ms / MS_PER_S
            )
        gang, result = self.plan.gang_of(record.stage), record.result
        where = gang.name if gang else f"stage-{record.stage}"
        start, end = record.started, record.started + record.ms / MS_PER_S
        if result is None:
            return _INVOCATIONS, self._span(f"{where} warm-up", "warm-up", start, end)
        init = min(end, start + result.init_ms / MS_PER_S)
        times = {"ms": result.init_ms, "fetch_ms": result.fetch_ms}
        cold = [self._span("cold start", "cold start", start, init, times)] if record.cold else []
        row = f"{where} workers", _text(f"environment {result.environment}")
        return row, self._span("warm-up", "warm-up", start, end, children=cold)

    def _whole(self) -> Span:
        """Return the query as its driver saw it, from before the image was decoded until its answer was complete."""
        query, answer = self.query, self.query.answer
        if not answer.stages:  # its answer was kept, or an instance's
            return self._span(_text(query.name), "query", query.submitted, query.answered, {"from": query.target})
        first, last = answer.stages[0], answer.stages[-1]
        parts = [self._span("split", "split", query.submitted, query.cut)]
        if answer.overheads.counts.puts:
            parts.append(self._span("store crops", "split", answer.started, first.started))
        gangs = gang_starts(answer.stages)
        for number, (stage, run) in enumerate(zip(self.plan.stages, answer.stages, strict=True)):
            args = {"grid": str(stage.grid), "tasks": stage.grid.tiles, "memory_mb": stage.memory_mb}
            args |= {} if gangs[number] is None else {"gang": gangs[number]}
            parts.append(self._span(f"stage-{number}", "stage", run.started, _end(run, answer), args))
        parts.append(self._span("merge", "merge", _end(last, answer), query.answered))
        args = {"query": answer.query, "retries": answer.overheads.retries, "hedges": answer.overheads.hedges}
        return self._span(_text(query.name), "query", query.submitted, query.answered, args, parts)

    def _attempt(self, stage: int, tile: int, run: TileRun, attempt: Attempt) -> Iterator[tuple[Row, Span]]:
        """Yield an attempt as the driver saw it and, if it answered, its worker's part; one given up ends with it."""
        ended = _attempt_end(run, attempt, self.query.answer)
        sent = ended if attempt.started is None else attempt.started
        member = self.query.answer.stages[stage].gang_stop or attempt.number < run.void
        gang = self.plan.gang_of(stage) if member else None
        where = gang.name if gang else f"stage-{stage}"
        name = f"{where} tile {tile}{_again(run, attempt)}"
        function = self.plan.function(stage, self.plan.stages[stage].tiles[tile].function)
        args = {"name": _text(self.query.name), "query": self.query.answer.query, "function": function}
        parts = [self._span("queue", "queue", attempt.requested, sent)]
        report = attempt.result if isinstance(attempt.result, Report) else None
        number = next(self.arrows)
        invoke = self._span("invoke", "invoke", sent, ended, arrow=("s", number) if report else None)
        if attempt.started is not None:
            parts.append(invoke)
        outcome = {**args, "outcome": _outcome(run, attempt)}
        yield _INVOCATIONS, self._span(name, "task", attempt.requested, ended, outcome, parts)
        if report:
            row = f"{where} workers", _text(f"environment {report.environment}")
            stages = Member(self.plan, gang, tile).stages if gang else [stage]
            yield row, _work(name, dict(zip(stages, report.stages, strict=True)), invoke, args, number)

    def _span(
        self,
        name: str,
        kind: str,
        start: float,
        end: float,
        args: dict[str, Any] | None = None,
        children: Sequence[Span] = (),
        arrow: tuple[str, int] | None = None,
    ) -> Span:
        """Return a span between two times of the driver's clock, in seconds."""
        begun, ended = (round((time - self.epoch) * 1e6) for time in (start, end))
        return Span(name, kind, begun, ended, args or {}, children, arrow)


def _work(name: str, reports: Mapping[int, Report], invoke: Span, args: dict[str, Any], arrow: int) -> Span:
    """Return a worker's part in the middle of its invocation, cut short where it does not fit; `reports` are by stage.

    A cold start gives way first: an environment may have started before it was invoked. A report has its query's share
    of a shared invocation's time; the span shows all of it, exactly where all queries have as many images. A member of
    a gang has a span for each of its stages.
    """
    first, *later = reports.values()
    shared = 1 if later else first.shared
    total_ms = sum(report.total_ms for report in reports.values())
    room = invoke.end - invoke.start
    total = min(_us(total_ms * shared), room)
    init = min(_us(first.init_ms * shared), room - total)
    start = invoke.start + (room - init - total) // 2
    end = start + init + total
    times = {"ms": first.init_ms, "fetch_ms": first.fetch_ms}
    parts = [Span("cold start", "cold start", start, start + init, times)] if first.init_ms else []
    elapsed_ms = 0.0
    for stage, report in reports.items():
        steps = _steps(report, start + init, end, elapsed_ms, shared)
        elapsed_ms += report.total_ms
        if later:
            stage_args = {"wait_ms": report.wait_ms, **asdict(report.counts)}
            parts.append(Span(f"stage-{stage}", "member stage", steps[0].start, steps[-1].end, stage_args, steps))
        else:
            parts.extend(steps)
    last = later[-1] if later else first
    figures = {
        "environment": _text(first.environment),
        "init_ms": first.init_ms,
        "fetch_ms": first.fetch_ms,
        "total_ms": total_ms,
        "shared": shared,
        "network_and_service_ms": (room - init - total) / 1000,
        "placed": "in the middle of its invocation",
        "sessions": last.sessions,
        "weight_loads": last.weight_loads,
        **asdict(sum((report.counts for report in reports.values()), StoreCounts())),
    }
    return Span(name, "work", start, end, {**args, **figures}, parts, ("f", arrow))


def _steps(report: Report, start: int, end: int, elapsed_ms: float, shared: int) -> list[Span]:
    """Return a stage's steps, of a worker that began its work at `start` and had spent `elapsed_ms` before."""
    waited = {"wait": report.wait_ms} if report.wait_ms else {}
    read_ms = report.read_ms - report.wait_ms
    steps = {**waited, "read": read_ms, "compute": report.compute_ms, "write": report.write_ms}
    done = itertools.accumulate(steps.values(), initial=elapsed_ms)
    marks = [min(start + _us(ms * shared), end) for ms in done]
    return [
        Span(step, step, begun, ended, {"ms": ms})
        for (step, ms), (begun, ended) in zip(steps.items(), itertools.pairwise(marks), strict=True)
    ]


def _rows(placed: Sequence[tuple[Row, Span]]) -> dict[Row, list[Span]]:
    """Give each span the first of its rows that is free when it starts; those after the first are numbered from 2."""
    lanes: defaultdict[Row, _Lanes] = defaultdict(_Lanes)
    for row, span in sorted(placed, key=lambda one: one[1].start):
        lanes[row].add(span)
    return {
        (process, thread if number == 1 else f"{thread} ({number})"): lane
        for (process, thread), group in lanes.items()
        for number, lane in enumerate(group.spans, 1)
    }


@dataclass(frozen=True)
class _Lanes:
    """Spans of one kind, in lanes where none overlaps another; they come by their start."""

    spans: list[list[Span]] = field(default_factory=list)
    _busy: list[tuple[int, int]] = field(default_factory=list)  # a heap: until when, which lane
    _free: list[int] = field(default_factory=list)  # a heap

    def add(self, span: Span) -> None:
        """Put a span into the first lane that is free."""
        while self._busy and self._busy[0][0] <= span.start:
            heappush(self._free, heappop(self._busy)[1])
        if not self._free:
            heappush(self._free, len(self.spans))
            self.spans.append([])
        lane = heappop(self._free)
        self.spans[lane].append(span)
        heappush(self._busy, (span.end, lane))


def _events(span: Span, pid: int, tid: int) -> Iterator[dict[str, Any]]:
    """Yield a span, its arrow, and what is inside: among events of the same time, viewers nest in this order."""
    place = {"pid": pid, "tid": tid, "ts": span.start}
    yield {"ph": "X", "name": span.name, "cat": span.kind, **place, "dur": span.end - span.start, "args": span.args}
    if span.arrow:
        phase, number = span.arrow
        binding = {"bp": "e"} if phase == "f" else {}  # without it the arrow ends at the next span
        yield {"ph": phase, "name": "invoke", "cat": "arrow", **place, "id": number, **binding}
    for child in span.children:
        yield from _events(child, pid, tid)


def _named(kind: str, name: str, pid: int, tid: int, place: int) -> list[dict[str, Any]]:
    """Return the events that name a process or thread and give it its place among the others."""
    where = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**where, "name": f"{kind}_name", "args": {"name": name}},
        {**where, "name": f"{kind}_sort_index", "args": {"sort_index": place}},
    ]


def _end(run: StageRun, answer: Answer) -> float:
    return answer.ended if run.ended is None else run.ended


def _attempt_end(run: TileRun, attempt: Attempt, answer: Answer) -> float:
    """Return when an attempt ended, or was given up: when another one of its tile answered."""
    if attempt.ended is not None:
        return attempt.ended
    return max((one.ended for one in run.attempts if one.ended is not None), default=answer.ended)


def _again(run: TileRun, attempt: Attempt) -> str:
    """Return why there are several attempts: a hedge begins while another may answer, a retry when all have failed."""
    if not attempt.number:
        return ""
    before = run.attempts[run.void : attempt.number]  # all of an aborted gang were given up
    hedge = any(other.ended is None or other.ended > attempt.requested for other in before)
    return f" ({'hedge' if hedge else 'retry'} {attempt.number})"


def _outcome(run: TileRun, attempt: Attempt) -> str:
    match attempt.result:
        case Report():
            return "answered"
        case Failure(kind, _, message):
            return f"{kind.value}: {_text(message)}"
    if attempt.number < run.void:
        return "given up: its gang was aborted"
    return "given up: another attempt answered first"


def _us(ms: float) -> int:
    return round(ms * 1000)


def _text(text: str) -> str:
    """Return text that every viewer can show: names of files need not be text."""
    return text.encode(errors="backslashreplace").decode()
