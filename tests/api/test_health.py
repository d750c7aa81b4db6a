import shutil
from unittest.mock import AsyncMock

import pytest

import serfer
from serfer.api.app import make_app
from serfer.api.entrypoints.serving import PlanWatch
from serfer.local.servers.redis import RedisServer
from serfer.pipeline.health import Health
from serfer.plan_directory import load_plan
from tests.e2e.conftest import eventually
from tests.e2e.small import split_small
from tests.support.served import asking, service_of


@pytest.fixture
def says(service, monkeypatch):
    return lambda *health: monkeypatch.setattr(service, "health", AsyncMock(return_value=Health(*health)))


def test_failures_are_named_and_a_driver_that_drains_wants_no_queries(http, says, service):
    says("no answer", "throttled: none are left")
    response = http.get("/readyz")
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    failures = {"store": "no answer", "functions": "throttled: none are left"}
    assert response.json() == {"ready": False, "draining": False, **failures}
    assert http.get("/healthz").status_code == 200
    says()
    service.drain()
    response = http.get("/readyz")
    assert (response.status_code, response.json()["draining"]) == (503, True)
    assert http.get("/healthz").status_code == 200


def test_foreign_error_messages_are_cut_to_one_short_line(http, says):
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
        eventually(lambda: logged, "it is told")


def eventually_is(http, status):
    def response():
        found = http.get("/readyz")
        return found if found.status_code == status else None

    return eventually(response, f"its readiness is {status}", every=0.05)


def test_readiness_follows_the_store(small_plan, settings):
    server = RedisServer()
    url, port, password = server.url, server.port, server.url.split(":")[2].split("@")[0]
    try:
        with service_of({"small": small_plan}, store=url) as service, asking(make_app(service, settings)) as http:
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
