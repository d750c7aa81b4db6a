"""The life of a query, as a machine without clock or network: events and the time go in, actions come out.

    start ──▶ stage 0 ──▶ stage 1 ... ──▶ finished: the last stage's reports, or an error

A stage ends when all its tiles are DONE, and the run when its last stage does, when a tile has FAILED, at the deadline,
or when it is cancelled. Everything that changes is in one of two tables. A tile's task (TRANSITIONS):

    RUNNING ── answered ──▶ DONE
    RUNNING ── late ──▶ HEDGED       a duplicate is invoked, the first answer counts
    RUNNING ── failed ──▶ WAITING    for the time of its retry
    RUNNING ── gave up ──▶ FAILED    its retries or their time are used up, or what it reads is lost
    HEDGED ── answered ──▶ DONE
    HEDGED ── one failed ──▶ RUNNING
    HEDGED ── gave up ──▶ FAILED
    WAITING ── due ──▶ RUNNING
    WAITING ── answered ──▶ DONE     by an attempt that had been given up

Stages of a gang are one invocation of each tile, whose report has their reports; they end together. The gang
(GANG_TRANSITIONS), of which all that may still run are aborted when it leaves RUNNING:

    RUNNING ── all answered ──▶ DONE
    RUNNING ── broke ──▶ DISBANDED   a member finds no room in Lambda, or waits in vain for another
    RUNNING ── query ended ──▶ ABORTED

The stages of a gang that is DISBANDED run one by one: members that wait for those that do not run would keep room from
others, perhaps for ever. A member that is late waits for a slower one, as a rule, so only those are HEDGED that are
behind the others (Probe, Progress).

The push driver, the simulator and the tests drive the same machine. Whatever happens, a run ends exactly once, with
Finish; its keys are then the driver's to delete. Decided elsewhere: the restart of a query whose data the store has
lost (drivers/driver.py), the deadline and retries of a state machine (drivers/stepfunctions), which tasks share an
invocation, and in which order they get a slot (drivers/dispatching), when a task is late (serfer/core/hedging.py).

Every event names the attempt that it is about. An attempt may end late or twice, since one that was given up may still
run: events about attempts of a stage that is over, of a tile that is done, or that ended before, are accepted and
change nothing, and so is everything after Finish. An event about what was never invoked, a second TaskStarted of an
attempt, and any event before the start are bugs of the driver and raise ImpossibleEventError.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from serfer.core.errors import (
    AlteredPieceError,
    BrokenPlanError,
    DeadlineError,
    GangStalledError,
    InputError,
    LambdaThrottledError,
    LambdaUnavailableError,
    MissingKeyError,
    NotFiniteError,
    PlanError,
    QueryError,
    SerferError,
    StoreUnavailableError,
    TaskFailedError,
)
from serfer.core.retry import Backoff
from serfer.core.units import MS_PER_S
from serfer.core.wire import Report

LOST = (MissingKeyError, AlteredPieceError)
"""Failures that a restart of the query cures: a value that a task reads is missing from the store, or altered."""
_BACKOFF = Backoff(base=0.05, longest=2.0)  # s
_EARLY_S = 0.1  # by which a timer may fire too early
_LOST = {kind.__name__: kind for kind in LOST}  # a function's error arrives by its type's name
_DETERMINISTIC = {kind.__name__ for kind in (NotFiniteError, InputError, PlanError)}
"""Failures that the same task has again: it is a pure function of its plan, query, stage and tile."""
WRONG_ANSWER = "WrongAnswer"
"""The error type of a failure that is the driver's own finding: an answer that is not the plan's, tried again."""
_AS_THEY_ARE: dict[str, type[SerferError]] = _LOST | {
    kind.__name__: kind for kind in (StoreUnavailableError, NotFiniteError)
}


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
        """Return whether it was throttled or did not reach the store, which says nothing about the task."""
        return self.kind is FailureKind.THROTTLED or self.error_type == StoreUnavailableError.__name__


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """An invocation was sent: from here on it waits for its function alone."""

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
    """The time of a WakeAt has come."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The answer to a Probe: the stage that each member of the gang is at, the first whose borders it has not sent."""

    stage: int
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller no longer waits for the answer."""


Event = TaskStarted | TaskDone | TaskFailed | TimePassed | Progress | Cancelled


@dataclass(frozen=True, slots=True)
class Invoke:
    """Start the task of a tile, for the `attempt`-th time from 0; a gang's, where its StageRun says so."""

    stage: int
    tile: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Tell the members of the gang that begins with a stage to stop."""

    stage: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Send Progress: how far the members of the gang that begins with a stage are."""

    stage: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Give up an attempt whose answer is no longer needed."""

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


Action = Invoke | Drop | Abort | Probe | WakeAt | Finish


@dataclass(frozen=True, slots=True)
class Retry:
    """The retries of a failed task: their number and waits.

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
    """The lateness of a task, and the budget of duplicates."""

    def late_after(self, stage: int) -> float | None:
        """Return after how many seconds a task of a stage is late; None if that is unknown."""
        ...

    def spend(self) -> bool: ...


