"""Policies at the level of rates: costs add up, boots cost, ceilings hold, and no policy beats the optimum."""

import math
import tomllib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies import DEFAULT, buys_several_types, make_policy
from serfer.control.policy import InstanceCount, InstanceState
from serfer.control.scenario import Market, parse_scenario
from serfer.core.errors import UsageError
from serfer.cost.fleet import SpotLosses
from serfer.cost.loads.steps import steps_of
from serfer.cost.policy_run import run_policy
from serfer_bench.study.policies import NAMES
from serfer_bench.study.policies.clairvoyant import optimum_usd
from serfer_bench.study.sim.rates import run_rates
from tests.control.worlds import TWO_TYPES, seen
from tests.study.sim.worlds import Bought, Scripted, scenario, trace

SECOND = 0.526 / 3600
LOADS = st.lists(st.tuples(st.sampled_from([1.0, 7.0, 60.0, 300.0]), st.floats(0, 300)), min_size=1, max_size=15)


def of(rows):
    return trace(*zip(*rows, strict=True))


def test_steps_are_at_most_a_period_never_straddle_rows_and_are_seen_once():
    steps = steps_of(trace([12, 3], [1, 2]), 5)
    assert steps.durations_s.tolist() == [5, 5, 2, 3]
    assert steps.rates.tolist() == [1, 1, 1, 2]
    policy = Scripted([0])
    run_rates(trace([12, 3], [1, 2]), scenario(), policy)
    assert policy.seen == [(5, 1), (5, 1), (2, 1), (3, 2)]


@pytest.mark.parametrize("period", [0, -1, math.nan, math.inf, 1e-9])
def test_an_impossible_period_is_refused(period):
    with pytest.raises(UsageError, match="--period-s"):
        steps_of(trace([1000], [1]), period)


def test_instance_is_billed_from_launch_to_stop():
    result = run_rates(trace([300], [10]), scenario(), Scripted([1]))
    assert result.launches == 1
    assert result.instances_usd == pytest.approx(295 * SECOND)  # the first decision falls after 5 s
    assert result.serverless_usd == pytest.approx(125 * 10 * 4e-5)
    assert result.booting_usd == pytest.approx(120 * 10 * 4e-5)
    assert result.on_instances == pytest.approx(175 * 10)
    result = run_rates(trace([20], [0]), scenario(least_s=0), Scripted([1, 2, 1, 1]))
    assert result.fleet.launched_s.tolist() == [5, 10]
    assert result.fleet.stopped_s.tolist() == [20, 15]
    assert result.fleet.running.tolist() == [True, False]
    result = run_rates(trace([100], [0]), scenario(), Scripted([1, 0]))
    assert result.on_s == 5
    assert result.instances_usd == pytest.approx(60 * SECOND)
    assert result.min_billing_usd == pytest.approx(55 * SECOND)


def test_without_overflow_load_is_late_or_refused_and_costs_nothing():
    result = run_rates(trace([300], [100]), scenario(), Scripted([1]), overflow=False)
    assert result.serverless_usd == 0
    assert result.refused == pytest.approx(125 * 100)
    assert result.late == pytest.approx(175 * 40)


@pytest.mark.parametrize("name", [name for name in NAMES if not buys_several_types(name)])
@settings(max_examples=25)
@given(rows=LOADS)
def test_costs_are_the_sum_of_their_parts_and_never_below_the_optimum(name, rows):
    load, world = of(rows), scenario()
    result = run_rates(load, world, make_policy(name, world))
    assert result.queries == pytest.approx(load.queries, abs=1e-6)
    queries = result.serverless_usd / 4e-5 - result.pings.sum() + result.on_instances
    assert queries == pytest.approx(load.queries, abs=1e-6)
    assert result.cost_usd == result.serverless_usd + result.instances_usd
    assert 0 <= result.booting_usd <= result.serverless_usd + 1e-12
    assert result.instances_usd - result.min_billing_usd == pytest.approx(result.on_s * SECOND)
    assert result.cost_usd >= optimum_usd(world, load.durations_s.tolist(), load.rates.tolist()) - 1e-9


@settings(max_examples=25)
@given(rows=LOADS, wanted=st.lists(st.integers(0, 5), min_size=1, max_size=40), boot=st.sampled_from([0.0, 3.0, 12.5]))
def test_costs_equal_a_simulation_second_by_second(rows, wanted, boot):
    load, world = of(rows), scenario(boot_s=boot, least_s=0.0)
    result = run_rates(load, world, Scripted(wanted))
    assert result.cost_usd == pytest.approx(plain_usd(load, world, Scripted(wanted)), rel=1e-9, abs=1e-12)


