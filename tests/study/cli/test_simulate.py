"""`serfer study simulate` and `serfer study policies`, as users call them."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

import numpy as np
import pytest

from serfer.control.policies import buys_several_types
from serfer.control.scenario import read_scenario
from serfer.core.errors import InputError, UsageError
from serfer.cost.loads.trace import Trace
from serfer_bench.study.policies import NAMES
from serfer_bench.study.policy_experiments import policies
from serfer_bench.study.policy_experiments.policies import Options, cases, results
from serfer_bench.study.sim.calibration import write_calibration
from serfer_bench.study.sim.simulate import RunOptions, prepare, run_policies
from tests.bench.running import rows, run
from tests.study.sim.worlds import TOML, calibration

FIELDS = {
    *("policy", "queries", "cost_usd", "serverless_usd", "instances_usd", "optimum_usd", "ratio", "slo_met"),
    *("latency_ms", "launches", "cold_starts", "idle_gb_s", "batches", "throttled"),
    *("retries", "queued", "hedges", "hedges_usd"),
}
WINDOW = ("--window-s", "120")  # an hour takes long enough to be noticed
LOAD = "diurnal:mean=20,hours=6,peak_hour=3"


def called(*arguments):
    return run("study", "simulate", *WINDOW, *arguments).stdout


outcomes = partial(rows, "study", "simulate", *WINDOW)


def test_json_has_the_agreed_fields_for_each_policy(scenario):
    rows = outcomes(LOAD, "--scenario", scenario, "--policy", "ski-rental", "--policy", "serverless", "--scale", "S")
    assert [one["policy"] for one in rows] == ["ski-rental", "serverless"]
    for one in rows:
        assert one.keys() >= FIELDS
        assert one["cost_usd"] == pytest.approx(one["serverless_usd"] + one["instances_usd"])
        assert one["ratio"] == pytest.approx(one["cost_usd"] / one["optimum_usd"])
        assert 0.9 < one["slo_met"] <= 1
        assert one["latency_ms"].keys() == {"p50", "p95", "p99"}
        assert (one["scenario"], one["trace"], one["scale"]) == ("two-types", f"{LOAD},seed=0", "S")
        assert [window["name"] for window in one["windows"]] == ["busiest", "median"]


def test_dollars_query_by_query_stand_beside_those_of_the_level_of_rates(scenario):
    arguments = ("poisson:rate=40,hours=0.1", "--scenario", scenario, "--window-s", "1e4", "--policy")
    one = outcomes(*arguments, "serverless")[0]
    [window] = one["windows"]
    assert (window["name"], window["rates_usd"]) == ("whole", pytest.approx(one["cost_usd"]))
    assert window["window_usd"] == one["window_usd"] == pytest.approx(one["cost_usd"], rel=0.02)
    assert one["window_ratio"] == pytest.approx(one["window_usd"] / one["cost_usd"])
    assert (window["slo_met"], window["latency_ms"]) == (one["slo_met"], one["latency_ms"])
    assert one["notes"] == []
    scenario.write_text(TOML.replace("qps = 60", "qps = 30"))  # an instance takes more: nothing is left
    packed = outcomes("poisson:rate=32,hours=0.1", *arguments[1:], "ski-rental")[0]
    assert packed["window_usd"] < packed["windows"][0]["rates_usd"]
    assert "instances take more than qps" in packed["notes"][0]


def test_drivers_limits_are_chosen_and_duplicates_are_a_part_of_the_windows_dollars(scenario):
    arguments = ("poisson:rate=40,hours=0.02", "--scenario", scenario, "--policy", "serverless")
    [free] = outcomes(*arguments)
    [bound] = outcomes(*arguments, "--drivers", "2", "--driver-slots", "1", "--no-hedge")
    assert free["hedges"] > 0
    assert free["hedges_usd"] == pytest.approx(free["hedges"] * 4e-5)
    assert (free["queued"], free["retries"]) == (0, 0)
    assert bound["queued"] > 0
    assert bound["hedges"] == bound["hedges_usd"] == 0
    assert bound["latency_ms"]["p50"] > 10 * free["latency_ms"]["p50"]
    assert "waited for a slot" in called(*arguments, "--driver-slots", "1")
    assert "duplicates $" in called(*arguments)


def test_all_recommends_the_least_that_meets_the_slo(scenario):
    arguments = ("poisson:rate=50,hours=0.04,row_s=5", "--scenario", scenario)
    rows = outcomes(*arguments, "--policy", "all", "--seeds", 2)
    kinds = ("g4dn.xlarge", "g5.xlarge")
    alike = [name for name in NAMES if not buys_several_types(name)]
    names = {(policy, kind) for policy in alike for kind in kinds if policy != "serverless"} | {("serverless", None)}
    assert {(one["policy"], one["instance"]) for one in rows} == names
    assert [one["recommended"] for one in rows] == [True] + [False] * (len(rows) - 1)
    assert rows[0]["meets_slo"]
    for one in rows:
        assert one["meets_slo"] == (one["slo_met"]["min"] >= 0.99)
        assert one["window_ratio"]["mean"] > 0
    shown = called(*arguments, "--level", "rates")
    assert "recommended: " in shown
    assert shown.count("* ") == 1


def test_seeds_of_a_generator_and_of_the_arrivals_in_a_file(scenario, tmp_path):
    (tmp_path / "load.csv").write_text("minute,requests\n" + "".join(f"{n},{200 + n}\n" for n in range(60)))
    arguments = ("--scenario", scenario, "--policy", "ski-rental", "--policy", "serverless", "--seeds", 3)
    drawn, recorded = (
        {one["policy"]: one for one in outcomes(load, *arguments)}
        for load in ("mmpp:hours=0.1,row_s=5", tmp_path / "load.csv")
    )
    single = [outcomes("mmpp:hours=0.1,row_s=5", *arguments[:4], "--seed", seed)[0] for seed in range(3)]
    costs = [one["cost_usd"] for one in single]
    expected = {"mean": pytest.approx(sum(costs) / 3), "min": min(costs), "max": max(costs)}
    assert drawn["ski-rental"]["cost_usd"] == expected
    assert recorded["serverless"]["cost_usd"]["min"] == recorded["serverless"]["cost_usd"]["max"]
    assert recorded["serverless"]["p99_ms"]["min"] < recorded["serverless"]["p99_ms"]["max"]


def query_usd(lean, *options):
    return rows("cost", lean, *options)[0]["query"]["cost_usd"]


def test_a_plan_brings_its_price_and_the_result_says_whose_dollars_they_are(scenario, lean):
    """The scenario's price may be of another network: dollars were five times off."""
    arguments = ("poisson:rate=5,hours=0.1", "--scenario", scenario, "--policy", "serverless", "--plan", lean)
    [row], usd = outcomes(*arguments), query_usd(lean)
    assert row["cost_usd"] == pytest.approx(row["queries"] * usd, rel=0.02)
    assert f"the plan's (for a million queries ${usd * 1e6:.2f}; the scenario's" in called(*arguments)


