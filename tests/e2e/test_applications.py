"""Applications as `serfer serve` serves them: by one driver, and by two over one local Lambda service."""

import io
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

import serfer
from serfer.core.variants import Canary, CanaryLimits
from serfer.plan_directory import load_plan
from serfer.registry import open_registry
from tests.applications.worlds import NOW, plan_variant, register, variant, version
from tests.e2e.conftest import PATIENCE, SERVED, eventually, starting
from tests.e2e.small import LABELS, PREPROCESS, small_onnx
from tests.e2e.test_several_drivers import QUIET, System


def white():
    buffer = io.BytesIO()
    Image.new("RGB", (48, 40), "white").save(buffer, "PNG")
    return buffer.getvalue()


def split_broken(directory):
    """Split a network whose answer to a white image is not finite; to noise, which plans are checked with, it is."""
    directory.mkdir()
    model = small_onnx()
    weights = {"c0": 0.3, "c1": 1e30, "c2": 1e30}
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(
                numpy_helper.from_array(np.full(tensor.dims, weights[tensor.name], np.float32), tensor.name)
            )
    model.graph.initializer.append(numpy_helper.from_array(np.full(8, -14, np.float32), "b1"))
    model.graph.node[0].input.append("b1")
    path, out = directory / "broken.onnx", directory / "plan"
    onnx.save(model, path)
    serfer.split(str(path), out=out, grids=[(1, 1)], preprocess=PREPROCESS, labels=LABELS, activation="softmax")
    return out


@pytest.mark.parametrize("command", ["serve", "instance"])
def test_with_nothing_named_the_registry_of_the_settings_is_served_and_no_network_of_the_zoo(
    serfer_here, tmp_path, command
):
    open_registry(str(tmp_path / "registry"))
    served = serfer_here(command, "--port", "0", SERFER_REGISTRY=str(tmp_path / "registry"))
    served.complains(2, "variants for instances" if command == "instance" else "serfer app register")


def classify(url):
    return httpx.post(f"{url}/v1/classify", files={"image": white()}, timeout=PATIENCE)


SELECTOR = """
from serfer.control.selection import InfaasSelector
from serfer.core.variants import Selection, SelectionReason

class Dearest:
    def get_variant(self, asked, catalogue, states, draw):
        row = max(catalogue.rows, key=lambda row: row.usd)
        return Selection(row.name, SelectionReason.ACTIVE, place="functions")
"""


@pytest.mark.slow
def test_a_selector_of_the_users_own_chooses_the_variants(start, redis, tmp_path):
    found = open_registry(str(tmp_path / "registry"))
    cheap = plan_variant(found, tmp_path / "whole", "net.whole", grids=[(1, 1)], usd=1e-5)
    dear = plan_variant(found, tmp_path / "tiles", "net.tiles", usd=3e-5)
    register(found, "faces", version("net", 1, cheap, dear))
    (tmp_path / "dearest.py").write_text(SELECTOR, encoding="utf-8")
    command = start(
        *("serve", "--registry", str(found), "--store", redis, *SERVED),
        *("--set", f"selector={tmp_path}/dearest.py:Dearest"),
    )
    assert classify(command.said()["url"]).json()["selected"]["variant"] == "net.tiles"
    command.stop()


LIMITS = CanaryLimits(window_s=600.0, queries=10, max_error_rate=0.2)
APPLICATIONS = ("faces", "taken-back", "promoted")


@dataclass(frozen=True)
class World:
    """A running `serfer serve --drivers N` with two drivers, and an application for each test."""

    system: System
    registry: object
    directory: Path

    @property
    def drivers(self):
        return self.system.started["drivers"]

    def ask(self, application, *, at=None):
        path = f"/v1/classify?application={application}"
        status, _, body = self.system.send("POST", path, white(), at=at, Content_Type="image/png")
        return status, json.loads(body)

    def shown(self, application, driver):
        return json.loads(self.system.send("GET", f"/v1/applications/{application}", at=driver["url"])[2])


