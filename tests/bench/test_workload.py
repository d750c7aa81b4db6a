"""Open-loop workloads: what is sent when, what counts as latency, and that nothing that fails gets lost."""

import asyncio
import threading
from concurrent.futures import Future
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import TaskFailedError, UnavailableError, UsageError
from serfer_bench.core import arrivals
from serfer_bench.core.workload import NO_ANSWER, Clock, run
from serfer_bench.load.queries import WRONG, Example, run_queries

RIGHT = np.array([[1.0, 2.0, 4.0]], dtype=np.float32)
EXAMPLE = Example(np.zeros((1, 2, 2, 3), dtype=np.uint8), RIGHT)


class Time:
    """A clock that moves when it is slept by, and `tick` with every look at it."""

    def __init__(self, tick=0.0):
        self.now, self.slept, self._tick = 100.0, [], tick

    def clock(self):
        return Clock(self._look, self._sleep)

    def _look(self):
        self.now += self._tick
        return self.now

    async def _sleep(self, seconds):
        if seconds:
            self.slept.append(seconds)
        await asyncio.sleep(0)  # what is due now runs before the clock moves
        self.now += seconds


def answered(result=RIGHT):
    future = Future()
    future.set_result(result)
    return future


class TestRun:
    """Queries that are tasks of the runner's own event loop."""

    def test_queries_are_sent_at_their_arrivals_regardless_of_earlier_ones(self):
        time, sent = Time(), []

        async def query(number):
            sent.append(time.now - 100)
            if number:
                return number
            return await asyncio.Event().wait()  # the first one never ends

        ends = asyncio.run(
            run(lambda number: asyncio.create_task(query(number)), (0, 1, 1, 5), patience_s=-1e9, clock=time.clock())
        )
        assert sent == [0, 1, 1, 5]
        assert [(end.number, end.error, end.result) for end in ends] == [
            (0, NO_ANSWER, None),
            *((number, None, number) for number in (1, 2, 3)),
        ]

    def test_an_accepted_answer_is_the_result_and_a_refused_one_fails_the_query(self):
        def accept(number, result):
            if number == result == 1:
                raise ValueError("odd")
            return -result

        ends = asyncio.run(run(answered, (0, 0, 0), accept))
        assert [(end.error, end.message, end.result) for end in ends] == [
            (None, "", 0),
            ("ValueError", "odd", None),
            (None, "", -2),
        ]

    async def test_tasks_of_a_cancelled_workload_are_cancelled(self):
        sent = asyncio.Event()
        tasks = []

        def send(number):
            tasks.append(asyncio.create_task(asyncio.Event().wait()))
            if number == 1:
                sent.set()
            return tasks[-1]

        workload = asyncio.create_task(run(send, (0.0, 0.0, 1e6)))
        await sent.wait()
        workload.cancel()
        await asyncio.gather(workload, *tasks, return_exceptions=True)
        assert all(task.cancelled() for task in (workload, *tasks))
        assert await run(lambda _: pytest.fail("sent"), ()) == []


class TestQueries:
    """Queries to a system that answers in threads of its own."""

    def test_latency_counts_from_the_arrival_not_from_when_a_query_could_be_sent(self):
        """Each submit holds the client up for 1 s: the tenth query waits for nine others: no coordinated omission."""
        time = Time()

        def submit(_pixels):
            time.now += 1.0
            return answered()

        ends = run_queries(submit, [EXAMPLE], arrivals.even(10, 1), clock=time.clock())
        assert ends[0].latency == pytest.approx(1.0)
        assert ends[9].scheduled == pytest.approx(0.9)
        assert ends[9].lag == pytest.approx(9 - 0.9)
        assert ends[9].latency == pytest.approx(10 - 0.9)
        assert time.slept == []

    def test_every_kind_of_failure_is_counted_and_the_others_go_on(self):
        def raising(_pixels):
            raise UnavailableError("no driver")

        failed, cancelled = Future(), Future()
        failed.set_exception(TaskFailedError("stage 0"))
        cancelled.cancel()
        answers = [raising, lambda _: failed, lambda _: cancelled]
        answers += [lambda _: answered(RIGHT + 1), lambda _: answered(RIGHT[:, :2]), *[lambda _: answered()] * 2]
        left = iter(answers)

        def submit(pixels):
            return next(left)(pixels)

        ends = run_queries(submit, [EXAMPLE], (0.0,) * 7)
        errors = [end.error for end in ends]
        assert errors == ["UnavailableError", "TaskFailedError", NO_ANSWER, WRONG, WRONG, None, None]
        assert ends[0].message == "no driver"
        assert "(1, 2)" in ends[4].message

    def test_an_unanswered_query_is_cancelled_and_one_without_an_expected_answer_accepted(self):
        futures = []

        def submit(_pixels):
            futures.append(Future())
            return futures[-1]

        ends = run_queries(submit, [EXAMPLE], (0.0, 0.0), patience_s=5, clock=Time(tick=1.0).clock())
        assert [(end.error, end.latency > 5) for end in ends] == [(NO_ANSWER, True)] * 2
        assert all(future.cancelled() for future in futures)
        [end] = run_queries(lambda _: answered(RIGHT + 7), [Example(EXAMPLE.pixels)], (0.0,))
        assert end.error is None

    @pytest.mark.killed
    def test_an_interrupt_cancels_queries_in_flight(self):
        futures = [Future() for _ in range(3)]
        left = iter(futures)

        def interrupt(_text):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_queries(lambda _: next(left), [EXAMPLE], (0.0,) * 3, progress=interrupt)
        assert all(future.cancelled() for future in futures)

    @given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
    def test_every_query_ends_once_in_any_order(self, order, failing):
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

        ends = run_queries(submit, [EXAMPLE], (0.0,) * len(order))
        assert [end.number for end in ends] == [*range(12)]
        assert {end.number for end in ends if end.error} == failing


class TestArrivals:
    def test_bursts_even_and_random_ones(self):
        assert arrivals.burst(3) == (0, 0, 0)
        assert arrivals.even(0.5, 5) == (0, 2)
        assert len(arrivals.even(10, 0.3)) == 3  # 10 * 0.3 is a little less than 3
        assert arrivals.poisson(5, 20, 1) == arrivals.poisson(5, 20, 1) != arrivals.poisson(5, 20, 2)

    @given(st.floats(0.01, 1e3), st.floats(0.01, 50), st.integers(0, 2**32))
    def test_they_ascend_within_their_time_and_rounds_have_the_same_work(self, rate, seconds, seed):
        even = arrivals.even(rate, seconds)
        for times in (even, arrivals.poisson(rate, seconds, seed)):
            assert all(one <= other for one, other in pairwise(times))
            assert times[0] >= 0
            assert times[-1] <= seconds
            assert len(times) == len(even)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: arrivals.burst(0),
            lambda: arrivals.burst(1_000_001),
            lambda: arrivals.even(0, 1),
            lambda: arrivals.even(1e9, 1e9),
            lambda: arrivals.poisson(float("nan"), 1, 0),
            lambda: arrivals.poisson(1, float("inf"), 0),
        ],
    )
    def test_empty_and_too_large_ones_are_refused(self, make):
        with pytest.raises(UsageError):
            make()
