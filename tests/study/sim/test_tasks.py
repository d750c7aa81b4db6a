"""Task by task: the run machine under a virtual clock agrees with the drawn times, and loses no query."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.router import Router
from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_queries import price_cold
from serfer.core.costs.cost_model import Platform, price_plan
from serfer.core.errors import UsageError
from serfer.cost.driver_limits import DriverLimits
from serfer.cost.loads.steps import steps_of
from serfer.cost.loads.trace import Trace
from serfer.cost.queries import QueriesRun
from serfer.cost.windows import Window
from serfer.plan_directory import load_plan
from serfer_bench.study.planner.planner import scaled
from serfer_bench.study.sim.calibration import published_calibration
from serfer_bench.study.sim.tasks import LambdaSimulator, TasksRun, alone, service_times
from tests.e2e.gangs import split_gang
from tests.e2e.small import split_small
from tests.study.sim.worlds import Scripted, calibration, scenario

MANY = DriverLimits(slots=1000)
GANG = calibration(tiles=(1, 3, 1), gangs=((1, 3),), rows=1)
"""Stages 1 and 2 are a gang of three members, of whom the first alone has a tile of stage 2."""


def simulated(made, queries=1, limits=None, deadline_s=30.0, **choices):
    world = LambdaSimulator(made, scenario(**choices).serverless, 0, deadline_s, limits)
    for _ in range(queries):
        world.start(0.0)
    world.finish(100.0)
    assert world.in_flight == 0
    return world


def test_a_query_takes_its_stages_one_after_the_other_and_its_slowest_tasks():
    made = calibration(tiles=(2, 1))
    latencies = alone(made, scenario(keep_alive_s=float("inf")).serverless, seed=0, queries=500)
    assert 0.5 < latencies[0] < 0.5 + 3 * 0.06  # both stages were cold, and started together
    assert set(np.round(latencies[1:] * 1000).astype(int)) <= {2 * (10 + row) + 1 for row in range(50)}
    assert np.median(latencies[1:]) == pytest.approx(np.median(made.latencies_s), rel=0.05)


def test_environments_belong_to_functions_and_stay_warm_for_their_time():
    world = LambdaSimulator(calibration(tiles=(2, 1)), scenario(keep_alive_s=100.0).serverless, seed=0)
    for time in (0.0, 50.0, 500.0):
        world.start(time)
        world.advance(time + 40.0)
    world.finish(600.0)
    assert world.colds == 6  # of the first query and the last one, three tasks each
    assert world.tasks == 9
    assert world.idle_gb_s == pytest.approx(3 * (50 + 100 + 100), rel=0.01)


def test_throttled_tasks_are_retried_up_to_a_bound_and_a_query_that_takes_too_long_fails():
    made = calibration(tiles=(4,))
    world = simulated(made, limits=MANY, concurrency=2)
    assert (len(world.latencies_s), world.throttled, world.failed) == (1, 0, 0)
    assert world.retries > 0
    none = simulated(made, limits=MANY, concurrency=0)
    assert (len(none.latencies_s), none.throttled) == (0, 1)
    late = simulated(calibration(), deadline_s=0.001)
    assert (late.failed, len(late.latencies_s)) == (1, 0)


def test_a_gang_is_invoked_once_and_its_members_keep_their_environments_until_the_last_one_ends():
    world = LambdaSimulator(GANG, scenario().serverless, 0, limits=MANY)
    world.start(0.0)
    world.advance(50.0)
    world.start(50.0)
    world.finish(100.0)
    assert (world.tasks, world.colds) == (2 * 4, 4)
    cold, warm = world.latencies_s
    assert warm == pytest.approx(0.010 + 0.001 + 0.009 + 0.009 + 0.001)
    assert cold == pytest.approx(warm + 0.5)
    warmed, first, gang = 0.501, 0.51, 0.51 + 0.019
    idle_gb_s = simulated(GANG, limits=MANY, keep_alive_s=1000.0).idle_gb_s
    assert idle_gb_s == pytest.approx((100 - first) + 3 * (100 - gang + first - warmed))


@pytest.mark.parametrize(
    ("choices", "tasks"), [({"concurrency": 2}, 1 + 2 + 3 + 1), ({"limits": DriverLimits(growth=2)}, None)]
)
def test_a_gang_without_room_is_disbanded_as_a_whole_and_its_stages_run_one_by_one(choices, tasks):
    world = simulated(GANG, **{"limits": MANY, **choices})
    assert (len(world.latencies_s), world.throttled, world.failed, world._running) == (1, 0, 0, 0)
    assert world.tasks == tasks if tasks else world.tasks > 1 + 3 + 1  # two members were aborted


def test_a_gang_that_nothing_runs_is_throttled_and_one_that_no_driver_can_start_refused_by_name():
    assert simulated(GANG, limits=MANY, concurrency=0).throttled == 1
    with pytest.raises(UsageError, match="has 3 members"):
        simulated(GANG, limits=DriverLimits(slots=2))


@settings(max_examples=25)
@given(
    made=st.sampled_from([calibration(), calibration(tiles=(3, 2, 3, 1, 2), gangs=((0, 4),))]),
    rate=st.floats(0, 80),
    concurrency=st.sampled_from([1, 3, 6, 1000]),
    wanted=st.lists(st.integers(0, 2), min_size=1),
    limits=st.builds(
        DriverLimits,
        drivers=st.integers(1, 3),
        slots=st.sampled_from([None, 1, 4]),
        hedge=st.booleans(),
        growth=st.sampled_from([1.0, 30.0, float("inf")]),
    ),
)
def test_every_query_ends_exactly_once(made, rate, concurrency, wanted, limits):
    limits = replace(limits, slots=1000) if made.gangs else limits  # a driver has room for all members of a gang
    load, world = Trace("a trace", np.array([12.0]), np.array([rate])), scenario(boot_s=2.0, concurrency=concurrency)
    run = TasksRun(world, Router(world, Scripted(wanted)), made, [], 3, limits=limits)
    result = run.over(steps_of(load, 5), 0.0, Window("part", 5.0, 12.0))
    assert result.queries == len(result.latencies_s) + result.refused + result.throttled + result.failed


def test_tasks_wait_for_a_slot_of_their_driver_and_the_oldest_query_goes_first():
    world = simulated(calibration(tiles=(2, 1), rows=1), 2, DriverLimits(slots=1))
    first, second = world.latencies_s
    cold, warm, driver = 0.51, 0.01, 0.001
    assert first == pytest.approx(cold + warm + warm + cold + driver)  # a slot is free before its next task is known
    assert second == pytest.approx(first + 2 * warm)
    assert (world.queued, world.retries, world.tasks, world.colds) == (4, 0, 6, 2)


def test_queries_go_to_drivers_in_turn():
    world = simulated(calibration(tiles=(1,), rows=1), 4, DriverLimits(drivers=2, slots=1))
    assert sorted(np.round(world.latencies_s, 3)) == [0.511, 0.511, 0.521, 0.521]


def test_a_function_gains_so_many_environments_in_ten_seconds_and_tasks_are_tried_again():
    slow = DriverLimits(slots=1000, growth=10)
    world = simulated(calibration(tiles=(1,), rows=1), 14, slow, keep_alive_s=0.0)
    assert (len(world.latencies_s), world.throttled, world.colds) == (14, 0, 14)
    assert (np.array(world.latencies_s) > 0.6).sum() == 4
    assert max(world.latencies_s) > 4 + 0.5  # one a second
    assert world.retries > 4


def test_late_tasks_get_a_duplicate_whose_share_of_the_query_is_paid():
    made = calibration(tiles=(3, 1), rows=40)
    slow = replace(made, service_ms=tuple((900.0, 9.0, 9.0, 9.0) if row == 0 else (9.0,) * 4 for row in range(40)))
    world, plain = (
        LambdaSimulator(slow, scenario(keep_alive_s=1e9).serverless, 0, limits=DriverLimits(hedge=hedge))
        for hedge in (True, False)
    )
    for each in (world, plain):
        for number in range(400):
            each.start(10.0 * number)
            each.advance(10.0 * number + 9.0)
        each.finish(4010.0)
    slow_ones, with_duplicates = ((np.array(each.latencies_s[1:]) > 0.9).sum() for each in (plain, world))
    assert slow_ones == 10
    assert with_duplicates <= 2  # whose duplicate drew the slow row, too
    assert 10 <= world.hedges <= 10 + 4  # of cold starts
    mean_ms = (900.0 + 39 * 9.0) / 40
    share = mean_ms / (mean_ms + 27.0)
    assert 10 * share <= world.duplicates <= 10 * share + 1  # those of one cold query are at most its price
    assert plain.hedges == plain.duplicates == 0


def test_environments_that_a_plan_wants_are_warm_for_every_task():
    load, world = Trace("a trace", np.array([20.0, 20.0]), np.array([0.0, 30.0])), scenario()
    colds = []
    for policy in (Scripted([0]), Scripted([0], 15)):
        result = TasksRun(world, Router(world, policy), calibration(), [], 3).over(
            steps_of(load, 5), 0.0, Window("all", 0.0, 40.0)
        )
        colds.append((result.cold_starts, result.pings))
    assert colds[0][0] > 4
    assert colds[1] == (0, 15)


def test_both_simulation_levels_agree():
    made, world = calibration(tiles=(3, 2, 1)), scenario()
    load, window = Trace("a trace", np.array([160.0]), np.array([30.0])), Window("late", 40.0, 160.0)
    times = service_times(made, world.serverless)
    drawn = QueriesRun(world, Router(world, Scripted([0])), times, [], 1).over(steps_of(load, 5), 0.0, window)
    run = TasksRun(world, Router(world, Scripted([0])), made, [], 1).over(steps_of(load, 5), 0.0, window)
    for share in (0.5, 0.95, 0.99):
        assert np.quantile(run.latencies_s, share) == pytest.approx(np.quantile(drawn.latencies_s, share), rel=0.05)
    assert run.queries == pytest.approx(drawn.queries, rel=0.05)


@pytest.mark.parametrize("split", [split_small, split_gang])
@pytest.mark.parametrize("rate", [1.0, 1e-3])
def test_first_answers_agree_with_the_planners(tmp_path, split, rate):
    """Whatever a package's weights take: little beside the process, or much, and more in one stage than in another."""
    plan, facts = load_plan(split(tmp_path)), scaled(shipped_aws(), "package_rate", rate)
    target = replace(scenario().serverless, keep_alive_s=1e6)
    found = alone(published_calibration(plan, facts), target, 0, queries=200)
    assert np.mean(found) == pytest.approx(price_cold(plan, Platform.over(facts, "redis")).seconds, rel=0.05)


@pytest.mark.parametrize(("split", "gangs", "late"), [(split_small, (), 0.02), (split_gang, ((0, 4),), 0.05)])
def test_published_times_agree_with_the_cost_model(tmp_path, split, gangs, late):
    """Of one step's tail in a gang there are twenty queries."""
    plan, facts = load_plan(split(tmp_path)), shipped_aws()
    made = published_calibration(plan, facts)
    assert (made.tiles, made.gangs) == (tuple(stage.grid.tiles for stage in plan.stages), gangs)
    assert (made.source, made.tag) == ("published", "MS")
    predicted = price_plan(plan, Platform.over(facts, "redis")).latency
    for share, rel in ((0.5, 0.02), (0.99, late)):
        assert np.quantile(made.latencies_s, share) == pytest.approx(predicted.quantile(share), rel=rel)
