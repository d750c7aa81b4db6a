"""Pools of several types and markets: each has its provisioner, its price, and its place in what policies see."""

import pytest

from serfer.control.policies import make_policy
from serfer.control.policy import InstanceGroup, InstanceState, Interruption, Observation
from serfer.control.scenario import Market, parse_scenario
from serfer.core.errors import UnavailableError
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import DriverLoad, FleetMember, FleetState, PoolRegistry
from serfer_bench.study.policies import NAMES
from tests.fleet.fakes import GPU, TWO_TYPES, Drivers

CPU, SPOT = Purchase("cpu"), Purchase("gpu", Market.SPOT)
SCENARIO = parse_scenario(TWO_TYPES)
PURCHASES = (GPU, SPOT, CPU)


async def test_each_type_and_market_is_started_by_its_own_provisioner_and_stopped_again():
    world = Drivers(SCENARIO, PURCHASES)
    one, policy = world.add_wanting(counts={GPU: 1, SPOT: 2, CPU: 1})
    await world.step(8)
    assert one.pool.serving_by_type == {CPU: 1}  # the others boot for 10 s
    assert policy.seen[-1].fleet == (
        InstanceGroup("cpu", Market.ON_DEMAND, InstanceState.SERVING, 1),
        InstanceGroup("gpu", Market.ON_DEMAND, InstanceState.BOOTING, 1),
        InstanceGroup("gpu", Market.SPOT, InstanceState.BOOTING, 2),
    )
    await world.step(12)
    assert world.there() == {GPU: 1, SPOT: 2, CPU: 1}
    assert one.pool.serving_by_type == {GPU: 1, SPOT: 2, CPU: 1}
    policy.counts = {SPOT: 1}
    await world.step(15)
    assert world.there() == {SPOT: 1}
    assert one.changes == {"started": 4, "stopped": 3}


async def test_dollars_are_those_of_each_type_and_market():
    world = Drivers(SCENARIO, PURCHASES)
    one, _ = world.add_wanting(counts={GPU: 1, SPOT: 2, CPU: 3})
    await world.step(61)
    usd = {bought: each.hour_usd for bought, each in one.status.types.items()}
    prices = {GPU: 3.6, SPOT: 2 * 1.2, CPU: 3 * 0.36}
    seconds = usd[GPU] / 3.6 * 3600
    assert 50 < seconds <= 60
    assert usd == {bought: pytest.approx(price * seconds / 3600) for bought, price in prices.items()}
    assert one.status.instances_usd == pytest.approx(sum(usd.values()))


async def test_a_type_without_a_provisioner_is_not_started_and_the_reason_says_so(caplog):
    caplog.set_level("INFO", "serfer.fleet")
    world = Drivers(SCENARIO)
    one, _ = world.add_wanting(counts={GPU: 1, SPOT: 2, CPU: 1})
    await world.step(3)
    assert world.there() == {GPU: 1}
    assert one.status.wanted == 1
    (start,) = [record.serfer for record in caplog.records if record.msg == "pool starts instances"]
    reason = "the test says so; --instances has nothing for 2 gpu/spot, 1 cpu"
    assert start == {"count": 1, "type": "gpu", "wanted": 1, "reason": reason}


async def test_a_provisioner_that_fails_holds_up_no_other_type():
    world = Drivers(SCENARIO, PURCHASES)
    one, policy = world.add_wanting(counts={GPU: 1, CPU: 1})
    await world.step(15)
    world.provisioners[GPU].broken = UnavailableError("ec2 refuses")
    policy.counts = {GPU: 2, CPU: 2}
    await world.step(10)
    assert one.pool.serving_by_type == {GPU: 1, CPU: 2}  # the one that served goes on
    assert one.troubles["provisioner"] == 10
    world.provisioners[GPU].broken = None
    await world.step(12)
    assert one.pool.serving_by_type == {GPU: 2, CPU: 2}


async def test_an_interruption_reaches_the_policy_of_every_driver_once():
    world = Drivers(SCENARIO, PURCHASES)
    (_, first), (_, second) = (world.add_wanting(name, {SPOT: 2}) for name in "ab")
    await world.step(15)
    lost, _ = world.provisioners[SPOT].there
    world.provisioners[SPOT].lose(lost)
    await world.step(20)
    assert first.interruptions == second.interruptions == [Interruption("gpu", 1)]
    assert world.there() == {SPOT: 2}
    late, _ = world.add_wanting("c")
    await world.step(3)
    assert late.pool.serving == 2
    assert world.running["c"].pool.router.policy.interruptions == []  # it was before its time
    assert sum(each.changes["interrupted"] for each in world.running.values()) == 1