def test_memories_of_a_plan_are_compared_at_the_cost_models_prices(scenario, lean):
    arguments = ("poisson:rate=5,hours=0.1", "--scenario", scenario, "--policy", "serverless", "--plan", lean)
    found = {one["memory_mb"]: one for one in outcomes(*arguments, "--memory", 512, "--memory", 2048)}
    assert found.keys() == {512, 2048}
    for memory_mb, one in found.items():
        usd = query_usd(lean, "--memory", memory_mb)
        assert one["cost_usd"]["mean"] == pytest.approx(usd * one["queries"]["mean"])
        assert one["ratio"] is None  # the optimum is at the scenario's price
    with pytest.raises(UsageError, match="give --plan"):
        called(*arguments[:-2], "--memory", 512)


def test_series_are_written_as_csv_and_windows_not_priced_at_the_level_of_rates(scenario, tmp_path):
    file, chosen = tmp_path / "out.csv", ("--policy", "ski-rental", "--policy", "serverless")
    rows = outcomes(LOAD, "--scenario", scenario, *chosen, "--level", "rates", "--scale", "S", "--csv", file)
    lines = [line.split(",") for line in file.read_text().splitlines()]
    assert lines[0] == ["policy", "t_seconds", "load_qps", "instances_on", "instances_serving", "lambda_qps", "usd"]
    last = {line[0]: float(line[-1]) for line in lines[1:]}
    assert last == {one["policy"]: pytest.approx(one["cost_usd"]) for one in rows}
    for one in rows:
        assert (one["window_usd"], one["window_ratio"], one["windows"], one["notes"]) == (None, None, [], [])


