"""The life of a query, as a machine without clock or network: events and the time go in, actions come out.

        start                  all tiles done             last stage done
    ──────────▶ stage 0 running ──────────▶ stage 1 ... ──────────▶ answered
                  │    ▲  tile failed: wait, then invoke again
                  └────┘  tile failed too often, deadline passed, cancelled ──────────▶ failed

Everything that decides a query's fate stands in this file. The push driver, the simulator and the tests drive the same
machine. Whatever happens, a run ends exactly once, with Finish; its keys are then the driver's to delete.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from serfer.core.errors import (
    DeadlineError,
    LambdaUnavailableError,
    QueryError,
    SerferError,
    StoreUnavailableError,
    TaskFailedError,
)
from serfer.core.wire import Report


class FailureKind(enum.Enum):
    """Why an invocation failed: the closed set that every invoker maps its own errors to."""

    THROTTLED = "throttled"
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    FAILED_IN_CODE = "failed in code"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed invocation: its kind, the function's own error type where it has one, a line for people."""

    kind: FailureKind
    error_type: str
    message: str


@dataclass(frozen=True, slots=True)
class TaskDone:
    """An invocation answered."""

    stage: int
    tile: int
    report: Report


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """An invocation failed."""

    stage: int
    tile: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time that a WakeAt named has come."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nobody waits for the answer any more."""


Event = TaskDone | TaskFailed | TimePassed | Cancelled


@dataclass(frozen=True, slots=True)
class Invoke:
    """Start the task of a tile."""

    stage: int
    tile: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send TimePassed at this time, in seconds on the driver's clock."""

    time: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The run has ended: with the last stage's reports, or with an error."""

    error: SerferError | None


Action = Invoke | WakeAt | Finish


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a failed task is tried again; seconds.

    The n-th wait is base * 2^n, at most `longest`, times a random factor in [0.5, 1) so that failures do not march in
    step. Being throttled says nothing about the task, so it has a larger allowance of its own.
    """

    attempts: int = 3
    throttled_attempts: int = 12
    base: float = 0.05
    longest: float = 2.0

    def wait(self, failures: int, chance: float) -> float:
        """Return the wait before the attempt after `failures` failures; `chance` is uniform in [0, 1)."""
        return float(min(self.longest, self.base * 2 ** (failures - 1)) * (0.5 + 0.5 * chance))


@dataclass(slots=True)
class _Tile:
    report: Report | None = None
    running: bool = False
    failures: int = 0
    throttles: int = 0
    due: float | None = None


@dataclass(slots=True)
class StageRun:
    """What is known of one stage of a run: when it was released and ended, and its tiles' reports."""

    started: float
    tiles: list[_Tile] = field(repr=False)
    ended: float | None = None

    @property
    def reports(self) -> list[Report]:
        """Reports so far, in tile order."""
        return [tile.report for tile in self.tiles if tile.report]


class Run:
    """One query on its way through a plan whose stages have `tiles[k]` tiles.

    `deadline` is the latest time to answer at, on the driver's clock. `seed` fixes the jitter of retries.
    """

    def __init__(self, tiles: Sequence[int], deadline: float, seed: int, retry: Retry | None = None) -> None:
        self._tiles = tuple(tiles)
        self._deadline = deadline
        self._started = deadline
        self._retry = retry or Retry()
        self._random = random.Random(seed)  # noqa: S311 - jitter, no secret
        self.stages: list[StageRun] = []
        self.retries = 0
        self.finished = False

    def start(self, now: float) -> list[Action]:
        """Release the first stage."""
        self._started = now
        return [WakeAt(self._deadline), *self._release(now)]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take an event and return what to do; once finished, nothing is done any more."""
        if self.finished:
            return []
        match event:
            case TaskDone(stage, tile, report):
                return self._done(stage, tile, report, now)
            case TaskFailed(stage, tile, failure):
                return self._failed(stage, tile, failure, now)
            case TimePassed():
                return self._time_passed(now)
            case Cancelled():
                return self._finish(QueryError("the query was cancelled"))

    def _release(self, now: float) -> list[Action]:
        """Start the next stage, all its tiles together."""
        number = len(self.stages)
        self.stages.append(StageRun(now, [_Tile(running=True) for _ in range(self._tiles[number])]))
        return [Invoke(number, tile) for tile in range(self._tiles[number])]

    def _current(self, stage: int, tile: int) -> _Tile | None:
        """Return the tile that an event is about, or None for a late duplicate."""
        if stage != len(self.stages) - 1:
            return None
        current = self.stages[stage].tiles[tile]
        return current if current.report is None else None

    def _done(self, stage: int, tile: int, report: Report, now: float) -> list[Action]:
        current = self._current(stage, tile)
        if current is None:
            return []
        current.report, current.running, current.due = report, False, None
        if any(other.report is None for other in self.stages[stage].tiles):
            return []
        self.stages[stage].ended = now
        return self._release(now) if stage + 1 < len(self._tiles) else self._finish(None)

    def _failed(self, stage: int, tile: int, failure: Failure, now: float) -> list[Action]:
        current = self._current(stage, tile)
        if current is None or not current.running:
            return []
        current.running = False
        if failure.kind is FailureKind.THROTTLED:
            current.throttles += 1
        else:
            current.failures += 1
        if current.failures >= self._retry.attempts or current.throttles >= self._retry.throttled_attempts:
            return self._finish(_error(stage, tile, failure))
        wait = self._retry.wait(current.failures + current.throttles, self._random.random())
        current.due = now + wait
        return [WakeAt(current.due)]

    def _time_passed(self, now: float) -> list[Action]:
        if now >= self._deadline:
            allowed_ms = (self._deadline - self._started) * 1000
            where = f"stage {len(self.stages) - 1} of {len(self._tiles)} was running"
            return self._finish(DeadlineError(f"no answer by the deadline of {allowed_ms:.0f} ms: {where}; allow more"))
        actions: list[Action] = []
        stage = len(self.stages) - 1
        for number, tile in enumerate(self.stages[stage].tiles):
            if tile.due is not None and tile.due <= now:
                tile.due, tile.running = None, True
                self.retries += 1
                actions.append(Invoke(stage, number))
        return actions or [WakeAt(self._next_time())]

    def _next_time(self) -> float:
        """Return when there is something to do if no event comes: a timer that fired too early is set again."""
        return min([self._deadline, *(tile.due for tile in self.stages[-1].tiles if tile.due is not None)])

    def _finish(self, error: SerferError | None) -> list[Action]:
        self.finished = True
        return [Finish(error)]


def _error(stage: int, tile: int, failure: Failure) -> SerferError:
    """Turn a task's last failure into the error that its query ends with."""
    text = f"stage {stage}, tile {tile}: {failure.message}"
    if failure.error_type == StoreUnavailableError.__name__:
        return StoreUnavailableError(text)
    if failure.kind in (FailureKind.UNREACHABLE, FailureKind.THROTTLED):
        return LambdaUnavailableError(f"{failure.kind.value}: {text}")
    return TaskFailedError(f"{failure.kind.value}: {text}")
