"""`serfer instance` and `serfer study tune` as a user runs them."""

import json
import signal
import tomllib
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferRequestedOutput

from serfer.core.exactness import difference
from tests.e2e.dense import split_dense
from tests.e2e.small import CLASSES, batch
from tests.fleet.fakes import TEXT as SCENARIO
from tests.instance.conftest import PATIENCE, pixels
from tests.support.tensors import plain, triton_input


@pytest.fixture
def launch(start, directory):
    """Start an instance; returns the command and what it said of itself."""

    def launch(*arguments, **variables):
        command = start("instance", "--plan", directory, "--port", "0", "--json", *arguments, **variables)
        return command, command.said()

    return launch


def test_tritons_own_client_is_answered_as_by_the_unsplit_network_and_running_queries_on_shutdown_too(launch, whole):
    command, ready = launch("--max-batch", "8", "--set", "threads=1", "--set", "drain_s=0", "--window-ms", "700")
    assert (ready["pid"], ready["model"], ready["device"], ready["precision"]) == (command.pid, "small", "cpu", "fp32")
    assert (ready["max_batch"], ready["window_ms"]) == (8, 700.0)
    queries = [(batch(1, seed), "input") for seed in range(12)] + [(pixels(2, seed), "image") for seed in range(12)]
    wanted = [InferRequestedOutput("logits", binary_data=True)]
    with InferenceServerClient(ready["url"].removeprefix("http://"), concurrency=8, network_timeout=PATIENCE) as triton:
        assert triton.is_server_ready()
        assert triton.is_model_ready("small")
        pending = [
            triton.async_infer("small", triton_input(*one), outputs=wanted, timeout=60_000_000) for one in queries
        ]
        answers = [one.get_result() for one in pending]
    for (array, _), answer in zip(queries, answers, strict=True):
        logits = answer.as_numpy("logits")
        assert logits.shape == (len(array), CLASSES)
        assert difference(logits, whole(array)).exact
        assert answer.get_response()["parameters"]["batch"] >= len(array)
    with ThreadPoolExecutor(1) as pool:
        url = f"{ready['url']}/v2/models/small/infer"
        asking = pool.submit(httpx.post, url, json=plain(batch()), timeout=PATIENCE)
        metrics = ""
        while 'serfer_waiting_images{model="small"} 1.0' not in metrics and not asking.done():
            metrics = httpx.get(f"{ready['url']}/metrics", timeout=PATIENCE).text
        command.interrupt(signal.SIGTERM)
        assert asking.result().status_code == 200
    assert command.end().code == 0


@pytest.mark.two_at_once
@pytest.mark.slow
def test_concurrent_queries_share_batches_which_are_counted_and_its_routes_are_every_drivers(launch, examples):
    command, ready = launch("--window-ms", "60000", "--max-batch", "4", "--set", "drain_s=0")
    with httpx.Client(base_url=ready["url"], timeout=PATIENCE) as http, ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: http.post("/v2/models/small/infer", json=plain(batch())).json(), range(4)))
        assert [reply["parameters"]["batch"] for reply in replies] == [4] * 4  # the window is a minute: it is full
        image = (examples / "chelsea.png").read_bytes()
        classified = list(pool.map(lambda _: http.post("/v1/classify", files={"image": image}).json(), range(4)))
        assert {answer["target"] for answer in classified} == {"gpu"}
        metrics = http.get("/metrics").text
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
    assert 'serfer_batches_total{model="small"} 2.0' in metrics
    assert 'serfer_batched_images_total{model="small"} 8.0' in metrics
    command.interrupt(signal.SIGTERM)
    assert command.end().code == 0


@pytest.mark.slow
def test_half_precision_reports_its_loss_and_an_instance_exits_when_idle(launch, whole):
    command, ready = launch("--precision", "fp16", "--set", "exit_when_idle_s=1", "--set", "drain_s=0")
    assert (ready["precision"], 0 < ready["loss"] < 0.01) == ("fp16", True)
    with InferenceServerClient(ready["url"].removeprefix("http://"), network_timeout=PATIENCE) as triton:
        logits = triton.infer("small", triton_input(batch(3))).as_numpy("logits")
    assert np.isfinite(logits).all()
    assert 0 < difference(logits, whole(batch(3))).error < 0.01
    result = command.end()
    assert result.code == 0
    assert '"event": "idle"' in result.err


def test_tune_writes_a_table_for_a_scenario(serfer_here, directory, tmp_path):
    file = tmp_path / "machine.toml"
    arguments = ("--plan", directory, "--slo-ms", 10_000, "--most", 4, "--repeats", 2, "--name", "t3.small")
    result = serfer_here("study", "tune", *arguments, "--out", file)
    assert (result.code, result.err) == (0, "")
    assert "N_batch" in result.out
    [table] = tomllib.loads(file.read_text())["instance"]
    assert (table["name"], table["usd_per_hour"]) == ("t3.small", 0.0208)  # from the price data
    assert table in tomllib.loads(result.out[result.out.index("[[instance]]") :])["instance"]
    document = json.loads(serfer_here("study", "tune", *arguments, "--json", "--usd-per-hour", 2).out)
    assert ([size for size, _ in document["batches"]], document["machine"]["usd_per_hour"]) == ([1, 2, 4], 2.0)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("instance", "--max-batch", "0"), 2, ("--max-batch is 1 to 1024",)),
        (("instance", "--set", "auto_scaling_release=true"), 2, ("--set exit_when_idle_s",)),
        (("study", "tune", "--slo-ms", "1e-9", "--most", "1"), 3, ("one image takes", "--slo-ms")),
        (("study", "tune", "--slo-ms", "0"), 2, ("--slo-ms is a number",)),
    ],
)
def test_usage_errors_are_one_line(serfer_here, directory, arguments, code, words):
    serfer_here(*arguments, "--plan", directory).complains(code, *words)


@pytest.mark.parametrize(
    "command", [["instance", "--port", "0"], ["study", "tune", "--slo-ms", "100"], ["serve", "--port", "0"]]
)
def test_a_plan_that_does_not_classify_is_refused_at_the_start(serfer_here, tmp_path, command):
    dense = split_dense(tmp_path / "dense", ["classes"])
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    pool = ["--route", "gpu", "--instances", "static:http://127.0.0.1:1"]
    pool += ["--set", f"scenario={tmp_path / 'scenario.toml'}"]
    result = serfer_here(*command, "--plan", dense, *(pool if command[0] == "serve" else ()))
    result.complains(3, "score for each class", "classes [34, 34]", "--route serverless")
