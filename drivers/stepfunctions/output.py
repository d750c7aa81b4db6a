"""The output of an execution of a plan's state machine (drivers/stepfunctions/asl.py), validated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from serfer.core.errors import InputError
from serfer.core.wire import Report, decode_report
from serfer.drivers.stepfunctions.asl import MOST_STATE_BYTES


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
    """Read what an execution ended with, whose stages have `tiles[k]` tiles.

    Raises InputError for any other output; it names the tile that has no report.
    """
    match _parsed(text):
        case {"stages": dict(stages)} as value if len(stages) == len(tiles):
            entries = tuple(_entries(stages.get(f"s{number}"), number, count) for number, count in enumerate(tiles))
            return Output(entries, _end_of(value.get("ended")), cleaned="ended" in value)
    raise InputError(
        "the execution's output is not one of this plan: deploy the state machine that the plan compiles to"
    )


def _parsed(text: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text) if len(text) <= MOST_STATE_BYTES else None
    except (ValueError, RecursionError):
        return None


def _end_of(value: Any) -> float | None:  # noqa: ANN401 - any JSON
    return _time(value.get("at")) if isinstance(value, dict) else None


def _entries(value: Any, stage: int, count: int) -> tuple[Entry, ...]:  # noqa: ANN401 - any JSON
    values = [*_flatten(value)]
    if len(values) != count:
        raise InputError(f"the execution reports {len(values)} tiles of stage {stage}, not {count}")
    return tuple(_entry(entry, f"stage {stage}, tile {tile}") for tile, entry in enumerate(values))


def _flatten(value: Any) -> Iterator[Any]:  # noqa: ANN401 - any JSON
    """Yield a stage's entries: a Task has one, a Map a list, a Map of Maps lists of them."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, list):
            yield from item
        else:
            yield item


def _entry(value: Any, place: str) -> Entry:  # noqa: ANN401 - any JSON
    match value:
        case {"report": str(), "at": at, "retries": int() | None as retries}:
            return Entry(decode_report(value), _time(at), retries or 0)
    raise InputError(f"{place}: the function answered without a report; is it a function of this plan?")


def _time(stamp: Any) -> float | None:  # noqa: ANN401 - any JSON
    """Read a time of the context object, ISO 8601; None where there is none."""
    if stamp is None:
        return None
    try:
        time = datetime.fromisoformat(stamp)
    except (ValueError, TypeError) as error:
        raise InputError("the execution's output holds an invalid time") from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
