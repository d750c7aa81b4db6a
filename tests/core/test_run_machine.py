import heapq
import itertools
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core import run_machine
from serfer.core.errors import (
    AlteredPieceError,
    BrokenPlanError,
    DeadlineError,
    LambdaThrottledError,
    LambdaUnavailableError,
    MissingKeyError,
    NotFiniteError,
    PlanError,
    QueryError,
    StoreUnavailableError,
    TaskFailedError,
    UnavailableError,
)
from serfer.core.hedging import LearntHedging
from serfer.core.keys import StoreCounts
from serfer.core.run_machine import (
    GANG_TRANSITIONS,
    TRANSITIONS,
    Abort,
    Cancelled,
    Drop,
    Failure,
    FailureKind,
    Finish,
    GangRun,
    ImpossibleEventError,
    Invoke,
    Probe,
    Progress,
    Retry,
    Run,
    TaskDone,
    TaskFailed,
    TaskStarted,
    TileRun,
    TimePassed,
    WakeAt,
)
from serfer.core.wire import Report

REPORT_FIELDS = (0.0, 1.0, 1.0, 1.0, 3.0, 1, 1, StoreCounts())
REPORT, OTHER = Report("env", *REPORT_FIELDS), Report("other", *REPORT_FIELDS)
KINDS = tuple(FailureKind)
LATEST = 0.3  # how late a timer may be, s


def failed(stage, tile, kind=FailureKind.FAILED_IN_CODE, error_type="", message="boom", attempt=0):
    return TaskFailed(stage, tile, attempt, Failure(kind, error_type, message))


def done(stage, tile, report=REPORT, attempt=0):
    return TaskDone(stage, tile, attempt, report)


def finishes(actions):
    return [action for action in actions if isinstance(action, Finish)]


def wakes(actions):
    return [action.time for action in actions if isinstance(action, WakeAt)]


def invokes(actions):
    return [(action.stage, action.tile) for action in actions if isinstance(action, Invoke)]


class Late:
    """Every task that takes longer than `seconds` is late; `budget` duplicates may be spent."""

    def __init__(self, seconds, budget=1000):
        self.seconds, self.budget = seconds, budget

    def late_after(self, _stage):
        return self.seconds

    def spend(self):
        self.budget -= 1
        return self.budget >= 0


