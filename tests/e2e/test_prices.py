"""`serfer cost`, `serfer explain --pareto` and `serfer study profile` on the command line."""

import json
import re

import pytest

import serfer
from serfer.core.costs.operator_costs import dump_profiles, shipped_profiles
from serfer.plan_directory import load_plan
from serfer.splitter.split import split
from serfer_bench.study.policies.infless.profiles import Configuration
from serfer_bench.study.policies.infless.scenario import read_cluster
from tests.e2e.small import slow_starts
from tests.study.sim.cluster.worlds import TOML as CLUSTER

FIELDS = {
    *("model", "plan", "store", "cold_share", "times", "query", "warm_query", "cold_query"),
    *("burst", "idle_month", "cold_plan", "starts"),
}
STAGE = {
    *("name", "grid", "path", "tasks", "memory_mb", "ms", "cost_usd", "billed_ms"),
    *("bytes_read", "ranges", "bytes_written", "bytes_carried", "weights_in", "cold_start"),
}


def costs(serfer_here, *arguments, **variables):
    result = serfer_here("cost", *arguments, "--json", **variables)
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def test_cost_prices_a_query_a_burst_and_an_idle_month(serfer_here, plan, tmp_path):
    own = tmp_path / "own"
    serfer.split(str(plan.parent / "small.onnx"), out=own, grids=[(2, 2), (2, 2), (1, 1)])
    prices = costs(serfer_here, own, "--cold-share", "0")
    assert set(prices) == FIELDS
    stages = prices["query"]["stages"]
    assert [(stage["name"], stage["grid"], stage["tasks"]) for stage in stages] == [
        *(("stage-0", "2x2", 4), ("stage-1", "2x2", 4), ("stage-2", "1", 1))
    ]
    assert all(set(stage) == STAGE for stage in stages)
    for stage, planned in zip(stages, load_plan(own).stages, strict=True):
        assert (stage["ms"], stage["cost_usd"]) == (planned.predicted_ms, planned.predicted_usd)
        assert set(stage["cold_start"]) == {"package_ms", "process_ms", "fetching_ms", "sessions_ms"}
        assert (stage["weights_in"], stage["cold_start"]["fetching_ms"]) == ("zip", 0.0)
    cold = prices["cold_query"]
    assert (cold["environments"], prices["cold_plan"]) == (9, None)
    waited = cold["stages"][0]["ms"] - stages[0]["ms"]
    assert waited == pytest.approx(sum(stages[0]["cold_start"].values()))
    mixed = costs(serfer_here, own)
    assert mixed["cold_share"] == 0.02
    assert prices["query"]["cost_usd"] < mixed["query"]["cost_usd"] < cold["cost_usd"]
    rows = serfer_here("explain", "--pareto", own, "--json").lines
    (chosen,) = (row for row in map(json.loads, rows) if row["chosen"])
    assert (chosen["usd"], chosen["warm_usd"]) == (mixed["query"]["cost_usd"], prices["query"]["cost_usd"])
    assert chosen["warm_ms"] == pytest.approx(sum(stage["ms"] for stage in stages), rel=1e-9)
    assert chosen["cold_ms"] == cold["first_answer_ms"]


def test_the_first_answer_is_shown_by_parts(serfer_here, plan, tmp_path):
    """By `explain` and `cost`, with the places of weights."""
    own = tmp_path / "own"
    serfer.split(str(plan.parent / "small.onnx"), out=own, grids=[(2, 2), (2, 2), (1, 1)], weights="fetched")
    prices = costs(serfer_here, own)
    first = sum(stage["ms"] for stage in prices["cold_query"]["stages"])
    for command in ("explain", "cost"):
        shown = serfer_here(command, own)
        assert len([line for line in shown.lines if re.match(r"\s*stage-\d\s+fetched\s", line)]) == 3
        assert f"every environment is cold, as predicted: {first:,.0f} ms" in shown.out
    assert "environments fetch them when they start" in serfer_here("explain", own).out
    assert (prices["burst"]["queries"], prices["burst"]["environments"]) == (1000, 4000)
    assert prices["idle_month"] == {"hours": 730, "functions_usd": 0.0, "store_usd": 0.0}


@pytest.fixture(scope="module")
def two_plans(plan, tmp_path_factory):
    own = tmp_path_factory.mktemp("two") / "own"
    options = {"weights": "fetched", "cold_plan": "always", "cold_environments": 3, "gang": "never"}
    split(plan.parent / "small.onnx", out=own, facts=slow_starts(), **options)
    return own


def test_both_plans_are_priced_where_there_is_a_cold_plan(serfer_here, two_plans):
    prices = costs(serfer_here, two_plans, "--burst", "5", SERFER_ACCOUNT="default")
    cold = prices["cold_plan"]
    assert cold["plan"] == load_plan(two_plans / "cold").digest
    assert cold["cost_usd"] == pytest.approx(cold["query"]["cost_usd"] + cold["warm_up_usd"])
    whole, split = cold["burst"]["whole"], cold["burst"]["split"]
    assert split["environments"] == whole["environments"] + 5 * cold["query"]["environments"]
    assert cold["times_earlier"] == pytest.approx(whole["first_answer_ms"] / split["first_answer_ms"])
    assert not split["refused"]


