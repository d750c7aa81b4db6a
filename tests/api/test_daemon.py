"""One driver of a fleet, as an instance runs it: a process, its lines, its end."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest

from serfer.api.auth.keys import add_key
from serfer.api.entrypoints import daemon
from serfer.plan_directory import load_plan
from serfer.registry import open_registry
from tests.applications.worlds import register, variant, version
from tests.support.served import PATIENCE, PNG, png


def test_garbage_in_cycles_is_looked_for_rarely_and_goes_all_the_same():
    """In another process: what is frozen here would stay for all tests."""
    program = """
import gc, weakref
from serfer.api.entrypoints.process import collect_rarely
class Cycle: pass
gone = []
collect_rarely()
assert gc.get_threshold()[0] >= 2000 and gc.get_freeze_count()
for _ in range(100 * gc.get_threshold()[0]):
    cycle = Cycle()
    cycle.own = cycle
    weakref.finalize(cycle, gone.append, 1)
    if gone:
        break
assert gone
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


class Daemon:
    def __init__(self, process):
        self.process, self.lines = process, []

    def heard(self, event):
        for line in self.process.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == event:
                return self.lines[-1]
        raise AssertionError(self.lines)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.lines += [json.loads(line) for line in self.process.stderr]
        return self.process.wait(PATIENCE)


@contextmanager
def running(plan, *arguments, **variables):
    """Start a daemon beside a plan directory, with workers in process."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("SERFER_", "LAMBDA_"))}
    environ = {"SERFER_PLAN": plan.name, "SERFER_STORE": "memory://", "SERFER_WORKERS": "inprocess"}
    with subprocess.Popen(
        [sys.executable, "-m", "serfer.api.entrypoints.daemon", "--host", "127.0.0.1", "--port", "0", *arguments],
        env={**known, **environ, "SERFER_API_DRAIN_S": "0", **variables},
        cwd=plan.parent,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Daemon(process)
        finally:
            process.kill()


@pytest.mark.killed
def test_it_serves_the_plans_of_its_environment_and_ends_on_sigterm(small_plan):
    with running(small_plan) as started:
        event = started.heard("listening")
        assert (event["models"], event["driver"]) == (["small"], "push")
        with httpx.Client(base_url=event["url"], timeout=PATIENCE) as http:
            assert http.get("/readyz").status_code == 200
            reply = http.post("/v1/classify", content=png(), headers=PNG)
        assert (reply.status_code, reply.json()["model"]) == (200, "small")
        assert started.end() == 0
    assert "SERFER_KEYS_FILE" in next(line["message"] for line in started.lines if line["event"] == "open")
    [request] = [line for line in started.lines if line.get("route") == "/v1/classify"]
    assert request["status"] == 200


def test_it_serves_deployed_variants_of_applications_with_every_drivers_keys_and_bounds(small_plan, tmp_path):
    key = add_key(tmp_path / "keys.json", "phone", None)
    bounds = {"SERFER_KEYS_FILE": str(tmp_path / "keys.json"), "SERFER_API_MAX_BODY_BYTES": "100000"}
    registry = open_registry(str(tmp_path / "registry"))
    plan = load_plan(small_plan).digest
    there = variant("net.there", plan=plan, artefact=registry.put_directory(small_plan))
    register(registry, "faces", version("net", 1, there, variant("net.elsewhere", usd=1e-9)))
    known = {"SERFER_REGISTRY": str(registry), "SERFER_APPLICATIONS": "faces"}
    with running(small_plan, **known, **bounds, SERFER_APPLICATION_PLANS=small_plan.name) as started:
        url = started.heard("listening")["url"]
        with httpx.Client(base_url=url, timeout=PATIENCE) as http:
            assert http.post("/v1/classify", content=png(), headers=PNG).status_code == 401
            headers = {**PNG, "X-API-Key": key}
            assert http.post("/v1/classify", content=bytes(100_001), headers=headers).status_code == 413
            reply = http.post("/v1/classify?application=faces", content=png(), headers=headers)
            assert (reply.status_code, reply.json()["selected"]["variant"]) == (200, "net.there")
            assert http.post("/v1/classify", content=png(), headers=headers).json()["model"] == "small"
        assert started.end() == 0
    assert "open" not in {line["event"] for line in started.lines}


@pytest.mark.parametrize(
    ("wrong", "code", "words"),
    [
        ({"SERFER_DRIVER": "pull"}, 2, "SERFER_DRIVER is push"),
        ({"SERFER_PLAN": "nowhere"}, 3, "nowhere is not a plan directory"),
        ({"SERFER_STORE": "", "SERFER_WORKERS": ""}, 2, "SERFER_STORE is not set"),
        ({"SERFER_API_QUEUE": "many"}, 2, "SERFER_API_QUEUE"),
        ({"SERFER_PLAN": ""}, 2, "set SERFER_PLAN"),
        ({"SERFER_APPLICATIONS": "faces"}, 2, "set SERFER_REGISTRY"),
        ({"SERFER_APPLICATIONS": "faces", "SERFER_REGISTRY": "x"}, 2, "set SERFER_APPLICATION_PLANS"),
    ],
)
@pytest.mark.usefixtures("stream")
def test_errors_are_one_line_and_an_exit_code(monkeypatch, capsys, small_plan, tmp_path, wrong, code, words):
    for name, value in {"SERFER_PLAN": str(small_plan), "SERFER_STORE": "memory://", **wrong}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert daemon.main(["--host", "127.0.0.1", "--port", "0"]) == code
    [line] = capsys.readouterr().err.splitlines()
    assert (json.loads(line)["event"], json.loads(line)["level"]) == ("failed", "error")
    assert words in json.loads(line)["reason"]