class Driver:
    """Carries a run's actions out on a virtual clock, as badly as `chance` has it.

    Answers come in any order, twice, late, as failures, after their own failures, or (`lost`) never; timers fire early,
    late or twice; what a task reads may be `gone`.
    """

    def __init__(self, tiles, deadline, seed, retry, rates, hedging=None, gone=0.0):
        self.tiles, self.retry = tiles, retry
        chance = self.chance = random.Random(seed)  # noqa: S311 - no secret
        self.failure, self.throttle, self.lost = rates
        self.gone = gone
        self.run = Run(tiles, deadline, seed=chance.randrange(1000), retry=retry, hedging=hedging)
        self.queue, self.order = [], itertools.count()
        self.now, self.deadline = 0.0, deadline
        self.done, self.failures, self.finish = {}, {}, []
        self.attempts, self.open = {}, set()

    def drive(self):
        self.carry_out(self.run.start(self.now))
        while self.queue and next(self.order) < 20_000:
            time, _, event = heapq.heappop(self.queue)
            self.now = max(self.now, time)
            self.note(event)
            self.carry_out(self.run.handle(event, self.now))
        return self

    def later(self, delay, event):
        heapq.heappush(self.queue, (self.now + delay, next(self.order), event))

    def note(self, event):
        if self.finish or isinstance(event, TimePassed | TaskStarted):
            return
        place, attempt = (event.stage, event.tile), (event.stage, event.tile, event.attempt)
        if isinstance(event, TaskDone):
            self.done.setdefault(place, event.report)
        elif place not in self.done and attempt in self.open:
            kind = (*place, event.failure.kind is FailureKind.THROTTLED)
            self.failures[kind] = self.failures.get(kind, 0) + 1
        self.open.discard(attempt)

    def carry_out(self, actions):
        for action in actions:
            assert not self.finish, "an action after Finish"
            match action:
                case Finish():
                    self.finish.append(action)
                    self.ended = self.now
                case WakeAt(time):
                    early = self.chance.choice([0, 0, 0, 1e-9, 0.01])
                    late = self.chance.choice([0, 0, LATEST])
                    for _ in range(self.chance.choice([1, 1, 1, 2]) if time < self.deadline else 1):
                        self.later(max(0, time - self.now - early + late), TimePassed())
                case Drop(stage, tile, attempt):
                    assert (stage, tile) in self.done
                    self.open.discard((stage, tile, attempt))
                case Invoke(stage, tile, attempt):
                    self.invoke(stage, tile, attempt)

    def invoke(self, stage, tile, attempt):
        assert all((before, other) in self.done for before in range(stage) for other in range(self.tiles[before]))
        assert (stage, tile) not in self.done
        beside = [other for other in self.open if other[:2] == (stage, tile)]
        assert len(beside) <= (1 if self.run.hedges else 0), "too many invocations of a tile at once"
        assert attempt == self.attempts.get((stage, tile), 0), "attempts are numbered one after the other"
        self.attempts[stage, tile] = attempt + 1
        self.open.add((stage, tile, attempt))
        roll, delay = self.chance.random(), self.chance.random()
        report = Report(f"{stage} {tile}", *REPORT_FIELDS)
        self.later(0, TaskStarted(stage, tile, attempt))
        if roll < self.failure:
            kind = self.chance.choice([kind for kind in KINDS if kind is not FailureKind.THROTTLED])
            name = "MissingKeyError" if self.chance.random() < self.gone else ""
            event = failed(stage, tile, kind, name, attempt=attempt)
            if self.chance.random() < 0.2:
                self.later(delay + self.chance.random(), done(stage, tile, report, attempt))
        elif roll < self.failure + self.throttle:
            event = failed(stage, tile, FailureKind.THROTTLED, attempt=attempt)
        elif roll < self.failure + self.throttle + self.lost:
            return
        else:
            event = done(stage, tile, report, attempt)
        for copy in range(self.chance.choice([1, 1, 2, 3])):
            self.later(delay + copy * self.chance.random() * 5, event)


@settings(max_examples=250)
@given(
    tiles=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    deadline=st.sampled_from([0.5, 5.0, 1000.0]),
    rates=st.sampled_from([(0, 0), (0.2, 0), (0, 0.5), (0.3, 0.3), (1, 0), (0, 1), (0.1, 0.05)]),
    lost=st.sampled_from([0, 0, 0.05, 0.5]),
    late=st.sampled_from([None, None, 0.0, 0.3, 1.5]),
    attempts=st.integers(1, 4),
    gone=st.sampled_from([0, 0, 0.05]),
)
def test_every_run_ends_once_and_keeps_its_invariants(tiles, seed, deadline, rates, lost, late, attempts, gone):
    retry = Retry(attempts=attempts, unavailable_attempts=5)
    hedging = None if late is None else Late(late, budget=7)
    driver = Driver(tiles, deadline, seed, retry, (*rates, lost), hedging, gone).drive()
    assert len(driver.finish) == 1
    assert driver.run.finished
    assert driver.ended <= deadline + LATEST
    for (_, _, throttled), count in driver.failures.items():
        assert count <= (retry.unavailable_attempts if throttled else retry.attempts) + (hedging is not None)
    assert driver.run.hedges <= 7
    if not (any(rates) or lost or hedging):
        assert set(driver.attempts.values()) == {1}
    error = driver.finish[0].error
    everything = {(stage, tile) for stage, count in enumerate(tiles) for tile in range(count)}
    if error is None:
        assert driver.done.keys() == everything
        assert [len(stage.reports) for stage in driver.run.stages] == tiles
        for number, stage in enumerate(driver.run.stages):
            assert [report.environment for report in stage.reports] == [
                f"{number} {tile}" for tile in range(tiles[number])
            ]
        assert all(stage.ended is not None for stage in driver.run.stages)
    elif isinstance(error, DeadlineError):
        assert driver.now >= deadline
    elif isinstance(error, MissingKeyError):
        assert gone
    else:
        assert isinstance(error, TaskFailedError | LambdaUnavailableError)
        no_time = isinstance(error, LambdaUnavailableError) and deadline - driver.ended <= retry.backoff.longest
        assert no_time or any(
            count >= (retry.unavailable_attempts if throttled else retry.attempts)
            for (_, _, throttled), count in driver.failures.items()
        )
    assert driver.run.retries + driver.run.hedges == sum(driver.attempts.values()) - len(driver.attempts)