def plain_usd(load, world, policy):
    """Walk by half seconds, which all times of these loads are multiples of."""
    usd, now, on, kind = 0.0, 0.0, [], world.instance
    for seconds, rate in zip(load.durations_s, load.rates, strict=True):
        left = seconds
        while left > 1e-9:
            step = min(5.0, left)
            for half in range(round(step * 2)):
                time = now + half / 2
                serving = sum(launch + kind.boot_s <= time + 1e-9 for launch in on)
                usd += 0.5 * (max(rate - serving * kind.qps, 0) * 4e-5 + len(on) * kind.usd_per_s)
            now, left = now + step, left - step
            count = policy.observe(seen(step, rate)).total
            on = on[:count] + [now] * (count - len(on))
    return usd


@settings(max_examples=15)
@given(rows=LOADS, ceiling=st.floats(0, 5))
def test_no_hour_costs_more_than_the_ceiling(rows, ceiling):
    load, world = of(rows), scenario(least_s=0.0)
    result = run_rates(load, world, make_policy("instances", world), max_usd_per_hour=ceiling)
    usd = np.diff(result.timeline.times_s) * (result.timeline.serverless * 4e-5 + result.timeline.on * SECOND)
    begins = result.timeline.times_s[:-1]
    spent = [usd[(begins >= begin) & (begins < begin + 3600)].sum() for begin in begins]
    assert max(spent) <= ceiling + 1e-9
    lent = result.serverless_usd / 4e-5
    assert lent + result.on_instances + result.refused == pytest.approx(load.queries, abs=1e-6)


def test_environments_that_a_plan_wants_cost_a_ping_each_time_that_lambda_has_dropped_them():
    load, world = trace([20, 20, 2000], [0, 100, 0]), scenario(keep_alive_s=600.0)
    cold, warm = (run_rates(load, world, Scripted([0], count)) for count in (0, 40))
    assert cold.pings.sum() == 0
    times = {5 * step + 5: pings for step, pings in enumerate(warm.pings.tolist()) if pings}
    # the load used 19 up to 40 s: 12 on average
    assert times == {5: 40, 605: 21, 640: 19, 1205: 21, 1240: 19, 1805: 21, 1840: 19}
    assert warm.pings.sum() == 160
    assert warm.serverless_usd - cold.serverless_usd == pytest.approx(160 * 4e-5)
    assert run_rates(load, world, Scripted([0], 40), overflow=False).pings.sum() == 0
    few = scenario(keep_alive_s=600.0, concurrency=7)
    assert run_rates(load, few, Scripted([0], 40)).pings.sum() == pytest.approx(7 * 4)


def test_pings_are_within_the_ceiling_all_or_none():
    load, world = trace([1800], [0]), scenario(keep_alive_s=600.0)
    assert run_rates(load, world, Scripted([0], 10)).pings.sum() == 30
    assert run_rates(load, world, Scripted([0], 10), max_usd_per_hour=25 * 4e-5).pings.sum() == 20
    assert run_rates(load, world, Scripted([0], 10), max_usd_per_hour=9 * 4e-5).pings.sum() == 0


@pytest.mark.parametrize("warm", [0, 10])
def test_a_ceiling_that_is_never_reached_changes_nothing(warm):
    load, world = trace([60] * 30, [20, 150, 70] * 10), scenario()
    free, bound = (
        run_rates(load, world, Scripted([1, 3, 0, 2], warm), max_usd_per_hour=ceiling) for ceiling in (math.inf, 1e6)
    )
    assert bound.cost_usd == pytest.approx(free.cost_usd)
    assert (bound.launches, bound.pings.tolist()) == (free.launches, free.pings.tolist())


def test_routers_are_snapshotted_at_the_marks():
    policy = Scripted([0])
    result = run_rates(trace([50], [1]), scenario(), policy, marks=(0, 22, 22, 50))
    assert [len(router.policy.seen) for router in result.routers] == [0, 4, 4, 10]
    assert len(policy.seen) == 10


