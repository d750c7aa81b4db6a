"""One queue in virtual time: admitted queries are in time, late ones are not computed, and windows do not pay."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.batching import Profile
from serfer.control.dispatch import (
    Batching,
    BusyWindow,
    Dispatch,
    Occupant,
    QueuedQuery,
    ServiceTimeEstimator,
    choose,
    predicted_lateness_s,
    victims,
)
from serfer_bench.study.policies.tuning import tune

# A GPU's: 5 ms to begin with and 2 ms an image.
AFFINE = Profile(tuple((size, 5.0 + 2.0 * size) for size in (1, 2, 4, 8, 16, 32)))


@dataclass
class Run:
    latencies: list = field(default_factory=list)  # of queries that were answered
    refused_at_once: int = 0
    refused_later: int = 0
    late: int = 0
    batches: list = field(default_factory=list)  # their sizes


def simulate(arrivals, slo_s, batching, truth=AFFINE, believed=AFFINE):
    """Serve queries of one image, each due after `slo_s`, on an engine that is as fast as `truth`."""
    times, actual = ServiceTimeEstimator(believed, batching.max_batch), ServiceTimeEstimator(truth, batching.max_batch)
    run, queue, pending = Run(), [], list(reversed(arrivals))
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


def waiting(*queries):
    return [QueuedQuery(*query) for query in queries]


@pytest.mark.parametrize(
    ("queue", "now", "batching", "expected"),
    [
        (waiting(), 0.0, Batching(8), Dispatch()),
        (waiting((0.0, 1, 1.0), (0.0, 2, 0.5)), 0.0, Batching(8), Dispatch(batch=(1, 0))),
        # For the window of the oldest query, or a full batch.
        (waiting((0.0, 1, 1.0), (0.01, 1, 1.0)), 0.01, Batching(8, 0.05), Dispatch(look_at=0.05)),
        (waiting((0.0, 1, 1.0), (0.01, 1, 1.0)), 0.05, Batching(8, 0.05), Dispatch(batch=(0, 1))),
        (waiting((0.0, 1, 1.0), (0.01, 1, 1.0)), 0.01, Batching(2, 0.05), Dispatch(batch=(0, 1))),
        # One that would be late is refused before it is computed; a probe only where it is late already.
        (waiting((0.0, 1, 0.105), (0.0, 1, 0.2)), 0.1, Batching(8), Dispatch(batch=(1,), late=(0,))),
        (waiting((0.0, 1, 0.105, True)), 0.1, Batching(8), Dispatch(batch=(0,))),
        (waiting((0.0, 1, 0.105, True)), 0.105, Batching(8), Dispatch(late=(0,))),
        # No batch is so large that its first query would be late: three take 11 ms, four take 13.
        (waiting((0.0, 1, 0.011), *[(0.0, 1, 1.0)] * 10), 0.0, Batching(8), Dispatch(batch=(0, 1, 2))),
        # One larger than a batch runs alone, and smaller ones fill gaps.
        (waiting((0.0, 9, 1.0), (0.0, 1, 1.0)), 0.0, Batching(8), Dispatch(batch=(0,))),
        (waiting((0.0, 5, 1.0), (0.0, 4, 1.0), (0.0, 3, 1.0)), 0.0, Batching(8), Dispatch(batch=(0, 2))),
    ],
)
def test_dispatch_takes_what_is_in_time(queue, now, batching, expected):
    assert choose(queue, now, batching, ServiceTimeEstimator(AFFINE, 32)) == expected


def test_waiting_ends_while_the_first_deadline_can_still_be_met():
    times = ServiceTimeEstimator(AFFINE, 32)
    dispatch = choose(waiting((0.0, 1, 0.02)), 0.0, Batching(8, 10.0), times)
    assert 0.0 < dispatch.look_at < 0.02 - times.seconds(1)


def test_service_times_follow_the_machine_and_ignore_single_outliers():
    times = ServiceTimeEstimator(AFFINE, 32)
    before = times.seconds(8)
    times.learn(8, 100 * before)
    assert times.seconds(8) < 1.5 * before
    for _ in range(50):
        times.learn(32, 2 * 0.069)
    assert times.seconds(8) == pytest.approx(2 * before, rel=0.01)
    assert times.seconds(72) == pytest.approx(2 * times.seconds(32) + times.seconds(8))


def test_busy_window_counts_what_still_runs():
    window = BusyWindow(0.0, 10.0)
    assert window.share(20.0, running_since=15.0) == pytest.approx(0.5)
    assert window.share(99.0, running_since=15.0) == 1.0


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), max_size=30), st.floats(0, 30))
def test_the_share_equals_what_adding_up_all_times_gives(steps, later):
    window, now, spans = BusyWindow(0.0, 10.0), 0.0, []
    for idle, busy in steps:
        began, now = now + idle, now + idle + busy
        spans.append((began, now))
        window.add(began, now)
    now += later
    begin = max(now - 10.0, 0.0)
    busy_s = sum(max(0.0, min(ended, now) - max(began, begin)) for began, ended in spans)
    assert window.share(now) == pytest.approx(busy_s / (now - begin) if now > begin else 0.0, abs=1e-6)


ROOMS = st.lists(
    st.builds(Occupant, st.uuids().map(str), st.integers(0, 50), st.floats(0, 100), st.booleans()), max_size=8
)


@given(st.integers(0, 120), ROOMS, st.integers(0, 200))
def test_it_fits_afterwards_no_busy_one_goes_and_no_going_is_needless(size, there, bound):
    by_name = {one.name: one for one in there}
    chosen = victims(size, there, bound)
    if chosen is None:
        assert size + sum(one.size for one in there if one.busy) > bound
        return
    left = [one for one in there if one.name not in chosen]
    taken = size + sum(one.size for one in left)
    assert taken <= bound
    assert not any(by_name[name].busy for name in chosen)
    assert all(taken + by_name[name].size > bound for name in chosen)
    stayed = [one for one in left if not one.busy]
    for name in chosen:  # what was used before and stays could not have made the room in its place
        for one in stayed:
            if one.last_used < by_name[name].last_used:
                assert taken - one.size + by_name[name].size > bound