def test_the_diagrams_are_the_tables_of_transitions():
    drawn = re.findall(r"^    ([A-Z]+) ── ([a-z ]+) ──▶ ([A-Z]+)", run_machine.__doc__, re.MULTILINE)
    table = [
        (state.name, change.value, after.name)
        for state, row in [*TRANSITIONS.items(), *GANG_TRANSITIONS.items()]
        for change, after in row.items()
    ]
    assert sorted(drawn) == sorted(table)


def transitions(monkeypatch, kind):
    """Return a set that fills with the states and changes that runs go through."""
    taken, move = set(), kind.move

    def noted(subject, change):
        taken.add((subject.state, change))
        move(subject, change)

    monkeypatch.setattr(kind, "move", noted)
    return taken


def test_every_transition_is_taken_by_some_run(monkeypatch):
    taken = transitions(monkeypatch, TileRun)
    for seed in range(200):
        Driver([4, 1], 1000.0, seed, Retry(attempts=2), (0.3, 0.1, 0.05), Late(0.3), gone=0.1).drive()
    assert taken == {(state, change) for state, row in TRANSITIONS.items() for change in row}


def started(tiles=(2, 1), deadline=100.0, now=0.0, **retry):
    run = Run(tiles, deadline, seed=1, retry=Retry(**retry))
    return run, run.start(now)


@pytest.mark.parametrize("place", [(1, 0, 0), (7, 0, 0), (-1, 0, 0), (0, 2, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)])
@pytest.mark.parametrize("kind", ["started", "done", "failed"])
def test_an_event_about_an_attempt_never_invoked_is_an_error(place, kind):
    """Stage 1 is not released yet, the run has no stage 7 or -1; each of stage 0's two tiles was invoked once."""
    run, _ = started()
    event = {
        "started": TaskStarted(*place),
        "done": TaskDone(*place, REPORT),
        "failed": TaskFailed(*place, Failure(FailureKind.TIMED_OUT, "", "")),
    }[kind]
    with pytest.raises(ImpossibleEventError, match="never invoked"):
        run.handle(event, 1.0)


@pytest.mark.parametrize("event", [TaskStarted(0, 0, 0), done(0, 0), failed(0, 0), TimePassed()])
def test_only_a_cancellation_may_precede_the_start_of_which_there_is_one(event):
    with pytest.raises(ImpossibleEventError):
        Run((2, 1), 100.0, seed=1).handle(event, 1.0)
    run, _ = started()
    run.handle(TaskStarted(0, 0, 0), 1.0)
    with pytest.raises(ImpossibleEventError):
        run.handle(TaskStarted(0, 0, 0), 2.0)
    with pytest.raises(ImpossibleEventError):
        run.start(2.0)
    for run in (Run((2, 1), 100.0, seed=1), started()[0]):
        (finish,) = run.handle(Cancelled(), 1.0)
        assert type(finish.error) is QueryError


