"""The policy `nonuniform`: instances for what they are worth, batch sizes for what they get, and no oscillation."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.policies import make_policy
from serfer.control.policy import InstanceGroup, InstanceState
from serfer.control.scenario import LambdaTarget, Market, Scenario
from serfer.core.errors import UsageError
from serfer_bench.study.policies.infless.policies import refuse_cluster_policy
from serfer_bench.study.policies.nonuniform.policy import NonUniform
from serfer_bench.study.policies.nonuniform.sizes import sizes_of
from tests.control.worlds import seen
from tests.study.policies.nonuniform.test_sizes import GPU, SLO_MS

LEAST = 20.0  # queries/s that are worth an instance
WORLD = Scenario(SLO_MS, LambdaTarget(GPU.usd_per_s / LEAST, 60.0, 600.0, 1000, 1.0, 600.0), (GPU,))
UP = sizes_of(GPU, SLO_MS)[0].up


class Load:
    """A policy, and what it wants as a load goes on."""

    def __init__(self, world=WORLD):
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
    assert Load(dataclasses.replace(WORLD, slo_ms=5.0)).at(1000.0) == []


def test_the_batch_size_grows_with_the_load_on_the_same_instance():
    load = Load()
    sizes = [load.at(rate) for rate in (25.0, 100.0, 150.0, 0.99 * UP)]
    assert all(len(batches) == 1 for batches in sizes)
    assert [batches[0] for batches in sizes] == sorted(batches[0] for batches in sizes)
    assert sizes[0] != sizes[-1]


def test_a_lower_load_gets_smaller_batches_at_once_and_fewer_instances_after_the_time_of_a_boot():
    load = Load()
    assert load.at(UP) == [16]
    assert load.at(50.0, 60)[0] < 16
    load = Load()
    assert load.at(2 * UP, 200) == [16, 16]
    low = 0.0
    first = next(second for second in range(1, 200) if not load.at(low, 1))
    assert GPU.boot_s <= first <= GPU.boot_s + 20


def test_a_load_that_swings_between_the_bounds_changes_nothing():
    load = Load()
    before = load.at(1.9 * UP)
    assert len(before) == 2
    assert all(load.at(rate, 30) == before for rate in (1.4 * UP, 1.9 * UP) * 5)


def test_batches_are_never_larger_than_measured_and_instances_never_more_than_the_load_is_worth():
    for rate in (0.0, 10.0, 21.0, 90.0, 500.0, 5000.0):
        batches = Load().at(rate)
        assert all(1 <= batch <= 16 for batch in batches)
        assert len(batches) <= rate / LEAST + 1


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0.0, 4 * UP)), max_size=8))
def test_what_a_steady_load_leaves_to_lambda_in_the_end_is_not_worth_an_instance(load):
    policy = Load()
    for seconds, rate in load:
        policy.at(rate, seconds)
    rate = 1.5 * UP
    ups = {size.batch: size.up for size in sizes_of(GPU, SLO_MS)}
    assert rate - sum(ups[batch] for batch in policy.at(rate, 200)) < LEAST + 1e-3


def test_instances_that_are_on_are_gone_on_with():
    policy = make_policy("nonuniform", WORLD)
    policy.resume((InstanceGroup("gpu", Market.ON_DEMAND, InstanceState.SERVING, 3, 8),))
    assert policy.observe(seen(1.0, 2.5 * UP)).total == 3


def test_routers_know_that_it_dispatches_by_rates():
    assert callable(make_policy("nonuniform", WORLD).dispatcher)
    assert not hasattr(make_policy("break-even", WORLD), "dispatcher")


def test_the_name_of_a_cluster_s_policy_is_refused_with_the_one_that_instances_have():
    with pytest.raises(UsageError, match=r"policy infless needs a cluster's scenario .* are the policy nonuniform"):
        refuse_cluster_policy("infless")