@pytest.mark.parametrize("ceiling", [math.inf, 1e6])
def test_a_policy_sees_instances_that_boot_and_then_serve(ceiling):
    policy, world = Scripted([2, 2, 2, 1, 1]), scenario(boot_s=10.0)
    run_rates(trace([25], [1]), world, policy, max_usd_per_hour=ceiling)
    states = [[(str(group.state), group.count) for group in fleet] for fleet in policy.fleets]
    assert states == [[], [("booting", 2)], [("serving", 2)], [("serving", 2)], [("serving", 1)]]


TYPES = parse_scenario(tomllib.loads(TWO_TYPES))


def test_each_type_and_market_serves_and_costs_its_own():
    policy = Bought(InstanceCount("g4dn.xlarge", Market.ON_DEMAND, 1), InstanceCount("g5.xlarge", Market.SPOT, 2))
    result = run_rates(trace([3605], [1000]), TYPES, policy)
    assert result.instances_usd == pytest.approx(0.526 + 2 * 0.40)
    served = 60 * (3600 - 120) + 2 * 200 * (3600 - 180)
    assert result.on_instances == pytest.approx(served)
    assert result.timeline.instances_usd_per_s.max() * 3600 == pytest.approx(0.526 + 2 * 0.40)


def test_lost_spot_instances_are_seen_paid_for_until_then_and_replaced():
    policy = Bought(InstanceCount("g4dn.xlarge", Market.ON_DEMAND, 2), InstanceCount("g5.xlarge", Market.SPOT, 3))
    result = run_rates(trace([36_000], [500]), TYPES, policy, losses=SpotLosses(2.0, 1))
    lost = int(result.fleet.lost.sum())
    assert 30 < lost < 90  # 3 instances of ten hours, twice an hour
    assert sum(one.count for one in policy.interruptions) == lost
    assert {one.kind for one in policy.interruptions} == {"g5.xlarge"}
    assert result.launches == 5 + lost
    assert result.fleet.on_at(np.array([35_999.0])) == 5
    again = run_rates(trace([36_000], [500]), TYPES, Bought(*policy.wanted), losses=SpotLosses(2.0, 1))
    assert again.cost_usd == result.cost_usd


@settings(max_examples=15, deadline=None)
@given(rows=LOADS, per_hour=st.floats(0, 50), seed=st.integers(0, 99))
def test_queries_and_dollars_add_up_whatever_is_lost(rows, per_hour, seed):
    policy = Bought(InstanceCount("g4dn.xlarge", Market.SPOT, 2), InstanceCount("g5.xlarge", Market.ON_DEMAND, 1))
    load = of(rows)
    result = run_rates(load, TYPES, policy, losses=SpotLosses(per_hour, seed))
    spans = np.diff(result.timeline.times_s)
    assert result.on_instances + result.serverless_usd / 4e-5 == pytest.approx(load.queries)
    unbilled = result.instances_usd - result.min_billing_usd
    assert float(spans @ result.timeline.instances_usd_per_s) == pytest.approx(unbilled, abs=1e-9)


def test_spot_instances_are_given_two_minutes_notice():
    policy = Bought(InstanceCount("g5.xlarge", Market.SPOT, 5))
    result = run_rates(trace([1500], [0]), TYPES, policy, losses=SpotLosses(shares=((1000.0, 0.4),)))
    counts = [{one.state: one.count for one in seen_fleet} for seen_fleet in policy.fleets]
    states = dict(zip(np.cumsum([seconds for seconds, _ in policy.seen]).tolist(), counts, strict=True))
    assert states[875.0] == {InstanceState.SERVING: 5}
    assert states[880.0] == states[995.0] == {InstanceState.SERVING: 3, InstanceState.LEAVING: 2}
    assert states[1000.0] == {InstanceState.SERVING: 3}
    assert states[1005.0] == {InstanceState.SERVING: 3, InstanceState.BOOTING: 2}
    assert result.fleet.stopped_s[result.fleet.lost].tolist() == [1000.0] * 2


@given(LOADS)
@settings(max_examples=50, deadline=None)
def test_policy_run_of_serfer_cost_spends_what_is_simulated_here(rows):
    load, world = of(rows), scenario(slo_ms=1000)
    marks = [load.seconds / 2, load.seconds / 4]
    run = run_policy(load, world, make_policy(DEFAULT, world), 5.0, marks, lambda _: None)
    expected = run_rates(load, world, make_policy(DEFAULT, world), marks=marks[::-1])
    assert run.cost_usd == pytest.approx(expected.cost_usd)
    for mark, begin in zip(marks, run.marks, strict=True):
        assert (begin.time_s, [*begin.launches]) == expected.resume(mark, load.seconds)[1:]
