"""Stepwise target tracking: half load, the last minute, one step a cooldown."""

from importlib.metadata import EntryPoints
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies import GROUP, POLICIES, STUDY, make_policy
from serfer.control.policy import InstanceCount, InstanceState, Interruption, Observation, ProvisioningPlan, on_demand
from serfer.control.scenario import Market, parse_scenario
from serfer.core.errors import MissingExtraError
from serfer.cost.loads.trace import Trace
from serfer.fleet.open_pool import choose_routing
from serfer.plug_ins import plugged_in
from serfer_bench.study.policies import NAMES
from serfer_bench.study.policies.rate_account import AccountedPolicy, RateAccount
from serfer_bench.study.policies.target_tracking_stepwise import StepwiseTargetTracking
from serfer_bench.study.sim.rates import run_rates
from tests.control.worlds import QPS, fleet, rows, scenario, seen, steps
from tests.fleet.fakes import SCENARIO
from tests.fleet.test_open_pool import file as file  # noqa: PLC0414 - a fixture
from tests.study.sim.worlds import Scripted


def desired(load, policy=None, step_s=10.0):
    policy = policy or StepwiseTargetTracking(scenario())
    return [policy.observe(seen(*step)).total for step in steps(load, step_s)]


def changes(on, before=1):
    moves = enumerate(pairwise([before, *on]))
    return [(number, after - earlier) for number, (earlier, after) in moves if after != earlier]


@pytest.mark.parametrize(("load", "instances"), [(0.0, 1), (0.5, 1), (0.51, 2), (1.0, 2), (1.75, 4)])
def test_instances_are_kept_half_loaded_and_there_is_always_one(load, instances):
    assert desired([(6000, load * QPS)])[-1] == instances


def test_scaling_is_one_step_in_300_seconds():
    policy = StepwiseTargetTracking(scenario())
    assert changes(desired([(1800, 2 * QPS)], policy)) == [(0, 1), (30, 1), (60, 1)]
    down = changes(desired([(1800, 0.0)], policy), before=4)
    assert [change for _, change in down] == [-1, -1, -1]
    assert [later[0] - earlier[0] for earlier, later in pairwise(down)] == [30, 30]


def test_the_last_minute_counts_and_nothing_before_it():
    policy = StepwiseTargetTracking(scenario())
    desired([(3600, 0.4 * QPS)], policy)
    assert desired([(40, 1.0 * QPS)], policy) == [1, 2, 2, 2]  # (50 * 0.4 + 10) / 60 = 0.5, and a second one after that
    on = desired([(600, 0.0)], policy)
    assert on[:26] == [2] * 26  # it cools
    assert on[-1] == 1
    steady = StepwiseTargetTracking(scenario())
    desired([(3600, 3 * QPS)], steady)
    assert desired([(50, QPS)], steady) == [6, 5, 5, 5, 5]  # 26.7 queries/s, 23.3, and then it cools
    assert "10.0 queries/s" in steady.observe(seen(10.0, QPS)).reason


def test_a_late_observation_counts_for_its_whole_duration_and_running_instances_stay():
    policy = StepwiseTargetTracking(scenario())
    assert policy.observe(seen(600.0, 0.75 * QPS)).total == 2
    assert policy.observe(seen(600.0, 0.0)).total == 1
    policy = StepwiseTargetTracking(scenario())
    policy.resume(fleet(4))
    assert desired([(600, 2 * QPS)], policy) == [4] * 60
    nothing = StepwiseTargetTracking(scenario())
    nothing.resume(fleet(0))
    assert nothing.observe(seen(10.0, 0.0)).total == 1


@settings(derandomize=True, max_examples=20, deadline=None)
@given(load=rows(3.5 * QPS), name=st.sampled_from(["break-even", "ski-rental", "target-tracking", "instances", "mark"]))
def test_an_account_is_the_simulators(load, name):
    world = parse_scenario({**SCENARIO, "instance": [{**SCENARIO["instance"][0], "qps": QPS, "min_billing_s": 60}]})
    durations, rates = (np.array(values, float) for values in zip(*load, strict=True))
    trace = Trace("load", durations, rates)
    run = run_rates(trace, world, make_policy(name, world), period_s=5.0)
    accounted = AccountedPolicy(make_policy(name, world), world)
    for seconds, rate in zip(run.steps.durations_s.tolist(), run.steps.rates.tolist(), strict=True):
        accounted.observe(seen(seconds, rate))
    accounted.account.want(ProvisioningPlan((), "the end"))  # the least billed time
    assert accounted.account.serverless_usd == pytest.approx(run.serverless_usd)
    assert accounted.account.instances_usd == pytest.approx(run.instances_usd)


def test_a_policy_sees_the_fleet_that_it_would_have():
    world, policy = scenario(boot_s=10.0), Scripted([2])
    accounted = AccountedPolicy(policy, world)
    accounted.resume(fleet(1))
    for _ in range(3):
        accounted.observe(Observation(0.0, 8.0, 0.0, fleet(7)))
    booting, serving = InstanceState.BOOTING, InstanceState.SERVING
    fleets = [[(group.state, group.count) for group in seen_fleet] for seen_fleet in policy.fleets]
    assert fleets == [[(serving, 1)], [(booting, 1), (serving, 1)], [(serving, 2)]]


def test_a_policy_sees_no_interruptions_of_a_fleet_that_is_not_its_own():
    interrupted = Observation(0.0, 1.0, 0.0, fleet(1), interruptions=(Interruption("gpu", 1),))
    for same_fleet, lost in ((False, []), (True, [Interruption("gpu", 1)])):
        policy = Scripted([0])
        AccountedPolicy(policy, scenario(), same_fleet=same_fleet).observe(interrupted)
        assert policy.interruptions == lost


def test_types_and_markets_have_their_own_prices_and_an_unknown_type_changes_nothing():
    kind = SCENARIO["instance"][0]
    world = parse_scenario({**SCENARIO, "instance": [kind, {**kind, "name": "b", "spot_usd_per_hour": 1.8}]})
    account = RateAccount(world)
    account.want(ProvisioningPlan((InstanceCount("gpu", Market.ON_DEMAND, 1), InstanceCount("b", Market.SPOT, 2)), "x"))
    account.pass_time(3600.0, 0.0)
    assert account.instances_usd == pytest.approx(3.6 + 2 * 1.8)
    account = RateAccount(scenario())
    account.want(on_demand(scenario().instance, 1, "x"))
    with pytest.raises(KeyError):
        account.want(ProvisioningPlan((InstanceCount("none", Market.SPOT, 2),), "x"))
    assert [group.count for group in account.fleet()] == [1]


def test_names_are_those_of_the_product_and_of_the_entry_points():
    assert {*NAMES} == {*POLICIES, *plugged_in(GROUP)}
    assert {*STUDY} < {*NAMES}


@pytest.mark.parametrize("route", [*STUDY, "mark:sl_min=0.99"])
def test_route_without_the_studies_names_the_command_that_installs_them(file, monkeypatch, route):
    monkeypatch.setattr("serfer.plug_ins.entry_points", lambda group: EntryPoints([]).select(group=group))
    with pytest.raises(MissingExtraError, match=r"pip install \./bench") as raised:
        choose_routing(route, "local", file, None)
    assert "\n" not in str(raised.value)
