"""`serfer up` serves applications: two drivers, one local Lambda service, a registry that others change and lose."""

import json
import os
import signal
from pathlib import Path

import pytest

from serfer.core.variants import Canary, CanaryLimits
from serfer.plan_directory import load_plan
from serfer.registry import open_registry
from tests.applications.worlds import NOW, plan_variant, register, variant, version
from tests.e2e.conftest import eventually
from tests.e2e.test_applications import split_broken, white
from tests.e2e.test_up import QUIET, System

LIMITS = CanaryLimits(window_s=600.0, queries=10, max_error_rate=0.2)


@pytest.fixture
def registry(tmp_path):
    """Application faces: version 1 on one function, live; version 2, which fails for white images."""
    found = open_registry(str(tmp_path / "registry"))
    register(found, "faces", version("net", 1, plan_variant(found, tmp_path / "one", "net.1.whole", grids=[(1, 1)])))
    broken = split_broken(tmp_path / "two")
    second = variant("net.2.whole", plan=load_plan(broken).digest, artefact=found.put_directory(broken))
    register(found, "faces", version("net", 2, second))
    return found


@pytest.fixture
def up(start):
    """Start `serfer up`, and end it by SIGTERM."""
    systems = []

    def started(*arguments):
        system = System(start("up", "--port", 0, *QUIET, *arguments))
        systems.append(system)
        return system

    yield started
    for system in systems:
        system.command.process.send_signal(signal.SIGTERM)
        result = system.command.end()
        assert result.code == 0, result.err


def ask(system, at=None, query="", **headers):
    """Return status and answer of a white image."""
    path = f"/v1/classify?application=faces{query}"
    status, _, body = system.send("POST", path, white(), at=at, Content_Type="image/png", **headers)
    return status, json.loads(body)


def shown(system, driver):
    return json.loads(system.send("GET", "/v1/applications/faces", at=driver["url"])[2])


def test_all_drivers_serve_the_applications_and_a_canary_is_taken_back_by_what_all_of_them_saw(up, registry):
    system = up("--registry", registry, "--app", "faces")
    drivers = system.started["drivers"]
    for driver in drivers:
        status, answer = ask(system, at=driver["url"])
        assert (status, answer["selected"]["version"]) == (200, 1)
    assert system.send("GET", "/v1/applications")[0] == 200

    registry.update("faces", lambda record: record.with_canary(Canary({"net": 2}, 0.5, NOW, "test", LIMITS)))
    for driver in drivers:
        eventually(lambda driver=driver: shown(system, driver)["canary"], "the driver sees the canary", every=0.1)
    replies = [ask(system, at=drivers[number % 2]["url"]) for number in range(40)]
    assert {(status, answer["selected"]["version"]) for status, answer in replies} == {(200, 1)}
    assert any(answer["selected"]["failed"] for _, answer in replies)
    eventually(lambda: registry.application("faces").canary is None, "the canary is taken back", every=0.1)
    for driver in drivers:
        eventually(lambda driver=driver: not shown(system, driver)["canary"], "the driver stops using it", every=0.1)


def test_a_version_that_is_promoted_later_runs_in_the_one_lambda_service(up, registry, tmp_path):
    system = up("--registry", registry)
    assert ask(system)[1]["selected"]["version"] == 1
    third = plan_variant(registry, tmp_path / "three", "net.3.tiles", seed=1)
    register(registry, "faces", version("net", 3, third))
    registry.update("faces", lambda record: record.promoted({"net": 3}, NOW, "test", ""))
    for driver in system.started["drivers"]:

        def answers(driver=driver):
            status, answer = ask(system, at=driver["url"])
            assert status == 200
            return answer["selected"]["version"] == 3

        eventually(answers, "the driver serves the promoted version", every=0.1)
    workers = [process for process in system.command.processes() if process.kind == "worker"]
    assert {process.stage for process in workers} >= {0, 1}


def test_a_killed_driver_and_a_registry_that_is_away_lose_no_query(up, registry):
    system = up("--registry", registry, "--app", "faces")
    first, second = system.started["drivers"]
    here = Path(str(registry))
    away = here.rename(here.with_suffix(".away"))
    os.kill(first["pid"], signal.SIGKILL)
    for _ in range(5):
        assert ask(system, at=second["url"])[0] == 200
    away.rename(here)
    eventually(lambda: system.ready(first), "the driver comes back with the registry", every=0.2)
    assert ask(system, at=first["url"])[0] == 200


def test_keys_are_limited_to_applications_and_by_quotas(up, registry, serfer_here, tmp_path):
    file = tmp_path / "keys.json"
    key = serfer_here("keys", "add", "phone", "--app", "faces=2", "--file", file).lines[-1].split()[-1]
    system = up("--registry", registry, "--app", "faces", "--keys", file, "--drivers", 1)
    driver = system.started["drivers"][0]["url"]
    assert ask(system, at=driver)[0] == 401
    statuses = [ask(system, at=driver, X_API_Key=key)[0] for _ in range(3)]
    assert statuses == [200, 200, 429]
    status, _, body = system.send("POST", "/v1/applications/faces/rollback", b"{}", X_API_Key=key)
    assert (status, json.loads(body)["type"].rpartition(":")[2]) == (403, "scope")


def test_what_is_not_registered_is_refused_before_anything_starts(serfer_here, registry):
    serfer_here("up", "--registry", f"{registry}.none").complains(4, "there is no registry")
    serfer_here("up", "--registry", registry, "--app", "pets").complains(2, "no application pets", "faces")
    serfer_here("up", "--app", "faces").complains(2, "--registry")
