import heapq
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.counts import StoreCounts
from serfer.core.errors import (
    DeadlineError,
    LambdaUnavailableError,
    QueryError,
    StoreUnavailableError,
    TaskFailedError,
    UnavailableError,
)
from serfer.core.run import (
    Cancelled,
    Failure,
    FailureKind,
    Finish,
    Invoke,
    Retry,
    Run,
    TaskDone,
    TaskFailed,
    TimePassed,
    WakeAt,
)
from serfer.core.wire import Report

REPORT = Report("env", 0.0, 1.0, 1.0, 1.0, 3.0, 1, 1, StoreCounts())
OTHER = Report("other", 0.0, 1.0, 1.0, 1.0, 3.0, 1, 1, StoreCounts())
KINDS = tuple(FailureKind)
LATEST = 0.3  # how late a timer may be, s


def failed(stage, tile, kind=FailureKind.FAILED_IN_CODE, error_type="", message="boom"):
    return TaskFailed(stage, tile, Failure(kind, error_type, message))


def finishes(actions):
    return [action for action in actions if isinstance(action, Finish)]


def wakes(actions):
    return [action.time for action in actions if isinstance(action, WakeAt)]


def invokes(actions):
    return [(action.stage, action.tile) for action in actions if isinstance(action, Invoke)]


class Driver:
    """Carries a run's actions out on a virtual clock, as badly as `chance` has it.

    Answers come in any order, twice, or as failures; timers fire early, late or twice.
    """

    def __init__(self, tiles, deadline, seed, retry, failure_rate, throttle_rate):
        self.tiles, self.retry = tiles, retry
        chance = self.chance = random.Random(seed)  # noqa: S311 - no secret
        self.rates = (failure_rate, throttle_rate)
        self.run = Run(tiles, deadline, seed=chance.randrange(1000), retry=retry)
        self.queue, self.order = [], itertools.count()
        self.now, self.deadline = 0.0, deadline
        self.done, self.failures, self.finish = set(), {}, []
        self.invoked, self.open = {}, set()

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
        if self.finish:
            return
        if isinstance(event, TaskDone):
            self.done.add((event.stage, event.tile))
        if isinstance(event, TaskFailed) and (event.stage, event.tile) not in self.done:
            kind = event.failure.kind is FailureKind.THROTTLED
            if (event.stage, event.tile) in self.open:
                self.open.discard((event.stage, event.tile))
                place = (event.stage, event.tile, kind)
                self.failures[place] = self.failures.get(place, 0) + 1

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
                case Invoke(stage, tile):
                    self.invoke(stage, tile)

    def invoke(self, stage, tile):
        assert all((before, other) in self.done for before in range(stage) for other in range(self.tiles[before]))
        assert (stage, tile) not in self.done
        assert (stage, tile) not in self.open, "two invocations of a tile at once"
        self.open.add((stage, tile))
        self.invoked[stage, tile] = self.invoked.get((stage, tile), 0) + 1
        roll, delay = self.chance.random(), self.chance.random()
        if roll < self.rates[0]:
            event = failed(
                stage, tile, self.chance.choice([kind for kind in KINDS if kind is not FailureKind.THROTTLED])
            )
        elif roll < sum(self.rates):
            event = failed(stage, tile, FailureKind.THROTTLED)
        else:
            event = TaskDone(stage, tile, REPORT)
        for copy in range(self.chance.choice([1, 1, 2, 3])):
            self.later(delay + copy * self.chance.random() * 5, event)


