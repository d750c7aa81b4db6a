import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.costs.operator_costs import Kind, Work, shipped_profiles
from serfer_bench.study.policies.infless.measured import dump_profile, measured_profile
from serfer_bench.study.policies.infless.options import Sizes, function_of
from serfer_bench.study.policies.infless.profiles import Branches, Chain, Configuration, Operator, Times, exec_s
from serfer_bench.study.policies.infless.scenario import MAX_NAME, parse_cluster
from tests.core.test_operator_costs import works
from tests.study.policies.infless.clusters import BETA, RESNET, SIZES, function, networks
from tests.study.sim.cluster.worlds import TOML

A = Operator("a", Times(1.0, 2.0, 8.0))
B = Operator("b", Times(5.0), Times(1.0, 0.0, 0.0, 3.0))


def test_an_operator_divides_among_cores_and_shares():
    assert A.ms(Configuration(4, 2, 0)) == 1 + 4 * (2 + 8 / 2)
    assert B.ms(Configuration(4, 2, 0)) == 5
    assert B.ms(Configuration(4, 2, 50)) == 1 + 4 * 3 * 2
    assert A.ms(Configuration(4, 2, 50)) == A.ms(Configuration(4, 2, 0))  # it has no times beside a GPU


def test_a_chain_adds_up_and_branches_take_the_slowest():
    one = Configuration(1, 1, 0)
    a, b = A.ms(one), B.ms(one)
    assert Chain([A, B, A]).ms(one) == 2 * a + b
    assert Branches([A, Chain([B, B])]).ms(one) == max(a, 2 * b)
    assert Chain([A, Branches([A, B])]).ms(one) == a + max(a, b)


def test_predictions_have_ten_percent_added():
    one = Configuration(2, 2, 10)
    assert exec_s(RESNET, one) == pytest.approx(1.1 * RESNET.ms(one) / 1000)
    assert exec_s(RESNET, one, 1.0) == pytest.approx(2 * RESNET.ms(one) / 1000)


@given(network=networks, slo_s=st.floats(0.02, 2))
def test_options_keep_the_slo_and_come_with_the_largest_batches_first(network, slo_s):
    made = function(network, slo_s).options
    for one in made:
        limit = slo_s if one.configuration.batch == 1 else slo_s / 2
        assert one.exec_s <= limit
        assert 0 <= one.low <= one.up
        assert one.units == pytest.approx(BETA * one.configuration.cores + one.configuration.share)
    assert [one.configuration.batch for one in made] == sorted((one.configuration.batch for one in made), reverse=True)


@given(network=networks, slo_s=st.floats(0.02, 2))
def test_an_over_estimate_leaves_fewer_options(network, slo_s):
    found, over = function(network, slo_s), function(network, slo_s, offset=1.0)
    assert {one.configuration for one in over.options} <= {one.configuration for one in found.options}


def test_batches_can_be_bounded_by_cores():
    sizes = Sizes(SIZES.batches, SIZES.cores, SIZES.shares, BETA, 1.0)
    made = function_of("bounded", RESNET, 1.0, sizes).options
    assert made
    assert all(one.configuration.batch <= one.configuration.cores for one in made)


def test_the_printed_rates_can_be_taken():
    printed = {one.configuration: one for one in function(rounded=True).options}
    exact = {one.configuration: one for one in function().options}
    assert any(printed[each].up < exact[each].up for each in printed if each.batch > 1)
    assert all(printed[each] == exact[each] for each in printed if each.batch == 1)


PROFILES = shipped_profiles()
NETWORKS = st.lists(works(), min_size=1, max_size=12)


def read_back(name, network, profiles=PROFILES):
    """Return the profile that a scenario has of the block that is written for a network."""
    return parse_cluster(
        tomllib.loads(TOML + dump_profile(measured_profile(name, network, profiles), profiles))
    ).profiles[-1]


@given(network=NETWORKS, batch=st.integers(1, 1024), cores=st.integers(1, 64), share=st.sampled_from((0, 10)))
def test_a_written_profile_predicts_what_the_cost_model_predicts(network, batch, cores, share):
    expected = PROFILES.run_s + sum(PROFILES.seconds(work, cores, batch) for work in network)
    predicted = read_back("drawn", network).network.ms(Configuration(batch, cores, share)) / 1000
    assert predicted == pytest.approx(expected, rel=1e-5)


def test_operators_of_a_kind_are_one_and_have_no_gpu_figures():
    convolution, pool = Work(Kind.CONVOLUTION, macs=1000, read=10, written=10), Work(Kind.POOL, read=10, written=10)
    made = read_back("three", [convolution, pool, convolution])
    assert [one.name for one in made.operators] == ["run", "convolution", "pool"]
    assert all(one.gpu is None for one in made.operators)


def test_reading_weights_is_paid_once_a_batch_and_divides_by_cores():
    dense = Work(Kind.FULLY_CONNECTED, macs=1 << 24, read=4096, written=4096, weights=1 << 24, channels_in=4096)
    [_, operator] = read_back("dense", [dense]).operators
    assert operator.cpu.batch_core_ms > 10 * operator.cpu.core_ms
    assert operator.cpu.ms(Configuration(8, 2, 0)) < 0.6 * operator.cpu.ms(Configuration(8, 1, 0))


@given(name=st.text(max_size=100), machine=st.text(min_size=1, max_size=50))
def test_any_name_and_machine_can_be_read_back(name, machine):
    made = read_back(name, [Work(Kind.POOL)], replace(PROFILES, machine=machine))
    assert 1 <= len(made.name) <= MAX_NAME
    assert made.name == name or not name.isprintable() or not 1 <= len(name) <= MAX_NAME
