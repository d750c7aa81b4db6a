"""What a leader decides of the instances that it sees."""

import pytest

from serfer.control.scenario import Market
from serfer.fleet.provisioners.provisioner import Member
from serfer.fleet.purchase import Purchase
from serfer.fleet.reconciler import Reconciler
from serfer.fleet.registry import FleetMember
from tests.fleet.fakes import GPU

SPOT = Purchase("gpu", Market.SPOT)
BOOT_S = 10.0


class World:
    """Instances that do as they are told, looked at once a second."""

    def __init__(self, reconciler=None, *, obeys=True, most=100):
        self.reconciler = reconciler or Reconciler(BOOT_S, GPU)
        self.now = 0.0
        self.ready = {}
        self.names = 0
        self.obeys = obeys
        self.most = most
        self.busy = set()
        self.ending = set()
        self.started = self.stops = self.interrupted = 0

    @property
    def members(self):
        states = {name: "draining" if name in self.ending else "serving" for name in self.ready}
        return [Member(name, f"http://{name}", state) for name, state in states.items()]

    def step(self, wanted, seconds=1):
        for _ in range(seconds):
            self.now += 1
            actions = self.reconciler.decide(self.now, self.members, self.ready, wanted, self.busy)
            self.started += actions.start
            self.stops += len(actions.stop)
            self.interrupted += actions.interrupted
            for _ in range(min(actions.start, self.most - len(self.ready))):
                self.names += 1
                self.ready[f"i-{self.names}"] = False
            if self.obeys:
                for name in actions.stop:
                    self.ready.pop(name, None)
        return {one.name: one.state for one in actions.listed}

    def boot(self):
        self.ready = dict.fromkeys(self.ready, True)


def serving_world(count=1, **given):
    world = World(**given)
    world.step(count)
    world.boot()
    return world


def adopted(bought, *states):
    """Return a world whose leader has found instances in these states published."""
    names = [f"i-{number}" for number, _ in enumerate(states, 1)]
    pairs = zip(names, states, strict=True)
    reconciler = Reconciler(BOOT_S, bought)
    reconciler.adopt([FleetMember(name, None, state, bought.kind, bought.market) for name, state in pairs], 0.0)
    return World(reconciler)


def test_missing_instances_are_started_once_and_serve_when_ready():
    world = World()
    assert world.step(2, 5) == {"i-1": "booting", "i-2": "booting"}
    assert world.started == 2
    world.boot()
    assert world.step(2) == {"i-1": "serving", "i-2": "serving"}


def test_booting_instances_are_stopped_first_then_the_youngest():
    world = serving_world(2)
    world.step(3, 2)
    assert world.step(2, 1) == {"i-1": "serving", "i-2": "serving", "i-3": "draining"}
    assert list(world.ready) == ["i-1", "i-2"]  # nobody ever sent the third one a query
    assert world.step(1) == {"i-1": "serving", "i-2": "draining"}
    assert list(world.ready) == ["i-1", "i-2"]
    world.step(1, 10)
    assert list(world.ready) == ["i-1"]


def test_instance_that_owes_answers_is_stopped_late_but_is_stopped():
    world = serving_world()
    world.busy = {"i-1"}
    assert world.step(0, 60) == {"i-1": "draining"}
    world.busy = set()
    world.step(0)
    assert world.ready == {}
    world = serving_world()
    world.busy = {"i-1"}
    world.step(0, 200)
    assert world.ready == {}


def test_leaving_members_are_kept_before_new_ones_start():
    world = serving_world(2)
    world.step(1, 2)
    assert world.step(2) == {"i-1": "serving", "i-2": "serving"}
    assert world.started == 2


@pytest.mark.who_may
def test_an_instance_that_its_owner_keeps_can_be_used_again():
    world = serving_world(1, obeys=False)
    world.step(0, 110)
    assert 1 < world.stops < 6  # it is asked again, but not every second
    assert world.step(1) == {"i-1": "serving"}
    assert world.started == 1