@pytest.fixture(scope="module")
def world(cache, tmp_path_factory):
    """Applications whose version 1, on one function, is live; version 2 fails for white images."""
    directory = tmp_path_factory.mktemp("up")
    registry = open_registry(str(directory / "registry"))
    whole = plan_variant(registry, directory / "one", "net.1.whole", grids=[(1, 1)])
    broken = split_broken(directory / "two")
    second = variant("net.2.whole", plan=load_plan(broken).digest, artefact=registry.put_directory(broken))
    for name in APPLICATIONS:
        register(registry, name, version("net", 1, whole), version("net", 2, second))
    named = [word for name in APPLICATIONS for word in ("--app", name)]
    with starting(cache, directory) as start:
        system = System(start("serve", "--drivers", "2", "--port", 0, *QUIET, "--registry", registry, *named))
        yield World(system, registry, directory)
        system.command.process.send_signal(signal.SIGTERM)
        result = system.command.end()
        assert result.code == 0, result.err


@pytest.mark.slow
def test_all_drivers_serve_the_applications_and_a_canary_is_taken_back_by_what_all_of_them_saw(world):
    name, drivers, registry = "taken-back", world.drivers, world.registry
    for driver in drivers:
        status, answer = world.ask(name, at=driver["url"])
        assert (status, answer["selected"]["version"]) == (200, 1)
    assert world.system.send("GET", "/v1/applications")[0] == 200

    registry.update(name, lambda record: record.with_canary(Canary({"net": 2}, 0.5, NOW, "test", LIMITS)))
    for driver in drivers:
        eventually(lambda driver=driver: world.shown(name, driver)["canary"], "the driver sees the canary", every=0.1)
    replies = [world.ask(name, at=drivers[number % 2]["url"]) for number in range(40)]
    assert {(status, answer["selected"]["version"]) for status, answer in replies} == {(200, 1)}
    assert any(answer["selected"]["failed"] for _, answer in replies)
    eventually(lambda: registry.application(name).canary is None, "the canary is taken back", every=0.1)
    for driver in drivers:
        eventually(lambda driver=driver: not world.shown(name, driver)["canary"], "it is used no more", every=0.1)
    assert not any(world.ask(name, at=driver["url"])[1]["selected"]["failed"] for driver in drivers for _ in range(20))
    assert "failed" in world.shown(name, drivers[0])["taken_back"]


@pytest.mark.slow
def test_a_version_that_is_promoted_later_runs_in_the_one_lambda_service(world):
    name, registry = "promoted", world.registry
    assert world.ask(name)[1]["selected"]["version"] == 1
    third = plan_variant(registry, world.directory / "three", "net.3.tiles", seed=1, grids=[(1, 2), (1, 1)])
    register(registry, name, version("net", 3, third))
    registry.update(name, lambda record: record.promoted({"net": 3}, NOW, "test", ""))
    for driver in world.drivers:

        def answers(driver=driver):
            status, answer = world.ask(name, at=driver["url"])
            assert status == 200
            return answer["selected"]["version"] == 3

        eventually(answers, "the driver serves the promoted version", every=0.1)
    workers = [process for process in world.system.command.processes() if process.kind == "worker"]
    assert {process.stage for process in workers} >= {0, 1}


@pytest.mark.killed
@pytest.mark.slow
def test_a_killed_driver_and_a_registry_that_is_away_lose_no_query(world):
    first, second = world.drivers
    here = Path(str(world.registry))
    away = here.rename(here.with_suffix(".away"))
    try:
        os.kill(first["pid"], signal.SIGKILL)
        for _ in range(5):
            assert world.ask("faces", at=second["url"])[0] == 200
    finally:
        away.rename(here)
    eventually(lambda: world.system.ready(first), "the driver comes back with the registry", every=0.2)
    assert world.ask("faces", at=first["url"])[0] == 200


def test_an_application_that_is_not_registered_is_refused_before_anything_starts(serfer_here, tmp_path):
    place = str(tmp_path / "registry")
    register(open_registry(place), "faces", version("net", 1, variant("net.1.whole")))
    refused = serfer_here("serve", "--drivers", "2", "--registry", place, "--app", "pets")
    refused.complains(2, "no application pets", "faces")
