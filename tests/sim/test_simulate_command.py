"""`serfer simulate` and `serfer bench policies`, as users call them."""

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.policies.policies import results
from serfer.cli.main import app
from serfer.control.scenario_files import read_scenario
from serfer.core.errors import InputError, UsageError
from serfer.sim.calibration import write_calibration
from serfer.sim.generators import GENERATORS
from serfer.sim.simulate import RunOptions, prepare, run_policies
from serfer.sim.traces import Trace
from tests.e2e.small import split_small
from tests.sim.worlds import TOML, calibration

FIELDS = {
    *("policy", "queries", "cost_usd", "serverless_usd", "instances_usd", "optimum_usd", "ratio", "slo_met"),
    *("latency_ms", "launches", "cold_starts", "idle_gb_s", "batches", "throttled"),
}
WINDOW = ("--window-s", "120")  # an hour takes long enough to be noticed
LOAD = "diurnal:mean=20,hours=6,peak_hour=3"


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "two-types.toml"
    path.write_text(TOML)
    return path


def called(*arguments):
    result = CliRunner().invoke(app, ["simulate", *WINDOW, *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def outcomes(*arguments):
    return [json.loads(line) for line in called(*arguments, "--json").splitlines()]


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


def test_the_default_policy_is_used_where_none_is_named(scenario):
    assert [one["policy"] for one in outcomes("poisson:hours=0.2", "--scenario", scenario)] == ["break-even"]


def test_the_same_seed_gives_the_same_output(scenario):
    arguments = ("mmpp:hours=0.3", "--scenario", scenario, "--policy", "ski-rental", "--seed")
    one, same, other = (outcomes(*arguments, seed) for seed in (3, 3, 4))
    assert one == same != other


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
    arguments = ["simulate", "poisson:hours=0.2", "--scenario", str(scenario), "--level", "rates", "--json"]
    result = CliRunner().invoke(app, [*arguments, "--plot", str(tmp_path / "out.svg")])
    assert result.exit_code == 0, result.output
    assert "warning" in result.stderr
    assert "g4dn.xlarge: qps is 30, but its batches sustain 66.67" in result.stderr
    row = json.loads(result.stdout)
    assert (row["ratio"], row["optimum_usd"]) == (None, None)
    assert "optimum" not in (tmp_path / "out.svg").read_text()


@pytest.mark.parametrize(("period_s", "warned"), [(5, False), (30, True)])
def test_long_decision_periods_are_warned_of(scenario, period_s, warned):
    arguments = ("simulate", "poisson:hours=0.2", "--scenario", scenario, "--level", "rates", "--period-s", period_s)
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert ("--period-s 30 is long for instances that boot in 120 s" in result.stderr) == warned


def test_a_load_that_does_not_begin_at_zero_is_plotted(scenario, tmp_path):
    trace = tmp_path / "load.csv"
    trace.write_text("t_seconds,rps\n1000,5\n2000,50\n3000,5\n")
    called(trace, "--scenario", scenario, "--level", "rates", "--plot", tmp_path / "out.svg")
    assert "optimum" in (tmp_path / "out.svg").read_text()


def test_the_table_names_its_load_and_policies(scenario):
    shown = called(
        LOAD, "--scenario", scenario, "--policy", "ski-rental", "--policy", "target-tracking", "--scale", "M"
    )
    for words in (
        "ski-rental",
        "target-tracking",
        "optimum $",
        "ratio",
        "p99 ms",
        "within 300 ms",
        "busiest",
        "aws.toml",
    ):
        assert words in shown


def test_the_picture_is_drawn(scenario, tmp_path):
    for name, magic in (("out.png", b"\x89PNG"), ("out.svg", b"<?xml")):
        called(LOAD, "--scenario", scenario, "--policy", "ski-rental", "--scale", "S", "--plot", tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(magic)


def test_tasks_of_a_plan_and_of_a_calibration(scenario, tmp_path):
    plan = split_small(tmp_path)
    write_calibration(calibration(), tmp_path / "c.json")
    arguments = ("poisson:rate=5,hours=0.1", "--scenario", scenario, "--policy", "serverless")
    for source in (("--plan", plan), ("--calibration", tmp_path / "c.json")):
        tasks, drawn = (outcomes(*arguments, *source, "--level", level)[0] for level in ("tasks", "queries"))
        assert tasks["latency_ms"]["p50"] == pytest.approx(drawn["latency_ms"]["p50"], rel=0.1)


def test_a_plan_is_calibrated_on_this_machine(scenario, tmp_path):
    plan = split_small(tmp_path, grids=[(1, 2), (1, 1)])
    made = json.loads(called("--calibrate", plan, "--out", tmp_path / "c.json", "--queries", 20, "--json"))
    assert (made["queries"], made["out"]) == (20, str(tmp_path / "c.json"))
    assert made["cold_ms"] > 0
    load = ("poisson:rate=5,hours=0.1", "--scenario", scenario, "--policy", "serverless")
    row = outcomes(*load, "--calibration", tmp_path / "c.json")[0]
    assert row["latency_ms"]["p50"] == pytest.approx(made["p50_ms"], rel=0.5)  # of few and noisy queries


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("nothing.csv",), InputError, "nothing.csv"),
        (("nothing",), InputError, "neither a file nor a generator"),
        (("mmpp:x=1",), UsageError, "no parameter 'x'"),
        ((LOAD, "--policy", "best"), UsageError, "no policy 'best'"),
        ((LOAD, "--level", "atoms"), UsageError, "--level"),
        ((LOAD, "--level", "tasks"), UsageError, "--plan DIR or --calibration FILE"),
        ((LOAD, "--scale", "X"), UsageError, "--scale"),
        ((LOAD, "--period-s", "0"), UsageError, "--period-s"),
        ((LOAD, "--window-s", "nan"), UsageError, "--window-s"),
        ((LOAD, "--window-s", "1e-9"), UsageError, "--window-s 1e-09 makes more than"),
        ((LOAD, "--window-s", "1e-320"), UsageError, "--window-s"),
        ((LOAD, "--scale", "1e9"), UsageError, "peak of .* a smaller --scale"),
        ((LOAD, "--from", "1e7"), UsageError, "--from"),
        ((LOAD, "--instance", "p2"), UsageError, "--instance p2"),
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slo_ms = ", "not TOML"),
        ("slo_ms = 300", "lacks 'instance', 'lambda'"),
        (TOML.replace("qps = 60", "qps = 0"), "qps"),
        (TOML.replace("batches = [[1, 18], [8, 120]]", "batches = []"), "batches"),
    ],
)
def test_a_wrong_scenario_is_named_with_its_file(tmp_path, text, message):
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        called(LOAD, "--scenario", tmp_path / "wrong.toml")
    assert "wrong.toml" in str(raised.value)


