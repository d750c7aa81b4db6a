import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.costs.operator_costs import Kind, Work, shipped_profiles
from serfer_bench.study.policies.infless.measured import dump_profile, measured_profile
from serfer_bench.study.policies.infless.profiles import Configuration
from serfer_bench.study.policies.infless.scenario import MAX_NAME, parse_cluster
from tests.core.test_operator_costs import works
from tests.study.sim.cluster.worlds import TOML

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