@pytest.mark.hostile
@pytest.mark.parametrize("command", ["explain", "cost"])
def test_both_plans_are_shown_and_a_burst_that_is_too_large_is_refused(serfer_here, two_plans, command):
    few, many = (serfer_here(command, two_plans, "--burst", str(queries)) for queries in (2, 600))
    assert (few.code, many.code) == (0, 0)
    for words in ("cold plan  digest: ", "this plan alone", "this one warmed beside it", "times earlier"):
        assert words in few.out
    assert "refused" not in few.out
    assert "refused on the cold plan, this one warmed beside it: 600 cold queries at once need" in many.out
    assert "cold plan  digest" not in serfer_here(command, two_plans / "cold").out


def test_the_text_output_lists_stages_and_dollars(serfer_here, plan):
    shown = serfer_here("cost", plan, "--burst", "20", "--store", "s3", "--cold-share", "0.05", "--memory", "3538")
    assert (shown.code, shown.err) == (0, "")
    assert sum(line.startswith("stage-") and "3538 MB" in line for line in shown.lines) == 3
    for words in ("over s3, 5.0% of the queries cold", "a query: p50 ", "a burst of 20: $", "$0.00 for s3"):
        assert words in shown.out
    assert "were chosen for redis" in shown.out


def test_prices_from_the_users_file_are_used(serfer_here, plan, tmp_path):
    (tmp_path / "aws.toml").write_text("[lambda]\nprice_request = 1\n[redis]\nprice_hour = 2\n")
    prices = costs(serfer_here, plan, "--burst", "3", "--cold-share", "0", SERFER_AWS_FILE=str(tmp_path / "aws.toml"))
    assert prices["query"]["cost_usd"] == pytest.approx(9, rel=1e-3)
    assert prices["burst"]["cost_usd"] == pytest.approx(27, rel=1e-3)
    assert prices["idle_month"]["store_usd"] == 1460


def cluster_profile(serfer_here, plan, file, *options, **variables):
    """Write a plan's profile, and return it as a cluster's scenario has it."""
    result = serfer_here("study", "cluster-profile", plan, "--out", file, *options, **variables)
    assert result.code == 0, result.err
    assert result.err.startswith("wrote ")
    scenario = file.with_name("cluster.toml")
    scenario.write_text(CLUSTER + file.read_text())
    return read_cluster(scenario).profiles[-1]


def test_a_plans_network_becomes_a_profile_of_a_clusters_scenario(serfer_here, plan, slow, tmp_path):
    shipped = cluster_profile(serfer_here, plan, tmp_path / "small.toml")
    assert (shipped.name, shipped.operators[0].name) == (load_plan(plan).model, "run")
    assert shipped_profiles().machine in (tmp_path / "small.toml").read_text()
    one = Configuration(4, 2, 0)
    operators = sum(each.ms(one) for each in shipped.operators[1:])
    for options, variables in ((("--profiles", slow), {}), ((), {"SERFER_PROFILES_FILE": str(slow)})):
        own = cluster_profile(serfer_here, plan, tmp_path / "small.toml", *options, **variables)
        assert sum(each.ms(one) for each in own.operators[1:]) == pytest.approx(100 * operators, rel=1e-3)
        assert "a slow one" in (tmp_path / "small.toml").read_text()


def test_pareto_shows_the_alternatives_of_a_plan(serfer_here, plan):
    shown = serfer_here("explain", plan, "--pareto")
    assert shown.code == 0
    [chosen] = [line for line in shown.lines if line.startswith("->")]
    assert "chosen" in chosen
    assert "one function of 1769 MB" in shown.out
    assert "one function of 3008 MB" in shown.out
    assert " ".join(load_plan(plan).why.split()) in " ".join(shown.out.split())
    rows = [json.loads(line) for line in serfer_here("explain", "--pareto", plan, "--json").lines]
    assert len(rows) == len(load_plan(plan).alternatives)
    assert sum(row["chosen"] for row in rows) == 1
    assert [row["ms"] for row in rows] == sorted(row["ms"] for row in rows)


@pytest.fixture
def slow(tmp_path):
    """Profiles of a machine that is hundred times as slow."""
    profiles = json.loads(dump_profiles(shipped_profiles()))
    profiles["machine"] = "a slow one"
    for kind in profiles["kinds"].values():
        kind["prices_ns"] = {name: 100 * price for name, price in kind["prices_ns"].items()}
    (tmp_path / "slow.json").write_text(json.dumps(profiles))
    return tmp_path / "slow.json"


def compute(result):
    assert result.code == 0, result.err
    return sum(tile["parallel_ms"] for stage in json.loads(result.out)["stages"] for tile in stage["tiles"])


def test_split_predicts_by_the_users_profiles(serfer_here, plan, slow, tmp_path):
    command = ("split", plan.parent / "small.onnx", "--grids", "2x2", "--set", "cuts=relu2,pool", "--json", "--out")
    plain = compute(serfer_here(*command, tmp_path / "plain"))
    slower = serfer_here(*command, tmp_path / "a", "--set", f"profiles={slow}")
    again = serfer_here(*command, tmp_path / "b", SERFER_PROFILES_FILE=str(slow))
    safer = serfer_here(*command, tmp_path / "c", "--set", "safety=0.1")
    times = [compute(made) / plain for made in (slower, again, safer)]
    assert times == pytest.approx([100, 100, 1.1], rel=0.01)
    checks = map(json.loads, serfer_here("doctor", "--json", SERFER_PROFILES_FILE=str(slow)).lines)
    assert "a slow one" in next(check["found"] for check in checks if check["name"] == "profiles")
