"""`serfer study replay`: the busiest seconds of a load through functions and an instance that boots."""

import os
import signal
import subprocess
import sys

import onnx
import psutil
import pytest

import serfer
from serfer.core.errors import PlanError
from serfer_bench.study.sim import local_replay as load_replay
from tests.bench.running import rows
from tests.e2e.dense import dense_onnx
from tests.e2e.small import small_onnx
from tests.support.scenarios import scenario_text

SCENARIO = scenario_text(30000, (1e-5, 50, 1000, 1000, 1.7, 300), ("own", 1e-4, 0, 0, 0, 20, [[1, 40]]))


@pytest.fixture
def load(tmp_path):
    """A load of which the busiest three seconds begin at the fifth, and the busiest half minute at the sixtieth."""
    (tmp_path / "load.csv").write_text("t_seconds,rps\n0,0.2\n5,8\n8,0.2\n60,3\n90,0\n")
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    return ["--log", str(tmp_path / "load.csv"), "--scenario", str(tmp_path / "scenario.toml")]


def saved(model, folder):
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


def replayed(network, load, minutes, monkeypatch):
    """Return what is replayed on a machine that is said to have one processor, so that less of it is measured."""
    monkeypatch.setattr(load_replay, "_STARTS", 1)
    monkeypatch.setattr(load_replay, "_TURNS", 2)
    monkeypatch.setattr(load_replay, "processors", lambda: 1)
    [replay] = rows("study", "replay", network, *load, "--minutes", minutes)
    assert replay["seconds"] == 60 * minutes
    machine = replay["machine"]
    assert machine["cold_ms"] > machine["warm_ms"] > 0
    for way in replay["ways"]:
        measured, simulated, explained = (way[name] for name in ("measured", "simulated", "explained"))
        assert measured["unanswered"] == simulated["unanswered"] == explained["unanswered"] == 0
        assert measured["p99_ms"] > measured["p50_ms"] > 0
        assert 0 < measured["cold_share"] <= 1
        assert way["simulated_off"]["usd"] == pytest.approx(simulated["usd"] / measured["usd"] - 1)
        assert way["explained_off"]["p99_ms"] == pytest.approx(explained["p99_ms"] / measured["p99_ms"] - 1)
    return replay


def test_a_replay_shows_what_was_simulated_beside_what_was_measured(tmp_path, load, monkeypatch):
    replay = replayed(saved(dense_onnx(["scores"]), tmp_path), load, 0.05, monkeypatch)
    assert replay["begin_s"] == 5.0
    assert replay["queries"] == pytest.approx(24 / replay["thinned"], abs=1)
    assert [way["name"] for way in replay["ways"]] == ["one function"]
    [remark] = replay["remarks"]
    assert remark.startswith("without instances: ")
    assert replay["machine"]["instance_boot_s"] is None


@pytest.mark.slow
def test_an_instance_boots_and_takes_its_part_of_a_replay(tmp_path, load, monkeypatch):
    replay = replayed(saved(small_onnx(), tmp_path), load, 0.5, monkeypatch)
    assert replay["begin_s"] == 60.0
    assert [way["name"] for way in replay["ways"]] == ["one function", "SerFer: one function, own"]
    assert replay["machine"]["instance_boot_s"] > 0
    for outcome in (replay["ways"][1]["measured"], replay["ways"][1]["simulated"]):
        assert outcome["launches"] >= 1
        assert 0 < outcome["on_instances"] < 1


@pytest.mark.killed
def test_an_interrupted_replay_leaves_nothing_running(tmp_path, load):
    network = str(saved(small_onnx(), tmp_path))
    command = [sys.executable, "-m", "serfer", "study", "replay", network, *load, "--minutes", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)) as process:
        children = []
        while not children and process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1] == b"serfer: interrupted"
    _, alive = psutil.wait_procs(children, timeout=30)  # a child sees the end of its parent a moment later
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


def test_local_replay_refuses_a_plan_that_lacks_an_artefact(tmp_path, load):
    plan = tmp_path / "plan"
    serfer.whole_plan(str(saved(small_onnx(), tmp_path)), out=plan)
    max(plan.glob("**/*.onnx"), key=lambda artefact: artefact.stat().st_size).unlink()
    with pytest.raises(PlanError):
        rows("study", "replay", plan, *load)
