"""INFless' evaluation redone: what holds of it, in a small part of the benchmark."""

from dataclasses import replace

import pytest

from serfer.core.costs.operator_costs import shipped_profiles
from serfer.cost.loads.steps import silent
from serfer.splitter.network.source import load
from serfer.splitter.network.zoo import find
from serfer.splitter.plan_dir.emit import in_one_piece
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer_bench.study.papers.infless.capacity import SYSTEMS, highest, placed
from serfer_bench.study.papers.infless.loads import COMPARED, under_loads
from serfer_bench.study.papers.infless.paper import AUTHORS, BY_FLOPS, OPERATORS, OSVT, QA_ROBOT, TABLE_4, World
from serfer_bench.study.papers.infless.provisioning import provisioning
from serfer_bench.study.papers.infless.throughput import functions_of
from serfer_bench.study.policies.infless.measured import measured_profile
from serfer_bench.study.policies.infless.scenario import PolicyFacts
from serfer_bench.study.profiling.whole_network import whole_works

pytestmark = pytest.mark.weekly

SCARCE = World(BY_FLOPS, by_scarcity=True)


@pytest.fixture(scope="module")
def capacities():
    return {system: highest(SCARCE.application(OSVT), make).rps for system, make in SYSTEMS.items()}


def test_each_part_of_infless_raises_the_highest_load_by_constructed_profiles(capacities):
    for part in ("without BB", "without RS", "OP1.5", "OP2"):
        assert capacities[part] < capacities["infless"]
    assert capacities["OP2"] < capacities["OP1.5"]


def test_infless_takes_more_than_its_baselines_by_constructed_profiles(capacities):
    assert capacities["openfaas-plus"] < capacities["batch"] < capacities["infless"]


def test_a_beta_by_scarcity_leaves_no_gpus_idle_for_want_of_cores():
    for profiles, name in ((AUTHORS, OSVT), (BY_FLOPS, OSVT), (BY_FLOPS, QA_ROBOT)):
        by_flops = highest(World(profiles).application(name), SYSTEMS["infless"])
        scarce = highest(World(profiles, by_scarcity=True).application(name), SYSTEMS["infless"])
        assert scarce.rps > 1.1 * by_flops.rps


def test_a_load_that_has_no_room_is_not_placed():
    scenario = SCARCE.application(OSVT)
    best = highest(scenario, SYSTEMS["infless"])
    assert placed(scenario, SYSTEMS["infless"], 1.05 * best.rps) is None
    assert placed(scenario, SYSTEMS["infless"], 0.5 * best.rps).units < best.units


def test_a_function_that_nothing_serves_has_no_capacity():
    scenario = World(AUTHORS).application(OSVT, 50.0)
    assert highest(scenario, SYSTEMS["infless"]).rps == 0


def test_more_servers_take_more():
    scenario = SCARCE.application(OSVT)
    kind = scenario.servers[0]
    twice = replace(scenario, servers=(replace(kind, count=2 * kind.count),))
    assert highest(twice, SYSTEMS["batch"]).rps > 1.8 * highest(scenario, SYSTEMS["batch"]).rps


def test_table_4_contradicts_its_own_price_of_infless():
    """Of its other columns the dollars follow from cores and GPUs; of INFless' they are three times too low."""
    for system, (cores, gpus, usd) in TABLE_4.items():
        computed = (cores * 0.034 + gpus * 2.5) / 3600 / 100
        assert computed == pytest.approx(usd, rel=0.05) or (system == "infless" and computed > 3 * usd)


def test_keep_alive_and_windows_are_what_a_system_s_name_says():
    facts = {name: replace(PolicyFacts(), **one.facts) for name, one in COMPARED.items()}
    assert (facts["batch"].keep_alive_s, facts["batch, 60 s"].keep_alive_s) == (300.0, 60.0)
    assert (facts["batch"].windows, facts["batch, LSTH"].windows) == ("", "lsth")
    assert (facts["infless"].windows, facts["infless, 300 s"].windows) == ("lsth", "")
    assert facts["batch, LSTH"].keep_alive_s == facts["infless"].reserve_s  # what windows do not shorten
    assert (facts["infless, 300 s"].reserve_s, facts["infless, 60 s"].reserve_s) == (300.0, 60.0)


def test_loads_have_rows_for_each_figure():
    rows = [*under_loads(0, silent, 0.1)]
    assert {one.figure for one in rows} == {"12a", "15a", "T4", "-"}
    assert {one.setting for one in rows} == {"sporadic", "periodic", "bursty", OSVT}
    assert {one.system for one in rows} == {*COMPARED}
    assert all(one.value >= 0 for one in rows)


def test_batches_occupied_resources_and_parts_of_latency_have_rows_for_each_figure():
    rows = [*provisioning(0, silent, 0.1)]
    assert {one.figure for one in rows} == {"13", "14", "15b", "15c"}
    shares = [one.value for one in rows if (one.figure, one.profiles, one.system) == ("13", BY_FLOPS, "infless")]
    assert sum(shares) == pytest.approx(1.0, abs=1e-4)


def test_operator_profiles_are_those_that_the_shipped_ones_give_for_networks_of_the_zoo():
    for profile in World(OPERATORS).application(OSVT).profiles:
        size = find(profile.name).size
        model = in_one_piece(from_onnx(load(profile.name, None)[0].onnx, size, size)).model({})
        known = measured_profile(profile.name, whole_works(from_onnx(model, size, size)), shipped_profiles())
        assert [replace(one, gpu=None) for one in profile.operators] == [*known.operators]


def test_functions_have_the_networks_that_their_profiles_are_of():
    assert {*World(OPERATORS).networks} == {OSVT}
    scenario = functions_of(World(OPERATORS, by_scarcity=True), 10)
    assert {one.profile for one in scenario.functions} <= {one.name for one in scenario.profiles}
    assert functions_of(World(BY_FLOPS), 10, seed=1) != functions_of(World(BY_FLOPS), 10)
