"""Task by task: the run machine under a virtual clock agrees with the drawn times, and loses no query."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.router import Router
from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cost_model import Platform, price_plan
from serfer.plan_directory import load_plan
from serfer.sim.calibration import published_calibration
from serfer.sim.hours import Window
from serfer.sim.queries import QueriesRun
from serfer.sim.rates import steps_of
from serfer.sim.tasks import LambdaSimulator, TasksRun, alone, service_times
from serfer.sim.traces import Trace
from tests.e2e.gangs import split_gang
from tests.e2e.small import split_small
from tests.sim.worlds import Scripted, calibration, scenario


def test_a_query_takes_its_stages_one_after_the_other_and_its_slowest_tasks():
    made = calibration(tiles=(2, 1))
    latencies = alone(made, scenario(keep_alive_s=float("inf")).serverless, seed=0, queries=500)
    assert latencies[0] > 1.0  # both stages were cold
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


def test_throttled_tasks_are_retried_up_to_a_bound():
    world = LambdaSimulator(calibration(tiles=(4,)), scenario(concurrency=2).serverless, seed=0)
    world.start(0.0)
    world.finish(100.0)
    assert (len(world.latencies_s), world.throttled, world.failed) == (1, 0, 0)
    assert world.retries > 0
    none = LambdaSimulator(calibration(tiles=(4,)), scenario(concurrency=0).serverless, seed=0)
    none.start(0.0)
    none.finish(100.0)
    assert (len(none.latencies_s), none.throttled, none.in_flight) == (0, 1, 0)


def test_a_query_that_takes_too_long_fails():
    world = LambdaSimulator(calibration(), scenario().serverless, seed=0, deadline_s=0.001)
    world.start(0.0)
    world.finish(100.0)
    assert (world.failed, len(world.latencies_s), world.in_flight) == (1, 0, 0)


class TestGangs:
    """Stages 1 and 2 are a gang of three members, of whom the first alone has a tile of stage 2."""

    TILES, GANGS = (1, 3, 1), ((1, 3),)

    def world(self, **choices):
        made = calibration(tiles=self.TILES, gangs=self.GANGS, rows=1)
        return LambdaSimulator(made, scenario(**choices).serverless, seed=0)

    def test_a_gang_is_invoked_once_and_its_stages_take_their_time(self):
        world = self.world()
        world.start(0.0)
        world.advance(50.0)
        world.start(50.0)
        world.advance(100.0)
        assert world.tasks == 2 * 4
        assert world.colds == 4
        cold, warm = world.latencies_s
        assert warm == pytest.approx(0.010 + 0.001 + 0.009 + 0.009 + 0.001)
        assert cold == pytest.approx(warm + 0.5 + 0.5)

    def test_members_keep_their_environments_until_the_last_one_ends(self):
        world = self.world(keep_alive_s=1000.0)
        world.start(0.0)
        world.advance(10.0)
        world.finish(10.0)
        first, gang = 0.51, 0.51 + 0.519
        assert world.idle_gb_s == pytest.approx((10 - first) + 3 * (10 - gang))

    def test_a_gang_without_room_is_disbanded_as_a_whole_and_its_stages_run_one_by_one(self):
        world = self.world(concurrency=2)
        world.start(0.0)
        world.finish(100.0)
        assert (len(world.latencies_s), world.throttled, world.failed, world.in_flight) == (1, 0, 0, 0)
        assert world.tasks == 1 + 2 + 3 + 1  # two members were aborted
        assert world._running == 0
        none = self.world(concurrency=0)
        none.start(0.0)
        none.finish(100.0)
        assert (none.throttled, none.in_flight) == (1, 0)

    @settings(max_examples=15)
    @given(rate=st.floats(0, 60), concurrency=st.sampled_from([1, 3, 4, 7, 1000]))
    def test_every_query_ends_exactly_once(self, rate, concurrency):
        load, world = Trace("a trace", np.array([20.0]), np.array([rate])), scenario(concurrency=concurrency)
        made = calibration(tiles=(3, 2, 3, 1, 2), gangs=((0, 4),))
        run = TasksRun(world, Router(world, Scripted([0])), made, [], 3)
        result = run.over(steps_of(load, 5), 0.0, Window("part", 5.0, 20.0))
        assert result.queries == len(result.latencies_s) + result.refused + result.throttled + result.failed

    def test_published_times_agree_with_the_cost_model(self, tmp_path):
        plan, facts = load_plan(split_gang(tmp_path)), shipped_aws()
        made = published_calibration(plan, facts)
        assert made.gangs == ((0, 4),)
        predicted = price_plan(plan, Platform.over(facts, "redis")).latency
        for share, rel in ((0.5, 0.02), (0.99, 0.05)):  # of one step's tail there are twenty queries
            assert np.quantile(made.latencies_s, share) == pytest.approx(predicted.quantile(share), rel=rel)


@settings(max_examples=15)
@given(rate=st.floats(0, 80), concurrency=st.sampled_from([1, 6, 1000]), wanted=st.lists(st.integers(0, 2), min_size=1))
def test_every_query_ends_exactly_once(rate, concurrency, wanted):
    load, world = Trace("a trace", np.array([30.0]), np.array([rate])), scenario(boot_s=4.0, concurrency=concurrency)
    run = TasksRun(world, Router(world, Scripted(wanted)), calibration(), [], 3)
    result = run.over(steps_of(load, 5), 0.0, Window("part", 10.0, 30.0))
    assert result.queries == len(result.latencies_s) + result.refused + result.throttled + result.failed


def test_both_simulation_levels_agree():
    made, world = calibration(tiles=(3, 2, 1)), scenario()
    load, window = Trace("a trace", np.array([300.0]), np.array([30.0])), Window("late", 60.0, 300.0)
    times = service_times(made, world.serverless)
    drawn = QueriesRun(world, Router(world, Scripted([0])), times, [], 1).over(steps_of(load, 5), 0.0, window)
    run = TasksRun(world, Router(world, Scripted([0])), made, [], 1).over(steps_of(load, 5), 0.0, window)
    for share in (0.5, 0.95, 0.99):
        assert np.quantile(run.latencies_s, share) == pytest.approx(np.quantile(drawn.latencies_s, share), rel=0.05)
    assert run.queries == pytest.approx(drawn.queries, rel=0.05)


def test_published_times_agree_with_the_cost_model(tmp_path):
    plan, facts = load_plan(split_small(tmp_path)), shipped_aws()
    made = published_calibration(plan, facts)
    assert made.tiles == tuple(stage.grid.tiles for stage in plan.stages)
    assert (made.source, made.tag) == ("published", "MS")
    predicted = price_plan(plan, Platform.over(facts, "redis")).latency
    for share in (0.5, 0.99):
        assert np.quantile(made.latencies_s, share) == pytest.approx(predicted.quantile(share), rel=0.02)
