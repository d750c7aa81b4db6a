"""`serfer cost --log`: the ways to serve a load, by hand where that is possible."""

import json
import math
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import serfer
from serfer.cli.main import app
from serfer.control.scenario import read_scenario
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import InputError
from serfer.cost import ways as serving_ways
from serfer.cost.functions import one_function
from serfer.cost.instances import predicted_instance
from serfer.cost.loads.steps import silent
from serfer.cost.loads.trace import Trace
from serfer.cost.ways import Serving
from serfer.plan_directory import load_plan
from tests.e2e.small import split_small
from tests.study.sim.worlds import scenario

NOON = 1_795_608_000  # 2026-11-25 12:00 UTC
MONTH_S = 730 * 3600
GB_S = 0.0000166667  # dollars
REQUEST = 0.20e-6
SCENARIOS = Path(__file__).parents[2] / "examples" / "scenarios"


@pytest.fixture(scope="module")
def whole(file):
    place = file.with_name("whole")
    serfer.whole_plan(str(file), out=place)
    return place


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("split"), grids=[(2, 2), (1, 1)])


@pytest.fixture
def log(tmp_path):
    """Three queries in two hours: the first and the last one find nothing warm."""
    times = [datetime.fromtimestamp(NOON + after, UTC) for after in (0, 10, 7199)]
    path = tmp_path / "access.log"
    path.write_text("".join(f'1.1.1.1 - - [{time:%d/%b/%Y:%H:%M:%S} +0000] "POST /v1/classify"\n' for time in times))
    return path


def called(*arguments):
    return CliRunner().invoke(app, ["cost", *map(str, arguments)])


def priced(*arguments):
    result = called(*arguments, "--json")
    if result.exception:
        raise result.exception
    return json.loads(result.stdout)


def ways(*arguments):
    document = priced(*arguments)
    return document, {way["name"].strip(): way for way in document["ways"]}


def test_dollars_of_three_queries_are_those_that_one_counts_by_hand(whole, log):
    document, found = ways(whole, "--log", log)
    [stage] = load_plan(whole).stages
    [warm] = priced(whole, "--cold-share", 0)["query"]["stages"]
    gigabytes, ms = stage.memory_mb / 1024, math.ceil(warm["billed_ms"])
    start_ms = math.ceil(sum(warm["cold_start"].values()))
    queries = 3 * MONTH_S / 7200
    assert document["queries_a_month"] == pytest.approx(queries)

    one = found[f"one function of {stage.memory_mb:,} MB"]
    running, starting = (gigabytes * each / 1000 * GB_S for each in (ms, start_ms))
    assert one["month_usd"] == pytest.approx(queries * (REQUEST + running + 2 / 3 * starting))
    assert (one["cold_share"], one["unanswered"]) == (pytest.approx(2 / 3), 0)
    assert one["p50_ms"] > start_ms > one["p50_ms"] - 100

    ready = found["and 1 provisioned"]
    kept = gigabytes * MONTH_S * 0.0000041667
    assert ready["month_usd"] == pytest.approx(kept + queries * (REQUEST + gigabytes * ms / 1000 * 0.0000097222))
    assert ready["cold_share"] == 0
    assert ready["p99_ms"] < start_ms

    snapshot = found["and SnapStart"]
    kept = gigabytes * MONTH_S * 0.0000015046
    assert snapshot["month_usd"] == pytest.approx(
        kept + queries * (REQUEST + running + 2 / 3 * gigabytes * 0.0001397998), rel=0.01
    )

    endpoint = found["SageMaker Serverless, 2 GB"]
    two = priced(whole, "--memory", 2048, "--cold-share", 0)["query"]["stages"][0]["billed_ms"]
    assert endpoint["month_usd"] == pytest.approx(queries * (2 * math.ceil(two) / 1000 * 0.00002 + 102_000 * 0.016e-9))

    instance = found["1 c7i.large, always on"]
    assert instance["month_usd"] == pytest.approx(0.08925 * 730)
    assert (instance["cold_share"], instance["unanswered"]) == (None, 0)

    mixed = found["SerFer: one function, c7i.large"]
    assert mixed["month_usd"] == pytest.approx(one["month_usd"])  # no instance pays
    usd = one["month_usd"] / queries
    assert document["instance"]["usd_per_query"] == pytest.approx(usd)
    assert document["instance"]["wins_from_queries_per_hour"] == pytest.approx(0.08925 / usd)
    assert document["least"] == "SageMaker Serverless, 2 GB"  # whose starts are taken as not billed


