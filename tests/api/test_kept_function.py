"""Results of a driver function: its responses end at 6 MB, so its clients fetch chunks from S3, by presigned links."""

import base64
import hashlib
from contextlib import ExitStack

import httpx
import numpy as np
import pytest

import serfer
from serfer.api.entrypoints.function import Function, open_application
from serfer.core.errors import RequestRefusedError
from serfer.settings import DriverSettings, Settings
from serfer.storage import open_store
from serfer_bench.core.s3_server import S3Server
from tests.api.kept import put_result
from tests.api.test_function import rest
from tests.e2e.dense import split_dense
from tests.e2e.small import batch

GATEWAY = "abc.execute-api.us-east-1.amazonaws.com"
RANDOM = np.random.default_rng(4)
SCORES = RANDOM.normal(size=(2, 21, 224, 200)).astype(np.float32)
CLASSES = RANDOM.integers(0, 21, (2, 1, 60, 50)).astype(np.uint8)
OUTPUTS = {"scores": SCORES, "head/classes": CLASSES}


class Gateway(httpx.BaseTransport):
    """API Gateway before a function, whose keys it knows by their ids; other hosts are as they are."""

    def __init__(self, function, elsewhere):
        self._function = function
        self._elsewhere = elsewhere
        self.others = []

    def handle_request(self, request):
        if request.url.host != GATEWAY:
            self.others.append(request)
            return self._elsewhere.handle_request(request)
        headers = {name: value for name, value in request.headers.items() if name != "content-length"}
        path = request.url.path.removeprefix("/v")
        event = rest(request.method, path, request.url.params.multi_items(), headers, request.read() or None)
        event["requestContext"]["identity"]["apiKeyId"] = f"id-of-{headers['x-api-key']}"
        answer = self._function(event, None)
        body = base64.b64decode(answer["body"]) if answer["isBase64Encoded"] else answer["body"].encode()
        assert len(answer["body"]) < 6_000_000
        return httpx.Response(answer["statusCode"], headers=answer["headers"], content=body)


@pytest.fixture(scope="module")
def bucket():
    with S3Server() as server:
        yield server


@pytest.fixture
def url(bucket, monkeypatch):
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return bucket.url.rstrip("/") + "-results"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return split_dense(tmp_path_factory.mktemp("dense"), ("scores", "classes", "head/depth"))


@pytest.fixture
def gateway(url, plan):
    with ExitStack() as opened:
        driver = DriverSettings(LAMBDA_TASK_ROOT=str(plan), store="memory://", workers="inprocess")
        settings = Settings(results=url, api_max_answer_bytes=20_000)
        function = Function(open_application(driver, settings, opened))
        opened.callback(function.close)
        elsewhere = httpx.HTTPTransport()
        opened.callback(elsewhere.close)
        yield Gateway(function, elsewhere)


@pytest.fixture
def client(gateway):
    with serfer.Client(f"https://{GATEWAY}/v", api_key="phone", transport=gateway) as client:
        yield client


def owner(key):
    return hashlib.sha256(f"serfer result owner apigateway:id-of-{key}".encode()).hexdigest()


@pytest.fixture
def manifest(url):
    with open_store(url) as store:
        yield put_result(store, OUTPUTS, owner=owner("phone"), grid=(2, 3))


def test_a_query_is_kept_and_its_outputs_are_equal_however_they_come(client, gateway, tmp_path):
    inline = client.infer(batch(1), outputs=["classes"])
    assert not gateway.others
    result = client.infer(batch(1), result="link")
    result.download("scores", tmp_path / "scores.npy")
    assert len(gateway.others) == 4
    assert np.array_equal(np.asarray(result["classes"]), np.asarray(inline["classes"]))
    with pytest.raises(RequestRefusedError, match="for a link"):
        client.infer(batch(1))
    assert np.load(tmp_path / "scores.npy").argmax(1).tolist() == np.asarray(inline["classes"]).tolist()


def test_outputs_come_in_chunks_from_s3(client, gateway, manifest, tmp_path):
    result = client.open_result(manifest.id)
    result.download("scores", tmp_path / "scores.npy")
    assert np.array_equal(np.load(tmp_path / "scores.npy"), SCORES)
    assert len(gateway.others) == 6
    assert all("x-api-key" not in request.headers for request in gateway.others)
    assert np.array_equal(np.asarray(result["head/classes"]), CLASSES)
    assert len(gateway.others) == 12


def test_a_deleted_result_has_no_chunks_any_more(client, gateway, manifest, tmp_path):
    result = client.open_result(manifest.id)
    reply = httpx.Client(transport=gateway, headers={"x-api-key": "phone"}).get(
        f"https://{GATEWAY}/v/v2/results/{manifest.id}/zarr/0/c/0/0/0/0"
    )
    assert (reply.status_code, httpx.get(reply.headers["Location"]).status_code) == (307, 200)
    result.delete()
    with pytest.raises(RequestRefusedError):
        result.download("scores", tmp_path / "scores.npy")
    assert not [*tmp_path.iterdir()]
    assert httpx.get(reply.headers["Location"]).status_code == 404