def test_late_and_duplicate_events_change_nothing():
    run, _ = started(tiles=(2, 1, 1), attempts=2)
    run.handle(done(0, 0), 1.0)
    for event in (done(0, 0, OTHER), failed(0, 0), TaskStarted(0, 0, 0)):
        assert run.handle(event, 2.0) == [], "the tile is done"
    run.handle(done(0, 1), 3.0)
    for event in (done(0, 1, OTHER), failed(0, 1), TaskStarted(0, 1, 0)):
        assert run.handle(event, 4.0) == [], "the stage is over"
    assert (run.stages[0].reports, run.stages[0].ended) == ([REPORT, REPORT], 3.0)
    run.handle(failed(1, 0), 5.0)
    assert run.handle(failed(1, 0), 5.1) == [], "that attempt has failed before"
    run.handle(Cancelled(), 6.0)
    for event in (done(1, 0), failed(2, 5), TimePassed(), Cancelled()):
        assert run.handle(event, 7.0) == [], "the run has ended"


def test_failed_tiles_are_retried_after_their_backoff():
    run, _ = started(tiles=(1,))
    (wake,) = wakes(run.handle(failed(0, 0), 1.0))
    assert wake > 1.0
    assert run.handle(TimePassed(), wake - 1e-9) == [WakeAt(wake)], "a timer that fires early is set again"
    assert run.handle(TimePassed(), wake) == [Invoke(0, 0, 1)]
    assert run.retries == 1
    assert invokes(run.handle(TimePassed(), wake + 1)) == []
    assert run.handle(TimePassed(), 100.0 - 1e-9) == [WakeAt(100.0)]
    run, _ = started(tiles=(3,))
    for tile in (0, 2):
        (wake,) = wakes(run.handle(failed(0, tile), 1.0))
    assert run.handle(done(0, 2), 1.01) == [], "a late answer counts although a retry is due"
    assert invokes(run.handle(TimePassed(), 5.0)) == [(0, 0)]


REFUSALS = [(FailureKind.THROTTLED, ""), (FailureKind.FAILED_IN_CODE, "StoreUnavailableError")]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_unavailability_has_its_own_number_of_attempts(refusal):
    run, _ = started(tiles=(1,), deadline=1e6, attempts=2, unavailable_attempts=4)
    now = 1.0
    for attempt, kind in enumerate([refusal] * 3 + [(FailureKind.TIMED_OUT, "")]):
        (wake,) = wakes(run.handle(failed(0, 0, *kind, attempt=attempt), now))
        assert run.handle(TimePassed(), wake) == [Invoke(0, 0, attempt + 1)]
        now = wake
    last = failed(0, 0, *refusal, attempt=4)
    assert isinstance(finishes(run.handle(last, now))[0].error, UnavailableError)
    # A driver function that waits for room keeps an environment from the stages that would give it back.
    run, _ = started(tiles=(1,), deadline=1e6, attempts=2, throttled_attempts=2)
    for attempt, kind in enumerate([("FAILED_IN_CODE", "StoreUnavailableError"), ("THROTTLED", "")]):
        (wake,) = wakes(run.handle(failed(0, 0, FailureKind[kind[0]], kind[1], attempt=attempt), now))
        run.handle(TimePassed(), wake)
    (finish,) = finishes(run.handle(failed(0, 0, FailureKind.THROTTLED, attempt=2), wake))
    assert type(finish.error) is LambdaThrottledError


