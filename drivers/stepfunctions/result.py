"""The result of an execution: the error of a query, or the stages' state as the run machine has it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence

from serfer.core.errors import DeadlineError, QueryError, SerferError
from serfer.core.run_machine import Attempt, Failure, FailureKind, StageRun, TileRun, TileState, query_error
from serfer.drivers.stepfunctions.asl import THROTTLED
from serfer.drivers.stepfunctions.client import Outcome
from serfer.drivers.stepfunctions.output import Entry, Output

_SHOWN = 500  # characters of an unknown error
_MS_PER_S = 1000
_PLACE = re.compile(r"stage (\d{1,9}), tile (\d{1,9}): (\{.*)", re.DOTALL)
_KINDS = {
    THROTTLED: FailureKind.THROTTLED,
    "Lambda.Unknown": FailureKind.FAILED_IN_CODE,
    "Sandbox.Timedout": FailureKind.TIMED_OUT,
    "States.Timeout": FailureKind.TIMED_OUT,
    "Runtime.OutOfMemory": FailureKind.OUT_OF_MEMORY,
}
_RETRIED = Failure(FailureKind.FAILED_IN_CODE, "", "tried again; the execution's history says why")


def error_of(outcome: Outcome) -> SerferError:
    """Turn the end of an execution that did not succeed into the error that its query ends with."""
    if outcome.status == "TIMED_OUT":
        return DeadlineError("the state machine's own time limit has passed: deploy it with a longer one")
    if outcome.status == "ABORTED":
        return QueryError("the query's execution was stopped")
    place, name, message = _cause(outcome)
    text = f"{name}: {message}" if message else name
    kind = _KINDS.get(name, FailureKind.UNREACHABLE if name.startswith("Lambda.") else FailureKind.FAILED_IN_CODE)
    return query_error(Failure(kind, name, text), place)


def _cause(outcome: Outcome) -> tuple[str, str, str]:
    """Return which tile an execution failed at, as text, with the error's own name and message."""
    place, cause = "", outcome.cause
    if match := _PLACE.match(outcome.cause):
        place = f"stage {match[1]}, tile {match[2]}: "
        cause = _text_field(match[3], "Cause")
    message = _text_field(cause, "errorMessage") or cause
    return place, outcome.error or outcome.status, message.partition("\n")[0][:_SHOWN]


def _text_field(text: str, name: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    field = value.get(name) if isinstance(value, dict) else None
    return field if isinstance(field, str) else ""


def stage_runs(output: Output, outcome: Outcome, bounds: tuple[float, float]) -> list[StageRun]:
    """Return what is known of each stage, on the event loop's clock and within `bounds`.

    A stage starts when its first tile was entered, and ends when the next one starts.
    """

    def clock(time: float) -> float:
        return min(max(time + outcome.clock, bounds[0]), bounds[1])

    ended = outcome.ended if output.ended is None else output.ended
    times = [*_stage_starts(output, outcome.started, ended), ended]
    return [
        _stage_run(entries, clock(start), clock(end), clock)
        for entries, (start, end) in zip(output.stages, itertools.pairwise(times), strict=True)
    ]


def _stage_starts(output: Output, started: float, ended: float) -> list[float]:
    """Return when each stage started: estimated from the slowest task of each where the service does not say."""
    entered = [[entry.at for entry in entries if entry.at is not None] for entries in output.stages]
    if all(entered):
        return [min(times) for times in entered]
    took = [max(entry.report.billed_ms for entry in entries) for entries in output.stages]
    passed = itertools.accumulate(took[:-1], initial=0.0)
    return [started + (ended - started) * before / (sum(took) or 1.0) for before in passed]


def _stage_run(entries: Sequence[Entry], start: float, end: float, clock: Callable[[float], float]) -> StageRun:
    requested = [start if entry.at is None else clock(entry.at) for entry in entries]
    due = [time + entry.report.billed_ms / _MS_PER_S for time, entry in zip(requested, entries, strict=True)]
    way = max(0.0, end - max(due))
    tiles = [
        _tile_run(entry, time, min(end, ready + way))
        for entry, time, ready in zip(entries, requested, due, strict=True)
    ]
    return StageRun(start, tiles, max(start, end))


def _tile_run(entry: Entry, requested: float, ended: float) -> TileRun:
    """Return a tile's run; when the tries before the last one were made is not known."""
    failed = [Attempt(number, requested, requested, requested, _RETRIED) for number in range(entry.retries)]
    last = Attempt(entry.retries, requested, requested, max(requested, ended), entry.report)
    return TileRun([*failed, last], entry.report, TileState.DONE, failures=entry.retries)
