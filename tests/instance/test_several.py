"""An instance of several networks: each is asked by name, memory is bounded, and others can read and change it all."""

import resource
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, Scope, add_key
from serfer.api.observability.pool_metrics import InstanceMetrics
from serfer.api.observability.telemetry import open_telemetry
from serfer.api.service import Service
from serfer.core.errors import UnavailableError
from serfer.core.exactness import difference
from serfer.core.units import MIB
from serfer.drivers.instance import client as module
from serfer.drivers.instance.client import InstanceClient, open_http
from serfer.instance.network import Hardware
from serfer.instance.opening import InstanceChoices, measure_networks, open_instance
from serfer.pipeline.event_loop import RunningLoop
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from tests.e2e.conftest import eventually
from tests.e2e.small import CLASSES, batch, split_small
from tests.fleet.fakes import TEXT as SCENARIO
from tests.instance.conftest import PATIENCE
from tests.instance.heavy import WEIGHTS, split_heavy
from tests.support.served import running_made
from tests.support.tensors import plain, triton_input

CPU = Hardware("cpu", threads=1)
SLACK = 14 * MIB  # what a process that serves grows by beside its networks


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("other"), seed=1, grids=[(1, 2), (1, 1)])


@pytest.fixture(scope="session")
def heavy(tmp_path_factory):
    return split_heavy(tmp_path_factory.mktemp("heavy"))


@contextmanager
def serving(models, keys=None, **choices):
    """Serve plan directories by name in this process; yields a client."""
    measured = measure_networks(models, InstanceChoices(CPU, 4, **choices))

    async def make():
        instance = open_instance(measured, Settings(), RunningLoop())
        telemetry = open_telemetry(instance.pipelines)
        telemetry.metrics.registry.register(InstanceMetrics(instance.residents))
        service = Service(instance.pipelines, Admission(100, 0), telemetry, repository=instance.residents)
        return make_app(service, Settings(), keys, telemetry)

    with running_made(make) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def http(directory, other):
    with serving({"small": directory, "other": other}) as client:
        yield client


@pytest.fixture(scope="module")
def shared(directory, other):
    """An instance for tests that look at nothing that another one changes."""
    with serving({"small": directory, "other": other}) as client:
        yield client


def triton_of(http):
    return InferenceServerClient(http.base_url.netloc.decode(), concurrency=8, network_timeout=PATIENCE)


def states(http):
    return {each["name"]: each["state"] for each in http.get("/v1/models").raise_for_status().json()["models"]}


def test_each_network_answers_by_its_name_and_is_loaded_when_it_is_first_asked(http, directory, other):
    assert {name: state["status"] for name, state in states(http).items()} == {"small": "loaded", "other": "unloaded"}
    with triton_of(http) as triton:
        queries = [(name, batch(1 + seed % 3, seed)) for seed in range(8) for name in ("small", "other")]
        pending = [triton.async_infer(name, triton_input(images), timeout=60_000_000) for name, images in queries]
        answers = [one.get_result().as_numpy("logits") for one in pending]
    whole = {"small": unsplit(load_plan(directory), directory), "other": unsplit(load_plan(other), other)}
    for (name, images), logits in zip(queries, answers, strict=True):
        assert difference(logits, whole[name](images)).exact
    after = states(http)
    found = {name: (state["status"], state["loads"], state["signals"]["images"]) for name, state in after.items()}
    assert found == dict.fromkeys(("small", "other"), ("loaded", 1, 15))


def test_classify_takes_a_model_and_the_first_one_is_meant_by_default(shared, examples, directory, other):
    image = {"image": (examples / "chelsea.png").read_bytes()}
    digests = {name: load_plan(place).digest for name, place in (("small", directory), ("other", other))}
    for parameters, name in (({}, "small"), ({"model": "other"}, "other"), ({"model": "small"}, "small")):
        answer = shared.post("/v1/classify", files=image, params=parameters).raise_for_status().json()
        assert (answer["model"], answer["plan"], answer["target"]) == (load_plan(directory).model, digests[name], "gpu")
    assert shared.post("/v1/classify", files=image, params={"model": "third"}).status_code == 404


