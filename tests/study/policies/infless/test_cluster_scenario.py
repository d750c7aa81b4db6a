import tomllib
from pathlib import Path

import pytest

from serfer.control.scenario import read_scenario
from serfer.core.errors import InputError, UsageError
from serfer_bench.study.policies.infless.policies import CLUSTER_POLICIES, make_cluster_policy
from serfer_bench.study.policies.infless.profiles import Configuration
from serfer_bench.study.policies.infless.scenario import describes_cluster, parse_cluster, read_cluster
from tests.control.worlds import TWO_TYPES
from tests.study.sim.cluster.worlds import TOML


def parsed(text=TOML):
    return parse_cluster(tomllib.loads(text))


def test_beta_is_a_core_in_percent_of_a_gpu_by_flops():
    assert parsed().cluster.sizes.beta == pytest.approx(64 / 142)


def test_a_graph_combines_operators_by_branches():
    network = parsed().profiles[1].network
    assert network.ms(Configuration(2, 1, 0)) == pytest.approx(1.2 + max(1.5, 2 * 0.6))


def test_the_example_is_a_clusters_scenario_known_by_name():
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


def test_a_function_that_nothing_serves_in_time_is_warned_of():
    assert parsed().warnings() == []
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
