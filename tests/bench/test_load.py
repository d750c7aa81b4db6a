"""Open-loop load: what it sends when, what counts as latency, and that nothing that fails gets lost."""

import threading
from concurrent.futures import Future
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.processes import held
from bench.load import arrivals
from bench.load.load import NO_ANSWER, WRONG, Clock, Question, offer
from bench.load.results import Totals
from bench.load.rounds import Plan, measure_rounds
from serfer.core.counts import StoreCounts
from serfer.core.errors import TaskFailedError, UnavailableError, UsageError

RIGHT = np.array([[1.0, 2.0, 4.0]], dtype=np.float32)
QUESTION = Question(np.zeros((1, 2, 2, 3), dtype=np.uint8), RIGHT)


class Time:
    """A clock that moves when somebody sleeps, and `tick` with every look at it."""

    def __init__(self, tick=0.0):
        self.now = 100.0
        self.slept = []
        self._tick = tick

    def clock(self):
        return Clock(self._look, self._sleep)

    def _look(self):
        self.now += self._tick
        return self.now

    def _sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def answered(logits=RIGHT):
    future = Future()
    future.set_result(logits)
    return future


def test_queries_are_sent_when_they_are_due():
    time, sent = Time(), []

    def submit(_pixels):
        sent.append(time.now - 100)
        return answered()

    ends = offer(submit, [QUESTION], arrivals.even(4, 1), clock=time.clock())
    assert sent == pytest.approx([0, 0.25, 0.5, 0.75])
    assert [end.number for end in ends] == [0, 1, 2, 3]
    assert [end.latency for end in ends] == pytest.approx([0] * 4)


def test_latency_counts_from_when_a_query_was_due_not_from_when_it_could_be_sent():
    """Each submit holds the client up for 1 s, so the tenth query waits for nine others: no coordinated omission."""
    time = Time()

    def submit(_pixels):
        time.now += 1.0
        return answered()

    ends = offer(submit, [QUESTION], arrivals.even(10, 1), clock=time.clock())
    assert ends[0].latency == pytest.approx(1.0)
    assert ends[9].scheduled == pytest.approx(0.9)
    assert ends[9].lag == pytest.approx(9 - 0.9)
    assert ends[9].latency == pytest.approx(10 - 0.9)
    assert time.slept == []


def test_every_kind_of_failure_is_counted_and_the_others_go_on():
    def raising(_pixels):
        raise UnavailableError("no driver")

    failed = Future()
    failed.set_exception(TaskFailedError("stage 0"))
    ways = [raising, lambda _: failed, lambda _: answered(RIGHT + 1), lambda _: answered(RIGHT[:, :2])]
    ways = iter([*ways, *[lambda _: answered()] * 2])

    def submit(pixels):
        return next(ways)(pixels)

    ends = offer(submit, [QUESTION], (0.0,) * 6)
    assert [end.error for end in ends] == ["UnavailableError", "TaskFailedError", WRONG, WRONG, None, None]
    assert ends[0].message == "no driver"
    assert "(1, 2)" in ends[3].message


def test_what_never_answers_is_given_up_cancelled_and_counted():
    futures = []

    def submit(_pixels):
        futures.append(Future())
        return futures[-1]

    ends = offer(submit, [QUESTION], (0.0, 0.0), patience_s=5, clock=Time(tick=1.0).clock())
    assert [end.error for end in ends] == [NO_ANSWER] * 2
    assert all(future.cancelled() for future in futures)
    assert all(end.latency > 5 for end in ends)


