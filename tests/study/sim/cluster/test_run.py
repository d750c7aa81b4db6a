"""Policies on a cluster's loads, and `serfer study simulate` on a cluster's scenario."""

import tomllib
from functools import partial

import pytest

from serfer.core.errors import UsageError
from serfer_bench.study.loads.generators import generate
from serfer_bench.study.policies.infless.policies import CLUSTER_POLICIES
from serfer_bench.study.policies.infless.scenario import parse_cluster
from serfer_bench.study.sim.cluster.outcome import outcome_of
from serfer_bench.study.sim.cluster.run import Detail, cluster_load, run_cluster
from tests.bench.running import rows, run
from tests.study.sim.cluster.worlds import TOML
from tests.study.sim.worlds import TOML as TARGETS

POLICIES = pytest.mark.parametrize("name", CLUSTER_POLICIES)

EACH = Detail()


def world(text=TOML):
    return parse_cluster(tomllib.loads(text))


def load_of(scenario, *, detail=EACH, seed=1, period_s=5.0):
    traces = [generate(one.load).scaled(one.factor) for one in scenario.functions]
    return cluster_load(traces, period_s, seed, detail)


def outcome(scenario, name, seed=1, **options):
    run = run_cluster(scenario, name, load_of(scenario, seed=seed, **options), seed)
    return outcome_of(scenario, "small", run, seed), run


@POLICIES
@pytest.mark.parametrize("detail", [Detail(), Detail(0), Detail(100, 60.0)], ids=["each", "rates", "windows"])
def test_every_request_is_met_late_or_dropped_once(name, detail):
    one, run = outcome(world(), name, detail=detail)
    assert one.requests == run.load.counts.sum() > 40_000
    assert one.met + one.late + one.dropped == one.requests
    for function in one.functions:
        assert function.met + function.late + function.dropped == function.requests
    assert one.met > 0.8 * one.requests
    assert outcome(world(), name, detail=detail)[0] == one != outcome(world(), name, seed=2, detail=detail)[0]


@POLICIES
def test_no_more_is_occupied_than_there_is(name):
    crowded = world(TOML.replace("factor = 2.0", "factor = 200.0").replace("count = 4", "count = 1"))
    one, run = outcome(crowded, name, detail=Detail(0))
    assert one.unplaced > 0
    assert run.timeline.units.max() <= crowded.cluster.sizes.units(16, 200) + 1e-6
    assert run.timeline.cores.max() <= 16
    assert run.timeline.gpus.max() <= 2 + 1e-9


def test_resources_are_paid_for_as_table_4_does():
    one, run = outcome(world(), "infless")
    hours = 5.0 / 3600
    assert one.usd == pytest.approx((run.timeline.cores.sum() * 0.034 + run.timeline.gpus.sum() * 2.5) * hours)
    assert one.usd_per_request == pytest.approx(one.usd / one.met)
    per_second = (one.cores_per_100_rps * 0.034 + one.gpus_per_100_rps * 2.5) / 3600 / 100
    assert one.usd_per_request == pytest.approx(per_second)
    assert one.servers_usd == pytest.approx(one.active_servers * 5.5 * one.seconds / 3600)


def test_by_rates_and_one_by_one_agree_on_resources():
    each, _ = outcome(world(), "infless")
    rates, _ = outcome(world(), "infless", detail=Detail(0))
    assert rates.unit_hours == pytest.approx(each.unit_hours)
    assert (rates.detailed_requests, each.detailed_requests) == (0, each.requests)
    assert rates.met == pytest.approx(each.met, rel=0.1)
    assert rates.wait_ms is None


def test_a_long_load_is_looked_at_in_windows_of_few_enough_requests():
    one, run = outcome(world(), "batch", detail=Detail(40_000, 60.0))
    assert {each.name for each in one.windows} == {"busiest", "median"}
    assert run.load.detailed.sum() == 2 * 12
    assert 0 < one.detailed_requests <= 40_000 < one.requests
    load = load_of(world(), detail=Detail(10_000, 60.0))
    assert load.windows[0].end_s - load.windows[0].begin_s == 15.0
    assert load.looked_at <= 10_000


