"""The leader gives each instance the batch size that the plan has for one, by requests, and publishes it."""

import asyncio

from serfer.control.dispatch import Batching, window_s
from serfer.control.policy import InstanceCount, InstanceState, ProvisioningPlan
from serfer.control.scenario import Market
from serfer.fleet.provisioners.batch_sizes import BatchSizes
from serfer.fleet.registry import FleetMember
from tests.fleet.fakes import GPU, Drivers, Net, scenario


def wanting(*batches):
    groups = tuple(InstanceCount("gpu", Market.ON_DEMAND, 1, batch) for batch in batches)
    return ProvisioningPlan(groups, "as the test says")


class Pool:
    def __init__(self, count, known=()):
        self.net = Net()
        self.members = [FleetMember(f"i-{n}", f"http://i-{n}", InstanceState.SERVING, "gpu") for n in range(count)]
        self.sizes = BatchSizes(scenario(), self.net.connect, known)
        self.ready = {one.name: True for one in self.members}

    def bring(self, plan):
        """Return the batch sizes afterwards, and the requests that it took."""
        self.net.settings.clear()
        work = self.sizes.bring(GPU, self.members, plan, self.ready)
        return [one.batch for one in asyncio.run(work)], [setting[:2] for setting in self.net.settings]


def test_instances_are_asked_once_and_only_those_that_have_another_size():
    pool = Pool(2)
    assert pool.bring(wanting(8, 2)) == ([8, 2], [("http://i-0", 8), ("http://i-1", 2)])
    assert pool.net.settings[0][2] == window_s(scenario().instance, 8, 200)
    assert pool.bring(wanting(8, 2)) == ([8, 2], [])
    assert pool.bring(wanting(2, 4)) == ([4, 2], [("http://i-0", 4)])


def test_policies_that_set_nothing_take_back_once_what_was_set():
    pool = Pool(2)
    both = ProvisioningPlan((InstanceCount("gpu", Market.ON_DEMAND, 2),), "both")
    asked = [("http://i-0", 0), ("http://i-1", 0)]
    assert pool.bring(both) == ([0, 0], asked)
    assert pool.bring(both) == ([0, 0], [])
    pool.bring(wanting(8, 2))
    assert pool.bring(both) == ([0, 0], asked)


def test_a_plans_batching_of_a_type_holds_for_its_instances():
    plan = ProvisioningPlan((InstanceCount("gpu", Market.ON_DEMAND, 2),), "both", batching={"gpu": Batching(4, 0.05)})
    pool = Pool(2)
    assert pool.bring(plan)[0] == [4, 4]
    assert [window for _, _, window in pool.net.settings] == [0.05] * 2


def test_one_that_does_not_answer_is_asked_again_and_one_that_was_away_too():
    pool = Pool(1)
    pool.net.batching = lambda _batch: None
    assert pool.bring(wanting(8)) == ([0], [("http://i-0", 8)])
    pool.net.batching = lambda batch: batch
    assert pool.bring(wanting(8)) == ([8], [("http://i-0", 8)])
    pool.ready["i-0"] = False
    assert pool.bring(wanting(8)) == ([0], [])
    pool.ready["i-0"] = True
    assert pool.bring(wanting(8)) == ([8], [("http://i-0", 8)])


def test_a_server_that_has_fewer_images_at_once_or_knows_no_sizes_is_asked_once():
    pool = Pool(2)
    pool.net.batching = lambda _batch: 4
    assert pool.bring(wanting(8, 8))[0] == [4, 4]
    assert pool.bring(wanting(8, 8)) == ([4, 4], [])
    other = Pool(1)
    other.net.batching = lambda _batch: 0
    assert other.bring(wanting(8)) == ([0], [("http://i-0", 8)])
    assert other.bring(wanting(8)) == ([0], [])


def test_instances_that_boot_are_asked_when_they_serve_and_the_largest_sizes_are_for_those_that_do():
    pool = Pool(2)
    pool.members[0] = FleetMember("i-0", None, InstanceState.BOOTING, "gpu")
    pool.ready.pop("i-0")
    assert pool.bring(wanting(8, 2)) == ([0, 8], [("http://i-1", 8)])


def test_the_next_leader_goes_on_from_what_was_published():
    known = [FleetMember(f"i-{n}", f"http://i-{n}", InstanceState.SERVING, "gpu", batch=8) for n in range(2)]
    assert Pool(2, known).bring(wanting(8, 8)) == ([8, 8], [])


class Sized:
    name = "sized"

    def __init__(self, *batches):
        self.batches = batches
        self.fleets = []

    def observe(self, seen):
        self.fleets.append({(group.state, group.batch): group.count for group in seen.fleet})
        return wanting(*self.batches)

    def resume(self, fleet):
        pass


async def test_every_driver_knows_the_batch_sizes_and_nothing_is_restarted_when_they_change():
    made = Drivers()
    policies = [Sized(8, 2), Sized(8, 2)]
    drivers = [made.add(name, policy) for name, policy in zip("ab", policies, strict=True)]
    await made.step(20)
    for driver, policy in zip(drivers, policies, strict=True):
        assert sorted(endpoint.batch for endpoint in driver.pool.endpoints()) == [2, 8]
        assert policy.fleets[-1] == {(InstanceState.SERVING, 8): 1, (InstanceState.SERVING, 2): 1}
        policy.batches = (8, 8)
    await made.step(3)
    assert [[one.batch for one in driver.pool.endpoints()] for driver in drivers] == [[8, 8], [8, 8]]
    assert made.provisioner.calls == [("start", 2)]
