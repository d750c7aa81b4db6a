import os
import shutil
import signal
import time
from pathlib import Path

import httpx
import pytest

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.entrypoints.serving import PlanWatch
from serfer.api.service import Service
from serfer.local.servers.redis import RedisServer
from serfer.pipeline.health import Health
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from tests.api.conftest import PATIENCE, Observed, png, running
from tests.caches import new_cache
from tests.e2e.small import split_small


@pytest.fixture
def says(service, monkeypatch):
    def report(store="", functions=""):
        async def health():
            return Health(store, functions)

        monkeypatch.setattr(service, "health", health)

    return report


class TestWords:
    def test_failures_are_named(self, http, says):
        says("no answer", "throttled: none are left")
        response = http.get("/readyz")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "2"
        assert response.json() == {
            "ready": False,
            "store": "no answer",
            "functions": "throttled: none are left",
            "draining": False,
        }
        assert http.get("/healthz").status_code == 200

    def test_a_driver_that_drains_wants_no_queries(self, http, service):
        service.drain()
        response = http.get("/readyz")
        assert (response.status_code, response.json()["draining"]) == (503, True)
        assert http.get("/healthz").status_code == 200

    def test_foreign_error_messages_are_cut_to_one_short_line(self, http, says):
        says("first\nsecond " + "x" * 5000)
        text = http.get("/readyz").json()["store"]
        assert text.startswith("first second")
        assert len(text) == 300


class TestChangedPlans:
    @pytest.fixture
    def watched(self, small_plan, tmp_path, monkeypatch):
        directory = shutil.copytree(small_plan, tmp_path / "plan")
        logged = []
        monkeypatch.setattr(
            "serfer.api.entrypoints.serving.write", lambda _level, event, fields: logged.append((event, fields))
        )
        watch = PlanWatch({"small": directory}, {"small": load_plan(directory)})
        return directory, watch, logged

    def test_a_plan_that_was_described_again_is_told_once(self, watched):
        directory, watch, logged = watched
        watch.look()
        assert logged == []
        serfer.describe(directory, activation="none")
        watch.look()
        watch.look()
        [(event, fields)] = logged
        assert event == "restart to serve what has changed"
        assert (fields["model"], "described again" in fields["reason"]) == ("small", True)

    @pytest.mark.hostile
    def test_another_plan_is_told_and_one_that_is_gone_or_damaged_is_not(self, watched):
        directory, watch, logged = watched
        (directory / "plan.json").write_text("{")
        watch.look()
        (directory / "plan.json").unlink()
        watch.look()
        assert logged == []
        shutil.copytree(split_small(directory.parent / "other", seed=1), directory, dirs_exist_ok=True)
        watch.look()
        assert "another plan" in logged[0][1]["reason"]

    def test_a_service_looks_with_its_other_looks(self, http, service, watched):
        directory, watch, logged = watched
        service.plan_watch = watch.look
        serfer.describe(directory, activation="none")
        assert http.get("/readyz").status_code == 200
        deadline = time.monotonic() + PATIENCE
        while not logged:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def eventually_is(http, status):
    deadline = time.monotonic() + PATIENCE
    while (response := http.get("/readyz")).status_code != status:
        assert time.monotonic() < deadline, response.text
        time.sleep(0.05)
    return response


def test_readiness_follows_the_store(small_plan, settings):
    server = RedisServer()
    url, port, password = server.url, server.port, server.url.split(":")[2].split("@")[0]
    pipeline = serfer.open(small_plan, store=url, workers="inprocess")
    app = make_app(Service({"small": pipeline.asynchronous}, Admission(4, 8), Observed()), settings)
    try:
        with running(app) as base, httpx.Client(base_url=base, timeout=PATIENCE) as http:
            eventually_is(http, 200)
            server.stop()
            gone = eventually_is(http, 503)
            assert gone.json()["store"] != "ok"
            assert gone.json()["functions"] == "ok"
            assert password not in gone.text
            assert http.get("/healthz").status_code == 200
            server = RedisServer(port, password)
            eventually_is(http, 200)
    finally:
        server.stop()


def workers_of(parent):
    """Return the ids of a process's children that run a function."""
    workers = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status, line = (entry / "stat").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(status.rpartition(b")")[2].split()[1]) == parent and b"bootstrap" in line:
            workers.append(int(entry.name))
    return workers


def test_functions_that_cannot_start_and_can_again(tmp_path, tmp_path_factory):
    """The workers are killed, and what they start from is away: queries fail, and so does every start."""
    plan = split_small(tmp_path, grids=[(1, 1)])
    settings = Settings(cache_dir=new_cache(tmp_path_factory))
    pipeline = serfer.open(plan, workers="local", settings=settings, share=False)
    app = make_app(Service({"small": pipeline.asynchronous}, Admission(4, 8), Observed()), settings)
    with running(app) as base, httpx.Client(base_url=base, timeout=PATIENCE) as http:
        ask = {"content": png(), "headers": {"Content-Type": "image/png"}}
        http.post("/v1/classify", **ask).raise_for_status()
        eventually_is(http, 200)
        runtime = settings.cache_dir / "runtime"
        away = runtime.rename(tmp_path / "away")
        for worker in workers_of(os.getpid()):
            os.kill(worker, signal.SIGKILL)
        assert http.post("/v1/classify?deadline_ms=20000", **ask).status_code in (503, 504)
        assert eventually_is(http, 503).json()["functions"] != "ok"
        away.rename(runtime)
        eventually_is(http, 200)
        http.post("/v1/classify", **ask).raise_for_status()
