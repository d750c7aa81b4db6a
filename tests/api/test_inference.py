"""The Open Inference Protocol, as Triton's own client and plain HTTP see it."""

import asyncio
import json
import socket
import threading
import time
from unittest.mock import AsyncMock

import httpx
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferRequestedOutput
from tritonclient.utils import InferenceServerException

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, add_key
from serfer.api.http.body import ApiLimits
from serfer.api.routes.inference import signature_of
from serfer.core.errors import DeadlineError, OverloadedError, StoreUnavailableError, TaskFailedError
from serfer.plan_directory import load_plan
from tests.e2e.small import CLASSES, LABELS, SIZE, batch, split_small
from tests.support.served import asking
from tests.support.tensors import plain, triton_input

INFER = "/v2/models/small/infer"
PIXELS = np.random.default_rng(5).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def expected(small_plan):
    """The pipeline's own logits, of two batches of floats and of pixels."""
    with serfer.open(small_plan, workers="inprocess") as pipeline:
        return {name: pipeline.run(array) for name, array in (("input", batch(2)), ("image", PIXELS))}


@pytest.fixture
def triton(lasting_url):
    with InferenceServerClient(lasting_url.removeprefix("http://"), network_timeout=60.0) as client:
        yield client


def error(reply, status):
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert list(reply.json()) == ["error"]
    return reply.json()["error"]


def connected(url):
    return socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), timeout=60)


def head(length):
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), length)


class TestTritonsClient:
    def test_the_server_and_its_models_are_ready_and_describe_themselves(self, triton):
        assert triton.is_server_live()
        assert triton.is_server_ready()
        ready = [triton.is_model_ready(*model) for model in (("small",), ("small", "1"), ("small", "2"), ("other",))]
        assert ready == [True, True, False, False]
        extensions = ["binary_tensor_data", "classification"]
        about = {"name": "serfer", "version": serfer.__version__, "extensions": extensions}
        assert triton.get_server_metadata() == about
        pixels = {"name": "image", "datatype": "UINT8", "shape": [-1, SIZE, SIZE, 3]}
        described = {
            "name": "small",
            "versions": ["1"],
            "platform": "serfer_plan",
            "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 3, SIZE, SIZE]}, pixels],
            "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, CLASSES]}],
        }
        assert triton.get_model_metadata("small") == triton.get_model_metadata("small", "1") == described
        [listed] = triton.get_model_repository_index()
        assert listed == {"name": "small", "version": "1", "state": "READY", "reason": ""}

    @pytest.mark.parametrize("binary_in", [True, False])
    @pytest.mark.parametrize("binary_out", [True, False, None])
    @pytest.mark.parametrize(("name", "array"), [("input", batch(2)), ("image", PIXELS)])
    def test_logits_are_the_pipelines_own(self, triton, expected, name, array, binary_in, binary_out):
        outputs = None if binary_out is None else [InferRequestedOutput("logits", binary_data=binary_out)]
        result = triton.infer("small", triton_input(array, name, binary=binary_in), outputs=outputs, request_id="mine")
        assert result.as_numpy("logits").tobytes() == expected[name].tobytes()
        assert result.as_numpy("logits").shape == (2, CLASSES)
        response = result.get_response()
        assert (response["id"], response["model_name"], response["model_version"]) == ("mine", "small", "1")

    def test_the_best_classes_come_with_values_and_labels(self, triton, expected):
        outputs = [InferRequestedOutput("logits", class_count=2)]
        classes = triton.infer("small", triton_input(batch(2)), outputs=outputs, model_version="1").as_numpy("logits")
        assert classes.shape == (2, 2)
        for row, logits in zip(classes, expected["input"], strict=True):
            best = np.argsort(-logits)[:2]
            assert row.tolist() == [f"{logits[index]:f}:{index}:{LABELS[index]}".encode() for index in best]

    @pytest.mark.parametrize("coding", ["gzip", "deflate", None])
    @pytest.mark.parametrize("answered", ["gzip", "deflate", None])
    def test_both_ways_may_be_compressed(self, triton, expected, coding, answered):
        codings = {"request_compression_algorithm": coding, "response_compression_algorithm": answered}
        result = triton.infer("small", triton_input(batch(2)), **codings)
        assert result.as_numpy("logits").tobytes() == expected["input"].tobytes()

    @pytest.mark.two_at_once
    def test_concurrent_inference_requests(self, lasting_url, expected):
        with InferenceServerClient(lasting_url.removeprefix("http://"), concurrency=3, network_timeout=60.0) as client:
            pending = [client.async_infer("small", triton_input(batch(2))) for _ in range(3)]
            for one in pending:
                assert one.get_result().as_numpy("logits").tobytes() == expected["input"].tobytes()

    @pytest.mark.parametrize(
        ("model", "version", "array", "name", "status", "words"),
        [
            ("other", "", batch(1), "input", "404", "there is small"),
            ("small", "2", batch(1), "input", "404", "'1'"),
            ("small", "", batch(17), "input", "400", "1 to 16"),
        ],
    )
    def test_errors_have_the_protocols_format(self, triton, model, version, array, name, status, words):
        with pytest.raises(InferenceServerException) as caught:
            triton.infer(model, triton_input(array, name), model_version=version)
        assert caught.value.status() == status
        assert words in caught.value.message()

    def test_a_timeout_in_microseconds_is_the_deadline(self, triton):
        with pytest.raises(InferenceServerException) as caught:
            triton.infer("small", triton_input(batch(1)), timeout=1)
        assert caught.value.status() == "504"
        assert triton.infer("small", triton_input(batch(1)), timeout=0)
        assert triton.infer("small", triton_input(batch(1)), timeout=10**15)


