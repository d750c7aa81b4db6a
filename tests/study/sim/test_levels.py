"""Dollars of both levels, what drivers and Lambda allow, and instances with batch sizes of their own."""

import math
import tomllib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.dispatch import window_s
from serfer.control.policies import make_policy
from serfer.control.policy import InstanceCount
from serfer.control.router import Router
from serfer.control.scenario import Market, parse_scenario
from serfer.core.costs.aws import shipped_aws
from serfer.core.hedging import LearntHedging
from serfer.cost.driver_limits import DriverLimits, Growth, KnownHedging
from serfer.cost.fleet import Purchase
from serfer.cost.loads.steps import Steps, steps_of
from serfer.cost.queries import QueriesRun
from serfer.cost.service_times import scenario_times
from serfer.cost.windows import Window
from serfer_bench.study.loads.generators import generate
from serfer_bench.study.policies.nonuniform.rate_dispatcher import RateDispatcher, shares
from serfer_bench.study.sim.rates import run_rates
from tests.control.worlds import TWO_TYPES
from tests.study.policies.test_nonuniform import WORLD as SIZED
from tests.study.policies.test_nonuniform import Place
from tests.study.sim.test_queries import FIXED
from tests.study.sim.worlds import Bought

WORLD = parse_scenario(tomllib.loads(TWO_TYPES))


@pytest.mark.parametrize("policy", ["serverless", "break-even", "ski-rental", "target-tracking"])
def test_both_levels_launch_the_same_fleet_and_differ_by_what_comes_at_once_and_by_duplicates(policy):
    load = generate("mmpp:hours=0.3,low_s=300,high_s=300,row_s=1")  # whole counts: they come as the load has them
    at_rates = run_rates(load, WORLD, make_policy(policy, WORLD))
    times, limits = scenario_times(WORLD.serverless, shipped_aws().functions), DriverLimits(hedge=True, growth=1000)
    run = QueriesRun(WORLD, Router(WORLD, make_policy(policy, WORLD)), times, [], 0, limits=limits)
    result = run.over(steps_of(load, 5.0), 0.0, Window("whole", 0.0, load.seconds))
    assert result.queries == pytest.approx(load.queries)
    assert result.instances_usd == pytest.approx(at_rates.instances_usd - at_rates.min_billing_usd, abs=1e-9)
    serverless_usd = (result.queries - result.on_instances) * WORLD.serverless.usd_per_query
    duplicates_usd = result.duplicates * WORLD.serverless.usd_per_query
    assert result.usd(WORLD) == pytest.approx(result.instances_usd + serverless_usd + duplicates_usd)
    assert result.duplicates > 0
    if policy == "serverless":
        assert serverless_usd == pytest.approx(at_rates.serverless_usd)
    else:  # instances take less of a cluster than their `qps`, and more of what comes evenly
        assert serverless_usd == pytest.approx(at_rates.serverless_usd, rel=0.3)


@settings(max_examples=60)
@given(most=st.integers(1, 20), gaps=st.lists(st.sampled_from([0.0, 0.01, 0.4, 3.0, 60.0]), max_size=80))
def test_no_time_gains_more_environments_than_are_refilled_in_it_and_those_at_once(most, gaps):
    growth, now, taken = Growth(most), 0.0, []
    for gap in gaps:
        now += gap
        if growth.take(now):
            taken.append(now)
    for first, begin in enumerate(taken):
        for last, end in enumerate(taken[first:], first):
            assert last - first + 1 <= most * (1 + (end - begin) / 10) + 1e-6


def test_what_is_not_used_does_not_add_up():
    growth = Growth(10)
    assert [growth.take(1e6) for _ in range(11)] == [True] * 10 + [False]
    assert not growth.take(1e6 + 0.9)
    assert growth.take(1e6 + 1.0)


def test_known_hedging_is_what_drivers_arrive_at_and_a_task_in_time_needs_no_timer():
    learnt, answered = LearntHedging(), 0
    known = KnownHedging([0.1, math.inf], lambda: answered)
    for _ in range(100):
        learnt.learn(0, 0.1)
        answered += 1
    assert known.late_after(0) == learnt.late_after(0) == pytest.approx(0.2)
    assert known.late_after(1) is None
    spent = [sum(each.spend() for _ in range(200)) for each in (learnt, known)]
    assert spent == [9, 9]  # a handful, and one in twenty
    answered += 100
    assert sum(known.spend() for _ in range(200)) == 5
    known = KnownHedging([0.1], lambda: 0)
    known.ends_in_s = 0.15
    assert known.late_after(0) is None
    known.ends_in_s = 0.3
    assert known.late_after(0) == pytest.approx(0.2)
    assert DriverLimits().slots_of_each(1000) == 1000
    assert DriverLimits(slots=16).slots_of_each(1000) == 16


GPU = SIZED.instance


class Sized(Bought):
    """A policy that wants instances with these batch sizes, and dispatches by their rates."""

    def __init__(self, *batches):
        counts = Counter(batches).items()
        super().__init__(*(InstanceCount("gpu", Market.ON_DEMAND, count, batch) for batch, count in counts))

    def dispatcher(self):
        return RateDispatcher(SIZED)


def simulated(rate, *batches, seconds=120):
    launches = [(-100.0, Purchase(GPU, Market.ON_DEMAND))] * len(batches)
    steps = Steps(np.ones(seconds), np.full(seconds, float(rate)), np.arange(seconds, dtype=np.int32))
    run = QueriesRun(SIZED, Router(SIZED, Sized(*batches)), FIXED, launches, seed=1)
    return run.over(steps, 0.0, Window("busiest", 0.0, float(seconds)))


def test_queries_divide_by_the_rates_of_the_instances_and_the_rest_runs_on_lambda_in_time():
    result = simulated(180, 16, 2)
    expected = shares(180.0, [Place("a", 0, 16), Place("b", 0, 2)], SIZED)
    assert result.batches == pytest.approx(result.queries * (expected.of["a"] / 16 + expected.of["b"] / 2), rel=0.2)
    assert result.on_serverless < 0.02 * result.queries
    result = simulated(400, 8)
    expected = shares(400.0, [Place("a", 0, 8)], SIZED)
    assert result.on_serverless / result.queries == pytest.approx(expected.rest, abs=0.05)
    assert np.mean(result.latencies_s * 1000 <= SIZED.slo_ms) > 0.99


def test_an_instance_waits_for_full_batches_as_long_as_its_window():
    alone = simulated(2, 8)
    waited = window_s(GPU, 8, SIZED.slo_ms)
    assert np.quantile(alone.latencies_s, 0.5) >= waited
    assert alone.latencies_s.max() * 1000 <= SIZED.slo_ms
    busy = simulated(120, 8)
    assert busy.on_instances / busy.batches > 7
    assert simulated(2, 0).latencies_s.max() < 3 * GPU.batch_ms(1) / 1000