def test_an_access_log_is_a_load_cut_by_dates(scenario, tmp_path):
    log = tmp_path / "access.log"
    line = '1.1.1.1 - - [25/Nov/2026:{hour:02}:{minute:02}:00 +0100] "POST / HTTP/1.1" 200 1\n'
    log.write_text("".join(line.format(hour=n // 60, minute=n % 60) for n in range(180)) + "1.1.1.1 - - [cut")
    arguments = (log, "--scenario", scenario, "--policy", "serverless", "--level", "rates")
    whole = outcomes(*arguments)[0]
    part = outcomes(*arguments, "--from", "2026-11-25T00:00Z", "--until", "2026-11-25T01:00:00+00:00")[0]
    assert (whole["queries"], part["queries"], whole["trace"]) == (180, 60, "access")
    said = run("study", "simulate", *arguments).stderr
    assert "1 of 181 lines are not of its format and were left out; the first is line 181, '1.1.1.1 - - [cut'" in said


@pytest.mark.parametrize(("given", "name"), [((), "aws"), (("--scenario", "small-network"), "small-network")])
def test_prices_that_come_with_serfer_are_known_by_name_and_one_is_the_default(given, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # as with a wheel: no examples are near
    (tmp_path / name).mkdir()  # a folder of the user's own, as of the AWS command line
    (one,) = outcomes("poisson:hours=0.1", *given, "--policy", "serverless", "--level", "rates")
    assert one["scenario"] == name


def test_a_file_cut_and_scaled(scenario, tmp_path):
    trace = tmp_path / "load.csv"
    trace.write_text("minute,requests\n0,60\n1,120\n2,0\n3,0\n4,60\n")
    arguments = ("--scenario", scenario, "--policy", "serverless", "--level", "rates")
    whole, cut, skipped = (
        outcomes(trace, *arguments, *more)[0]
        for more in ((), ("--from", 60, "--until", 120, "--scale", 2), ("--skip-zeros-over", 100))
    )
    assert whole["queries"] == skipped["queries"] == 240
    assert whole["cost_usd"] == pytest.approx(240 * 4e-5)
    assert cut["queries"] == 240
    assert (whole["slo_met"], whole["latency_ms"], whole["batches"]) == (None, None, None)


def test_other_instances_and_spot_prices_against_the_same_optimum(scenario):
    arguments = ("poisson:rate=100,hours=1", "--scenario", scenario, "--policy", "instances", "--level", "rates")
    first, spot, larger = (outcomes(*arguments, *more)[0] for more in ((), ("--spot",), ("--instance", "g5.xlarge")))
    assert first["optimum_usd"] == spot["optimum_usd"] == larger["optimum_usd"]
    assert spot["instances_usd"] == pytest.approx(first["instances_usd"] * 0.20 / 0.526)
    assert larger["launches"] < first["launches"]


def test_a_ceiling_binds(scenario):
    load = "poisson:rate=100,hours=3,row_s=10"
    arguments = (load, "--scenario", scenario, "--policy", "ski-rental", "--level", "rates")
    bound = outcomes(*arguments, "--max-usd-per-hour", 0.6)[0]
    assert bound["cost_usd"] < 0.6 * 3 + 0.01
    assert bound["refused"] > 0
    assert (bound["ratio"], bound["optimum_usd"]) == (None, None)  # what was refused cost nothing
    assert "were refused" in bound["warnings"][0]


def test_rates_inconsistent_with_batches_are_warned_of_and_not_compared(scenario, tmp_path):
    scenario.write_text(TOML.replace("qps = 60", "qps = 30"))
    arguments = ("poisson:hours=0.2", "--scenario", scenario, "--level", "rates", "--policy", "break-even", "--json")
    result = run("study", "simulate", *arguments, "--plot", tmp_path / "out.svg")
    assert "warning" in result.stderr
    assert "g4dn.xlarge: qps is 30, but its batches sustain 66.67" in result.stderr
    row = json.loads(result.stdout)
    assert (row["ratio"], row["optimum_usd"]) == (None, None)
    assert "optimum" not in (tmp_path / "out.svg").read_text()


@pytest.mark.parametrize(("period_s", "warned"), [(5, False), (30, True)])
def test_long_decision_periods_are_warned_of(scenario, period_s, warned):
    arguments = ("poisson:hours=0.2", "--scenario", scenario, "--level", "rates", "--period-s", period_s)
    shown = run("study", "simulate", *arguments).stderr
    assert ("--period-s 30 is long for instances that boot in 120 s" in shown) == warned


def test_a_load_that_does_not_begin_at_zero_is_plotted(scenario, tmp_path):
    trace = tmp_path / "load.csv"
    trace.write_text("t_seconds,rps\n1000,5\n2000,50\n3000,5\n")
    called(trace, "--scenario", scenario, "--level", "rates", "--plot", tmp_path / "out.svg")
    assert "optimum" in (tmp_path / "out.svg").read_text()


def test_tasks_of_a_plan_and_of_a_calibration(scenario, lean, tmp_path):
    write_calibration(calibration(), tmp_path / "c.json")
    arguments = ("poisson:rate=5,hours=0.05", "--scenario", scenario, "--policy", "serverless")
    for source in (("--plan", lean), ("--calibration", tmp_path / "c.json")):
        tasks, drawn = (outcomes(*arguments, *source, "--level", level)[0] for level in ("tasks", "queries"))
        assert tasks["latency_ms"]["p50"] == pytest.approx(drawn["latency_ms"]["p50"], rel=0.1)


def test_a_plan_is_calibrated_on_this_machine(scenario, lean, tmp_path):
    made = json.loads(called("--calibrate", lean, "--out", tmp_path / "c.json", "--queries", 20, "--json"))
    assert (made["queries"], made["out"]) == (20, str(tmp_path / "c.json"))
    assert made["cold_ms"] > 0
    load = ("poisson:rate=5,hours=0.1", "--scenario", scenario, "--policy", "serverless")
    row = outcomes(*load, "--calibration", tmp_path / "c.json")[0]
    assert row["latency_ms"]["p50"] == pytest.approx(made["p50_ms"], rel=0.5)  # of few and noisy queries


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((LOAD, "--level", "atoms"), UsageError, "--level"),
        ((LOAD, "--level", "tasks"), UsageError, "--plan DIR or --calibration FILE"),
        ((LOAD, "--period-s", "0"), UsageError, "--period-s"),
        ((LOAD, "--window-s", "1e-9"), UsageError, "--window-s 1e-09 makes more than"),
        ((LOAD, "--scale", "1e9"), UsageError, "peak of .* a smaller --scale"),
        ((LOAD, "--from", "1e7"), UsageError, "--from"),
        ((LOAD, "--from", "noon"), UsageError, "--from is seconds, or a date"),
        ((LOAD, "--until", "-1"), UsageError, "--until is seconds, or a date"),
        ((LOAD, "--csv", "nowhere/out.csv"), InputError, "nowhere"),
        ((LOAD, "--seeds", "1000", "--instance", "p2"), UsageError, "--instance p2"),
        ((LOAD, "--instance", "g5.xlarge", "--spot"), UsageError, "no spot price"),
        ((LOAD, "--plot", "out.txt"), UsageError, "out.txt"),
        ((LOAD, "--plot", "nowhere/out.png"), InputError, "nowhere"),
        ((LOAD, "--plan", "nowhere"), InputError, "nowhere"),
        ((LOAD, "--calibration", "nowhere.json"), InputError, "nowhere.json"),
        ((LOAD, "--calibration", "a", "--plan", "b"), UsageError, "not both"),
        ((LOAD, "--calibrate", "a", "--out", "b"), UsageError, "no LOAD"),
        (("--calibrate", "a"), UsageError, "--out FILE"),
        ((), UsageError, "give LOAD"),
    ],
)
def test_wrong_input_is_refused_in_one_line(scenario, arguments, kind, message):
    with pytest.raises(kind, match=message) as raised:
        called(*arguments, "--scenario", scenario)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("text", "message"), [("slo_ms = ", "not TOML"), ("slo_ms = 300", "lacks 'instance'")])
def test_a_wrong_scenario_is_named_with_its_file(scenario, text, message):
    scenario.write_text(text)
    with pytest.raises(InputError, match=rf"two-types\.toml.*{message}"):
        called(LOAD, "--scenario", scenario)


def test_the_table_compares_with_target_tracking_and_sums_up(scenario):
    world = read_scenario(scenario)
    load = Trace("nasa", np.full(100, 60.0), np.linspace(0, 50, 100))
    rows = run_policies(
        prepare(load, "two-types", world, "M"), ("ski-rental", "target-tracking-stepwise"), RunOptions()
    )
    rows = [each.outcome for each in rows]
    saved = f"{1 - rows[0].cost_usd / rows[1].cost_usd:.0%}"
    lines = results(rows).markdown().splitlines()
    assert lines[2].startswith("| nasa | two-types | M | ski-rental |")
    assert lines[2].endswith(f"| {saved} |")
    assert lines[-2].startswith(f"- ski-rental: predictable {rows[0].ratio:.3f} on average")
    assert f"saves {saved} at least at M" in lines[-2]


@pytest.mark.parametrize(("name", "fault"), [("", "--scenarios"), ("none", "by name: those are aws"), ("a/b", "a/b")])
def test_bench_policies_refuses_folders_and_names_without_scenarios(tmp_path, monkeypatch, name, fault):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=fault):
        run("study", "policies", "--traces", tmp_path, "--scenarios", name or ".")


def test_bench_policies_shows_every_load_and_scale_in_order_whichever_ends_first(scenario, monkeypatch):
    monkeypatch.setattr(policies, "process_pool", ThreadPoolExecutor)
    loads, names = ("poisson:hours=0.05", "poisson:hours=0.3"), ("ski-rental", "serverless")
    wanted = ("--load", loads[0], "--load", loads[1], "--policy", names[0], "--policy", names[1])
    found = rows("study", "policies", "--scenarios", scenario, *wanted, "--window-s", 60)
    shown = [(one["trace"], one["scale"], one["policy"]) for one in found]
    assert shown == [(f"{load},seed=0", scale, name) for load, scale, name in product(loads, "SM", names)]
    assert all(one["slo_met"] is not None for one in found)


def test_one_scenario_of_a_folder_is_chosen_by_its_file(tmp_path):
    for name in ("small", "large"):
        (tmp_path / f"{name}.toml").write_text(TOML)
    options = Options(("serverless",), RunOptions(), only=("diurnal",), scales=("M",))
    whole, one = (cases(tmp_path, path, options) for path in (tmp_path, tmp_path / "small.toml"))
    assert [[case.scenario.stem for case in chosen] for chosen in (whole, one)] == [["large", "small"], ["small"]]