def test_a_split_is_a_way_of_its_own_and_pays_for_a_driver_that_waits(split, log):
    _, found = ways(split, "--log", log)
    assert [*found][3:5] == ["split: 2 stages, 5 tasks, redis", "1 c7i.large, always on"]
    price = priced(split, "--cold-share", 0)
    cold = priced(split, "--cold-share", 1)
    driver = [
        REQUEST + 1769 / 1024 * math.ceil(1000 * seconds) / 1000 * GB_S
        for seconds in (
            price["query"]["latency_ms"]["mean"] / 1000 + 0.03,
            cold["cold_query"]["first_answer_ms"] / 1000 + 1.53,
        )
    ]
    warm_usd, cold_usd = price["query"]["cost_usd"] + driver[0], cold["query"]["cost_usd"] + driver[1]
    queries = 3 * MONTH_S / 7200
    expected = queries * (warm_usd / 3 + cold_usd * 2 / 3) + price["idle_month"]["store_usd"]
    assert found["split: 2 stages, 5 tasks, redis"]["month_usd"] == pytest.approx(expected)
    _, other = ways(split, "--log", log, "--store", "s3")
    assert other["split: 2 stages, 5 tasks"]["month_usd"] < 1 < price["idle_month"]["store_usd"]


def test_a_burst_is_not_answered_by_what_has_no_room_for_it(whole, tmp_path, monkeypatch):
    path = tmp_path / "burst.csv"
    path.write_text("t_seconds,rps\n0,800\n1,0\n3600,0\n")  # some 500 environments start at once
    _, found = ways(whole, "--log", path)
    [one] = [way for name, way in found.items() if name.startswith("one function")]
    assert one["unanswered"] > 0.8  # a new account has 10 at once
    monkeypatch.setenv("SERFER_ACCOUNT", "default")
    document, found = ways(whole, "--log", path)
    assert found["SageMaker Serverless, 2 GB"]["unanswered"] > 0.3
    [one] = [way for name, way in found.items() if name.startswith("one function")]
    assert one["unanswered"] == 0
    provisioned = next(int(name.split()[1]) for name in found if name.endswith("provisioned"))
    assert 20 < provisioned < 60
    assert document["least"] != "SageMaker Serverless, 2 GB"


def test_there_are_as_many_instances_as_bursts_take_within_the_slo(whole):
    bursts = np.tile([30.0, 300.0], 10)  # queries/s, an instance computes 114 at most
    load, facts = Trace("bursts", np.tile([59.0, 1.0], 10), bursts), shipped_aws()
    functions = one_function(load_plan(whole), facts)
    patient, way = (Serving(load, scenario(slo_ms=slo), facts).on_instances(functions) for slo in (3000.0, 300.0))
    assert (patient.name, way.name) == ("1 gpu, always on", "4 gpu, always on")
    assert way.p99_ms <= 300
    assert patient.p99_ms > 1000
    assert way.month_usd == pytest.approx(4 * 730 * 0.526)


def test_a_load_that_lasts_is_an_instances(whole, monkeypatch):
    monkeypatch.setattr(serving_ways, "MOST_QUERIES", 10_000)
    monkeypatch.setattr(serving_ways, "_MOST_DECISIONS", 500)
    plan, facts = load_plan(whole), shipped_aws()
    serving = Serving(Trace.steady("steady", 86_400.0, 200.0), predicted_instance(plan, "c7i.large", facts), facts)
    one = one_function(plan, facts)
    alone, mixed = serving.on_functions(one), serving.mixed("mixed", one, one.usd(0.0), silent)
    assert 730 * 0.08925 < mixed.month_usd < 0.7 * alone.month_usd
    assert mixed.p50_ms < alone.p50_ms
    assert mixed.unanswered == 0


