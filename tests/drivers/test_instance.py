"""The client of an instance: against SerFer's own server, a server like Triton, and servers that answer nonsense."""

import asyncio
import json
import re
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, add_key
from serfer.api.service import Service
from serfer.core.inference_protocol import HEADER
from serfer.drivers.instance.client import FaultKind, InstanceClient, open_http
from serfer.drivers.instance.open_inference import InferenceOutput, encode_request
from serfer.pipeline.reference import normalised, unsplit
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from tests.e2e.small import CLASSES, SIZE, batch, split_small
from tests.support.served import Observed, running

PIXELS = np.random.default_rng(5).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)
METADATA = {
    "name": "m",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, SIZE, SIZE]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, CLASSES]}],
}
INFERS = "POST /v2/models/m/infer"
ABOUT = "GET /v2/models/m"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("instance"))


@pytest.fixture(scope="module")
def plan(directory):
    return load_plan(directory)


@pytest.fixture(scope="module")
def url(directory):
    with serfer.open(directory, store="memory://", workers="inprocess") as pipeline:
        service = Service({"small": pipeline.asynchronous}, Admission(4, 8), Observed())
        with running(make_app(service, Settings())) as address:
            yield address


def ask(url, plan, *, array=PIXELS, model="small", key="", timeout_s=30.0, patience_s=60.0, times=1):
    """Return what the client makes of the last of so many questions."""

    async def run():
        async with open_http(key) as http:
            client = InstanceClient(url, model, plan, http)
            for _ in range(times):
                result = await client.infer(array, timeout_s, patience_s)
            return result

    return asyncio.run(run())


class Canned:
    """An HTTP server that answers what it was told, by method and path; counts connections and keeps requests."""

    def __init__(self, answers):
        self.answers = {ABOUT: answer(json.dumps(METADATA)), **answers}
        self.requests = []
        self.connections = 0

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                what = head.split(b" HTTP/", 1)[0].decode()
                self.requests.append((what, head, body))
                response = self.answers.get(what, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                response = response.pop(0) if isinstance(response, list) else response
                if response is None:
                    await reader.read()  # until the client goes away
                    break
                writer.write(response)
                await writer.drain()
                if b"Connection: close" in response or not response:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def canned(answers):
    server = Canned(answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1")
    try:
        yield server, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        await listening.wait_closed()


def ask_canned(answers, plan, *, times=1, array=PIXELS, patience_s=60.0):
    """Return what the client makes of a canned server's answers, and the server."""

    async def run():
        async with canned(answers) as (server, url), open_http() as http:
            client = InstanceClient(url, "m", plan, http)
            for _ in range(times):
                result = await client.infer(array, 1.0, patience_s, "mine-1")
            return result, server

    return asyncio.run(run())


def answer(body, *lines, status="200 OK"):
    body = body.encode() if isinstance(body, str) else body
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *lines))
    return f"{head}\r\n".encode() + body


def inferred(logits, *, name="y", datatype="FP32", shape=None, size=None, length=None, parameters=None, extra=b""):
    raw = logits.astype("<f4").tobytes()
    tensor = {
        "name": name,
        "datatype": datatype,
        "shape": list(shape or logits.shape),
        "parameters": {"binary_data_size": len(raw) if size is None else size},
    }
    head = json.dumps({"model_name": "m", "outputs": [tensor], "parameters": parameters or {}}).encode()
    return answer(head + raw + extra, f"{HEADER}: {len(head) if length is None else length}")


LOGITS = np.arange(2 * CLASSES, dtype=np.float32).reshape(2, CLASSES)


@pytest.mark.parametrize("array", [PIXELS, batch(3)], ids=["pixels", "floats"])
def test_our_service_returns_the_networks_output(url, directory, plan, array):
    results = ask(url, plan, array=array, times=2)
    assert isinstance(results, InferenceOutput), results
    assert np.allclose(results.logits, unsplit(plan, directory)(array), atol=1e-4)
    assert (results.batch, results.computed_ms) == (None, None)  # it has functions, not batches