@pytest.mark.parametrize(
    ("field", "low", "high"), [("exec_error = 0.1", 0.0, 0.6), ("cold_ms = 2000", 2000, 60_000)], ids=["error", "cold"]
)
def test_errors_of_prediction_beyond_the_offset_and_cold_starts_miss_the_slo(field, low, high):
    name = field.partition(" ")[0]
    usual, slow = (outcome(world(TOML.replace(field, f"{name} = {value}")), "infless")[0] for value in (low, high))
    assert slow.violations > usual.violations
    assert slow.cold_starts > 0


@pytest.fixture
def scenario(scenario):
    scenario.write_text(TOML)
    return scenario


called = partial(run, "study", "simulate")
outcomes = partial(rows, "study", "simulate")


def test_json_has_a_line_for_each_policy(scenario):
    found = outcomes("--scenario", scenario, "--policy", "infless", "--policy", "openfaas-plus")
    assert [one["policy"] for one in found] == ["infless", "openfaas-plus"]
    for one in found:
        assert one["met"] + one["late"] + one["dropped"] == one["requests"]
        assert [each["name"] for each in one["functions"]] == ["vehicles", "answers"]
        assert sum(one["batches"].values()) == pytest.approx(1.0, abs=1e-4)
    assert found[0]["requests"] == found[1]["requests"]


def test_infless_is_the_default_and_a_table_is_printed_or_a_picture_drawn(scenario, tmp_path):
    text = called("--scenario", scenario, "--level", "rates").stdout
    assert "infless" in text
    assert "requests per unit and second" in text
    called("--scenario", scenario, "--level", "rates", "--policy", "batch", "--plot", tmp_path / "out.svg")
    text = (tmp_path / "out.svg").read_text()
    assert "<svg" in text


def test_load_is_for_functions_that_have_none(scenario):
    scenario.write_text(TOML.replace('load = "poisson:rate=100,hours=0.1"\n', ""))
    with pytest.raises(UsageError, match=r"functions\[1\] has no load"):
        called("--scenario", scenario)
    [row] = outcomes("poisson:rate=7,hours=0.1", "--scenario", scenario, "--level", "rates")
    assert row["functions"][1]["requests"] == pytest.approx(2 * 7 * 360, rel=0.1)


def test_times_cut_the_loads_of_all_functions(scenario):
    [one] = outcomes("--scenario", scenario, "--level", "rates", "--from", "60", "--until", "120")
    assert one["seconds"] == 60
    assert one["functions"][1]["requests"] == pytest.approx(2 * 100 * 60, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "break-even"), "others are of Lambda"),
        (("--policy", "all"), "others are of Lambda"),
        (("--spot",), "--spot is not for a cluster's scenario"),
        (("--seeds", "3"), "--seeds is not for a cluster's scenario"),
        (("--level", "tasks"), "a cluster has rates and queries"),
        (("--period-s", "0"), "--period-s is more than 0"),
        (("poisson:rate=7,hours=0.1",), r"all 2 of .* have theirs: leave poisson:rate=7,hours=0\.1 away"),
    ],
)
def test_what_is_of_lambda_is_refused(scenario, arguments, message):
    with pytest.raises(UsageError, match=message):
        called("--scenario", scenario, *arguments)


@pytest.mark.parametrize("policy", ["batch", "infless"])
def test_a_clusters_policy_needs_a_clusters_scenario(scenario, policy):
    scenario.write_text(TARGETS)
    with pytest.raises(UsageError, match=rf"policy {policy} needs a cluster's scenario .* with \[\[servers\]\]"):
        called("poisson", "--scenario", scenario, "--policy", policy)