@dataclass(slots=True)
class Attempt:
    """One try of a task, on the driver's clock: when it was requested and sent, and how it ended.

    `ended` stays None for an attempt that was given up.
    """

    number: int
    requested: float
    started: float | None = None
    ended: float | None = None
    result: Report | Failure | None = None


class TileState(enum.StrEnum):
    """The state of a tile's task."""

    RUNNING = "running"
    HEDGED = "hedged"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


class Change(enum.StrEnum):
    """The events that move a tile's task from one state to another."""

    ANSWERED = "answered"
    LATE = "late"
    ATTEMPT_FAILED = "failed"
    ONE_FAILED = "one failed"
    GAVE_UP = "gave up"
    DUE = "due"


class GangState(enum.StrEnum):
    """The state of a gang."""

    RUNNING = "running"
    DONE = "done"
    DISBANDED = "disbanded"
    ABORTED = "aborted"


class GangChange(enum.StrEnum):
    """The events that end a gang."""

    ALL_ANSWERED = "all answered"
    BROKE = "broke"
    QUERY_ENDED = "query ended"


TRANSITIONS = {
    TileState.RUNNING: {
        Change.ANSWERED: TileState.DONE,
        Change.LATE: TileState.HEDGED,
        Change.ATTEMPT_FAILED: TileState.WAITING,
        Change.GAVE_UP: TileState.FAILED,
    },
    TileState.HEDGED: {
        Change.ANSWERED: TileState.DONE,
        Change.ONE_FAILED: TileState.RUNNING,
        Change.GAVE_UP: TileState.FAILED,
    },
    TileState.WAITING: {Change.DUE: TileState.RUNNING, Change.ANSWERED: TileState.DONE},
    TileState.DONE: {},
    TileState.FAILED: {},
}
GANG_TRANSITIONS = {
    GangState.RUNNING: {
        GangChange.ALL_ANSWERED: GangState.DONE,
        GangChange.BROKE: GangState.DISBANDED,
        GangChange.QUERY_ENDED: GangState.ABORTED,
    },
    GangState.DONE: {},
    GangState.DISBANDED: {},
    GangState.ABORTED: {},
}


@dataclass(slots=True)
class TileRun:
    """The state of one tile's task: its attempts, and the report of the one that answered first.

    `due` is the time of its retry while it is WAITING. The first `void` attempts were members of a gang that was
    aborted: whatever becomes of them changes nothing.
    """

    attempts: list[Attempt]
    report: Report | None = None
    state: TileState = TileState.RUNNING
    failures: int = 0
    unavailable: int = 0  # failures that say nothing about the task
    throttles: int = 0  # those of them for which Lambda had no room
    due: float = math.inf
    hedged: bool = False
    void: int = 0

    def move(self, change: Change) -> None:
        """Take a transition; a KeyError is a bug of the machine's."""
        self.state = TRANSITIONS[self.state][change]

    @property
    def open(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts[self.void :] if attempt.ended is None]

    @property
    def alone(self) -> bool:
        """Whether its invocation is not to be shared: it failed before, or is late."""
        return self.failures > 0 or self.hedged

    def late_at(self, late_after: float | None) -> float:
        """Return when its only attempt is late; inf while there are two or none, or it has not started."""
        if late_after is None or self.hedged or self.state is not TileState.RUNNING:
            return math.inf
        started = self.attempts[-1].started
        return math.inf if started is None else started + late_after


@dataclass(slots=True)
class GangRun:
    """The state of a gang, whose members run all stages before `stop`."""

    stop: int
    state: GangState = GangState.RUNNING

    def move(self, change: GangChange) -> None:
        self.state = GANG_TRANSITIONS[self.state][change]