def test_a_model_of_another_name_is_found_where_it_is_the_only_one(url, plan):
    assert isinstance(ask(url, plan, model="another"), InferenceOutput)


def test_a_server_that_takes_floats_alone_gets_normalised_pixels(plan):
    results, server = ask_canned({INFERS: inferred(LOGITS, parameters={"batch": 3, "computed_ms": 4.5})}, plan, times=2)
    assert np.array_equal(results.logits, LOGITS)
    assert (results.batch, results.computed_ms) == (3, 4.5)
    assert [what for what, *_ in server.requests] == [ABOUT, INFERS, INFERS]  # it is asked once what it takes
    assert server.connections == 1
    _, head, body = server.requests[-1]
    assert b"X-Request-Id: mine-1\r\n" in head
    length = int(re.search(rf"(?i){HEADER}: (\d+)".encode(), head)[1])
    header = json.loads(body[:length])
    assert header["inputs"][0]["shape"] == [2, 3, SIZE, SIZE]
    assert header["parameters"] == {"timeout": 1_000_000}  # microseconds, as Triton has it
    values = np.frombuffer(body[length:], "<f4").reshape(2, 3, SIZE, SIZE)
    assert np.array_equal(values, normalised(plan, PIXELS))


def test_an_instance_that_knows_the_description_of_the_split_gets_numbers_of_the_new_one(url, plan, directory):
    """The instance of `url` takes pixels, too, and would scale them as the plan was split."""
    other = replace(plan.preprocess, scale=1 / 128, mean=(0.1, 0.2, 0.3))
    described = plan.redescribed(replace(plan.description, preprocess=other))
    expected = unsplit(plan, directory)(normalised(described, PIXELS))
    assert np.allclose(ask(url, described).logits, expected, atol=1e-4)


async def test_a_query_after_the_connections_were_closed_is_a_fault_as_others_are(plan):
    async with canned({INFERS: inferred(LOGITS)}) as (_, url), open_http() as http:
        client = InstanceClient(url, "m", plan, http)
        await http.close()
        results = await client.infer(PIXELS, 1.0, 5.0)
    assert results.kind is FaultKind.UNREACHABLE
    assert "\n" not in results.message


def test_the_loop_runs_while_a_large_request_is_built(plan, monkeypatch):
    threads = []

    def noted(*arguments):
        threads.append(threading.current_thread())
        return encode_request(*arguments)

    monkeypatch.setattr("serfer.drivers.instance.client.encode_request", noted)
    large = np.zeros((400, SIZE, SIZE, 3), np.uint8)
    for array in (PIXELS, large):
        ask_canned({INFERS: inferred(LOGITS)}, plan, array=array)
    assert large.nbytes > 1 << 20
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_a_large_request_arrives_whole(plan):
    images = batch(100)  # 1.4 MB
    results, server = ask_canned({INFERS: inferred(np.ones((100, CLASSES)))}, plan, array=images)
    assert isinstance(results, InferenceOutput)
    assert server.requests[-1][2].endswith(images.tobytes())


def test_a_closed_kept_connection_is_retried(plan):
    closed = inferred(LOGITS).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    answers = {INFERS: [inferred(LOGITS), b"", closed]}  # the second question meets the end of its connection
    results, server = ask_canned(answers, plan, times=2)
    assert isinstance(results, InferenceOutput)
    assert server.connections == 2


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, FaultKind.REFUSED),
        (503, FaultKind.REFUSED),
        (504, FaultKind.LATE),
        (400, FaultKind.INVALID),
        (401, FaultKind.INVALID),
        (302, FaultKind.INVALID),
        (500, FaultKind.INVALID),
    ],
)
def test_each_status_has_its_kind_of_fault(plan, status, kind):
    results, _ = ask_canned({INFERS: answer("{}", "Location: http://127.0.0.1:1/", status=f"{status} X")}, plan)
    assert (results.kind, str(status) in results.message) == (kind, True)


