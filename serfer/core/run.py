"""The life of a query, as a machine without clock or network: events and the time go in, actions come out.

        start                  all tiles done             last stage done
    ──────────▶ stage 0 running ──────────▶ stage 1 ... ──────────▶ answered
                  │    ▲  tile failed: wait, then invoke again
                  ├────┤  tile is late: invoke it a second time, the first answer wins
                  └────┘  tile failed too often, deadline passed, cancelled ──────────▶ failed
                          what it reads is gone, or was altered ──────────▶ lost: the driver restarts the query

Everything that decides a query's fate stands in this file. The push driver, the simulator and the tests drive the same
machine. Whatever happens, a run ends exactly once, with Finish; its keys are then the driver's to delete.

Every event names the attempt that it is about. An attempt may end late or twice, since one that was given up may still
run: events about attempts of a stage that is over, of a tile that is done, or that ended before, are accepted and
change nothing, and so is everything after Finish. An event about what was never invoked, or that comes before the
start, is a bug of the driver's and raises ImpossibleEventError.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from serfer.core.backoff import Backoff
from serfer.core.errors import (
    AlteredPieceError,
    BrokenPlanError,
    DeadlineError,
    LambdaThrottledError,
    LambdaUnavailableError,
    MissingKeyError,
    PlanError,
    QueryError,
    SerferError,
    StoreUnavailableError,
    TaskFailedError,
)
from serfer.core.wire import Report

LOST = (MissingKeyError, AlteredPieceError)
"""What a query's restart cures: something that a task reads is gone from the store, or is not what was written."""
_BACKOFF = Backoff(base=0.05, longest=2.0)  # s
_LOST = {kind.__name__: kind for kind in LOST}  # a function's error arrives by its type's name


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

    @property
    def unavailable(self) -> bool:
        """Say whether it was throttled or did not reach the store, which says nothing about the task."""
        return self.kind is FailureKind.THROTTLED or self.error_type == StoreUnavailableError.__name__


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """An invocation is on its way: it waited for nothing but its function from here on."""

    stage: int
    tile: int
    attempt: int


@dataclass(frozen=True, slots=True)
class TaskDone:
    """An invocation answered."""

    stage: int
    tile: int
    attempt: int
    report: Report


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """An invocation failed."""

    stage: int
    tile: int
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time that a WakeAt named has come."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nobody waits for the answer any more."""


Event = TaskStarted | TaskDone | TaskFailed | TimePassed | Cancelled


@dataclass(frozen=True, slots=True)
class Invoke:
    """Start the task of a tile, for the `attempt`-th time from 0."""

    stage: int
    tile: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Give up an attempt whose answer nobody needs any more."""

    stage: int
    tile: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send TimePassed at this time, in seconds on the driver's clock."""

    time: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The run has ended: with the last stage's reports, or with an error."""

    error: SerferError | None


Action = Invoke | Drop | WakeAt | Finish


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how soon a failed task is retried.

    Being throttled, or not reaching the store, says nothing about the task, so it has a larger allowance of its own, of
    which being throttled may take `throttled_attempts`: a driver that is a function itself keeps an environment from
    others while it waits. A query whose pieces the store has lost or altered is restarted `restarts` times.
    """

    attempts: int = 3
    unavailable_attempts: int = 12
    throttled_attempts: int = 12
    restarts: int = 3
    backoff: Backoff = _BACKOFF


class Hedging(Protocol):
    """Says when a task is late, and whether a second one may be spent on it."""

    def late_after(self, stage: int) -> float | None:
        """Return after how many seconds a task of a stage is late; None where that is not known."""
        ...

    def spend(self) -> bool:
        """Take one duplicate out of the budget, if there is one left."""
        ...


@dataclass(slots=True)
class Attempt:
    """One try of a task, on the driver's clock: when it was asked for, when it was on its way, and how it ended.

    `ended` stays None for an attempt that was given up.
    """

    number: int
    asked: float
    started: float | None = None
    ended: float | None = None
    result: Report | Failure | None = None


@dataclass(slots=True)
class TileRun:
    """What is known of one tile's task: its attempts, and the report of the one that answered first."""

    attempts: list[Attempt]
    report: Report | None = None
    failures: int = 0
    refusals: int = 0  # failures that say nothing about the task
    throttles: int = 0  # those of them for which Lambda had no room
    due: float | None = None
    hedged: bool = False

    @property
    def open(self) -> list[Attempt]:
        """The attempts that may still answer."""
        return [attempt for attempt in self.attempts if attempt.ended is None]


