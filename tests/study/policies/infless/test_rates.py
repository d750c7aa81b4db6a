"""Equation 1 and the three cases, profiles of networks, and a cluster's scenario."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.scenario import read_scenario
from serfer.core.costs.operator_costs import Kind, Work, shipped_profiles
from serfer.core.errors import InputError, UsageError
from serfer_bench.study.policies.infless import dispatch as cases
from serfer_bench.study.policies.infless.dispatch import Case, threshold
from serfer_bench.study.policies.infless.measured import dump_profile, measured_profile
from serfer_bench.study.policies.infless.options import Sizes, function_of
from serfer_bench.study.policies.infless.policies import CLUSTER_POLICIES, make_cluster_policy
from serfer_bench.study.policies.infless.profiles import Branches, Chain, Configuration, Operator, Times, exec_s
from serfer_bench.study.policies.infless.rates import RateRange, exact_range, keeps_slo, whole_batches
from serfer_bench.study.policies.infless.scenario import MAX_NAME, describes_cluster, parse_cluster, read_cluster
from tests.control.worlds import TWO_TYPES
from tests.core.test_operator_costs import works
from tests.study.policies.infless.clusters import BETA, RESNET, SIZES, function, networks
from tests.study.sim.cluster.worlds import TOML

half = st.floats(0.001, 0.5)  # of the SLO, or less


def test_the_example_of_section_3_2_and_a_batch_of_one_which_has_the_whole_slo_and_no_lower_bound():
    assert whole_batches(0.050, 0.200, 4) == RateRange(28.0, 80.0)
    exact = exact_range(0.050, 0.200, 4)
    assert (exact.low, exact.up) == (pytest.approx(4 / 0.15), pytest.approx(80.0))
    assert keeps_slo(0.19, 0.2, 1)
    assert not keeps_slo(0.11, 0.2, 2)
    assert exact_range(0.19, 0.2, 1).low == 0


def test_printed_rates_are_rounded_where_exact_ones_are_not():
    assert whole_batches(1.2, 4.0, 8).up == 0
    assert exact_range(1.2, 4.0, 8).up == pytest.approx(8 / 1.2)
    printed = whole_batches(0.070, 0.145, 4)  # 14 batches a second against 14 of 13.3
    assert printed.low >= printed.up
    exact = exact_range(0.070, 0.145, 4)
    assert exact.low < exact.up


@given(slo_s=st.floats(0.01, 10), share=half, batch=st.integers(2, 64), at=st.floats(0, 1))
def test_between_the_bounds_waiting_and_execution_keep_the_slo_wherever_a_batch_takes_half_of_it(
    slo_s, share, batch, at
):
    exec_s = slo_s * share
    assert keeps_slo(exec_s, slo_s, batch)
    exact, printed = exact_range(exec_s, slo_s, batch), whole_batches(exec_s, slo_s, batch)
    assert 0 < exact.low <= exact.up * (1 + 1e-9)
    assert printed.up <= exact.up * (1 + 1e-6)
    assert printed.low >= exact.low * (1 - 1e-6)
    rate = exact.low + at * (exact.up - exact.low)
    assert batch / rate + exec_s <= slo_s * (1 + 1e-9)  # constraint (3)
    assert exec_s <= batch / rate * (1 + 1e-9)  # constraint (4)


@pytest.mark.parametrize("exec_s", [0.0, 0.2, 0.3])
def test_times_that_leave_nothing_of_the_slo_are_refused(exec_s):
    with pytest.raises(ValueError, match="less than the SLO"):
        exact_range(exec_s, 0.2, 4)


ranges = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0.1, 200)).map(lambda one: RateRange(one[0], one[0] + one[1])),
    min_size=1,
    max_size=20,
)


def dispatch(rate, ranges):
    return cases.dispatch(rate, [(one, 1) for one in ranges])


def test_the_three_cases():
    two = [RateRange(28, 80), RateRange(0, 20)]
    assert dispatch(120, two).case is Case.SHORT
    assert dispatch(120, two).residual == 20
    assert dispatch(120, two).rates == (80, 20)
    assert threshold(28, 100) == pytest.approx(0.8 * 28 + 0.2 * 100)  # 42.4
    assert dispatch(43, two).case is Case.STEADY
    assert dispatch(42, two).case is Case.AMPLE
    low, up = 28.0, 100.0
    assert threshold(low, up) < (low + up) / 2 < 0.8 * up + 0.2 * low
    assert dispatch(5, []).residual == 5
    assert dispatch(0, []).case is Case.STEADY


@given(ranges=ranges, times=st.floats(0, 3))
def test_all_that_comes_is_dispatched_or_residual_and_within_each_range_between_the_bounds(ranges, times):
    low, up = sum(one.low for one in ranges), sum(one.up for one in ranges)
    rate = times * up
    found = dispatch(rate, ranges)
    assert sum(found.rates) + found.residual == pytest.approx(rate)
    assert all(0 <= each <= one.up * (1 + 1e-9) for one, each in zip(ranges, found.rates, strict=True))
    if low <= rate <= up:
        assert found.residual == pytest.approx(0, abs=1e-6)
        assert all(one.low - 1e-6 <= each for one, each in zip(ranges, found.rates, strict=True))


@given(rate=st.floats(0, 400), one=st.floats(0, 50), count=st.integers(1, 9))
def test_like_instances_get_the_same(rate, one, count):
    kind = RateRange(one, one + 20)
    [alike] = cases.dispatch(rate, [(kind, count)]).rates
    assert dispatch(rate, [kind] * count).rates == pytest.approx((alike,) * count)


A = Operator("a", Times(1.0, 2.0, 8.0))
B = Operator("b", Times(5.0), Times(1.0, 0.0, 0.0, 3.0))


def test_operators_divide_among_cores_and_shares_chains_add_up_and_branches_take_the_slowest():
    assert A.ms(Configuration(4, 2, 0)) == 1 + 4 * (2 + 8 / 2)
    assert B.ms(Configuration(4, 2, 0)) == 5
    assert B.ms(Configuration(4, 2, 50)) == 1 + 4 * 3 * 2
    assert A.ms(Configuration(4, 2, 50)) == A.ms(Configuration(4, 2, 0))  # it has no times beside a GPU
    one = Configuration(1, 1, 0)
    a, b = A.ms(one), B.ms(one)
    assert Chain([A, B, A]).ms(one) == 2 * a + b
    assert Branches([A, Chain([B, B])]).ms(one) == max(a, 2 * b)
    assert Chain([A, Branches([A, B])]).ms(one) == a + max(a, b)
    assert exec_s(RESNET, one) == pytest.approx(1.1 * RESNET.ms(one) / 1000)  # ten percent are added
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


def test_batches_can_be_bounded_by_cores_and_the_printed_rates_taken():
    sizes = Sizes(SIZES.batches, SIZES.cores, SIZES.shares, BETA, 1.0)
    made = function_of("bounded", RESNET, 1.0, sizes).options
    assert made
    assert all(one.configuration.batch <= one.configuration.cores for one in made)
    printed = {one.configuration: one for one in function(rounded=True).options}
    exact = {one.configuration: one for one in function().options}
    assert any(printed[each].up < exact[each].up for each in printed if each.batch > 1)
    assert all(printed[each] == exact[each] for each in printed if each.batch == 1)


PROFILES = shipped_profiles()
NETWORKS = st.lists(works(), min_size=1, max_size=12)


def parsed(text=TOML):
    return parse_cluster(tomllib.loads(text))


def read_back(name, network, profiles=PROFILES):
    """Return the profile that a scenario has of the block that is written for a network."""
    return parsed(TOML + dump_profile(measured_profile(name, network, profiles), profiles)).profiles[-1]


@given(network=NETWORKS, batch=st.integers(1, 1024), cores=st.integers(1, 64), share=st.sampled_from((0, 10)))
def test_a_written_profile_predicts_what_the_cost_model_predicts(network, batch, cores, share):
    expected = PROFILES.run_s + sum(PROFILES.seconds(work, cores, batch) for work in network)
    predicted = read_back("drawn", network).network.ms(Configuration(batch, cores, share)) / 1000
    assert predicted == pytest.approx(expected, rel=1e-5)


def test_operators_of_a_kind_are_one_without_gpu_figures_and_weights_are_read_once_a_batch():
    convolution, pool = Work(Kind.CONVOLUTION, macs=1000, read=10, written=10), Work(Kind.POOL, read=10, written=10)
    made = read_back("three", [convolution, pool, convolution])
    assert [one.name for one in made.operators] == ["run", "convolution", "pool"]
    assert all(one.gpu is None for one in made.operators)
    dense = Work(Kind.FULLY_CONNECTED, macs=1 << 24, read=4096, written=4096, weights=1 << 24, channels_in=4096)
    [_, operator] = read_back("dense", [dense]).operators
    assert operator.cpu.batch_core_ms > 10 * operator.cpu.core_ms
    assert operator.cpu.ms(Configuration(8, 2, 0)) < 0.6 * operator.cpu.ms(Configuration(8, 1, 0))


@given(name=st.text(max_size=100), machine=st.text(min_size=1, max_size=50))
def test_any_name_and_machine_can_be_read_back(name, machine):
    made = read_back(name, [Work(Kind.POOL)], replace(PROFILES, machine=machine))
    assert 1 <= len(made.name) <= MAX_NAME
    assert made.name == name or not name.isprintable() or not 1 <= len(name) <= MAX_NAME


def test_a_scenario_has_beta_by_flops_graphs_of_branches_and_an_example():
    assert parsed().cluster.sizes.beta == pytest.approx(64 / 142)
    network = parsed().profiles[1].network
    assert network.ms(Configuration(2, 1, 0)) == pytest.approx(1.2 + max(1.5, 2 * 0.6))
    world = read_cluster(Path("cluster"))
    assert world.warnings() == []
    assert len(world.functions) == 3


def test_servers_functions_and_policies_are_made_of_it():
    world = parsed()
    assert len(world.new_servers()) == 4
    assert [one.name for one in world.new_functions()] == ["vehicles", "answers"]
    assert world.server_usd_per_hour == [5.5] * 4
    for name in CLUSTER_POLICIES:
        assert make_cluster_policy(name, world).name == name
    with pytest.raises(UsageError, match="those are infless"):
        make_cluster_policy("mark", world)
    assert world.warnings() == []
    [warning] = parsed(TOML.replace("slo_ms = 200", "slo_ms = 20")).warnings()
    assert "vehicles" in warning
    assert "slo_ms 20" in warning


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cores = 16", "cores = 0", r"scenario\.servers\[0\]\.cores should be 1 to 100000"),
        ("cores = 16", "", r"scenario\.servers\[0\] lacks 'cores'"),
        ("count = 4", "count = 4\ncolour = 1", r"scenario\.servers\[0\] has unknown 'colour'"),
        ("gpu_gflops = 14200.0", "gpu_gflops = 0", r"scenario\.cluster\.gpu_gflops should be"),
        ("shares = [0, 10, 20, 50]", "shares = [0, 101]", r"scenario\.cluster\.shares\[1\] should be 0 to 100"),
        ("shares = [0, 10, 20, 50]", "shares = []", r"cluster\.shares has 1 to 32 values"),
        ('profile = "resnet-50"', 'profile = "vgg"', r"functions\[0\]\.profile: there is no 'vgg'"),
        ('name = "answers"', 'name = "vehicles"', r"functions\[1\]\.name: 'vehicles' is there twice"),
        ('[["stem"]], ', '[["root"]], ', r"profiles\[1\]\.graph\[0\]: there is no operator 'root'"),
        ('[["stem"]], ', "[[]], ", r"profiles\[1\]\.graph\[0\] has one branch or more"),
        ("batch_ms = 1.5", "batch_ms = -1", r"scenario\.profiles\[1\]\.operators\[1\]\.cpu\.batch_ms should be"),
        ("slo_ms = 50", "slo_ms = nan", r"scenario\.functions\[1\]\.slo_ms should be"),
        ("exec_error = 0.1", "alpha = 2", r"scenario\.policy\.alpha should be 0 to 1"),
        ("[[servers]]", "[[servers]]\ncount = 100000\ncores = 1\n[[servers]]", "at most 100,000"),
    ],
)
def test_errors_name_the_field(old, new, message):
    with pytest.raises(InputError, match=message):
        parsed(TOML.replace(old, new, 1))


@pytest.mark.parametrize("policy", CLUSTER_POLICIES)
def test_unknown_windows_are_refused_by_the_key_whatever_the_policy(policy):
    world = parsed(TOML.replace("exec_error = 0.1", 'windows = "never"', 1))
    with pytest.raises(InputError, match=r"policy\.windows: there are no windows 'never': there are lsth, hybrid"):
        make_cluster_policy(policy, world)


def test_a_file_is_one_kind_of_scenario(tmp_path):
    cluster, targets = tmp_path / "cluster.toml", tmp_path / "targets.toml"
    cluster.write_text(TOML)
    targets.write_text(TWO_TYPES)
    assert describes_cluster(cluster)
    assert not describes_cluster(targets)
    assert read_cluster(cluster) == parsed()
    with pytest.raises(InputError, match="describes a cluster"):
        read_scenario(cluster)
    with pytest.raises(
        InputError, match=r"targets\.toml: scenario lacks 'cluster', 'functions', 'profiles', 'servers'"
    ):
        read_cluster(targets)
