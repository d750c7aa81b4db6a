"""What a leader decides of the instances that it sees."""

from serfer.fleet.provisioners.provisioner import Member
from serfer.fleet.reconciler import Reconciler
from serfer.fleet.registry import FleetMember, FleetState

BOOT_S = 10.0


class World:
    """Instances that do as they are told, looked at once a second."""

    def __init__(self, reconciler=None, *, obeys=True, most=100):
        self.reconciler = reconciler or Reconciler(BOOT_S)
        self.now = 0.0
        self.ready = {}
        self.names = 0
        self.obeys = obeys
        self.most = most
        self.busy = set()
        self.started = self.stops = 0

    @property
    def members(self):
        return [Member(name, f"http://{name}", "serving") for name in self.ready]

    def step(self, wanted, seconds=1):
        for _ in range(seconds):
            self.now += 1
            actions = self.reconciler.decide(self.now, self.members, self.ready, wanted, self.busy)
            self.started += actions.start
            self.stops += len(actions.stop)
            for _ in range(min(actions.start, self.most - len(self.ready))):
                self.names += 1
                self.ready[f"i-{self.names}"] = False
            if self.obeys:
                for name in actions.stop:
                    self.ready.pop(name, None)
        return {one.name: one.state for one in actions.listed}

    def boot(self):
        self.ready = dict.fromkeys(self.ready, True)


def test_missing_instances_are_started_once_and_serve_when_ready():
    world = World()
    assert world.step(2, 5) == {"i-1": "booting", "i-2": "booting"}
    assert world.started == 2
    world.boot()
    assert world.step(2) == {"i-1": "serving", "i-2": "serving"}


def test_booting_instances_are_stopped_first_then_the_youngest():
    world = World()
    world.step(2)
    world.boot()
    world.step(3, 2)
    assert world.step(2, 1) == {"i-1": "serving", "i-2": "serving", "i-3": "draining"}
    assert list(world.ready) == ["i-1", "i-2"]  # nobody ever sent the third one a query
    assert world.step(1) == {"i-1": "serving", "i-2": "draining"}
    assert list(world.ready) == ["i-1", "i-2"]
    world.step(1, 10)
    assert list(world.ready) == ["i-1"]


def test_an_instance_is_not_stopped_while_it_owes_answers():
    world = World()
    world.step(1)
    world.boot()
    world.busy = {"i-1"}
    assert world.step(0, 60) == {"i-1": "draining"}
    world.busy = set()
    world.step(0)
    assert world.ready == {}


def test_an_answer_is_not_waited_for_without_end():
    world = World()
    world.step(1)
    world.boot()
    world.busy = {"i-1"}
    world.step(0, 200)
    assert world.ready == {}


def test_leaving_members_are_kept_before_new_ones_start():
    world = World()
    world.step(2)
    world.boot()
    world.step(1, 2)
    assert world.step(2) == {"i-1": "serving", "i-2": "serving"}
    assert world.started == 2


def test_an_instance_that_its_owner_keeps_can_be_used_again():
    world = World(obeys=False)
    world.step(1)
    world.boot()
    world.step(0, 110)
    assert 1 < world.stops < 6  # it is asked again, but not every second
    assert world.step(1) == {"i-1": "serving"}
    assert world.started == 1


def test_an_instance_that_is_ready_no_more_is_stopped_and_replaced():
    world = World()
    world.step(1)
    world.boot()
    world.step(1)
    world.ready["i-1"] = False
    world.busy = {"i-1"}  # nobody waits for what does not answer
    assert world.step(1, 4) == {"i-1": "serving"}
    world.step(1, 3)
    assert list(world.ready) == ["i-2"]


def test_an_instance_that_never_gets_ready_is_replaced_after_a_while():
    world = World()
    world.step(1, 80)
    assert list(world.ready) == ["i-1"]
    world.step(1, 20)
    assert list(world.ready) == ["i-2"]


def test_an_instance_that_dies_is_replaced_at_once():
    world = World()
    world.step(1)
    world.boot()
    world.step(1, 5)
    world.ready.clear()
    world.step(1)
    assert list(world.ready) == ["i-2"]


def test_instances_that_end_while_they_boot_are_started_ever_more_rarely():
    world = World()
    for _ in range(300):
        world.step(1)
        world.ready.clear()
    assert 5 < world.started < 15


def test_starts_that_bring_no_instance_back_off():
    world = World(most=1)
    world.step(3)
    world.boot()
    world.step(3, 300)
    assert list(world.ready) == ["i-1"]
    assert 5 < world.started < 40


def test_a_new_leader_restores_the_published_state():
    published = FleetState(
        "a",
        (
            FleetMember("i-1", "http://i-1", "serving"),
            FleetMember("i-2", "http://i-2", "serving"),
            FleetMember("i-3", "http://i-3", "draining"),
        ),
        2,
        "",
    )
    reconciler = Reconciler(BOOT_S)
    reconciler.adopt(published, 0.0)
    world = World(reconciler)
    world.ready = {"i-1": True, "i-2": True, "i-3": True}
    assert world.step(2) == {"i-1": "serving", "i-2": "serving", "i-3": "draining"}
    world.step(2, 8)
    assert list(world.ready) == ["i-1", "i-2"]


def test_an_instance_that_ends_by_itself_gets_no_queries():
    reconciler = Reconciler(BOOT_S)
    ending = [Member("i-1", "http://i-1", "draining")]
    actions = reconciler.decide(1.0, ending, {}, 1, set())
    assert [one.state for one in actions.listed] == ["draining"]
    assert actions.start == 1