def test_the_repository_lists_loads_and_unloads_what_it_was_given(http):
    with triton_of(http) as triton:
        assert "model_repository" in triton.get_server_metadata()["extensions"]
        assert triton.get_model_repository_index() == [
            {"name": "small", "version": "1", "state": "READY", "reason": ""},
            {"name": "other", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        ]
        assert triton.is_model_ready("other")  # a query for it is answered
        triton.load_model("other")
        triton.unload_model("small")
        assert [each["state"] for each in triton.get_model_repository_index()] == ["UNAVAILABLE", "READY"]
        with pytest.raises(InferenceServerException, match="no model 'third' here"):
            triton.load_model("third")
        with pytest.raises(InferenceServerException, match="'config' is not taken here"):
            triton.load_model("other", config='{"max_batch_size": 1}')
        triton.infer("small", triton_input(batch()))
    index = http.post("/v2/repository/index", json={"ready": True}).json()
    assert [each["name"] for each in index] == ["small", "other"]
    state = states(http)["small"]
    assert state["bytes"] == state["resident_bytes"] > 0
    assert state["signals"]
    counts = {"status": "loaded", "loads": 2, "unloads": 1, "failure": "", "caution": ""}
    assert {name: state[name] for name in counts} == counts


def test_a_models_batch_size_and_window_are_set_by_a_request_within_what_was_measured(shared):
    http = shared

    def set_to(**wanted):
        answer = http.post("/v2/repository/models/other/batching", json=wanted).raise_for_status().json()
        assert states(http)["other"]["signals"]["max_batch"] == answer["max_batch"]
        return answer

    assert set_to(max_batch=2, window_ms=1.5) == {"name": "other", "max_batch": 2, "window_ms": 1.5}
    logits = http.post("/v2/models/other/infer", json=plain(batch(3))).raise_for_status().json()
    assert logits["outputs"][0]["shape"] == [3, CLASSES]
    assert set_to(max_batch=64)["max_batch"] == 4
    assert set_to() == {"name": "other", "max_batch": 4, "window_ms": 0.0}
    assert states(http)["small"]["signals"]["max_batch"] == 4
    http.post("/v2/repository/models/other/batching", json={"max_batch": 2}).raise_for_status()
    for change in ("unload", "load"):
        http.post(f"/v2/repository/models/other/{change}").raise_for_status()
    assert states(http)["other"]["signals"]["max_batch"] == 2
    set_to()


def test_a_batch_size_that_no_instance_can_have_is_refused(shared):
    for wrong in ({"max_batch": 0}, {"max_batch": 2000}, {"window_ms": -1}, {"max_batch": 1.5}, {"a": 1}):
        assert shared.post("/v2/repository/models/other/batching", json=wrong).status_code == 400, wrong
    assert shared.post("/v2/repository/models/third/batching", json={"max_batch": 2}).status_code == 404


async def test_instance_client_sets_batch_sizes_and_knows_servers_that_have_none(shared, other, monkeypatch):
    async with open_http() as http:
        client = InstanceClient(str(shared.base_url), "other", load_plan(other), http)
        assert await client.set_batching(2, 0.1, PATIENCE) == 2
        assert await client.set_batching(64, 0.1, PATIENCE) == 4
        assert await client.set_batching(0, 0.0, PATIENCE) == 0
        monkeypatch.setattr(module, "_BATCHING", "nothing")
        assert await client.set_batching(2, 0.1, PATIENCE) == 0
        gone = InstanceClient("http://127.0.0.1:1", "other", load_plan(other), http)
        assert await gone.set_batching(2, 0.1, PATIENCE) is None


def test_signals_stand_in_the_metrics_and_at_each_model(http):
    http.post("/v2/models/other/infer", json=plain(batch(3))).raise_for_status()
    signals = http.get("/v1/models/other").json()["state"]["signals"]
    assert (signals["batches"], signals["images"], signals["waiting"], signals["refused"]) == (1, 3, 0, 0)
    assert 0 < signals["utilisation"] <= 1
    assert signals["interference"] > 0
    assert signals["expected_ms"] == pytest.approx(signals["profiled_ms"] * signals["interference"], rel=0.01, abs=0.01)
    lines = http.get("/metrics").text.splitlines()
    totals = {"batches": 1, "network_loads": 1, "network_unloads": 0}
    assert {f'serfer_{name}_total{{model="other"}} {count}.0' for name, count in totals.items()} <= {*lines}
    assert 'serfer_batches_total{model="small"} 0.0' in lines
    assert http.get("/v1/models").json()["instance"]["device"] == "cpu"


def test_a_network_whose_files_are_gone_is_503_with_the_reason_and_loads_when_they_are_back(directory, other, tmp_path):
    place = tmp_path / "moved"
    shutil.copytree(other, place)
    with serving({"small": directory, "other": place}) as http:
        (place / "unsplit.onnx").rename(tmp_path / "unsplit.onnx")
        answer = http.post("/v2/models/other/infer", json=plain(batch()))
        assert (answer.status_code, "other cannot be loaded: " in answer.json()["error"]) == (503, True)
        assert "unsplit.onnx is missing" in answer.json()["error"]
        assert str(tmp_path) not in answer.text
        assert http.get("/v2/models/other/ready").status_code == 503
        assert http.get("/v2/models/small/ready").status_code == http.get("/readyz").status_code == 200
        assert http.post("/v2/models/small/infer", json=plain(batch())).status_code == 200
        assert http.post("/v2/repository/models/other/load").status_code == 503
        (tmp_path / "unsplit.onnx").rename(place / "unsplit.onnx")
        assert http.post("/v2/models/other/infer", json=plain(batch())).status_code == 200
        assert states(http)["other"]["failure"] == ""


def test_an_altered_network_is_not_loaded_again(directory, other, tmp_path):
    place = tmp_path / "altered"
    shutil.copytree(other, place)
    with serving({"small": directory, "other": place}) as http:
        weights = next(place.glob("stage-0/weights*"))
        data = bytearray(weights.read_bytes())
        data[0] ^= 1
        weights.write_bytes(data)
        answer = http.post("/v2/models/other/infer", json=plain(batch()))
        assert (answer.status_code, "was altered" in answer.json()["error"]) == (503, True)


def test_networks_are_loaded_and_unloaded_by_keys_that_may_operate(directory, other, tmp_path):
    file = tmp_path / "keys.json"
    asker, driver = add_key(file, "asker", None), add_key(file, "driver", None, scopes=[Scope.CLASSIFY, Scope.OPERATE])
    with serving({"small": directory, "other": other}, KeyRing(file, time.monotonic)) as http:
        for path in ("index", "models/other/load", "models/other/batching", "models/other/unload"):
            place = f"/v2/repository/{path}"
            assert http.post(place).status_code == 401
            assert http.post(place, headers={"X-API-Key": asker}).status_code == (200 if path == "index" else 403)
            assert http.post(place, headers={"X-API-Key": driver}).status_code == 200


@pytest.mark.parametrize(
    ("memory_mb", "preload", "words"),
    [
        (10, False, r"heavy needs 20 MB to be loaded, more than the 10 MB .* raise memory_mb"),
        (50, True, r"preload: again needs .* beside 2\d MB .* raise memory_mb, or preload only the first"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_start(heavy, memory_mb, preload, words):
    with pytest.raises(UnavailableError, match=words):
        measure_networks({"heavy": heavy, "again": heavy}, InstanceChoices(CPU, 4, 0.0, memory_mb, preload))


@pytest.mark.two_at_once
@pytest.mark.slow
def test_two_drivers_share_an_instance_by_the_names_of_their_models(start, shared, directory, other, tmp_path):
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    pool = ["--route", "gpu", "--instances", f"static:{shared.base_url}"]
    pool += ["--set", f"scenario={tmp_path / 'scenario.toml'}"]
    common = ["--store", "memory://", "--workers", "inprocess", "--port", 0, "--json", "--set", "drain_s=0", *pool]
    plans = {"small": directory, "other": other}
    drivers = {name: start("serve", f"--plan={name}={place}", *common) for name, place in plans.items()}
    for name, place in plans.items():
        with httpx.Client(base_url=drivers[name].said()["url"], timeout=PATIENCE) as http:
            infer = partial(http.post, f"/v2/models/{name}/infer")
            eventually(lambda infer=infer: infer(json=plain(batch())).status_code == 200, "the pool's instance is on")
            images = batch(2)
            answer = infer(json=plain(images)).raise_for_status().json()
            logits = np.array(answer["outputs"][0]["data"], np.float32).reshape(2, CLASSES)
            assert difference(logits, unsplit(load_plan(place), place)(images)).exact
            assert answer["parameters"]["batch"] == 2
    for driver in drivers.values():
        driver.interrupt(signal.SIGTERM)
        assert driver.end().code == 0


@pytest.mark.slow
def test_the_memory_bound_holds_in_the_process(start, heavy):
    arguments = [f"--plan={name}={heavy}" for name in "abc"]
    command = start(
        "instance", *arguments, "--set", "memory_mb=68", "--port", 0, "--json", "--set", "drain_s=0", "--max-batch", 4
    )
    ready = command.said()
    assert {one["name"]: one["status"] for one in ready["models"]} == {"a": "loaded", "b": "unloaded", "c": "unloaded"}
    assert all(WEIGHTS <= one["bytes"] <= 1.3 * WEIGHTS for one in ready["models"])
    assert ready["memory_bytes"] == 68 * MIB
    rss = lambda: int(Path(f"/proc/{command.pid}/statm").read_text().split()[1]) * resource.getpagesize()  # noqa: E731
    seen, most = [], 0
    with httpx.Client(base_url=ready["url"], timeout=PATIENCE) as http, ThreadPoolExecutor(3) as pool:
        ask = lambda name: http.post(f"/v2/models/{name}/infer", json=plain(batch())).status_code  # noqa: E731
        assert ask("a") == 200
        without = rss() - ready["models"][0]["bytes"]
        for name in "bcabcabc":
            assert ask(name) == 200
            seen.append(rss() - without)
            most = max(most, http.get("/v1/models").json()["instance"]["resident_bytes"])
        assert set(pool.map(ask, "abcabc")) == {200}
        unloads = sum(state["unloads"] for state in states(http).values())
    assert max(seen) <= 68 * MIB + SLACK
    assert 2 * WEIGHTS <= most <= 68 * MIB  # two of them fit, and loading the third takes twice its bytes
    assert unloads >= 6
    command.interrupt(signal.SIGTERM)
    assert command.end().code == 0