@dataclass(slots=True)
class StageRun:
    """What is known of one stage of a run: when it was released and ended, and its tiles' tasks."""

    started: float
    tiles: list[TileRun] = field(repr=False)
    ended: float | None = None
    waiting: int = 0  # tiles without a report

    @property
    def reports(self) -> list[Report]:
        """Reports so far, in tile order."""
        return [tile.report for tile in self.tiles if tile.report]


class ImpossibleEventError(RuntimeError):
    """The driver sent an event that cannot be: about an attempt that was never invoked, or before the start."""


class Run:
    """One query on its way through a plan whose stages have `tiles[k]` tiles.

    `deadline` is the latest time to answer at, on the driver's clock. `seed` fixes the jitter of retries. Without
    `hedging` no task is tried a second time before the first one failed.
    """

    def __init__(
        self,
        tiles: Sequence[int],
        deadline: float,
        seed: int,
        retry: Retry | None = None,
        hedging: Hedging | None = None,
    ) -> None:
        self._tiles = tuple(tiles)
        self._deadline = deadline
        self._started = deadline
        self._retry = retry or Retry()
        self._hedging = hedging
        self._random = random.Random(seed)  # noqa: S311 - jitter, no secret
        self._late_at = math.inf  # when the next timer for tasks that are late is due
        self.stages: list[StageRun] = []
        self.retries = 0
        self.hedges = 0
        self.finished = False

    def start(self, now: float) -> list[Action]:
        """Release the first stage; raises ImpossibleEventError the second time."""
        if self.stages or self.finished:
            raise ImpossibleEventError("a run starts once")
        self._started = now
        return [WakeAt(self._deadline), *self._release(now)]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take an event and return what to do; once finished, nothing is done any more.

        Raises ImpossibleEventError for an event about what was never invoked (see the module's text).
        """
        if self.finished:
            return []
        self._check(event)
        match event:
            case TaskStarted(stage, tile, attempt):
                return self._begun(stage, tile, attempt, now)
            case TaskDone(stage, tile, attempt, report):
                return self._done(stage, tile, attempt, report, now)
            case TaskFailed(stage, tile, attempt, failure):
                return self._failed(stage, tile, attempt, failure, now)
            case TimePassed():
                return self._time_passed(now)
            case Cancelled():
                return self._finish(QueryError("the query was cancelled"))

    def _check(self, event: Event) -> None:
        """Refuse an event that no driver can have seen; cancelling is possible at any time."""
        match event:
            case Cancelled():
                return
            case TimePassed():
                known = bool(self.stages)
            case TaskStarted(stage, tile, attempt) | TaskDone(stage, tile, attempt) | TaskFailed(stage, tile, attempt):
                tiles = self.stages[stage].tiles if 0 <= stage < len(self.stages) else []
                known = 0 <= tile < len(tiles) and 0 <= attempt < len(tiles[tile].attempts)
        if not known:
            raise ImpossibleEventError(f"{event!r:.200} in stage {len(self.stages) - 1}, about what was never invoked")

    def _release(self, now: float) -> list[Action]:
        """Start the next stage, all its tiles together."""
        number, count = len(self.stages), self._tiles[len(self.stages)]
        self.stages.append(StageRun(now, [TileRun([Attempt(0, now)]) for _ in range(count)], waiting=count))
        return [Invoke(number, tile, 0) for tile in range(count)]

    def _again(self, stage: int, number: int, now: float) -> Invoke:
        tile = self.stages[stage].tiles[number]
        tile.attempts.append(Attempt(len(tile.attempts), now))
        return Invoke(stage, number, tile.attempts[-1].number)

    def _current(self, stage: int, tile: int, attempt: int) -> tuple[TileRun, Attempt] | None:
        """Return the tile and the attempt that an event is about, or None for a late duplicate."""
        if stage != len(self.stages) - 1:
            return None
        current = self.stages[stage].tiles[tile]
        if current.report is not None or current.attempts[attempt].ended is not None:
            return None
        return current, current.attempts[attempt]

    def _begun(self, stage: int, tile: int, attempt: int, now: float) -> list[Action]:
        current = self._current(stage, tile, attempt)
        if current is None or current[1].started is not None:
            return []
        current[1].started = now
        late = self._late_after(current[0], stage)
        if late is None or now + late >= self._late_at:
            return []  # the timer of a task that began before looks after this one too
        self._late_at = now + late
        return [WakeAt(self._late_at)]

    def _late_after(self, tile: TileRun, stage: int) -> float | None:
        return None if tile.hedged or self._hedging is None else self._hedging.late_after(stage)

    def _done(self, stage: int, tile: int, attempt: int, report: Report, now: float) -> list[Action]:
        if stage != len(self.stages) - 1 or self.stages[stage].tiles[tile].report is not None:
            return []
        run = self.stages[stage].tiles[tile]
        done = run.attempts[attempt]
        run.report, run.due, done.ended, done.result = report, None, now, report
        drops = [Drop(stage, tile, other.number) for other in run.open]
        self.stages[stage].waiting -= 1
        if self.stages[stage].waiting:
            return [*drops]
        self.stages[stage].ended = now
        return [*drops, *(self._release(now) if stage + 1 < len(self._tiles) else self._finish(None))]

    def _failed(self, stage: int, tile: int, attempt: int, failure: Failure, now: float) -> list[Action]:
        current = self._current(stage, tile, attempt)
        if current is None:
            return []
        run, ended = current
        ended.ended, ended.result = now, failure
        if failure.error_type in _LOST:
            return self._finish(_error(stage, tile, failure))
        run.throttles += failure.kind is FailureKind.THROTTLED
        if failure.unavailable:
            run.refusals += 1
        else:
            run.failures += 1
        if run.open or run.due is not None:
            return []  # another attempt may still answer
        if self._gives_up(run):
            return self._finish(_error(stage, tile, failure))
        wait = self._retry.backoff.wait(run.failures + run.refusals, self._random.random())
        run.due = now + wait
        return [WakeAt(run.due)]

    def _gives_up(self, run: TileRun) -> bool:
        """Say whether a task has failed as often as it may."""
        return (
            run.failures >= self._retry.attempts
            or run.refusals >= self._retry.unavailable_attempts
            or run.throttles >= self._retry.throttled_attempts
        )

    def _time_passed(self, now: float) -> list[Action]:
        if now >= self._deadline:
            allowed_ms = (self._deadline - self._started) * 1000
            where = f"stage {len(self.stages) - 1} of {len(self._tiles)} was running"
            return self._finish(DeadlineError(f"no answer by the deadline of {allowed_ms:.0f} ms: {where}; allow more"))
        actions: list[Action] = []
        stage = len(self.stages) - 1
        for number, tile in enumerate(self.stages[stage].tiles):
            if tile.due is not None and tile.due <= now:
                tile.due = None
                self.retries += 1
                actions.append(self._again(stage, number, now))
            elif self._is_late(stage, tile, now) and self._may_hedge():
                tile.hedged = True
                self.hedges += 1
                actions.append(self._again(stage, number, now))
        self._late_at = self._next_late(now)
        if not actions:
            return [WakeAt(self._next_time())]
        return actions if self._late_at == math.inf else [*actions, WakeAt(self._late_at)]

    def _is_late(self, stage: int, tile: TileRun, now: float) -> bool:
        """Say whether a task has been on its way for too long."""
        if tile.report is not None:
            return False
        late = self._late_after(tile, stage)
        begun = [attempt.started for attempt in tile.open if attempt.started is not None]
        return late is not None and len(begun) == 1 == len(tile.open) and now >= begun[0] + late

    def _may_hedge(self) -> bool:
        """Take a duplicate out of the budget, and say whether there was one."""
        return self._hedging is not None and self._hedging.spend()

    def _next_time(self) -> float:
        """Return when there is something to do if no event comes: a timer that fired too early is set again."""
        due = [tile.due for tile in self.stages[-1].tiles if tile.due is not None]
        return min([self._deadline, self._late_at, *due])

    def _next_late(self, now: float) -> float:
        """Return when the next task that is on its way will be late; inf for none."""
        number, times = len(self.stages) - 1, [math.inf]
        for tile in self.stages[-1].tiles:
            late = self._late_after(tile, number) if tile.report is None else None
            if late is not None:
                begun = [attempt.started for attempt in tile.open if attempt.started is not None]
                times += [start + late for start in begun if start + late > now]
        return min(times)

    def _finish(self, error: SerferError | None) -> list[Action]:
        self.finished = True
        return [Finish(error)]


def query_error(failure: Failure, where: str) -> SerferError:
    """Turn a task's last failure into the error that its query ends with; `where` says which task, as text."""
    text = f"{where}{failure.message}"
    if failure.error_type in _LOST:
        return _LOST[failure.error_type](text)
    if failure.error_type == StoreUnavailableError.__name__:
        return StoreUnavailableError(text)
    if failure.error_type == PlanError.__name__:
        return BrokenPlanError(text)
    if failure.kind is FailureKind.THROTTLED:
        return LambdaThrottledError(f"{failure.kind.value}: {text}")
    if failure.kind is FailureKind.UNREACHABLE:
        return LambdaUnavailableError(f"{failure.kind.value}: {text}")
    return TaskFailedError(f"{failure.kind.value}: {text}")


def _error(stage: int, tile: int, failure: Failure) -> SerferError:
    return query_error(failure, f"stage {stage}, tile {tile}: ")