@settings(max_examples=250)
@given(
    tiles=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    deadline=st.sampled_from([0.5, 5.0, 1000.0]),
    rates=st.sampled_from([(0, 0), (0.2, 0), (0, 0.5), (0.3, 0.3), (1, 0), (0, 1), (0.1, 0.05)]),
    attempts=st.integers(1, 4),
)
def test_whatever_happens_a_run_ends_once_and_keeps_its_rules(tiles, seed, deadline, rates, attempts):
    retry = Retry(attempts=attempts, throttled_attempts=5)
    driver = Driver(tiles, deadline, seed, retry, *rates).drive()
    assert len(driver.finish) == 1
    assert driver.run.finished
    assert driver.ended <= deadline + LATEST
    for (_, _, throttled), count in driver.failures.items():
        assert count <= (retry.throttled_attempts if throttled else retry.attempts)
    error = driver.finish[0].error
    everything = {(stage, tile) for stage, count in enumerate(tiles) for tile in range(count)}
    if error is None:
        assert driver.done == everything
        assert [len(stage.reports) for stage in driver.run.stages] == tiles
        assert all(stage.ended is not None for stage in driver.run.stages)
    elif isinstance(error, DeadlineError):
        assert driver.now >= deadline
    else:
        assert isinstance(error, TaskFailedError | LambdaUnavailableError)
        assert any(
            count == (retry.throttled_attempts if throttled else retry.attempts)
            for (_, _, throttled), count in driver.failures.items()
        )
    assert driver.run.retries == sum(driver.invoked.values()) - len(driver.invoked)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), tiles=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_without_failures_every_tile_is_invoked_exactly_once(seed, tiles):
    driver = Driver(tiles, 1e6, seed, Retry(), 0, 0).drive()
    assert set(driver.invoked.values()) == {1}
    assert driver.finish == [Finish(None)]


def started(tiles=(2, 1), deadline=100.0, now=0.0, **retry):
    run = Run(tiles, deadline, seed=1, retry=Retry(**retry))
    return run, run.start(now)


def test_a_run_starts_with_its_deadline_and_all_tiles_of_the_first_stage():
    _, actions = started()
    assert actions == [WakeAt(100.0), Invoke(0, 0), Invoke(0, 1)]


def test_the_next_stage_waits_for_the_last_tile():
    run, _ = started()
    assert run.handle(TaskDone(0, 1, REPORT), 1.0) == []
    assert run.handle(TaskDone(0, 0, REPORT), 2.0) == [Invoke(1, 0)]
    assert run.handle(TaskDone(1, 0, REPORT), 3.0) == [Finish(None)]
    assert [(stage.started, stage.ended) for stage in run.stages] == [(0.0, 2.0), (2.0, 3.0)]


def test_a_duplicate_answer_changes_nothing():
    run, _ = started()
    run.handle(TaskDone(0, 0, REPORT), 1.0)
    assert run.handle(TaskDone(0, 0, OTHER), 1.5) == []
    assert run.stages[0].reports == [REPORT]
    run.handle(TaskDone(0, 1, REPORT), 2.0)
    assert run.handle(TaskDone(0, 1, OTHER), 2.5) == []
    assert run.stages[0].reports == [REPORT, REPORT]
    assert run.stages[0].ended == 2.0


def test_a_late_failure_of_a_tile_that_is_done_changes_nothing():
    run, _ = started(attempts=1)
    run.handle(TaskDone(0, 0, REPORT), 1.0)
    assert run.handle(failed(0, 0), 1.5) == []
    run.handle(TaskDone(0, 1, REPORT), 2.0)
    assert run.handle(failed(0, 1), 2.5) == []
    assert not run.finished


def test_a_late_answer_counts_although_a_retry_is_due():
    run, _ = started(tiles=(1,))
    wake = wakes(run.handle(failed(0, 0), 1.0))[0]
    assert run.handle(TaskDone(0, 0, REPORT), 1.01) == [Finish(None)]
    assert run.handle(TimePassed(), wake) == []


def test_once_finished_nothing_is_done_any_more():
    run, _ = started(tiles=(1,))
    run.handle(TaskDone(0, 0, REPORT), 1.0)
    for event in (TaskDone(0, 0, REPORT), failed(0, 0), TimePassed(), Cancelled()):
        assert run.handle(event, 1000.0) == []


def test_a_failed_tile_is_tried_again_after_a_wait_and_not_before():
    run, _ = started(tiles=(2,))
    (wake,) = wakes(run.handle(failed(0, 1), 1.0))
    assert wake > 1.0
    assert invokes(run.handle(TimePassed(), wake)) == [(0, 1)]
    assert run.retries == 1
    assert invokes(run.handle(TimePassed(), wake + 1)) == []


def test_a_timer_that_fires_early_is_set_again():
    run, _ = started(tiles=(1,))
    (wake,) = wakes(run.handle(failed(0, 0), 1.0))
    assert run.handle(TimePassed(), wake - 1e-9) == [WakeAt(wake)]
    assert run.handle(TimePassed(), wake) == [Invoke(0, 0)]
    assert run.handle(TimePassed(), 100.0 - 1e-9) == [WakeAt(100.0)]