async def test_interruptions_count_on_when_another_driver_leads():
    world = Drivers(SCENARIO, PURCHASES)
    for name in "ab":
        world.add_wanting(name, {SPOT: 1})
    for number in range(2):
        await world.step(15)
        world.provisioners[SPOT].lose(next(iter(world.provisioners[SPOT].there)))
        await world.step(3)
        if not number:
            del world.running[world.leader]
    [left] = world.running
    assert world.policies[left].interruptions == [Interruption("gpu", 1)] * 2


async def test_an_instance_under_notice_gets_no_more_queries_and_is_reported_as_leaving():
    world = Drivers(SCENARIO, PURCHASES)
    one, policy = world.add_wanting(counts={SPOT: 1})
    await world.step(15)
    (name,) = world.provisioners[SPOT].there
    world.provisioners[SPOT].ending = {name}
    await world.step(2)
    assert one.pool.serving == 0
    assert policy.seen[-1].fleet == (InstanceGroup("gpu", Market.SPOT, InstanceState.LEAVING, 1),)
    assert policy.interruptions == []
    world.provisioners[SPOT].lose(name)
    await world.step(2)
    assert policy.interruptions == [Interruption("gpu", 1)]


@pytest.mark.killed
async def test_instances_of_a_dead_fleet_are_adopted_by_type():
    world = Drivers(SCENARIO, PURCHASES)
    await world.provisioners[SPOT].start(1)
    await world.provisioners[CPU].start(2)
    world.clock.now += 100
    one, policy = world.add_wanting()
    await world.step(2)
    policy.counts = {SPOT: 1, CPU: 2}
    await world.step(2)
    assert {(group.kind, group.market, group.count) for group in policy.resumed[0]} == {
        ("gpu", Market.SPOT, 1),
        ("cpu", Market.ON_DEMAND, 2),
    }
    assert one.pool.serving == 3
    assert one.changes["started"] == 0


async def test_the_last_driver_stops_the_types_that_end_with_it_and_no_others():
    world = Drivers(SCENARIO, PURCHASES, ends=[CPU])
    for name in "ab":
        world.add_wanting(name, counts={GPU: 1, CPU: 2})
    await world.step(15)
    await world.kill("a").close()
    assert world.there() == {GPU: 1, CPU: 2}
    await world.step(12)
    await world.kill("b").close()
    assert world.there() == {GPU: 1}
    assert [made.closed for made in world.provisioners.values()] == [2, 2, 2]


async def test_a_fleet_that_an_earlier_version_published_is_used_as_the_first_type_and_foreign_types_are_not():
    world = Drivers(SCENARIO, PURCHASES)
    one, policy = world.add_wanting()
    other = PoolRegistry(world.store.coordination(), "p", "old", world.clock)
    other.exchange(DriverLoad("old"))
    members = (FleetMember("i-1", "http://i-1", "serving"), FleetMember("i-2", "http://i-2", "serving", "tpu"))
    assert other.publish(FleetState("old", members, 2, "", (Interruption("tpu", 1),)))
    await one.tick()
    assert one.pool.serving_by_type == {GPU: 1}
    assert policy.seen[-1].fleet == (InstanceGroup("gpu", Market.ON_DEMAND, InstanceState.SERVING, 1),)
    assert one.troubles == {}


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("mark")])
def test_a_policy_of_one_type_goes_on_from_instances_of_that_type_alone(name):
    """Others, started for another policy before, are not to be replaced by its own."""
    serving = InstanceState.SERVING
    foreign = [InstanceGroup("gpu", Market.SPOT, serving, 3), InstanceGroup("cpu", Market.ON_DEMAND, serving, 2)]
    own = [InstanceGroup("gpu", Market.ON_DEMAND, serving, 1)]
    plans = []
    for fleet in ([*foreign, *own], own, foreign, []):
        policy = make_policy(name, SCENARIO)
        policy.resume(fleet)
        plans.append(policy.observe(Observation(1.0, 1.0, 5.0, tuple(fleet))).instances)
    assert plans[0] == plans[1]
    assert plans[2] == plans[3]
