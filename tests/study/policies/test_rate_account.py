"""What a policy would cost is counted as the simulator counts it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.policies import make_policy
from serfer.control.policy import InstanceCount, InstanceState, Interruption, Observation, ProvisioningPlan, on_demand
from serfer.control.scenario import Market, parse_scenario
from serfer.cost.loads.trace import Trace
from serfer_bench.study.policies.rate_account import AccountedPolicy, RateAccount
from serfer_bench.study.sim.rates import run_rates
from tests.control.worlds import QPS, fleet, rows, scenario, seen
from tests.fleet.fakes import SCENARIO


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
    world, fleets = scenario(boot_s=10.0), []

    class Two:
        name = "two"

        def observe(self, seen):
            fleets.append([(group.state, group.count) for group in seen.fleet])
            return on_demand(world.instance, 2, "always")

        def resume(self, fleet):
            pass

    accounted = AccountedPolicy(Two(), world)
    accounted.resume(fleet(1))
    for _ in range(3):
        accounted.observe(Observation(0.0, 8.0, 0.0, fleet(7)))
    booting, serving = InstanceState.BOOTING, InstanceState.SERVING
    assert fleets == [[(serving, 1)], [(booting, 1), (serving, 1)], [(serving, 2)]]


def test_a_policy_sees_no_interruptions_of_a_fleet_that_is_not_its_own():
    world, lost = scenario(), []

    class Watching:
        name = "watching"

        def observe(self, seen):
            lost.append(seen.interruptions)
            return ProvisioningPlan((), "nothing")

        def resume(self, fleet):
            pass

    interrupted = Observation(0.0, 1.0, 0.0, fleet(1), interruptions=(Interruption("gpu", 1),))
    AccountedPolicy(Watching(), world).observe(interrupted)
    AccountedPolicy(Watching(), world, same_fleet=True).observe(interrupted)
    assert lost == [(), interrupted.interruptions]


def test_types_and_markets_have_their_own_prices():
    kind = SCENARIO["instance"][0]
    world = parse_scenario({**SCENARIO, "instance": [kind, {**kind, "name": "b", "spot_usd_per_hour": 1.8}]})
    account = RateAccount(world)
    account.want(ProvisioningPlan((InstanceCount("gpu", Market.ON_DEMAND, 1), InstanceCount("b", Market.SPOT, 2)), "x"))
    account.pass_time(3600.0, 0.0)
    assert account.instances_usd == pytest.approx(3.6 + 2 * 1.8)


def test_a_plan_of_an_unknown_type_changes_nothing():
    account = RateAccount(scenario())
    account.want(on_demand(scenario().instance, 1, "x"))
    with pytest.raises(KeyError):
        account.want(ProvisioningPlan((InstanceCount("none", Market.SPOT, 2),), "x"))
    assert [group.count for group in account.fleet()] == [1]
