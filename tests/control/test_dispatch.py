"""One queue in virtual time: admitted queries are in time, late ones are not computed, and windows do not pay."""

import random
from dataclasses import dataclass
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.batching import Profile
from serfer.control.dispatch import Batching, Dispatch, QueuedQuery, ServiceTimeEstimator, choose, predicted_lateness_s
from serfer_bench.study.policies.tuning import tune

# A GPU's: 5 ms to begin with and 2 ms an image.
AFFINE = Profile(tuple((size, 5.0 + 2.0 * size) for size in (1, 2, 4, 8, 16, 32)))


@dataclass
class Run:
    """How the queries of one run ended: latencies of those answered, how many were refused, the batches' sizes."""

    latencies: list
    refused_at_once: int
    refused_later: int
    late: int
    batches: list


def simulate(arrivals, slo_s, batching, truth=AFFINE, believed=AFFINE):
    """Serve queries of one image, each due after `slo_s`, on an engine that is as fast as `truth`."""
    times, actual = ServiceTimeEstimator(believed, batching.max_batch), ServiceTimeEstimator(truth, batching.max_batch)
    run, queue, pending = Run([], 0, 0, 0, []), [], list(reversed(arrivals))
    free_at = predicted = 0.0  # when the engine is free, and when that was predicted
    look_at = None
    now = 0.0
    while pending or queue:
        coming = pending[-1] if pending else float("inf")
        wake = max(free_at, look_at if look_at is not None else now) if queue else float("inf")
        now = max(now, min(coming, wake))
        while pending and pending[-1] <= now:
            arrived = pending.pop()
            query = QueuedQuery(arrived, 1, arrived + slo_s, probe=free_at <= now and not queue)
            ahead = sum(one.images for one in queue if one.deadline <= query.deadline)
            if query.probe or predicted_lateness_s(query, ahead, predicted, now, times) <= 0:
                queue.append(query)
            else:
                run.refused_at_once += 1
        if free_at > now or not queue:
            continue
        dispatch = choose(queue, now, batching, times)
        run.refused_later += len(dispatch.late)
        batch, look_at = [queue[number] for number in dispatch.batch], dispatch.look_at
        queue = [one for number, one in enumerate(queue) if number not in {*dispatch.late, *dispatch.batch}]
        if batch:
            predicted = now + times.seconds(len(batch))
            free_at = now + actual.seconds(len(batch))
            times.learn(len(batch), free_at - now)
            run.batches.append(len(batch))
            run.late += sum(free_at > one.deadline + 1e-9 for one in batch)
            run.latencies += [free_at - one.arrived for one in batch]
    return run


def poisson(rate, count, seed=0):
    draw, now, times = random.Random(seed), 0.0, []  # noqa: S311 - arrivals
    for _ in range(count):
        now += draw.expovariate(rate)
        times.append(now)
    return times


ARRIVALS = st.lists(st.floats(0.0, 0.05), min_size=1, max_size=150).map(
    lambda gaps: [sum(gaps[: number + 1]) for number in range(len(gaps))]
)


@given(ARRIVALS, st.sampled_from([0.02, 0.05, 0.1, 0.5]), st.integers(1, 32))
def test_admitted_queries_are_answered_in_time_at_the_predicted_speed(arrivals, slo_s, most):
    run = simulate(arrivals, slo_s, Batching(most))
    assert (run.late, run.refused_later) == (0, 0)
    assert len(run.latencies) + run.refused_at_once == len(arrivals)
    assert max(run.batches) <= most


@given(ARRIVALS, st.sampled_from([0.1, 0.5]), st.integers(1, 32), st.floats(0.0, 0.2))
def test_a_window_makes_no_query_late(arrivals, slo_s, most, window_s):
    run = simulate(arrivals, slo_s, Batching(most, window_s))
    assert run.late == 0
    assert len(run.latencies) + run.refused_at_once + run.refused_later == len(arrivals)


@pytest.mark.parametrize("slo_s", [0.05, 0.1, 0.2])
def test_overload_keeps_the_tuned_throughput(slo_s):
    tuning = tune(AFFINE, slo_s * 1000)
    arrivals = poisson(5 * tuning.sustained_qps, 5000)
    run = simulate(arrivals, slo_s, Batching(tuning.most))
    assert run.late == 0
    assert len(run.latencies) / arrivals[-1] >= 0.9 * tuning.sustained_qps


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 0.9])
def test_starting_at_once_answers_sooner_than_marks_window(share):
    slo_s = 0.1
    tuning = tune(AFFINE, slo_s * 1000)
    arrivals = poisson(share * tuning.sustained_qps, 1500, seed=3)
    at_once = simulate(arrivals, slo_s, Batching(tuning.most))
    window = simulate(arrivals, slo_s, Batching(tuning.most, tuning.window_ms / 1000))
    assert mean(at_once.latencies) < mean(window.latencies)
    assert len(at_once.latencies) >= len(window.latencies)


