"""A pool of two Auto Scaling groups, one of them spot instances that AWS takes away, against moto's server."""

import pytest

from serfer.control.policy import InstanceGroup, InstanceState, Interruption
from serfer.control.scenario import Market
from serfer.fleet.provisioner_url import open_provisioner, specs_by_purchase
from tests.fleet.fakes import Drivers
from tests.fleet.test_several_types import CPU, SCENARIO, SPOT
from tests.moto_server import ACCESS, MotoServer

GROUPS = {SPOT: "shop-spot", CPU: "shop-cpu"}


@pytest.fixture
def moto(monkeypatch):
    with MotoServer() as server:
        for name, value in {**ACCESS, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        server.auto_scaling_groups(dict.fromkeys(GROUPS.values(), (0, 4)))
        yield server


class Everywhere:
    """Addresses that are all up."""

    def __contains__(self, _url):
        return True


def ids(moto, bought):
    with moto.client("autoscaling") as client:
        [group] = client.describe_auto_scaling_groups(AutoScalingGroupNames=[GROUPS[bought]])["AutoScalingGroups"]
    return [each["InstanceId"] for each in group["Instances"]]


async def test_two_groups_are_one_pool_and_a_spot_instance_that_aws_takes_is_an_interruption(moto):
    world = Drivers(SCENARIO, [])
    specs = specs_by_purchase("gpu/spot=ec2:shop-spot,cpu=ec2:shop-cpu", SCENARIO)
    world.provisioners.update({one: open_provisioner(spec) for one, spec in specs.items()})
    world.net.up = Everywhere()
    one, policy = world.add_wanting(counts={SPOT: 2, CPU: 1})
    await world.step(6)
    assert one.troubles == {}
    assert (len(ids(moto, SPOT)), len(ids(moto, CPU))) == (2, 1)
    assert one.pool.serving_by_type == {SPOT: 2, CPU: 1}

    noticed, taken = ids(moto, SPOT)
    with moto.client("autoscaling") as client:  # as where EC2's checks say so
        client.set_instance_health(InstanceId=noticed, HealthStatus="Unhealthy")
    await world.step(2)
    assert one.pool.serving_by_type == {SPOT: 1, CPU: 1}
    leaving = InstanceGroup("gpu", Market.SPOT, InstanceState.LEAVING, 1)
    assert leaving in policy.seen[-1].fleet
    assert policy.interruptions == []

    with moto.client("ec2") as ec2:
        ec2.terminate_instances(InstanceIds=[noticed, taken])  # the group replaces them
    await world.step(6)
    assert policy.interruptions == [Interruption("gpu", 2)]
    assert not {noticed, taken} & {*ids(moto, SPOT)}
    assert one.pool.serving_by_type == {SPOT: 2, CPU: 1}

    policy.counts = {}
    await world.step(8)
    assert ids(moto, SPOT) == ids(moto, CPU) == []
    await one.close()