@pytest.mark.parametrize(
    ("error_type", "error"),
    [
        ("PlanError", BrokenPlanError),
        ("InputError", TaskFailedError),
        *((kind.__name__, kind) for kind in (NotFiniteError, MissingKeyError, AlteredPieceError)),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_what_a_task_would_fail_with_again_is_not_retried_or_waited_for(error_type, error, late):
    run = hedged(tiles=(1,)) if late else started(tiles=(1,))[0]
    if late:
        run.handle(TaskStarted(0, 0, 0), 0.0)
        run.handle(TimePassed(), 1.0)
        assert len(run.stages[0].tiles[0].attempts) == 2
    (finish,) = finishes(run.handle(failed(0, 0, error_type=error_type), 1.0))
    assert type(finish.error) is error
    assert "stage 0, tile 0: boom" in str(finish.error)
    if error is BrokenPlanError:
        assert isinstance(finish.error, TaskFailedError)
        assert finish.error.exit_code == PlanError.exit_code


def test_tiles_that_fail_together_are_retried_at_different_times():
    run, _ = started(tiles=(9,))
    times = [wakes(run.handle(failed(0, tile), 1.0))[0] for tile in range(9)]
    assert len(set(times)) == 9
    again = started(tiles=(9,))[0]
    assert wakes(again.handle(failed(0, 0), 1.0)) == times[:1], "the seed fixes the jitter"


@pytest.mark.parametrize("late", [0.0, 50.0])
def test_the_deadline_ends_a_run_and_names_the_stage(late):
    run, _ = started(tiles=(1, 1, 1))
    run.handle(done(0, 0, REPORT), 1.0)
    run.handle(failed(1, 0), 99.99)
    (finish,) = run.handle(TimePassed(), 100.0 + late)
    assert isinstance(finish.error, DeadlineError)
    assert "stage 1 of 3" in str(finish.error)
    assert run.retries == 0, "of a retry and a deadline that are both due the deadline counts"


@pytest.mark.parametrize(
    ("kind", "error_type", "expected"),
    [
        (FailureKind.FAILED_IN_CODE, "StoreUnavailableError", StoreUnavailableError),
        (FailureKind.UNREACHABLE, "StoreUnavailableError", StoreUnavailableError),
        (FailureKind.UNREACHABLE, "", LambdaUnavailableError),
        (FailureKind.THROTTLED, "", LambdaThrottledError),
        (FailureKind.FAILED_IN_CODE, "PlanError", BrokenPlanError),
        (FailureKind.TIMED_OUT, "", TaskFailedError),
        (FailureKind.OUT_OF_MEMORY, "", TaskFailedError),
    ],
)
def test_the_last_failure_decides_the_error(kind, error_type, expected):
    run, _ = started(tiles=(1, 4), attempts=1, unavailable_attempts=1)
    run.handle(done(0, 0, REPORT), 1.0)
    (finish,) = run.handle(failed(1, 3, kind, error_type, "the reason"), 2.0)
    assert type(finish.error) is expected
    assert "stage 1, tile 3: the reason" in str(finish.error)
    assert isinstance(finish.error, UnavailableError) == (not issubclass(expected, TaskFailedError))


def test_what_is_unavailable_with_no_time_for_another_attempt_ends_the_run_with_the_reason():
    run, _ = started(tiles=(1,), deadline=1.0)
    failure = failed(0, 0, FailureKind.FAILED_IN_CODE, "StoreUnavailableError", "No space left on device")
    (finish,) = run.handle(failure, 0.99)
    assert type(finish.error) is StoreUnavailableError
    assert "No space left on device" in str(finish.error)


def hedged(tiles=(2,), late=1.0, **limits):
    run = Run(tiles, 100.0, seed=1, retry=Retry(attempts=2), hedging=Late(late, **limits))
    run.start(0.0)
    return run


def test_late_task_is_hedged_and_the_first_answer_wins():
    run = hedged()
    assert run.handle(TaskStarted(0, 0, 0), 0.5) == [WakeAt(1.5)]
    assert run.handle(TimePassed(), 1.5) == [Invoke(0, 0, 1)]
    assert run.handle(done(0, 0, OTHER, attempt=1), 1.6) == [Drop(0, 0, 0)]
    assert run.handle(done(0, 0, REPORT), 1.7) == []
    assert run.stages[0].reports == [OTHER]
    assert (run.hedges, run.retries) == (1, 0)
    first, second = run.stages[0].tiles[0].attempts
    assert (first.requested, first.started) == (0.0, 0.5)
    assert (second.requested, second.ended, second.result) == (1.5, 1.6, OTHER)
    assert invokes(run.handle(TimePassed(), 50.0)) == [], "a task that waits in the driver's queue is not late"


@pytest.mark.parametrize(
    ("events", "after"),
    [
        ([], []),
        ([failed(0, 0)], []),
        ([failed(0, 0, attempt=1)], []),
        ([done(0, 0, attempt=1)], [Drop(0, 0, 0), Finish(None)]),
        ([failed(0, 0), done(0, 0, attempt=1)], [Finish(None)]),
        ([failed(0, 0, attempt=1), failed(0, 0)], TaskFailedError),
    ],
)
@pytest.mark.parametrize("budget", [0, 1000])
def test_late_task_has_one_duplicate_within_the_budget(events, after, budget):
    run = hedged(tiles=(1,), budget=budget)
    run.handle(TaskStarted(0, 0, 0), 0.0)
    assert invokes(run.handle(TimePassed(), 1.0)) == ([(0, 0)] if budget else [])
    assert run.hedges == (1 if budget else 0)
    if not budget:
        return
    assert run.handle(TaskStarted(0, 0, 1), 1.0) == []
    actions = [action for event in events for action in run.handle(event, 1.1)]
    if after is TaskFailedError:
        assert isinstance(finishes(actions)[0].error, TaskFailedError)
    else:
        assert actions == after
    assert not invokes(run.handle(TimePassed(), 50.0))
    assert run.hedges == 1


class TestGangs:
    """Stages 1 and 2 are a gang of three members, of whom the first alone has a tile of stage 3, its last."""

    TILES, GANGS = (1, 3, 3, 1, 1), {1: 4}

    def started(self, hedging=None, **retry):
        run = Run(self.TILES, 100.0, seed=1, retry=Retry(**retry), hedging=hedging, gangs=self.GANGS)
        run.start(0.0)
        assert run.handle(done(0, 0), 1.0) == [Invoke(1, 0, 0), Invoke(1, 1, 0), Invoke(1, 2, 0)]
        return run

    @staticmethod
    def report(tile, *ms):
        """Return a member's report on stages that took it so many milliseconds each."""
        first, *later = (
            Report(f"{tile}", 0.0, 1.0, 1.0, 1.0, each, 1, 1, StoreCounts(), shared=len(ms)) for each in ms
        )
        return replace(first, later=tuple(later))

    def answered(self, run, now=5.0, tiles=(1, 2, 0)):
        ms = {0: (1000.0, 1000.0, 500.0), 1: (1500.0, 1500.0), 2: (500.0, 500.0)}
        return [action for tile in tiles for action in run.handle(done(1, tile, self.report(tile, *ms[tile])), now)]

    def test_a_gang_is_invoked_once_and_its_stages_end_together(self):
        run = self.started()
        assert run.stages[1].gang_stop == 4
        assert self.answered(run) == [Invoke(4, 0, 0)]
        assert [len(stage.reports) for stage in run.stages] == [1, 3, 3, 1, 0]
        assert [report.environment for report in run.stages[2].reports] == ["0", "1", "2"]
        assert run.stages[4].gang_stop is None
        ends = [(stage.started, stage.ended) for stage in run.stages[1:4]]
        assert ends == [(1.0, 3.5), (3.5, 5.0), (5.0, 5.0)], "with their slowest members"

    @pytest.mark.parametrize(
        ("kind", "error_type"), [(FailureKind.THROTTLED, ""), (FailureKind.FAILED_IN_CODE, "GangStalledError")]
    )
    def test_a_gang_that_cannot_run_whole_is_aborted_and_run_stage_by_stage(self, kind, error_type):
        run = self.started()
        *drops, abort, wake = run.handle(failed(1, 1, kind, error_type), 2.0)
        assert drops == [Drop(1, 0, 0), Drop(1, 2, 0)]
        assert abort == Abort(1)
        assert run.stages[1].gang_stop is None
        for event in (
            done(1, 0, self.report(0, 1.0, 1.0, 1.0)),
            failed(1, 2, error_type="GangAbortedError"),
            TaskStarted(1, 2, 0),
        ):
            assert run.handle(event, 2.1) == [], "members of an aborted gang no longer matter"
        invoked = [action for action in run.handle(TimePassed(), wake.time) if isinstance(action, Invoke)]
        assert invoked == [Invoke(1, tile, 1) for tile in range(3)]
        for tile in range(3):
            actions = run.handle(done(1, tile, attempt=1), 4.0)
        assert actions == [Invoke(2, 0, 0), Invoke(2, 1, 0), Invoke(2, 2, 0)]

    @pytest.mark.killed
    def test_a_member_that_dies_is_invoked_again_while_the_others_wait(self):
        run = self.started()
        [wake] = run.handle(failed(1, 1, FailureKind.UNREACHABLE), 2.0)
        assert run.handle(TimePassed(), wake.time) == [Invoke(1, 1, 1)]
        assert run.stages[1].gang_stop == 4
        run.handle(done(1, 1, self.report(1, 1.0, 1.0), attempt=1), 4.0)
        assert self.answered(run, tiles=(2, 0)) == [Invoke(4, 0, 0)]

    @pytest.mark.parametrize("event", [Cancelled(), failed(1, 1, error_type="MissingKeyError"), TimePassed()])
    def test_the_end_of_the_query_aborts_its_gang(self, event):
        run = self.started()
        abort, finish = run.handle(event, 100.0)
        assert abort == Abort(1)
        assert isinstance(finish, Finish)

    def late(self, stages):
        run = self.started(hedging=Late(0.5))
        for tile in range(3):
            run.handle(TaskStarted(1, tile, 0), 1.0)
        probe, *_ = run.handle(TimePassed(), 1.5)
        assert probe == Probe(1)
        return run, run.handle(Progress(1, stages), 1.6)

    @pytest.mark.parametrize("stages", [(0, 0, 0), (1, 0, 0), (2, 1, 2)])
    def test_only_a_member_that_most_others_wait_for_is_duplicated(self, stages):
        run, actions = self.late(stages)
        assert actions == ([Invoke(1, 1, 1)] if stages == (2, 1, 2) else [])
        assert run.hedges == len(actions)
        if actions:
            run.handle(TaskStarted(1, 1, 1), 1.7)
            assert self.answered(run) == [Drop(1, 1, 1), Abort(1), Invoke(4, 0, 0)]
            return
        assert Probe(1) in run.handle(TimePassed(), 2.1), "members are probed while one may still be duplicated"
        assert run.handle(Progress(1, (1, 0, 1)), 2.2) == [Invoke(1, 1, 1)]
        assert Probe(1) in run.handle(TimePassed(), 2.7)
        self.answered(run, tiles=(1, 2), now=2.8)
        assert run.handle(Progress(1, (3, 4, 4)), 2.9) == [Invoke(1, 0, 1)], "the last, although none waits for it"

    def test_progress_of_a_gang_that_is_over_changes_nothing_and_of_an_unknown_one_is_an_error(self):
        run, _ = self.late((0, 0, 0))
        run.handle(failed(1, 1, FailureKind.THROTTLED), 2.0)
        assert run.handle(Progress(1, (1, 0, 1)), 2.1) == []
        run, _ = self.late((2, 1, 2))
        self.answered(run)
        assert run.handle(Progress(1, (0, 1, 1)), 6.0) == []
        with pytest.raises(ImpossibleEventError):
            self.started().handle(Progress(7, (0,)), 2.0)


class GangDriver(Driver):
    """A driver of a plan with gangs: members answer with a report on each of their stages, stall, or find no room."""

    def __init__(self, tiles, gangs, deadline, seed, rates, hedging):
        super().__init__(tiles, deadline, seed, Retry(unavailable_attempts=5), rates, hedging)
        self.run = Run(tiles, deadline, seed=seed, retry=self.retry, hedging=hedging, gangs=gangs)
        self.aborted = []

    def note(self, event):
        del event

    def carry_out(self, actions):
        for action in actions:
            match action:
                case Abort(stage):
                    assert not self.finish
                    self.aborted.append(stage)
                case Probe(stage):
                    behind = tuple(self.chance.randrange(3) for _ in range(self.tiles[stage]))
                    self.later(self.chance.random() * 3, Progress(stage, behind))
                case Drop():
                    assert not self.finish
                case _:
                    super().carry_out([action])

    def invoke(self, stage, tile, attempt):
        assert attempt == self.attempts.get((stage, tile), 0), "attempts are numbered one after the other"
        self.attempts[stage, tile] = attempt + 1
        stop = self.run.stages[stage].gang_stop or stage + 1
        assert len(self.run.stages) == stage + 1, "the stage is the latest"
        later = sum(tile < self.tiles[number] for number in range(stage + 1, stop))
        report = Report(f"{stage} {tile}", *REPORT_FIELDS, later=(REPORT,) * later)
        self.later(0, TaskStarted(stage, tile, attempt))
        roll, delay = self.chance.random(), self.chance.random()
        if roll < self.failure:
            kind = self.chance.choice(KINDS)
            event = failed(stage, tile, kind, self.chance.choice(["", "GangStalledError"]), attempt=attempt)
        elif roll < self.failure + self.lost:
            return
        else:
            event = done(stage, tile, report, attempt)
        for copy in range(self.chance.choice([1, 1, 2])):
            self.later(delay + copy * self.chance.random() * 5, event)


@settings(max_examples=200)
@given(
    tiles=st.lists(st.integers(1, 5), min_size=2, max_size=6),
    cut=st.integers(0, 5),
    length=st.integers(2, 6),
    seed=st.integers(0, 2**32),
    failure=st.sampled_from([0, 0.1, 0.4, 1]),
    lost=st.sampled_from([0, 0, 0.05]),
    late=st.sampled_from([None, 0.3, 1.5]),
)
def test_every_run_with_gangs_ends_once_with_a_report_on_every_tile(tiles, cut, length, seed, failure, lost, late):
    start = min(cut, len(tiles) - 2)
    stop = min(start + length, len(tiles))
    tiles[start:stop] = sorted(tiles[start:stop], reverse=True)
    hedging = None if late is None else Late(late, budget=7)
    driver = GangDriver(tiles, {start: stop}, 50.0, seed, (failure, 0, lost), hedging).drive()
    assert len(driver.finish) == 1
    assert driver.ended <= 50.0 + LATEST
    assert driver.run.retries + driver.run.hedges == sum(driver.attempts.values()) - len(driver.attempts)
    if driver.finish[0].error is None:
        assert [len(stage.reports) for stage in driver.run.stages] == tiles
        ends = [stage.ended for stage in driver.run.stages]
        assert ends == sorted(ends)
    if not (failure or lost or late):
        assert not driver.aborted


def test_every_transition_of_a_gang_is_taken_by_some_run_and_aborts_what_may_still_run(monkeypatch):
    taken = transitions(monkeypatch, GangRun)
    for seed in range(60):
        driver = GangDriver([3, 3, 1], {0: 2}, 50.0, seed, (0.1, 0, 0.02), Late(0.3)).drive()
        assert driver.run.stages[0].gang.state.name == "DONE" or driver.aborted == [0]
    assert taken == {(state, change) for state, row in GANG_TRANSITIONS.items() for change in row}


def learnt(times, stage=0):
    hedging = LearntHedging()
    for seconds in times:
        hedging.learn(stage, seconds)
    return hedging


def test_no_task_is_late_before_durations_are_known():
    assert LearntHedging().late_after(0) is None
    assert learnt([1.0] * 19).late_after(0) is None
    assert learnt([1.0] * 100).late_after(1) is None


@given(st.lists(st.floats(0.05, 10), min_size=20, max_size=200))
def test_late_is_twice_the_ninth_decile(times):
    assert learnt(times).late_after(0) == 2 * sorted(times)[int(0.9 * len(times))]
    hedging = learnt(times)
    for _ in range(256):
        hedging.learn(0, 1.0)
    assert hedging.late_after(0) == 2.0, "it follows the load"


def test_duplicates_are_one_in_twenty_at_most_after_a_handful():
    hedging = LearntHedging()
    spent = sum(hedging.spend() for _ in range(100))
    assert spent == 4
    for _ in range(2000):
        hedging.learn(0, 1.0)
        spent += hedging.spend()
    assert spent <= 4 + 0.05 * 2000