def test_a_slowed_engine_refuses_queries_instead_of_being_late():
    slow = Profile(tuple((size, 3 * ms) for size, ms in AFFINE.batches))
    arrivals = poisson(400.0, 5000)
    run = simulate(arrivals, 0.2, Batching(32), truth=slow)
    assert run.late < 0.02 * len(arrivals)
    assert len(run.latencies) > 0.2 * len(arrivals)


def test_an_overly_pessimistic_engine_probes_and_recovers():
    slow = Profile(tuple((size, 40 * ms) for size, ms in AFFINE.batches))
    run = simulate(poisson(10.0, 500), 0.1, Batching(32), believed=slow)
    assert len(run.latencies) > 400


class TestChoose:
    times = ServiceTimeEstimator(AFFINE, 32)

    def test_an_empty_queue_dispatches_nothing(self):
        assert choose([], 0.0, Batching(8), self.times) == Dispatch()

    def test_a_free_engine_starts_at_once(self):
        queue = [QueuedQuery(0.0, 1, 1.0), QueuedQuery(0.0, 2, 0.5)]
        assert choose(queue, 0.0, Batching(8), self.times).batch == (1, 0)

    def test_dispatch_waits_for_the_window_of_the_oldest_query_or_a_full_batch(self):
        queue = [QueuedQuery(0.0, 1, 1.0), QueuedQuery(0.01, 1, 1.0)]
        assert choose(queue, 0.01, Batching(8, 0.05), self.times) == Dispatch(look_at=0.05)
        assert choose(queue, 0.05, Batching(8, 0.05), self.times).batch == (0, 1)
        assert choose(queue, 0.01, Batching(2, 0.05), self.times).batch == (0, 1)

    def test_waiting_ends_while_the_first_deadline_can_still_be_met(self):
        dispatch = choose([QueuedQuery(0.0, 1, 0.02)], 0.0, Batching(8, 10.0), self.times)
        assert 0.0 < dispatch.look_at < 0.02 - self.times.seconds(1)

    def test_a_query_that_would_be_late_is_refused_before_compute(self):
        queue = [QueuedQuery(0.0, 1, 0.105), QueuedQuery(0.0, 1, 0.2)]
        assert choose(queue, 0.1, Batching(8), self.times) == Dispatch(batch=(1,), late=(0,))

    def test_a_probe_is_computed_if_predicted_late_but_not_if_already_late(self):
        queue = [QueuedQuery(0.0, 1, 0.105, probe=True)]
        assert choose(queue, 0.1, Batching(8), self.times).batch == (0,)
        assert choose(queue, 0.105, Batching(8), self.times) == Dispatch(late=(0,))

    def test_no_batch_is_so_large_that_its_first_query_would_be_late(self):
        queue = [QueuedQuery(0.0, 1, 0.011), *(QueuedQuery(0.0, 1, 1.0) for _ in range(10))]
        assert choose(queue, 0.0, Batching(8), self.times).batch == (0, 1, 2)  # 11 ms; four take 13

    def test_a_query_larger_than_a_batch_runs_alone_and_smaller_ones_fill_gaps(self):
        assert choose([QueuedQuery(0.0, 9, 1.0), QueuedQuery(0.0, 1, 1.0)], 0.0, Batching(8), self.times).batch == (0,)
        queue = [QueuedQuery(0.0, 5, 1.0), QueuedQuery(0.0, 4, 1.0), QueuedQuery(0.0, 3, 1.0)]
        assert choose(queue, 0.0, Batching(8), self.times).batch == (0, 2)


def test_service_times_follow_the_machine_and_ignore_single_outliers():
    times = ServiceTimeEstimator(AFFINE, 32)
    before = times.seconds(8)
    times.learn(8, 100 * before)
    assert times.seconds(8) < 1.5 * before
    for _ in range(50):
        times.learn(32, 2 * 0.069)
    assert times.seconds(8) == pytest.approx(2 * before, rel=0.01)
    assert times.seconds(72) == pytest.approx(2 * times.seconds(32) + times.seconds(8))
