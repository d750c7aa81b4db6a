"""Case II of a fleet: copies and instances follow the load, within bounds, and nothing that is needed goes."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.selection.scaling.demand import Demanding, NetworkDemand, total
from serfer.control.selection.scaling.fleet import FleetScaler
from serfer.control.selection.scaling.fleet_records import CopySeen, FleetObservation, InstanceSeen, PoolTerms
from serfer.control.selection.scaling.records import OPTIONS
from serfer.core.variants import Objectives, Place, VariantState
from tests.applications.worlds import on_instance, variant

APP = "faces"
PRICE = 0.36  # dollars an hour: 1e-4 a second
BOOT_S = 10.0


SLOW, FAST, OTHER = (
    on_instance(name, qps, network, usd_per_hour=PRICE)
    for name, qps, network in (("slow", 20.0, "net"), ("fast", 80.0, "net"), ("other", 50.0, "net2"))
)
VARIANTS = {(APP, each.name): each for each in (SLOW, FAST, OTHER)}


class World:
    """Instances that do as they are told: loads take `load_slots`, instances `boot_slots`."""

    def __init__(self, *, most=4, fixed=False, memory_mb=None, ceiling=float("inf"), stays=0, has=None, boot_s=BOOT_S):
        self.scaler = FleetScaler({"": PoolTerms(most, boot_s, fixed)})
        self.now, self.made = 0.0, 0
        self.memory_mb, self.size_mb, self.ceiling = memory_mb, 100.0, ceiling
        self.copies, self.boots = {}, {}
        self.load_slots, self.boot_slots = 2, 3
        self.loading = {}
        self.states, self.demand, self.plan = {}, {}, None
        for _ in range(stays):
            self.start()
            self.boots.clear()
        if has is not None:
            self.copies["i1"][APP, has] = "loaded"

    def start(self):
        self.made += 1
        name = f"i{self.made}"
        self.copies[name] = dict.fromkeys(VARIANTS, "unloaded")
        self.boots[name] = self.boot_slots

    def want(self, rate, network="net", *, functions_usd=1e-3, stranded=0.0, **fields):
        asked = NetworkDemand(network, rate=rate, functions_usd=rate * functions_usd, stranded=stranded, **fields)
        self.demand[asked.key] = asked

    def seen(self):
        instances = tuple(
            InstanceSeen(name, "", self.copies_seen(name), self.memory_mb, 0.1, boots=name in self.boots)
            for name in self.copies
        )
        return FleetObservation(self.now, 1.0, instances, VARIANTS, {APP: self.demand}, {"": PRICE}, self.ceiling)

    def copies_seen(self, name):
        copies = {} if name in self.boots else self.copies[name]
        states = {key: self.states.get((name, key), VariantState.ACTIVE) for key in copies}
        return {key: CopySeen(status, self.size_mb, states[key]) for key, status in copies.items()}

    def slot(self, check=lambda _world, _seen, _plan: None):
        self.now += 1
        for name in [name for name, left in self.boots.items() if left <= 1]:
            del self.boots[name]
        self.boots = {name: left - 1 for name, left in self.boots.items()}
        for (name, key), left in [*self.loading.items()]:
            if left > 1:
                self.loading[name, key] = left - 1
                continue
            del self.loading[name, key]
            if name in self.copies:
                self.copies[name][key] = "loaded"
        seen = self.seen()
        plan = self.plan = self.scaler.observe(seen)
        check(self, seen, plan)
        for name, key in plan.load:
            if self.copies[name][key] == "unloaded":
                self.copies[name][key] = "loading"
                self.loading[name, key] = self.load_slots
        for name, key in plan.unload:
            self.copies[name][key] = "unloaded"
        wanted = plan.wanted.get("", len(self.copies))
        while len(self.copies) < wanted:
            self.start()
        order = sorted(self.copies, key=lambda name: (name not in plan.spare, -int(name[1:])))
        for name in order[: max(0, len(self.copies) - wanted)]:
            del self.copies[name]
            self.boots.pop(name, None)

    def slots(self, count, check=lambda _world, _seen, _plan: None):
        for _ in range(count):
            self.slot(check)

    def loaded(self):
        return sorted(key[1] for copies in self.copies.values() for key, status in copies.items() if status == "loaded")


def test_more_load_upgrades_in_place_before_another_instance_and_the_old_goes_when_the_new_is_loaded():
    world = World(stays=1, has="slow")
    world.want(40.0)
    loaded = []
    world.slots(8, lambda world, _seen, _plan: loaded.append(tuple(world.loaded())))
    assert [each for number, each in enumerate(loaded) if not number or each != loaded[number - 1]] == [
        ("slow",),
        ("fast", "slow"),
        ("fast",),
    ]
    assert len(world.copies) == 1


@pytest.mark.parametrize(
    ("given", "wants", "slots", "loaded", "instances"),
    [
        pytest.param({"stays": 1, "has": "slow"}, [{"rate": 10.0}], 30, ["slow"], 1, id="enough stays alone"),
        pytest.param({}, [{"rate": 200.0}], 20, ["fast"] * 3, 3, id="as many as the load takes"),
        pytest.param({"most": 3}, [{"rate": 1e9}], 20, ["fast"] * 3, 3, id="as many as there may be"),
        pytest.param({}, [{"rate": 0.1, "functions_usd": 0.0, "stranded": 0.1}], 2, [], 1, id="stranded: at once"),
        pytest.param(
            {"stays": 1},
            [{"rate": 10.0, "network": "net2"}, {"rate": 5.0, "min_accuracy": 0.5}],
            6,
            ["fast", "other"],
            1,
            id="of each network",
        ),
        pytest.param(
            {"stays": 1},
            [{"rate": 30.0}, {"rate": 5.0, "variant": "slow", "stranded": 5.0}],
            10,
            ["fast", "slow"],
            1,
            id="a named one beside a faster one",
        ),
        pytest.param(
            {"stays": 1, "has": "fast"},
            [{"rate": 10.0, "functions_usd": 2e-5}],
            5,
            ["fast"],
            1,
            id="a new leader keeps what an earlier one found worth its price",
        ),
    ],
)
def test_a_load_has_the_copies_that_it_asks_for(given, wants, slots, loaded, instances):
    world = World(**given)
    for wanted in wants:
        world.want(**wanted)
    world.slots(slots)
    assert (world.loaded(), len(world.copies)) == (loaded, instances)


def test_functions_answer_what_an_instance_would_cost_more_for():
    world = World()
    world.want(1.0, functions_usd=1e-6)
    world.slots(600)
    assert world.copies == {}
    assert "functions" in world.plan.reasons[APP]


def test_a_slow_trickle_of_what_only_an_instance_can_answer_has_one_that_stays_and_is_ready_for_the_next_query():
    """A query every 15 s, of which demand knows for five: each started an instance, which was stopped as it booted."""
    world, ready = World(), []
    for _ in range(8):
        ready.append(world.loaded())
        world.want(0.2, functions_usd=0.0, stranded=0.2, slo_ms=20.0)
        world.slots(5)
        world.demand.clear()
        world.slots(10)
    assert world.made == 1
    assert ready == [[], *[["fast"]] * 7]
    world.slots(200)
    assert world.copies == {}


def test_after_a_burst_that_only_instances_can_answer_one_stays_for_a_while_and_not_all():
    world = World()
    world.want(200.0, functions_usd=0.0, stranded=200.0)
    world.slots(20)
    assert len(world.copies) == 3
    world.demand.clear()
    world.slots(60)
    assert len(world.copies) == 1
    world.slots(120)
    assert world.copies == {}


def test_an_instance_that_takes_minutes_to_start_stays_until_it_has_had_time_to_answer():
    world = World(boot_s=180.0)
    world.boot_slots = 180
    world.want(0.2, functions_usd=0.0, stranded=0.2)
    world.slots(5)
    world.demand.clear()
    world.slots(250)
    assert (world.made, world.loaded()) == (1, ["fast"])


def test_a_reason_has_the_networks_name_where_it_is_another_than_the_applications():
    world = World(stays=1)
    world.want(10.0)
    world.slot()
    assert world.plan.reasons[APP].startswith("net: ")
    alone = variant("one", APP, place=Place.INSTANCE, kind="gpu")
    seen = FleetObservation(
        1.0, 1.0, (), {(APP, "one"): alone}, {APP: {(APP, ""): NetworkDemand(APP, rate=1.0, stranded=1.0)}}, {}
    )
    assert FleetScaler({"": PoolTerms(1, BOOT_S)}).observe(seen).reasons[APP].startswith("start 1 x one")


def test_copies_that_saturate_below_their_profile_get_another_instance_which_stays_for_minutes():
    world = World()
    world.want(40.0)
    world.slots(10)
    assert len(world.copies) == 1
    world.states["i1", (APP, "fast")] = VariantState.OVERLOADED
    world.slots(10)
    assert world.loaded() == ["fast", "fast"]
    world.states.clear()
    world.slots(30)
    assert world.loaded() == ["fast", "fast"]
    world.slots(600)
    assert world.loaded() == ["fast"]


def test_interfered_copies_get_a_replica_where_an_instance_is_free():
    world = World(stays=2, has="fast")
    world.states["i1", (APP, "fast")] = VariantState.INTERFERED
    world.want(40.0)
    world.slots(4)
    assert world.loaded() == ["fast", "fast"]


def test_a_loaded_copy_stays_until_the_one_that_is_to_take_over_is_loaded():
    world = World(stays=2, has="fast")
    world.load_slots = 9
    world.want(100.0)
    world.slots(2)
    world.want(40.0)
    loaded = []
    world.slots(15, lambda world, _seen, _plan: loaded.append(world.loaded()))
    assert min(len(each) for each in loaded) == 1


def test_static_instances_load_more_and_unload_nothing_for_lack_of_load():
    world = World(fixed=True, stays=2)
    world.want(100.0)
    world.slots(6)
    assert world.loaded() == ["fast", "fast"]
    world.demand.clear()
    world.slots(60)
    assert world.loaded() == ["fast", "fast"]
    assert world.plan.wanted == {}


def test_what_could_not_be_loaded_lately_is_loaded_elsewhere():
    world = World(stays=2)
    world.want(10.0)
    seen = world.seen()
    first = replace(seen.instances[0], blocked=frozenset([(APP, "fast"), (APP, "slow")]))
    plan = world.scaler.observe(replace(seen, instances=(first, seen.instances[1])))
    assert [name for name, _ in plan.load] == ["i2"]


NUMBERS = st.sampled_from([0.0, 3.0, 15.0, 30.0, 90.0, 200.0, 900.0])


@settings(deadline=None, max_examples=60)
@given(
    phases=st.lists(st.tuples(NUMBERS, NUMBERS, st.booleans(), st.integers(1, 25)), min_size=1, max_size=6),
    most=st.integers(0, 4),
    ceiling=st.sampled_from([0.0, PRICE, 2.5 * PRICE, float("inf")]),
    memory_mb=st.sampled_from([None, 100.0, 250.0]),
    overloaded=st.booleans(),
    load_slots=st.integers(1, 9),
)
def test_bounds_hold_and_no_copy_goes_that_is_needed_among_those_loaded(
    phases, most, ceiling, memory_mb, overloaded, load_slots
):
    world = World(most=most, ceiling=ceiling, memory_mb=memory_mb)
    world.load_slots = load_slots

    def check(world, seen, plan):
        wanted = plan.wanted[""]
        assert wanted <= most
        assert wanted * PRICE <= ceiling * (1 + 1e-9)
        by_name = {one.name: one for one in seen.instances}
        assert all(by_name[name].copies[key].status == "loaded" for name, key in plan.unload)
        for network, rate in (("net", world.rates[0]), ("net2", world.rates[1])):
            qps = {key: each.qps.value for key, each in VARIANTS.items() if each.network == network}
            before = capacity(seen, qps, frozenset())
            after = capacity(seen, qps, frozenset(plan.unload))
            assert after >= min(before, rate * OPTIONS.slack_threshold) - 1e-6
        for one in seen.instances:
            loads = [key for name, key in plan.load if name == one.name]
            assert memory_mb is None or len(loads) * world.size_mb <= memory_mb

    for first, second, is_busy, slots in phases:
        world.rates = first, second
        world.want(first, functions_usd=0.0, stranded=first)  # so that the price leaves nothing to functions
        world.want(second, "net2", functions_usd=0.0, stranded=second)
        state = VariantState.OVERLOADED if is_busy and overloaded else VariantState.ACTIVE
        world.states = dict.fromkeys([(f"i{number}", key) for number in range(50) for key in VARIANTS], state)
        world.slots(slots, check)


def capacity(seen, qps, gone):
    """Queries a second that loaded copies of a network answer, the fastest at each instance, without those `gone`."""
    total = 0.0
    for one in seen.instances:
        loaded = {key for key, copy in one.copies.items() if copy.status == "loaded" and (one.name, key) not in gone}
        total += max((qps[key] for key in loaded & qps.keys()), default=0.0)
    return total


FUNCTION = variant("function", ms=90.0, usd=1e-5, correct=85)
KNOWN = {each.name: each for each in (FUNCTION, SLOW, FAST, OTHER)}


def demands(asked):
    return Demanding(KNOWN).demands(asked)


def test_demand_is_of_what_instances_are_good_enough_for():
    asked = {
        Objectives(): 3.0,
        Objectives(latency_ms=50.0): 2.0,  # no function is as fast
        Objectives(latency_ms=1.0): 5.0,  # nothing is
        Objectives(variant="function"): 7.0,
        Objectives(variant="other"): 1.0,
    }
    found = {each.key: each for each in demands(asked)}
    assert set(found) == {("net", ""), ("net2", ""), ("net2", "other")}
    net = found["net", ""]
    assert (net.rate, net.slo_ms, net.stranded) == (5.0, 50.0, 2.0)
    assert net.functions_usd == pytest.approx(3e-5)
    assert found["net2", "other"].rate == found["net2", ""].stranded == 1.0


def test_a_rare_objective_does_not_decide_for_all():
    found = demands({Objectives(): 99.0, Objectives(min_accuracy=0.7): 1.0})
    assert [each.min_accuracy for each in found] == [0.0]


def test_demand_of_all_drivers_is_the_sum_with_the_strictest_objectives():
    one, two = demands({Objectives(latency_ms=20.0): 1.0}), demands({Objectives(): 4.0})
    joined = total([one, two])["net", ""]
    assert (joined.rate, joined.slo_ms) == (5.0, 20.0)
