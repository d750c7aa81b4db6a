"""Instances with batch sizes of their own: ranges of sizes, the mix for a rate, shares of queries, the policy."""

import dataclasses
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.dispatch import OWN, assign, window_s
from serfer.control.policies import make_policy
from serfer.control.policy import InstanceGroup, InstanceState
from serfer.control.scenario import InstanceType, LambdaTarget, Market, Scenario
from serfer_bench.study.policies.nonuniform.policy import NonUniform, mix
from serfer_bench.study.policies.nonuniform.rate_dispatcher import RateDispatcher, shares
from serfer_bench.study.policies.nonuniform.sizes import size_of, sizes_of
from tests.control.worlds import seen

GPU = InstanceType("gpu", 3.6, 0.0, 30.0, 0.0, 200.0, ((1, 10.0), (4, 20.0), (16, 64.0)))
SLO_MS = 200.0


def test_the_range_of_a_size_is_equation_1_and_of_one_that_nobody_set_what_its_type_sustains():
    four = size_of(GPU, 4, SLO_MS)
    assert (four.low, four.up) == pytest.approx((4 / (0.2 - 0.022), 4 / 0.022))
    own = size_of(GPU, OWN, SLO_MS)
    assert (own.low, own.up) == pytest.approx((0.0, GPU.sustained_qps(SLO_MS) / 1.1))


def test_sizes_are_those_of_use_that_two_batches_of_fit_into_the_slo():
    linear = dataclasses.replace(GPU, batches=((1, 10.0), (2, 20.0), (4, 30.0)))
    batches = {SLO_MS: [16, 8, 4, 2, 1], 100.0: [8, 4, 2, 1], 15.0: [1], 10.0: []}
    assert {slo_ms: [size.batch for size in sizes_of(GPU, slo_ms)] for slo_ms in batches} == batches
    assert [size.batch for size in sizes_of(linear, SLO_MS)] == [4, 1]


def test_windows_end_so_early_that_the_batch_half_of_its_time_and_a_tenth_of_the_slo_are_left():
    assert window_s(GPU, 4, SLO_MS) == pytest.approx(0.18 - 1.5 * 0.02)
    assert window_s(GPU, 1, SLO_MS) == window_s(GPU, 16, 50.0) == 0


@given(st.floats(11.1, 1e4))
def test_larger_sizes_take_more_and_need_more(slo_ms):
    sizes = sizes_of(GPU, slo_ms)
    assert all(larger.up > smaller.up and larger.low >= smaller.low for larger, smaller in pairwise(sizes))
    assert all(0 <= size.low <= size.up for size in sizes)


SIZES = sizes_of(GPU, SLO_MS)
UP = SIZES[0].up


def batches(rate, least=0.0):
    return [size.batch for size in mix(rate, SIZES, least)]


def test_the_bulk_has_the_largest_batch_the_rest_what_holds_it_and_lambda_what_is_cheaper_there():
    assert batches(2 * UP) == [16, 16]
    assert batches(2 * UP + 5.0) == [16, 16, 1]
    assert batches(2 * UP + 30.0) == [16, 16, 4]
    assert batches(30.0) == [4]
    assert batches(0.0) == []
    assert batches(UP + 29.0, least=30.0) == [16]
    assert batches(UP + 31.0, least=30.0) == [16, 4]
    assert batches(3 * UP, least=UP + 1.0) == []


@given(st.floats(1e-3, 20 * UP), st.floats(0.0, UP))
def test_each_instance_can_have_a_rate_of_its_range_and_the_rest_is_less_than_one_is_worth(rate, least):
    sizes = mix(rate, SIZES, least)
    assert rate - sum(size.up for size in sizes) <= least + 1e-6
    assert sum(size.up for size in sizes[:-1]) <= rate + 1e-6
    assert sum(size.low for size in sizes) <= rate * (1 + 1e-9)


SOME = st.lists(st.sampled_from([0, 1, 2, 4, 8]), max_size=8)


@given(SOME, SOME)
def test_as_many_instances_as_can_have_the_wanted_sizes_and_as_few_as_can_change(present, wanted):
    after = assign(present, wanted)
    assert len(after) == len(present)
    if len(wanted) >= len(present):
        assert not Counter(after) - Counter(wanted)
    else:
        assert not Counter(wanted) - Counter(after)
    assert assign([0, 0], [1, 4, 16]) == [16, 4]  # without the smallest
    changed = sum(one != other for one, other in zip(present, after, strict=True))
    assert changed <= len(present) - (Counter(present) & Counter(wanted)).total()


WORLD = Scenario(SLO_MS, LambdaTarget(1e-5, 60.0, 600.0, 1000, 1.0, 600.0), (GPU,))


@dataclass(frozen=True)
class Place:
    name: str
    kind: int
    batch: int


TARGETS = st.lists(st.sampled_from([0, 1, 2, 4, 8, 16]), min_size=1, max_size=6).map(
    lambda batches: [Place(f"i{number}", 0, batch) for number, batch in enumerate(batches)]
)


def dispatched(rate, targets, queries, admits=lambda _place: True, images=1):
    dispatcher = RateDispatcher(WORLD)
    dispatcher.observe(rate, 1e6)
    found = Counter()
    for _ in range(queries):
        place = dispatcher.choose(targets, images, admits)
        found["" if place is None else targets[place].name] += images
    return found


