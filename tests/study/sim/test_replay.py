"""A load's worst minutes: which they are, how they are thinned, and what is simulated by times of a machine."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.scenario import LambdaTarget
from serfer.cost.loads.arrivals import arrival_times
from serfer.cost.windows import Window
from serfer_bench.study.sim.replay import (
    LOADED,
    InstanceSpeed,
    Invocation,
    MachineSpeed,
    MeasuredTimes,
    ReplayedAnswer,
    ReplayedLoad,
    ReplayOutcome,
    busiest,
    off,
    outcome,
    own_images_s,
    own_speed,
    scenario_here,
    simulate,
    thinning,
)
from tests.study.sim.worlds import scenario, trace

USD_PER_S, REQUEST, UNBILLED_S = 2e-5, 2e-7, 0.01
PATIENCE_S = 29.0
TARGET = LambdaTarget(1.0, 1.0, 0.0, 1000, 1.7, 300.0)


def invocation(at_once, seconds, *, cold=False):
    return Invocation(at_once, seconds, REQUEST + USD_PER_S * (seconds - UNBILLED_S), cold)


def speed():
    """Return that of a machine that was measured with one query and with three at once."""
    measured = [invocation(1, 0.1), invocation(3, 0.2), invocation(1, 1.0, cold=True), invocation(3, 1.9, cold=True)]
    return MachineSpeed.of(measured, USD_PER_S, most=3)


def replayed(arrivals, seconds, thinned=1.0):
    return ReplayedLoad(Window("whole", 0.0, seconds), thinned, np.array(arrivals, dtype=float))


def simulated(arrivals, seconds):
    here, load = speed(), replayed(arrivals, seconds)
    world = scenario_here(scenario(), here, None, load, TARGET)
    return simulate(load, here, world, "serverless", period_s=1.0, patience_s=PATIENCE_S)


ROWS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=8)


@given(ROWS, st.integers(1, 30))
def test_no_other_minutes_have_more_queries_than_the_busiest(rows, seconds):
    load = trace(*zip(*rows, strict=True))
    window = busiest(load, seconds)
    if load.seconds <= seconds:
        assert window == Window("whole", 0.0, load.seconds)
        return

    def queries(begin):
        return load.cut(begin, begin + seconds).queries

    assert window.end_s - window.begin_s == pytest.approx(seconds)
    begins = np.arange(0, load.seconds - seconds + 0.1, 0.5)
    assert queries(window.begin_s) == pytest.approx(max(map(queries, begins)))


def test_of_minutes_that_are_alike_the_first_are_replayed():
    assert busiest(trace([10, 5, 10, 5, 10], [1, 7, 1, 7, 1]), 5.0).begin_s == 10.0


def test_a_load_is_thinned_until_its_busiest_seconds_take_half_of_what_the_machine_serves():
    load = trace([60, 10, 60], [1, 5, 1])
    assert thinning(load, Window("whole", 0.0, load.seconds), qps=5 / LOADED) == 1.0
    load = trace([60, 10, 60], [1, 40, 1])
    window = Window("whole", 0.0, load.seconds)
    thinned = thinning(load, window, qps=20.0)
    assert thinned == 4.0
    arrivals = arrival_times(load.scaled(1 / thinned), 0.0, load.seconds, seed=0)
    assert ((arrivals > 60) & (arrivals < 70)).sum() == pytest.approx(100, abs=1)


def test_what_runs_at_once_takes_what_was_measured_so_and_between_two_numbers_what_lies_between():
    here = speed()
    assert here.environments == 3
    assert here.warm_s.mean(axis=1) == pytest.approx([0.1, 0.15, 0.2])
    assert (here.warm_s + here.cold_s).mean(axis=1) == pytest.approx([1.0, 1.45, 1.9])
    assert here.qps == pytest.approx(3 / 0.2)
    running = []
    warm, cold = MeasuredTimes.on(here).draws(np.random.default_rng(0), running)
    for others, expected in ((0, 0.1), (1, 0.15), (2, 0.2), (7, 0.2)):
        running[:] = [0.0] * others
        assert next(warm) == pytest.approx(expected)
    assert next(cold) == pytest.approx(1.7)


def test_dollars_are_those_of_the_invocations_that_were_measured():
    here = speed()
    one = invocation(1, 0.1)
    start = invocation(1, 1.0, cold=True)
    assert here.usd(0.1, 1, 0) == pytest.approx(one.usd)
    assert here.usd(2.1, 1, 2) == pytest.approx(one.usd + 2 * start.usd)


def answer(came_s, function_s, *, waited_s=0.0, cold=False):
    """Return that of a function, to which the driver adds a hundredth of a second."""
    return ReplayedAnswer(came_s, came_s + waited_s + 0.01 + function_s, function_s, 1e-6 + function_s, cold)


def test_a_replays_own_times_are_those_of_its_functions_without_what_queries_waited():
    answers = [answer(0, 0.99, cold=True), answer(2, 0.09), answer(3, 0.09, waited_s=5), answer(4, 0.29)]
    own = own_speed(answers, speed())
    assert own.warm_s.mean(axis=1) == pytest.approx([(0.1 + 0.1 + 0.3) / 3] * 3, rel=1e-3)
    assert (own.warm_s + own.cold_s).mean() == pytest.approx(1.0)
    assert own.environments == 3
    assert own_speed(answers[1:], speed()).warm_s.tolist() == speed().warm_s.tolist()  # no start tells what one adds
    started = own_speed(answers[:1], speed())  # and nothing was warm
    assert (started.warm_s + started.cold_s).mean() == pytest.approx(1.0)


def test_an_instances_images_took_what_lies_between_their_answers_where_they_waited_for_each_other():
    def of(instance, came_s, ended_s):
        return ReplayedAnswer(came_s, ended_s, 0.0, 0.0, cold=False, instance=instance)

    answers = [of("a", 0.0, 0.1), of("a", 0.05, 0.3), of("b", 0.0, 0.4), of("a", 9.0, 9.1), answer(0, 5.0)]
    assert sorted(own_images_s(answers)) == pytest.approx([0.1, 0.1, 0.2, 0.4])
    assert own_images_s([answer(0, 5.0)]) == ()


def test_queries_apart_from_each_other_are_warm_but_the_first_and_those_after_too_long():
    one = simulated(range(0, 100, 10), 100.0)
    assert (one.unanswered, one.cold_share, one.launches) == (0.0, 0.1, 0.0)
    assert one.p50_ms == pytest.approx(100)
    assert one.p99_ms == pytest.approx(100 + 0.91 * 900)
    assert one.usd == pytest.approx(9 * invocation(1, 0.1).usd + invocation(1, 1.0, cold=True).usd)
    assert simulated([0, 290, 600], 700.0).cold_share == pytest.approx(2 / 3)


def test_queries_beyond_what_runs_at_once_wait_for_their_turn():
    one = simulated([0.0] * 4, 10.0)
    # Three start at once, the longer the more run; the fourth waits for the first of them, beside the other two.
    slowest = 1.0 + 0.2
    assert one.cold_share == 0.75
    latencies = sorted([1.0, 1.45, 1.9, slowest])
    assert one.p50_ms == pytest.approx(1000 * np.quantile(latencies, 0.5))
    assert one.p99_ms == pytest.approx(1000 * np.quantile(latencies, 0.99))


def test_an_instance_takes_over_once_it_has_booted_and_is_paid_for_from_its_launch_on():
    load, here = replayed(np.arange(0, 200, 0.25), 200.0), speed()
    world = scenario_here(scenario(boot_s=20.0), here, InstanceSpeed(3.0, (0.04, 0.06)), load, TARGET)
    replay = partial(simulate, load, here, world, "instances", period_s=1.0, patience_s=PATIENCE_S)
    one = replay()
    assert one.launches == 1
    assert one.on_instances == pytest.approx((200 - 21) / 200, abs=0.02)
    assert one.p50_ms == pytest.approx(50)
    on_functions = 800 * (1 - one.on_instances)
    functions_usd = on_functions * here.usd(0.1, 1, 0) + here.usd(0.9, 0, 0)
    assert one.usd == pytest.approx(199 * world.instance.usd_per_s + functions_usd, rel=0.02)
    slower = replay(instance=InstanceSpeed(20.0, (0.06,)))
    assert slower.p50_ms == pytest.approx(60)
    varied = replay(instance=InstanceSpeed(40.0, (0.01, 0.24)))
    assert varied.p99_ms == pytest.approx(240, rel=0.05)
    assert varied.on_instances == pytest.approx((200 - 41) / 200, abs=0.02)
    assert (slower.on_instances, slower.launches) == (one.on_instances, one.launches)


def test_the_scenario_has_this_machines_times_and_a_price_that_is_thinned_with_the_load():
    here, load = speed(), replayed([0.0], 10.0, thinned=4.0)
    world = scenario(boot_s=5.0)
    found = scenario_here(world, here, InstanceSpeed(9.0, (0.1, 0.3)), load, TARGET)
    assert found.instance.usd_per_hour == world.instance.usd_per_hour / 4
    assert (found.instance.boot_s, found.instance.batches) == (9.0, ((1, 200.0),))
    assert found.slo_ms == 800.0  # one image after another is to meet it
    assert found.serverless.latency_ms == pytest.approx(100)
    assert found.serverless.cold_ms == pytest.approx(900)
    assert found.warnings() == []
    assert scenario_here(world, here, None, load, TARGET).instance == world.instance


def test_answers_too_late_count_as_none_and_a_simulation_is_off_by_a_share_of_what_was_measured():
    one = outcome(4, np.array([0.1, 0.2, 30.0]), PATIENCE_S, cold=1, usd=0.5, on_instances=2, launches=1)
    assert one == ReplayOutcome(0.5, pytest.approx(150), pytest.approx(199), 0.25, 0.5, 0.5, 1)
    expected, measured = (ReplayOutcome(0.0, *row) for row in ((90.0, 220.0, 0.0, 1.0), (100.0, 200.0, 0.0, 0.0)))
    assert off(expected, measured) == {"p50_ms": pytest.approx(-0.1), "p99_ms": pytest.approx(0.1), "usd": None}
    unanswered = ReplayOutcome(1.0, None, None, 0.0, 1.0)
    assert off(unanswered, expected) == {"p50_ms": None, "p99_ms": None, "usd": 0.0}