@dataclass(slots=True)
class StageRun:
    """The state of a stage of a run: when it was released and ended, its tiles' tasks, a gang that begins with it."""

    started: float
    tiles: list[TileRun] = field(repr=False)
    ended: float | None = None
    waiting: int = 0  # tiles without a report
    gang: GangRun | None = None

    @property
    def gang_stop(self) -> int | None:
        """Before which stage its tasks stop, where they are those of a gang that was not disbanded."""
        return self.gang.stop if self.gang and self.gang.state is not GangState.DISBANDED else None

    @property
    def reports(self) -> list[Report]:
        return [tile.report for tile in self.tiles if tile.report]


def gang_starts(stages: Sequence[StageRun]) -> list[int | None]:
    """Return for each stage the first stage of the gang whose members ran it; None where it was run by itself."""
    starts: list[int | None] = []
    stop = 0
    for number, stage in enumerate(stages):
        if stage.gang_stop:
            start, stop = number, stage.gang_stop
        starts.append(start if number < stop else None)
    return starts


class ImpossibleEventError(RuntimeError):
    """An event that no driver can have seen: about what was never invoked, a second start, or before the start."""


class Run:
    """One query on its way through a plan whose stages have `tiles[k]` tiles.

    `deadline` is the latest time to answer at, on the driver's clock. `seed` fixes the jitter of retries. Without
    `hedging` no task is tried a second time before the first one failed. `gangs` has, by its first stage, where each
    gang stops.
    """

    def __init__(
        self,
        tiles: Sequence[int],
        deadline: float,
        seed: int,
        retry: Retry | None = None,
        hedging: Hedging | None = None,
        gangs: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._tiles = tuple(tiles)
        self._gangs = gangs
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
                actions = self._started_attempt(stage, tile, attempt, now)
            case TaskDone(stage, tile, attempt, report):
                actions = self._take_answer(stage, tile, attempt, report, now)
            case TaskFailed(stage, tile, attempt, failure):
                actions = self._failed(stage, tile, attempt, failure, now)
            case TimePassed():
                actions = self._time_passed(now)
            case Progress(stage, stages):
                actions = self._hedge_those_behind(stage, stages, now)
            case Cancelled():
                actions = self._finish(QueryError("the query was cancelled"))
        return actions

    def _check(self, event: Event) -> None:
        match event:
            case TaskStarted(stage, tile, attempt) | TaskDone(stage, tile, attempt) | TaskFailed(stage, tile, attempt):
                tiles = self.stages[stage].tiles if 0 <= stage < len(self.stages) else []
                known = 0 <= tile < len(tiles) and 0 <= attempt < len(tiles[tile].attempts)
            case TimePassed():
                known = bool(self.stages)
            case Progress(stage, stages):
                known = 0 <= stage < len(self.stages) and len(stages) == len(self.stages[stage].tiles)
            case Cancelled():
                return
        if not known:
            raise ImpossibleEventError(f"{event!r:.200} in stage {len(self.stages) - 1}, about what was never invoked")

    def _release(self, now: float) -> list[Action]:
        number, count = len(self.stages), self._tiles[len(self.stages)]
        tiles = [TileRun([Attempt(0, now)]) for _ in range(count)]
        gang = GangRun(self._gangs[number]) if number in self._gangs else None
        self.stages.append(StageRun(now, tiles, waiting=count, gang=gang))
        return [Invoke(number, tile, 0) for tile in range(count)]

    def _again(self, stage: int, number: int, now: float) -> Invoke:
        tile = self.stages[stage].tiles[number]
        tile.attempts.append(Attempt(len(tile.attempts), now))
        return Invoke(stage, number, tile.attempts[-1].number)

    def _open_tile(self, stage: int, tile: int, attempt: int) -> TileRun | None:
        current = self.stages[stage].tiles[tile]
        over = stage != len(self.stages) - 1 or current.state is TileState.DONE or attempt < current.void
        return None if over else current

    def _started_attempt(self, stage: int, tile: int, attempt: int, now: float) -> list[Action]:
        run = self._open_tile(stage, tile, attempt)
        if run is None or run.attempts[attempt].ended is not None:
            return []
        if run.attempts[attempt].started is not None:
            raise ImpossibleEventError(f"stage {stage}, tile {tile}: attempt {attempt} started twice")
        run.attempts[attempt].started = now
        late_at = run.late_at(self._late_after(stage))
        if late_at >= self._late_at:
            return []  # the timer of a task that began before looks after this one too
        self._late_at = late_at
        return [WakeAt(late_at)]

    def _late_after(self, stage: int) -> float | None:
        return self._hedging.late_after(stage) if self._hedging else None

    def _take_answer(self, stage: int, tile: int, attempt: int, report: Report, now: float) -> list[Action]:
        run = self._open_tile(stage, tile, attempt)
        if run is None:
            return []
        run.move(Change.ANSWERED)
        done = run.attempts[attempt]
        run.report, done.ended, done.result = report, now, report
        drops = [Drop(stage, tile, other.number) for other in run.open]
        current = self.stages[stage]
        current.waiting -= 1
        if current.waiting:
            return [*drops]
        current.ended = now
        actions: list[Action] = [*drops]
        if current.gang_stop:
            actions += self._end_gang(stage, GangChange.ALL_ANSWERED)
            self._add_later_stages(stage, current.gang_stop, now)
        return [*actions, *(self._release(now) if len(self.stages) < len(self._tiles) else self._finish(None))]

    def _add_later_stages(self, first: int, stop: int, now: float) -> None:
        """A stage ends when its slowest member has, by the members' own clocks, counted back from the gang's end."""
        gang = self.stages[first]
        members = [
            dict(zip(self._stages_of(number, first, stop), (report, *report.later), strict=True))
            for number, report in enumerate(gang.reports)
        ]
        left = _seconds_left(members, range(first, stop))
        gang.ended = max(gang.started, now - left[first])
        for number in range(first + 1, stop):
            tiles = [
                TileRun([_answered_attempt(tile)], member[number], TileState.DONE)
                for tile, member in zip(gang.tiles, members, strict=True)
                if number in member
            ]
            began = self.stages[-1].ended or now
            self.stages.append(StageRun(began, tiles, max(began, now - left[number])))

    def _stages_of(self, member: int, first: int, stop: int) -> list[int]:
        return [number for number in range(first, stop) if member < self._tiles[number]]

    def _failed(self, stage: int, tile: int, attempt: int, failure: Failure, now: float) -> list[Action]:
        run = self._open_tile(stage, tile, attempt)
        if run is None or run.attempts[attempt].ended is not None:
            return []
        run.attempts[attempt].ended, run.attempts[attempt].result = now, failure
        if self.stages[stage].gang_stop and _breaks_gang(failure):
            return self._disband(stage, failure, now)
        run.throttles += failure.kind is FailureKind.THROTTLED
        if failure.unavailable:
            run.unavailable += 1
        else:
            run.failures += 1
        hopeless = failure.error_type in _LOST or failure.error_type in _DETERMINISTIC
        if run.state is TileState.HEDGED and not hopeless:
            run.move(Change.ONE_FAILED)
            return []
        due = now + self._retry.backoff.wait(run.failures + run.unavailable, self._random.random())
        too_late = failure.unavailable and due >= self._deadline  # the reason says more than the deadline would
        if hopeless or too_late or self._retries_used_up(run):
            run.move(Change.GAVE_UP)
            return self._finish(query_error(failure, f"stage {stage}, tile {tile}: "))
        run.move(Change.ATTEMPT_FAILED)
        run.due = due
        return [WakeAt(due)]

    def _end_gang(self, stage: int, change: GangChange) -> list[Action]:
        """Members that have all answered are not aborted, unless one has a duplicate that may still run."""
        current = self.stages[stage]
        if current.gang is None or current.gang.state is not GangState.RUNNING:
            return []
        current.gang.move(change)
        all_ended = change is GangChange.ALL_ANSWERED and not any(tile.open for tile in current.tiles)
        return [] if all_ended else [Abort(stage)]

    def _disband(self, stage: int, failure: Failure, now: float) -> list[Action]:
        current = self.stages[stage]
        drops = [
            Drop(stage, number, attempt.number) for number, tile in enumerate(current.tiles) for attempt in tile.open
        ]
        due = now
        if failure.kind is FailureKind.THROTTLED:
            due += self._retry.backoff.wait(1, self._random.random())
        current.tiles = [
            TileRun(tile.attempts, state=TileState.WAITING, due=due, void=len(tile.attempts)) for tile in current.tiles
        ]
        current.waiting = len(current.tiles)
        self._late_at = math.inf
        return [*drops, *self._end_gang(stage, GangChange.BROKE), WakeAt(due)]

    def _hedge_those_behind(self, stage: int, stages: Sequence[int], now: float) -> list[Action]:
        if stage != len(self.stages) - 1 or not self.stages[stage].gang_stop or not self._hedging:
            return []
        tiles = self.stages[stage].tiles
        open_at = {number: at for number, at in enumerate(stages) if tiles[number].state is not TileState.DONE}
        behind = [number for number, at in open_at.items() if at == min(open_at.values())]
        actions: list[Action] = []
        for number in behind if 2 * len(behind) <= len(tiles) else ():
            if tiles[number].state is TileState.RUNNING and not tiles[number].hedged:
                actions += self._duplicate(stage, number, now)
        return actions

    def _retries_used_up(self, run: TileRun) -> bool:
        return (
            run.failures >= self._retry.attempts
            or run.unavailable >= self._retry.unavailable_attempts
            or run.throttles >= self._retry.throttled_attempts
        )

    def _time_passed(self, now: float) -> list[Action]:
        if now >= self._deadline:
            allowed_ms = (self._deadline - self._started) * 1000
            where = f"stage {len(self.stages) - 1} of {len(self._tiles)} was running"
            return self._finish(DeadlineError(f"no answer by the deadline of {allowed_ms:.0f} ms: {where}; allow more"))
        actions: list[Action] = []
        stage = len(self.stages) - 1
        late_after = self._late_after(stage)
        for number, tile in enumerate(self.stages[stage].tiles):
            if tile.state is TileState.WAITING and tile.due <= now:
                tile.move(Change.DUE)
                self.retries += 1
                actions.append(self._again(stage, number, now))
            elif self._hedging and tile.late_at(late_after) <= now and not self.stages[stage].gang_stop:
                actions += self._duplicate(stage, number, now)
        late_at = self._late_at
        actions += self._look_for_lateness(stage, late_after, now)
        if self._late_at not in (late_at, math.inf):
            actions.append(WakeAt(self._late_at))
        next_time = self._next_time()
        return [*actions, WakeAt(next_time)] if next_time - now < _EARLY_S else actions

    def _duplicate(self, stage: int, number: int, now: float) -> list[Action]:
        tile = self.stages[stage].tiles[number]
        if not (self._hedging and self._hedging.spend()):
            return []
        tile.move(Change.LATE)
        tile.hedged = True
        self.hedges += 1
        return [self._again(stage, number, now)]

    def _look_for_lateness(self, stage: int, late_after: float | None, now: float) -> list[Action]:
        times = [tile.late_at(late_after) for tile in self.stages[stage].tiles]
        later = min((time for time in times if time > now), default=math.inf)
        if not (late_after and self.stages[stage].gang_stop and min(times) <= now):
            self._late_at = later
            return []
        due = self._late_at <= now
        self._late_at = min(later, now + late_after if due else self._late_at)
        return [Probe(stage)] if due else []

    def _next_time(self) -> float:
        due = (tile.due for tile in self.stages[-1].tiles if tile.state is TileState.WAITING)
        return min([self._deadline, self._late_at, *due])

    def _finish(self, error: SerferError | None) -> list[Action]:
        self.finished = True
        aborts = self._end_gang(len(self.stages) - 1, GangChange.QUERY_ENDED) if self.stages else []
        return [*aborts, Finish(error)]


def _breaks_gang(failure: Failure) -> bool:
    return failure.kind is FailureKind.THROTTLED or failure.error_type == GangStalledError.__name__


def _seconds_left(members: Sequence[Mapping[int, Report]], stages: range) -> dict[int, float]:
    ends = dict.fromkeys(stages, 0.0)
    for reports in members:
        elapsed = 0.0
        for stage, report in reports.items():
            elapsed += report.init_ms + report.total_ms
            ends[stage] = max(ends[stage], elapsed / MS_PER_S)
    return {stage: max(ends.values()) - end for stage, end in ends.items()}


def _answered_attempt(member: TileRun) -> Attempt:
    return next(attempt for attempt in member.attempts if attempt.result is member.report)


def query_error(failure: Failure, where: str) -> SerferError:
    """Turn a task's last failure into the error that its query ends with; `where` says which task, as text."""
    text = f"{where}{failure.message}"
    if failure.error_type in _AS_THEY_ARE:
        return _AS_THEY_ARE[failure.error_type](text)
    if failure.error_type in {PlanError.__name__, WRONG_ANSWER}:
        return BrokenPlanError(text)
    if failure.kind is FailureKind.THROTTLED:
        return LambdaThrottledError(f"{failure.kind.value}: {text}")
    if failure.kind is FailureKind.UNREACHABLE:
        return LambdaUnavailableError(f"{failure.kind.value}: {text}")
    return TaskFailedError(f"{failure.kind.value}: {text}")