@given(st.floats(0.0, 3.0), TARGETS)
def test_shares_sum_to_one_within_each_range_and_in_the_steady_case_lambda_gets_nothing(times, targets):
    known = {one.name: size_of(GPU, one.batch, SLO_MS) for one in targets}
    low, up = sum(one.low for one in known.values()), sum(one.up for one in known.values())
    rate = times * up
    found = shares(rate, targets, WORLD)
    assert sum(found.of.values()) + found.rest == pytest.approx(1.0)
    assert all(rate * found.of[name] <= one.up * (1 + 1e-9) for name, one in known.items())
    if 0.8 * low + 0.2 * up <= rate <= up:
        assert found.rest == pytest.approx(0.0, abs=1e-9)
        assert all(one.low * (1 - 1e-9) <= rate * found.of[name] for name, one in known.items())


@given(st.floats(0.0, 3000.0), TARGETS, st.integers(1, 3))
def test_every_stretch_of_queries_is_divided_by_the_shares_to_within_a_query_for_each_target(rate, targets, images):
    found, expected = dispatched(rate, targets, 300, images=images), shares(rate, targets, WORLD)
    most = images * (len(targets) + 1)
    for name, share in {**expected.of, "": expected.rest}.items():
        assert abs(found[name] - 300 * images * share) <= most


def test_the_order_mixes_the_instances():
    targets = [Place("large", 0, 16), Place("small", 0, 1)]
    dispatcher = RateDispatcher(WORLD)
    dispatcher.observe(300.0, 1e6)
    order = [dispatcher.choose(targets, 1, lambda _place: True) for _ in range(100)]
    share = shares(300.0, targets, WORLD).of["small"]
    assert max(len(run) for run in "".join(map(str, order)).split("1")) <= 1 / share + 1


def test_an_instance_that_would_be_late_passes_its_turn_on_and_lambda_has_what_none_admits():
    targets = [Place("a", 0, 8), Place("b", 0, 8)]
    assert dispatched(100.0, targets, 50, admits=lambda place: place == 1) == {"b": 50}
    assert dispatched(100.0, targets, 50, admits=lambda _place: False) == {"": 50}
    assert dispatched(100.0, [], 10) == {"": 10}
    assert dispatched(0.0, [], 10) == {"": 10}


LEAST = 20.0  # queries/s that are worth an instance
PRICED = Scenario(SLO_MS, LambdaTarget(GPU.usd_per_s / LEAST, 60.0, 600.0, 1000, 1.0, 600.0), (GPU,))


class Load:
    """A policy, and what it wants as a load goes on."""

    def __init__(self, world=PRICED):
        self.policy = NonUniform(world)

    def at(self, rate, seconds=120):
        """Return the batch sizes that are wanted after some seconds of a rate."""
        for _ in range(seconds):
            plan = self.policy.observe(seen(1.0, rate))
        return plan.batches("gpu", Market.ON_DEMAND)


def test_a_load_gets_large_batches_for_its_bulk_and_a_small_one_for_the_rest():
    *bulk, rest = Load().at(2 * UP + 30.0)
    assert bulk == [16, 16]
    assert rest < 16


def test_a_load_that_is_cheaper_on_lambda_gets_no_instance():
    assert Load().at(0.9 * LEAST) == []
    assert Load().at(UP + 0.9 * LEAST) == [16]
    assert Load(dataclasses.replace(PRICED, slo_ms=5.0)).at(1000.0) == []


def test_the_batch_size_grows_with_the_load_on_the_same_instance():
    load = Load()
    sizes = [load.at(rate) for rate in (25.0, 100.0, 150.0, 0.99 * UP)]
    assert all(len(batches) == 1 for batches in sizes)
    assert [batches[0] for batches in sizes] == sorted(batches[0] for batches in sizes)
    assert sizes[0] != sizes[-1]


def test_a_lower_load_gets_smaller_batches_at_once_and_fewer_instances_after_the_time_of_a_boot():
    load = Load()
    assert load.at(2 * UP, 200) == [16, 16]
    assert load.at(UP + 50.0, 60)[-1] < 16
    first = next(second for second in range(1, 200) if not load.at(0.0, 1))
    assert GPU.boot_s <= first <= GPU.boot_s + 20


def test_a_load_that_swings_between_the_bounds_changes_nothing():
    load = Load()
    before = load.at(1.9 * UP)
    assert len(before) == 2
    assert all(load.at(rate, 30) == before for rate in (1.4 * UP, 1.9 * UP) * 5)


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0.0, 4 * UP)), max_size=8))
def test_what_a_steady_load_leaves_to_lambda_in_the_end_is_not_worth_an_instance(load):
    policy = Load()
    for seconds, rate in load:
        policy.at(rate, seconds)
    rate = 1.5 * UP
    ups = {size.batch: size.up for size in sizes_of(GPU, SLO_MS)}
    assert rate - sum(ups[batch] for batch in policy.at(rate, 200)) < LEAST + 1e-3


def test_instances_that_are_on_are_gone_on_with_and_routers_know_the_dispatcher():
    policy = make_policy("nonuniform", PRICED)
    policy.resume((InstanceGroup("gpu", Market.ON_DEMAND, InstanceState.SERVING, 3, 8),))
    assert policy.observe(seen(1.0, 2.5 * UP)).total == 3
    assert callable(make_policy("nonuniform", PRICED).dispatcher)
    assert not hasattr(make_policy("break-even", PRICED), "dispatcher")