@pytest.mark.parametrize(
    "response",
    [
        answer(json.dumps({"outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 7], "data": [0.0] * 14}]})),
        inferred(LOGITS, name="z"),
        inferred(LOGITS, datatype="FP16"),
        inferred(LOGITS, shape=(1, 14)),
        inferred(LOGITS[:1]),
        inferred(LOGITS, size=10),
        inferred(LOGITS, size=True),
        inferred(LOGITS, length=0),
        inferred(LOGITS, length=10**8),
        inferred(LOGITS, length="x"),
        inferred(LOGITS, extra=b"more"),
        answer(b"[" * 5000, f"{HEADER}: 5000"),
        answer(b"[]", f"{HEADER}: 2"),
        answer(b'{"outputs": {}}', f"{HEADER}: 15"),
        answer(b"x" * 200_000, f"{HEADER}: 5000"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"10000\r\n" + b"x" * 65536 + b"\r\nffff\r\n" + b"x" * 65535,
    ],
)
def test_an_invalid_answer_is_a_fault(plan, response):
    results, _ = ask_canned({INFERS: response}, plan)
    assert results.kind is FaultKind.INVALID, results


@pytest.mark.parametrize(
    "about",
    [
        answer("[]"),
        answer("{}"),
        answer("{" * 70_000),
        answer("x" * 200_000),
        answer(json.dumps({**METADATA, "outputs": []})),
        answer(json.dumps({**METADATA, "inputs": METADATA["outputs"]})),
        answer(json.dumps({**METADATA, "inputs": [{"name": 7, "datatype": "FP32", "shape": [-1, 3, SIZE, SIZE]}]})),
        answer("", status="404 Not Found"),
    ],
)
def test_a_mismatched_model_is_a_fault_and_queried_again(plan, about):
    results, server = ask_canned({ABOUT: about, INFERS: inferred(LOGITS)}, plan, times=2)
    assert results.kind is FaultKind.INVALID
    assert [what for what, *_ in server.requests].count(ABOUT) == 2


@pytest.mark.parametrize(
    "response",
    [b"", b"\r\n\r\n\r\n", b"HTTP/1.1 OK", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"],
)
def test_a_server_without_http_is_unreachable(plan, response):
    results, _ = ask_canned({INFERS: response + b"Connection: close"}, plan)
    assert results.kind is FaultKind.UNREACHABLE, results


def test_a_closed_port_is_unreachable(plan):
    assert ask("http://127.0.0.1:1", plan).kind is FaultKind.UNREACHABLE


def test_an_instance_that_says_nothing_is_given_up(plan):
    results, _ = ask_canned({INFERS: None}, plan, patience_s=0.2)
    assert results.kind is FaultKind.NO_RESPONSE


async def test_readiness_is_the_servers(url, plan):
    ready = "GET /v2/health/ready"
    async with open_http() as http, canned({ready: answer("", status="503 X")}) as (_, other):
        result = [await InstanceClient(each, "m", plan, http).ready(10) for each in (url, other, "http://127.0.0.1:1")]
    assert result == [True, False, False]


def test_requests_carry_the_instances_key(directory, plan, tmp_path):
    key = add_key(tmp_path / "keys", "driver", None)
    with serfer.open(directory, store="memory://", workers="inprocess") as pipeline:
        service = Service({"small": pipeline.asynchronous}, Admission(4, 8), Observed())
        keys = KeyRing(tmp_path / "keys", lambda: 0.0)
        with running(make_app(service, Settings(), keys)) as guarded:
            assert isinstance(ask(guarded, plan, key=key), InferenceOutput)
            assert ask(guarded, plan).kind is FaultKind.INVALID


def test_a_request_says_how_large_it_is():
    body, length = encode_request(PIXELS, "image", "logits", 0.0)
    header = json.loads(body[:length])
    assert header["inputs"][0]["parameters"]["binary_data_size"] == len(body) - length == PIXELS.size
    assert header["parameters"]["timeout"] == 1  # 0 would stand for no limit