def test_instance_that_is_not_ready_is_replaced():
    world = serving_world()
    world.step(1)
    world.ready["i-1"] = False
    world.busy = {"i-1"}  # nobody waits for what does not answer
    assert world.step(1, 4) == {"i-1": "serving"}
    world.step(1, 3)
    assert list(world.ready) == ["i-2"]
    world = World()
    world.step(1, 80)
    assert list(world.ready) == ["i-1"]
    world.step(1, 20)
    assert list(world.ready) == ["i-2"]


@pytest.mark.killed
def test_an_instance_that_dies_is_replaced_at_once():
    world = serving_world()
    world.step(1, 5)
    world.ready.clear()
    world.step(1)
    assert list(world.ready) == ["i-2"]


def test_starts_that_bring_no_instance_become_rare():
    world = World()
    for _ in range(300):
        world.step(1)
        world.ready.clear()
    assert 5 < world.started < 15
    world = serving_world(3, most=1)
    world.step(3, 300)
    assert list(world.ready) == ["i-1"]
    assert 5 < world.started < 40


def test_a_new_leader_restores_the_published_state():
    world = adopted(GPU, "serving", "serving", "draining")
    world.ready = {"i-1": True, "i-2": True, "i-3": True}
    assert world.step(2) == {"i-1": "serving", "i-2": "serving", "i-3": "draining"}
    world.step(2, 8)
    assert list(world.ready) == ["i-1", "i-2"]


def test_an_instance_that_ends_by_itself_gets_no_queries():
    reconciler = Reconciler(BOOT_S, GPU)
    ending = [Member("i-1", "http://i-1", "draining")]
    actions = reconciler.decide(1.0, ending, {}, 1, set())
    assert [one.state for one in actions.listed] == ["draining"]
    assert actions.start == 1


def spot_world():
    world = serving_world(2, reconciler=Reconciler(BOOT_S, SPOT))
    world.step(2)
    return world


def test_a_spot_instance_under_notice_is_leaving_and_counts_as_wanted_until_it_is_gone():
    world = spot_world()
    world.ending = {"i-1"}
    assert world.step(2, 130) == {"i-1": "leaving", "i-2": "serving"}
    assert (world.started, world.stops, world.interrupted) == (2, 0, 0)
    assert world.step(3, 2)["i-3"] == "booting"  # a plan that replaces it says so
    world.boot()
    del world.ready["i-1"]
    assert world.step(2, 5) == {"i-2": "serving", "i-3": "serving"}
    assert (world.started, world.interrupted) == (3, 1)


def test_one_that_was_to_be_stopped_is_kept_in_place_of_one_under_notice():
    world = spot_world()
    world.busy = {"i-2"}
    world.step(1, 2)
    world.ending = {"i-1"}
    assert world.step(1) == {"i-1": "leaving", "i-2": "serving"}


def test_lost_spot_instance_is_one_interruption():
    world = spot_world()
    del world.ready["i-1"]
    world.step(2, 5)
    assert (world.started, world.interrupted) == (3, 1)
    world = spot_world()
    world.ready["i-1"] = False
    world.step(2, 20)
    assert world.interrupted == 1
    assert "i-1" not in world.ready


def test_a_spot_instance_that_was_stopped_or_never_served_is_not_an_interruption():
    world = spot_world()
    world.step(1, 10)
    world.step(2, 2)
    del world.ready["i-3"]  # it booted
    world.step(1, 2)
    world.step(0, 10)
    assert world.ready == {}
    assert world.interrupted == 0


def test_instances_on_demand_are_never_interrupted():
    world = serving_world()
    world.step(1)
    world.ending = {"i-1"}
    assert world.step(1, 2)["i-1"] == "draining"
    assert world.started == 2
    world.ready.clear()
    world.step(1, 5)
    assert world.interrupted == 0


def test_a_new_leader_counts_what_was_lost_meanwhile_once():
    world = adopted(SPOT, "leaving", "serving", "draining", "booting")
    world.step(0, 3)
    assert world.interrupted == 2