LENGTH = "Inference-Header-Content-Length"
REQUEST = json.dumps(plain(batch(1))).encode()


def with_parameters(**parameters):
    return json.dumps(plain(batch(1), parameters=parameters))


class TestHttp:
    def test_health_responses_suit_kserves_client(self, lasting_http):
        assert lasting_http.get("/v2/health/live").json() == {"live": True}
        assert lasting_http.get("/v2/health/ready").json() == {"live": True, "ready": True}
        assert lasting_http.get("/v2/models/small/ready").json() == {"name": "small", "ready": True}
        assert lasting_http.get("/v20").headers["content-type"] == "application/problem+json"  # not the protocol's

    def test_json_is_the_default_and_compressed_on_request(self, lasting_http, expected):
        for coding in ("identity", "gzip"):
            reply = lasting_http.post(INFER, json=plain(np.repeat(batch(2), 8, 0)), headers={"Accept-Encoding": coding})
            assert reply.headers["content-type"] == "application/json"
            assert "inference-header-content-length" not in reply.headers
            assert reply.headers.get("content-encoding", "identity") == coding
            assert "Accept-Encoding" in reply.headers["vary"]
            (output,) = reply.json()["outputs"]
            values = np.array(output["data"], np.float32).reshape(output["shape"])
            assert values.tolist() == np.repeat(expected["input"], 8, 0).tolist()

    @pytest.mark.hostile
    @pytest.mark.parametrize(
        ("path", "lengths", "body", "word"),
        [
            *(("/v2/repository/index", [], body, "") for body in ("[", "[]", '{"ready": 1}')),
            *((INFER, [n], REQUEST, LENGTH) for n in ("", "x", "-1", "1.5", "9" * 19, "999999", "0", "٣")),
            (INFER, [str(len(REQUEST))] * 2, REQUEST, LENGTH),
            *((INFER, [], with_parameters(deadline_ms=wrong), "deadline_ms") for wrong in (0, 1.5, 10**9, True)),
            (INFER, [], with_parameters(timeout=-1), "timeout"),
        ],
    )
    def test_an_invalid_request_is_refused_by_name(self, lasting_http, path, lengths, body, word):
        headers = [(LENGTH.encode(), length.encode()) for length in lengths]
        refusal = error(lasting_http.post(path, content=body, headers=headers), 400)
        assert refusal
        assert word in refusal

    def test_what_there_is_not_has_the_protocols_format(self, lasting_http):
        reply = lasting_http.put(INFER)
        assert error(reply, 405)
        assert reply.headers["allow"] == "POST"
        assert error(lasting_http.get("/v2/models/small/config"), 404)


class TestFailures:
    def test_a_draining_service_is_not_ready(self, http, service):
        service.drain()
        for path in ("/v2/health/ready", "/v2/models/small/ready"):
            assert http.get(path).status_code == 503
            assert http.get(path).json()["ready"] is False
        assert http.get("/v2/health/live").status_code == 200
        assert [model["state"] for model in http.post("/v2/repository/index").json()] == ["UNAVAILABLE"]
        assert http.post("/v2/repository/index", json={"ready": True}).json() == []

    def test_the_shorter_deadline_counts(self, http, observed):
        parameters = {"deadline_ms": 60_000, "timeout": 1}
        assert error(http.post(INFER, json=plain(batch(1), parameters=parameters)), 504)
        assert isinstance(observed.failures[0][1], DeadlineError)

    @pytest.mark.parametrize(
        ("failure", "status", "retry"),
        [
            (DeadlineError("late"), 504, None),
            (OverloadedError("too much to do", retry_after_s=119.5), 429, "120"),
            (TaskFailedError("/secret/path"), 503, "1"),
            (StoreUnavailableError("redis://secret"), 503, "1"),
            (RuntimeError("secret"), 500, None),
        ],
    )
    def test_a_failed_query_has_the_protocols_error_format(self, http, service, monkeypatch, failure, status, retry):
        monkeypatch.setattr(service, "run", AsyncMock(side_effect=failure))
        reply = http.post(INFER, json=plain(batch(1)))
        assert "secret" not in error(reply, status)
        assert reply.headers.get("retry-after") == retry

    def test_a_full_service_does_not_read_the_body(self, http, service, monkeypatch):
        monkeypatch.setattr(service, "admission", Admission(0, 0))
        reply = http.post(INFER, content=b"no request")
        assert "come again" in error(reply, 429)
        assert int(reply.headers["retry-after"]) >= 1

    def test_a_disconnected_client_cancels_its_query(self, url, service, monkeypatch):
        begun, cancelled = threading.Event(), threading.Event()

        async def wait(*_):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        monkeypatch.setattr(service, "run", wait)
        body = json.dumps(plain(batch(1))).encode()
        with connected(url) as client:
            client.sendall(head(len(body)) + body)
            assert begun.wait(60)
            assert not cancelled.is_set()
        assert cancelled.wait(60)


def test_a_plan_that_knows_no_images_takes_no_pixels(tmp_path):
    plan = load_plan(split_small(tmp_path, preprocess=None, labels=()))
    assert [form.name for form in signature_of(plan, ApiLimits()).takes] == ["input"]


def test_a_key_for_an_application_asks_no_model_whatever_its_query_names(service, settings, tmp_path):
    key = add_key(tmp_path / "keys.json", "faces", None, applications={"faces": None})
    app = make_app(service, settings, KeyRing(tmp_path / "keys.json", time.monotonic))
    with asking(app, headers={"X-API-Key": key}) as http:
        for path in (INFER, f"{INFER}?application=faces", "/v1/classify?model=small"):
            reply = http.post(path, json=plain(batch(1)))
            assert (reply.status_code, "names no application" in reply.text) == (403, True), path
