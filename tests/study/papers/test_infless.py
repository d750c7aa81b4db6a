"""INFless' evaluation redone: what holds of it, in a small part of the benchmark."""

from dataclasses import replace
from itertools import count

import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.costs.operator_costs import shipped_profiles
from serfer.core.errors import UnavailableError
from serfer.splitter.network.source import load
from serfer.splitter.network.zoo import find
from serfer.splitter.plan_dir.emit import in_one_piece
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer_bench.study.papers.infless import figure8
from serfer_bench.study.papers.infless.capacity import SYSTEMS, highest, placed
from serfer_bench.study.papers.infless.figure8 import BatchPrediction, mean_error, measure_whole, whole_results
from serfer_bench.study.papers.infless.figure16 import charts, notes, run
from serfer_bench.study.papers.infless.loads import COMPARED
from serfer_bench.study.papers.infless.paper import AUTHORS, BY_FLOPS, OPERATORS, OSVT, World
from serfer_bench.study.papers.infless.throughput import functions_of
from serfer_bench.study.policies.infless.measured import measured_profile
from serfer_bench.study.policies.infless.scenario import PolicyFacts
from serfer_bench.study.profiling import profile
from serfer_bench.study.profiling.whole_network import whole_works
from serfer_bench.study.sim.simulate import LoadSpec
from tests.bench import running
from tests.e2e.small import small_onnx

pytestmark = pytest.mark.weekly


SCARCE = World(BY_FLOPS, by_scarcity=True)


def test_the_highest_load_is_what_has_room_and_more_servers_take_more():
    scenario = SCARCE.application(OSVT)
    best = highest(scenario, SYSTEMS["infless"])
    assert placed(scenario, SYSTEMS["infless"], 1.05 * best.rps) is None
    assert placed(scenario, SYSTEMS["infless"], 0.5 * best.rps).units < best.units
    scenario = World(AUTHORS).application(OSVT, 50.0)
    assert highest(scenario, SYSTEMS["infless"]).rps == 0
    scenario = SCARCE.application(OSVT)
    kind = scenario.servers[0]
    twice = replace(scenario, servers=(replace(kind, count=2 * kind.count),))
    assert highest(twice, SYSTEMS["batch"]).rps > 1.8 * highest(scenario, SYSTEMS["batch"]).rps


def test_keep_alive_and_windows_are_what_a_system_s_name_says():
    facts = {name: replace(PolicyFacts(), **one.facts) for name, one in COMPARED.items()}
    assert (facts["batch"].keep_alive_s, facts["batch, 60 s"].keep_alive_s) == (300.0, 60.0)
    assert (facts["batch"].windows, facts["batch, LSTH"].windows) == ("", "lsth")
    assert (facts["infless"].windows, facts["infless, 300 s"].windows) == ("lsth", "")
    assert facts["batch, LSTH"].keep_alive_s == facts["infless"].reserve_s  # what windows do not shorten
    assert (facts["infless, 300 s"].reserve_s, facts["infless, 60 s"].reserve_s) == (300.0, 60.0)


def test_operator_profiles_are_those_that_the_shipped_ones_give_for_networks_of_the_zoo():
    for network in World(OPERATORS).application(OSVT).profiles:
        size = find(network.name).size
        model = in_one_piece(from_onnx(load(network.name, None)[0].onnx, size, size)).model({})
        known = measured_profile(network.name, whole_works(from_onnx(model, size, size)), shipped_profiles())
        assert [replace(one, gpu=None) for one in network.operators] == [*known.operators]


def test_functions_have_the_networks_that_their_profiles_are_of():
    assert {*World(OPERATORS).networks} == {OSVT}
    scenario = functions_of(World(OPERATORS, by_scarcity=True), 10)
    assert {one.profile for one in scenario.functions} <= {one.name for one in scenario.profiles}
    assert functions_of(World(BY_FLOPS), 10, seed=1) != functions_of(World(BY_FLOPS), 10)


PERIODIC = LoadSpec("periodic:every_s=3600,hours=96")


def test_the_notes_compare_with_the_hybrid_policy_as_infless_and_as_its_authors_describe_it():
    rows = run(PERIODIC, [0], 200.0, ["lsth:gamma=0.5", "hybrid:hours=4", "hybrid", "300"])
    published, said = notes(rows)
    assert "21.9%" in published
    assert "24.3%" in published
    mine = rows[0]
    assert f"idle {mine.idle_by_infless:+.1%} by hybrid:hours=4" in said
    assert f"{mine.idle_by_authors:+.1%} by hybrid " in said
    (chart,) = charts(rows)
    assert [curve.name for curve in chart.curves] == ["fixed keep-alive", "lsth:gamma=0.5", "hybrid:hours=4", "hybrid"]


def test_the_command_runs_traces_in_place_of_generated_loads_and_draws_them(tmp_path):
    trace, picture = tmp_path / "few.csv", tmp_path / "few.png"
    trace.write_text("minute,requests\n" + "".join(f"{minute},3\n" for minute in range(0, 3000, 30)))
    given = ["--trace", str(trace), "--seeds", "1", "--policy", "lsth", "--policy", "300", "--picture", str(picture)]
    rows = running.rows("study", "paper", "infless", "--figure", "16", *given)
    assert [row["load"] for row in rows] == ["few", "few"]
    assert rows[0]["cold"] < rows[1]["cold"] == 100
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong = CliRunner().invoke(app, ["study", "paper", "infless", "--figure", "16", "--policy", "lsht"])
    assert wrong.exit_code != 0


def batch(model, predicted_ms, threads, quiet):
    return BatchPrediction(model, 4, threads, predicted_ms, measured_ms=10, runs=8, quiet=quiet)


def test_batches_of_whole_networks_have_an_error_by_network_and_threads():
    rows = [batch("alexnet", 11, 1, 3), batch("alexnet", 7, 2, 1), batch("resnet18", 20, 1, 0)]
    assert mean_error(rows) == pytest.approx(0.2)
    text = whole_results(rows, shipped_profiles()).text()
    assert "20.0% of 2 batches; 1 disturbed" in text
    assert "below 10% on average" in text
    errors = [line.split() for line in text.splitlines() if line.startswith(("alexnet", "all")) and "/" not in line]
    assert errors == [
        ["alexnet", "no", "1", "+10.0%", "10.0%"],
        ["alexnet", "no", "2", "-30.0%", "30.0%"],
        ["all", "1", "10.0%"],
        ["all", "2", "30.0%"],
    ]
    assert any(line.split() == ["resnet18", "yes", "1", "disturbed", "-"] for line in text.splitlines())
    with pytest.raises(UnavailableError, match="quiet"):
        mean_error(rows[2:])


def test_a_run_whose_threads_wait_for_a_processor_is_disturbed(monkeypatch):
    session = profile.worker_session(small_onnx())
    waited = count(step=0.5)
    monkeypatch.setattr(figure8, "_waited_s", lambda: next(waited))
    assert figure8._run(session, 2, max_s=0.0)[1:] == (8, 0)
    monkeypatch.setattr(figure8, "_waited_s", lambda: 0.5)
    assert figure8._run(session, 2, max_s=0.0)[1:] == (8, 8)


def test_whole_networks_are_predicted_and_measured_by_batch_and_threads():
    rows = measure_whole(shipped_profiles(), ("squeezenet",), batches=(1, 2), max_s=0.5)
    assert [(one.batch, one.threads) for one in rows] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert all(one.predicted_ms > 0 and one.measured_ms > 0 for one in rows)