def test_one_late_timer_serves_every_tile_that_is_due():
    run, _ = started(tiles=(3,))
    run.handle(failed(0, 0), 1.0)
    run.handle(failed(0, 2), 1.0)
    assert invokes(run.handle(TimePassed(), 5.0)) == [(0, 0), (0, 2)]


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
def test_a_tile_may_fail_as_often_as_it_has_attempts(attempts):
    run, _ = started(tiles=(2,), attempts=attempts)
    now, count = 1.0, 0
    while not run.finished:
        actions = run.handle(failed(0, 0), now)
        count += 1
        for wake in wakes(actions):
            now = wake
            assert invokes(run.handle(TimePassed(), wake)) == [(0, 0)]
    assert count == attempts


def test_being_throttled_has_an_allowance_of_its_own():
    run, _ = started(tiles=(1,), deadline=1e6, attempts=2, throttled_attempts=4)
    now = 1.0
    for kind in [FailureKind.THROTTLED] * 3 + [FailureKind.TIMED_OUT]:
        (wake,) = wakes(run.handle(failed(0, 0, kind), now))
        assert run.handle(TimePassed(), wake) == [Invoke(0, 0)]
        now = wake
    assert isinstance(finishes(run.handle(failed(0, 0, FailureKind.THROTTLED), now))[0].error, LambdaUnavailableError)


@given(st.integers(1, 40), st.floats(0, 1, exclude_max=True))
def test_a_wait_doubles_up_to_the_longest_with_jitter_down_to_half(failures, chance):
    retry = Retry(base=0.05, longest=2.0)
    full = min(2.0, 0.05 * 2 ** (failures - 1))
    assert full / 2 <= retry.wait(failures, chance) <= full
    assert retry.wait(failures, 0.0) == full / 2


def test_tiles_that_fail_together_are_not_tried_again_together():
    run, _ = started(tiles=(9,))
    times = [wakes(run.handle(failed(0, tile), 1.0))[0] for tile in range(9)]
    assert len(set(times)) == 9


def test_jitter_is_fixed_by_the_seed():
    def first_wake(seed):
        run = Run((1,), 100.0, seed)
        run.start(0.0)
        return wakes(run.handle(failed(0, 0), 1.0))

    assert first_wake(5) == first_wake(5)
    assert first_wake(5) != first_wake(6)


@pytest.mark.parametrize("late", [0.0, 50.0])
def test_the_deadline_ends_a_run_and_names_the_stage(late):
    run, _ = started(tiles=(1, 1, 1))
    run.handle(TaskDone(0, 0, REPORT), 1.0)
    (finish,) = run.handle(TimePassed(), 100.0 + late)
    assert isinstance(finish.error, DeadlineError)
    assert "stage 1 of 3" in str(finish.error)


def test_a_deadline_beats_a_retry_that_is_due_at_the_same_time():
    run, _ = started(tiles=(1,), deadline=1.0)
    run.handle(failed(0, 0), 0.99)
    assert isinstance(finishes(run.handle(TimePassed(), 5.0))[0].error, DeadlineError)
    assert run.retries == 0


def test_a_cancelled_query_ends_as_such():
    run, _ = started()
    (finish,) = run.handle(Cancelled(), 1.0)
    assert type(finish.error) is QueryError
    assert "cancelled" in str(finish.error)


@pytest.mark.parametrize(
    ("kind", "error_type", "expected"),
    [
        (FailureKind.FAILED_IN_CODE, "StoreUnavailableError", StoreUnavailableError),
        (FailureKind.UNREACHABLE, "StoreUnavailableError", StoreUnavailableError),
        (FailureKind.UNREACHABLE, "", LambdaUnavailableError),
        (FailureKind.THROTTLED, "", LambdaUnavailableError),
        (FailureKind.FAILED_IN_CODE, "PlanError", TaskFailedError),
        (FailureKind.TIMED_OUT, "", TaskFailedError),
        (FailureKind.OUT_OF_MEMORY, "", TaskFailedError),
    ],
)
def test_the_last_failure_decides_the_error(kind, error_type, expected):
    run, _ = started(tiles=(1, 4), attempts=1, throttled_attempts=1)
    run.handle(TaskDone(0, 0, REPORT), 1.0)
    (finish,) = run.handle(failed(1, 3, kind, error_type, "the reason"), 2.0)
    assert type(finish.error) is expected
    assert "stage 1, tile 3: the reason" in str(finish.error)
    assert isinstance(finish.error, UnavailableError) == (expected is not TaskFailedError)