def test_of_a_large_load_the_busiest_and_the_median_part_are_simulated_and_said(whole, monkeypatch):
    monkeypatch.setattr(serving_ways, "MOST_QUERIES", 2000)
    monkeypatch.setattr(serving_ways, "_MOST_DECISIONS", 500)
    result = called(whole, "--qps", 0.5)
    assert result.exit_code == 0
    assert "simulated: every query of the busiest 2,700 s" in result.stdout
    table = takewhile(lambda line: not line.startswith("least: "), result.stdout.splitlines()[1:])
    assert max(map(len, table)) <= 80


def test_a_network_is_priced_without_a_plan_directory_and_a_short_log_is_said_to_be_short(file, log):
    result = called(file, "--log", log)
    assert result.exit_code == 0
    assert "small, access, /v1/classify (100%): 3 queries in 2.0 h" in result.stdout
    assert "the log covers 2.0 h alone" in result.stdout
    assert priced(file)["query"]["stages"][0]["grid"] == "1"


def test_a_network_is_priced_without_a_word_on_images(file):
    assert "assumed: images" not in called(file, "--size", "34x34").stderr


def test_one_request_says_nothing_of_a_month(whole, tmp_path):
    path = tmp_path / "one.log"
    path.write_text('1.1.1.1 - - [25/Nov/2026:12:00:00 +0000] "POST /v1/classify"\n')
    with pytest.raises(InputError, match="has one request, from which does not follow how many a month has"):
        priced(whole, "--log", path)


@pytest.mark.parametrize(("slow", "fast"), [("c7i.large", "c7i.xlarge"), ("g4dn.xlarge", "g5.xlarge")])
def test_types_of_instances_have_a_predicted_speed_and_the_price_of_the_facts(whole, slow, fast):
    plan, facts = load_plan(whole), shipped_aws()
    worlds = [predicted_instance(plan, name, facts) for name in (slow, fast)]
    assert [world.instance.usd_per_hour for world in worlds] == [facts.instances[name] for name in (slow, fast)]
    assert worlds[0].instance.qps < worlds[1].instance.qps
    assert not any(world.warnings() for world in worlds)


@pytest.mark.parametrize("name", ["small-network", "large-network", "two-types"])
def test_the_example_scenarios_are_consistent(name):
    assert read_scenario(SCENARIOS / f"{name}.toml").warnings() == []


def test_an_instance_may_be_a_scenarios_as_it_was_measured(whole, log):
    path = SCENARIOS / "small-network.toml"
    document, found = ways(whole, "--log", log, "--scenario", path)
    assert found["1 g6.xlarge, always on"]["month_usd"] == pytest.approx(730 * 0.8048)
    assert (document["instance"]["qps"], document["slo_ms"]) == (200, 200)
    assert found["SerFer: one function, g6.xlarge"]["cold_share"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--log", "LOG", "--qps", "1"), 2, "--log and --qps both say what the load is"),
        (("--log", "LOG", "--burst", "7", "--memory", "128"), 2, "leave out --burst, --memory"),
        (("--instance", "c7i.large"), 2, "--instance: give --log FILE or --qps NUMBER, too"),
        (("--qps", "1", "--path", "/v1"), 2, "--path is the beginning of URLs of a --log"),
        (("--log", "LOG", "--path", "v1"), 2, "--path is the beginning of URLs of a --log"),
        (("--log", "LOG", "--path", "/v2"), 3, "has 3 requests, none to a path that begins with '/v2'"),
        (("--log", "LOG", "--instance", "p5.48xlarge"), 2, "the speed of p5.48xlarge is not predicted, only that"),
        (("--log", "LOG", "--scenario", "x.toml", "--slo-ms", "9"), 2, "--scenario has an instance and slo_ms"),
        (("--log", "nowhere.log"), 3, "'nowhere.log' cannot be read: No such file or directory"),
        (("--log", "LOG", "--slo-ms", "1e-9"), 2, "--slo-ms"),
        (("--size", "34x34"), 2, "--size and channels describe a network"),
    ],
)
def test_what_cannot_be_priced_is_refused_in_one_line(whole, log, arguments, code, message):
    result = called(whole, *(log if each == "LOG" else each for each in arguments))
    assert getattr(result.exception, "exit_code", result.exit_code) == code
    assert message in f"{result.exception} {result.output}"