def test_an_interrupt_cancels_what_is_under_way():
    futures = [Future() for _ in range(3)]
    asked = iter(futures)

    def interrupt(_text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        offer(lambda _: next(asked), [QUESTION], (0.0,) * 3, progress=interrupt)
    assert all(future.cancelled() for future in futures)


def test_an_answer_that_nobody_knows_is_taken_for_right():
    [end] = offer(lambda _: answered(RIGHT + 7), [Question(QUESTION.pixels)], (0.0,))
    assert end.error is None


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_every_query_ends_once_in_whatever_order(order, failing):
    futures = []

    def submit(_pixels):
        futures.append(Future())
        if len(futures) == len(order):
            threading.Thread(target=answer).start()
        return futures[-1]

    def answer():
        for number in order:
            if number in failing:
                futures[number].set_exception(TaskFailedError("on purpose"))
            else:
                futures[number].set_result(RIGHT)

    ends = offer(submit, [QUESTION], (0.0,) * len(order))
    assert [end.number for end in ends] == [*range(12)]
    assert {end.number for end in ends if end.error} == failing


def test_arrivals():
    assert arrivals.burst(3) == (0, 0, 0)
    assert arrivals.even(0.5, 5) == (0, 2)
    assert len(arrivals.even(10, 0.3)) == 3  # 10 * 0.3 is a little less than 3
    assert arrivals.poisson(5, 20, 1) == arrivals.poisson(5, 20, 1) != arrivals.poisson(5, 20, 2)


@given(st.floats(0.01, 1e3), st.floats(0.01, 50), st.integers(0, 2**32))
def test_arrivals_ascend_within_their_time_and_rounds_offer_the_same_work(rate, seconds, seed):
    for times in (arrivals.even(rate, seconds), arrivals.poisson(rate, seconds, seed)):
        assert all(one <= other for one, other in pairwise(times))
        assert times[0] >= 0
        assert times[-1] <= seconds
        assert len(times) == len(arrivals.even(rate, seconds))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: arrivals.burst(0),
        lambda: arrivals.burst(1_000_001),
        lambda: arrivals.even(0, 1),
        lambda: arrivals.even(1e9, 1e9),
        lambda: arrivals.poisson(float("nan"), 1, 0),
        lambda: arrivals.poisson(1, float("inf"), 0),
    ],
)
def test_loads_that_are_none_or_too_large_are_refused(ask):
    with pytest.raises(UsageError):
        ask()


class Fake:
    """A system that answers at once, and remembers when it was asked."""

    def __init__(self, name, asked, logits=RIGHT):
        self.name = name
        self._asked = asked
        self._logits = logits
        self._puts = 0

    def submit(self, _pixels):
        self._asked.append(self.name)
        self._puts += 1
        return answered(self._logits)

    def counts(self):
        return StoreCounts(bytes_put=10 * self._puts, bytes_get=5 * self._puts, exists=self._puts)


def test_systems_take_turns_and_warming_up_counts_nowhere():
    asked = []
    systems = [Fake("a", asked), Fake("b", asked)]
    rounds, logs = measure_rounds(systems, [QUESTION], Plan(((0.0,) * 2,) * 3, 4, 60))
    assert "".join(asked) == "aaaabbbb" + "aabb" + "bbaa" + "aabb"
    assert [(one.system, one.round) for one in rounds] == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert [(log.system, log.round) for log in logs] == [(one.system, one.round) for one in rounds]
    assert all((one.sent, one.answered, one.bytes_per_query, one.polls_per_query) == (2, 2, 15, 1) for one in rounds)
    assert all((one.usd_per_query, one.cold, one.hedges) == (None, None, None) for one in rounds)


def test_a_system_that_answers_nothing_is_refused_before_it_is_measured():
    with pytest.raises(UnavailableError, match="broken answers no query: WrongAnswerError"):
        measure_rounds([Fake("broken", [], RIGHT * -1)], [QUESTION], Plan(((0.0,),), 2, 60))


def test_what_is_held_is_what_the_kernel_says(tmp_path):
    before = held()
    with (tmp_path / "x").open("w"):
        assert held().descriptors == before.descriptors + 1
    assert held().descriptors == before.descriptors
    assert before.driver_bytes > 1 << 20


def test_what_one_system_does_not_say_stays_unknown():
    assert Totals(5, 6, 7, 0.5, 3, 2, 1) - Totals(1, 1, 1, 0.25, 1, 1, 1) == Totals(4, 5, 6, 0.25, 2, 1, 0)
    assert Totals(5) - Totals(2) == Totals(3)
