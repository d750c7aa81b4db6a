"""`serfer cost --replay`: the busiest seconds of a load through functions and an instance that boots."""

import json
import os
import signal
import subprocess
import sys

import onnx
import psutil
import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.wiring import load_replay
from tests.e2e.small import small_onnx

SCENARIO = """
slo_ms = 1000
[lambda]
usd_per_query = 1e-5
latency_ms = 50
cold_ms = 1000
concurrency = 1000
memory_gb = 1.7
keep_alive_s = 300
[[instance]]
name = "own"
usd_per_hour = 0.02
spot_usd_per_hour = 0
boot_s = 0
min_billing_s = 0
qps = 20
batches = [[1, 40]]
"""


@pytest.fixture
def load(tmp_path):
    """A network, and a load of which the busiest three seconds begin at the fifth."""
    onnx.save(small_onnx(), tmp_path / "small.onnx")
    (tmp_path / "load.csv").write_text("t_seconds,rps\n0,0.2\n5,8\n8,0.2\n60,0\n")
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    names = ("small.onnx", "--log", "load.csv", "--scenario", "scenario.toml", "--replay")
    return [str(tmp_path / name) if "." in name else name for name in names]


def test_a_replay_shows_what_was_simulated_beside_what_was_measured(load, monkeypatch):
    monkeypatch.setattr(load_replay, "_STARTS", 1)
    monkeypatch.setattr(load_replay, "_TURNS", 2)
    result = CliRunner().invoke(app, ["cost", *load, "--replay-minutes", "0.05", "--json"])
    if result.exception:
        raise result.exception
    document = json.loads(result.stdout)
    assert document["ways"]
    replay = document["replay"]
    assert (replay["begin_s"], replay["seconds"]) == (5.0, 3.0)
    assert replay["queries"] == pytest.approx(24 / replay["thinned"], abs=1)
    machine = replay["machine"]
    assert machine["cold_ms"] > machine["warm_ms"] > 0
    assert machine["instance_boot_s"] > 0
    assert [way["name"] for way in replay["ways"]] == ["one function", "SerFer: one function, own"]
    for way in replay["ways"]:
        measured, simulated = way["measured"], way["simulated"]
        assert measured["unanswered"] == simulated["unanswered"] == 0
        assert measured["p99_ms"] > machine["warm_ms"]
        assert 0 < measured["cold_share"] < 0.5
        assert way["off"]["usd"] == pytest.approx(simulated["usd"] / measured["usd"] - 1)
    assert replay["remarks"] == []


def test_an_interrupted_replay_leaves_nothing_running(load):
    command = [sys.executable, "-m", "serfer", "cost", *load, "--replay-minutes", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)) as process:
        assert process.stdout is not None
        while b"left out" not in process.stdout.readline():
            pass
        children = []
        while not children and process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1] == b"serfer: interrupted"
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