def test_a_wrong_row_ends_the_program_with_3_and_one_line(scenario, tmp_path):
    (tmp_path / "load.csv").write_text("t_seconds,rps\n0,1\n1,many\n")
    command = [sys.executable, "-m", "serfer", "simulate", tmp_path / "load.csv", "--scenario", scenario]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "load.csv, line 3" in done.stderr


def test_the_help_lists_generators_and_policies():
    shown = called("--help")
    assert all(name in shown for name in (*GENERATORS, "break-even", "target-tracking"))


@pytest.mark.usefixtures("scenario")
def test_bench_policies_runs_every_trace_and_scenario(tmp_path):
    (tmp_path / "twitter_small.csv").write_text("minute,requests\n" + "".join(f"{n},{n % 7}\n" for n in range(60)))
    arguments = ("--traces", tmp_path, "--scenarios", tmp_path, "--load", "twitter", "--window-s", "120")
    some = ("--policy", "ski-rental", "--policy", "target-tracking")
    lines = CliRunner().invoke(app, ["bench", "policies", *map(str, (*arguments, *some)), "--json"]).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(one["trace"], one["scale"], one["policy"]) for one in rows] == [
        ("twitter_small", scale, policy) for scale in "SM" for policy in ("ski-rental", "target-tracking")
    ]
    assert all(one["slo_met"] is not None for one in rows)


def test_the_table_compares_with_target_tracking_and_sums_up(scenario):
    world = read_scenario(scenario)
    load = Trace("nasa", np.full(100, 60.0), np.linspace(0, 50, 100))
    rows = run_policies(prepare(load, "two-types", world, "M"), ("ski-rental", "target-tracking"), RunOptions())
    rows = [each.outcome for each in rows]
    saved = f"{1 - rows[0].cost_usd / rows[1].cost_usd:.0%}"
    lines = results(rows).markdown().splitlines()
    assert lines[2].startswith("| nasa | two-types | M | ski-rental |")
    assert lines[2].endswith(f"| {saved} |")
    assert lines[-2].startswith(f"- ski-rental: predictable {rows[0].ratio:.3f} on average")
    assert f"saves {saved} at least at M" in lines[-2]


def test_bench_policies_refuses_empty_folders(tmp_path):
    result = CliRunner().invoke(
        app, ["bench", "policies", "--traces", str(tmp_path), "--scenarios", str(tmp_path / "none")]
    )
    assert isinstance(result.exception, InputError)
    assert "--scenarios" in str(result.exception)
