"""The result of an execution (drivers/stepfunctions/asl.py): its validated output, or the error of a query."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from serfer.core.errors import DeadlineError, InputError, QueryError, SerferError
from serfer.core.run_machine import Attempt, Failure, FailureKind, StageRun, TileRun, TileState, query_error
from serfer.core.units import MS_PER_S
from serfer.core.wire import Report, decode_report
from serfer.drivers.stepfunctions.asl import MOST_STATE_BYTES, THROTTLED
from serfer.drivers.stepfunctions.client import Outcome

_SHOWN = 500  # characters of an unknown error
_PLACE = re.compile(r"stage (\d{1,9}), tile (\d{1,9}): (\{.*)", re.DOTALL)
_KINDS = {
    THROTTLED: FailureKind.THROTTLED,
    "Lambda.Unknown": FailureKind.FAILED_IN_CODE,
    "Sandbox.Timedout": FailureKind.TIMED_OUT,
    "States.Timeout": FailureKind.TIMED_OUT,
    "Runtime.OutOfMemory": FailureKind.OUT_OF_MEMORY,
}
_RETRIED = Failure(FailureKind.FAILED_IN_CODE, "", "tried again; the execution's history says why")


@dataclass(frozen=True)
class Entry:
    """An execution's entry for a tile: its report, when it was entered (s since the epoch), and its retries.

    The time is None for services that do not state it; AWS does.
    """

    report: Report
    at: float | None
    retries: int


@dataclass(frozen=True)
class Output:
    """The output of an execution: the entries of each stage's tiles, and when the last stage was done.

    `cleaned` says that everything but the answer was deleted by the execution itself.
    """

    stages: tuple[tuple[Entry, ...], ...]
    ended: float | None
    cleaned: bool


def parse_output(text: str, tiles: Sequence[int]) -> Output:
    """Read what an execution ended with, whose stages have `tiles[k]` tiles."""
    match _parsed(text):
        case {"stages": dict(stages)} as value if len(stages) == len(tiles):
            entries = tuple(_entries(stages.get(f"s{number}"), number, count) for number, count in enumerate(tiles))
            ended = value.get("ended")
            at = _time(ended.get("at")) if isinstance(ended, dict) else None
            return Output(entries, at, cleaned="ended" in value)
    raise InputError("the execution's output is not one of this plan: deploy the state machine that it compiles to")


def _parsed(text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text) if len(text) <= MOST_STATE_BYTES else None
    except (ValueError, RecursionError):
        return None


def _entries(value: Any, stage: int, count: int) -> tuple[Entry, ...]:  # noqa: ANN401 - any JSON
    values = [entry for group in _as_list(value) for entry in _as_list(group)]
    if len(values) != count:
        raise InputError(f"the execution reports {len(values)} tiles of stage {stage}, not {count}")
    return tuple(_entry(entry, f"stage {stage}, tile {tile}") for tile, entry in enumerate(values))


def _as_list(value: Any) -> list[Any]:  # noqa: ANN401 - any JSON
    return value if isinstance(value, list) else [value]


def _entry(value: Any, place: str) -> Entry:  # noqa: ANN401 - any JSON
    match value:
        case {"report": str(), "at": at, "retries": int() | None as retries}:
            return Entry(decode_report(value), _time(at), retries or 0)
    raise InputError(f"{place}: the function answered without a report; is it a function of this plan?")


def _time(stamp: Any) -> float | None:  # noqa: ANN401 - any JSON
    if stamp is None:
        return None
    try:
        time = datetime.fromisoformat(stamp)
    except (ValueError, TypeError) as error:
        raise InputError("the execution's output holds an invalid time") from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def error_of(outcome: Outcome) -> SerferError:
    if outcome.status == "TIMED_OUT":
        return DeadlineError("the state machine's own time limit has passed: deploy it with a longer one")
    if outcome.status == "ABORTED":
        return QueryError("the query's execution was stopped")
    place, cause, name = "", outcome.cause, outcome.error or outcome.status
    if match := _PLACE.match(cause):
        place, cause = f"stage {match[1]}, tile {match[2]}: ", _text_field(match[3], "Cause")
    message = (_text_field(cause, "errorMessage") or cause).partition("\n")[0][:_SHOWN]
    text = f"{name}: {message}" if message else name
    kind = _KINDS.get(name, FailureKind.UNREACHABLE if name.startswith("Lambda.") else FailureKind.FAILED_IN_CODE)
    return query_error(Failure(kind, name, text), place)


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
    entered = [[entry.at for entry in entries if entry.at is not None] for entries in output.stages]
    if all(entered):
        return [min(times) for times in entered]
    took = [max(entry.report.billed_ms for entry in entries) for entries in output.stages]
    passed = itertools.accumulate(took[:-1], initial=0.0)
    return [started + (ended - started) * before / (sum(took) or 1.0) for before in passed]


def _stage_run(entries: Sequence[Entry], start: float, end: float, clock: Callable[[float], float]) -> StageRun:
    requested = [start if entry.at is None else clock(entry.at) for entry in entries]
    due = [time + entry.report.billed_ms / MS_PER_S for time, entry in zip(requested, entries, strict=True)]
    way = max(0.0, end - max(due))
    tiles = [
        _tile_run(entry, time, min(end, ready + way))
        for entry, time, ready in zip(entries, requested, due, strict=True)
    ]
    return StageRun(start, tiles, max(start, end))


def _tile_run(entry: Entry, requested: float, ended: float) -> TileRun:
    failed = [Attempt(number, requested, requested, requested, _RETRIED) for number in range(entry.retries)]
    last = Attempt(entry.retries, requested, requested, max(requested, ended), entry.report)
    return TileRun([*failed, last], entry.report, TileState.DONE, failures=entry.retries)
