"""The client of a service, the one that blocks and the one for asyncio: each test runs with both."""

import asyncio
import functools
import inspect
import json
import subprocess
import sys
from email.utils import formatdate

import httpx
import pytest

from serfer import AsyncClient, Client
from serfer.client.conversation import Clock
from serfer.core.errors import (
    DeadlineError,
    ImageError,
    InputError,
    KeyRefusedError,
    RequestRefusedError,
    ServiceDeadlineError,
    ServiceError,
    ServiceUnavailableError,
    UnavailableError,
    UsageError,
)
from serfer.core.http_messages import ModelInput, ServedModel

KEY = "sk-hush-hush-hush"
NOW = 1_700_000_000.0
STAGE = {"name": "stage-0", "grid": "2x2", "tasks": 4, "ms": 5.5, "cold": 1, "bytes_in": 10, "bytes_out": 20}
STORE = {"bytes_put": 1, "bytes_get": 2, "puts": 3, "gets": 4, "exists": 5}
REPORT = {
    "model": "small",
    "weights": "random (seed 0): answers mean nothing",
    "untrained": True,
    "images": [{"name": "a.png", "predictions": [{"label": "cat", "index": 3, "score": 0.75}]}],
    "latency_ms": 12.5,
    "cost_usd": 0.00001,
    "plan": "ab" * 16,
    "target": "serverless",
    "stages": [STAGE],
    "store": STORE,
    "retries": 0,
    "hedges": 0,
    "restarts": 0,
}
TASK = {
    "stage": 0,
    "tile": 1,
    "attempt": 0,
    "asked_ms": 1.0,
    "started_ms": 2.0,
    "ended_ms": None,
    "outcome": "given up",
    "cold": False,
    "init_ms": None,
    "read_ms": None,
    "compute_ms": None,
    "write_ms": None,
    "environment": None,
    "cost_usd": None,
}
TIMELINE = {"queue_ms": 0.5, "decode_ms": 3, "answered_ms": 12.5, "tasks": [TASK]}
PROGRESS = {"name": "stage-0", "tasks": 4, "done": 1, "started_ms": 1.0, "ended_ms": None, "tiles": [1, 0, 0, 0]}


class Time:
    def __init__(self):
        self.now = 0.0
        self.waits = []

    def wait(self, seconds):
        self.waits.append(round(seconds, 6))
        self.now += seconds

    async def await_(self, seconds):
        self.wait(seconds)

    def clock(self):
        return Clock(lambda: self.now, lambda: NOW + self.now, lambda: 0.0)


class Service:
    """Answers with what a test lists, the last of it again and again, and keeps the requests that came."""

    def __init__(self, time, *answers):
        self.time = time
        self.answers = list(answers)
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            return answer(request)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)  # none is sent twice


class Waited:
    """What an asynchronous client or job does, waited for."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        attribute = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(attribute):
            return attribute

        @functools.wraps(attribute)
        def call(*arguments, **options):
            result = asyncio.run(attribute(*arguments, **options))
            return Waited(result) if hasattr(result, "cancel") else result

        return call

    def __repr__(self):
        return repr(self._inner)


def answer(status=200, document=REPORT, **headers):
    return httpx.Response(
        status, json=document, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


def problem(status, detail="because", **headers):
    document = {"title": "No", "status": status, "detail": detail, "request_id": "req-7"}
    return answer(status, document, content_type="application/problem+json", **headers)


def status(state, **more):
    return {"id": "job/1", "status": state, "model": "small", "created": 1, "stages": [PROGRESS], **more}


def test_a_query_is_one_request_with_its_images_key_and_wishes(open_client, tmp_path):
    (tmp_path / "b.png").write_bytes(b"second")
    client, service = open_client(answer())
    report = client.classify([b"first", tmp_path / "b.png"], model="small", top_k=3, deadline_ms=250, explain=True)
    assert report.images[0].predictions[0].label == "cat"
    assert (report.store.exists, report.stages[0].grid, report.timeline) == (5, "2x2", None)
    [request] = service.requests
    assert (request.method, request.url.path) == ("POST", "/prod/v1/classify")
    assert dict(request.url.params) == {"top_k": "3", "model": "small", "deadline_ms": "250", "explain": "true"}
    assert request.headers["X-API-Key"] == KEY  # the one header that API Gateway reads
    assert request.headers["Content-Type"].startswith("multipart/form-data; boundary=")
    body = request.content
    assert body.count(b'name="image"') == 2
    assert body.index(b'filename="image 0"') < body.index(b"first") < body.index(b'filename="b.png"')
    assert str(tmp_path).encode() not in body


def test_names_and_a_key_are_the_callers_where_given(open_client):
    client, service = open_client(answer())
    client.classify(b"first", names=["mine.jpg"], idempotency_key="order-66")
    assert b'filename="mine.jpg"' in service.requests[0].content
    assert dict(service.requests[0].url.params) == {"top_k": "5"}
    assert service.requests[0].headers["Idempotency-Key"] == "order-66"


def test_an_explained_report_has_its_timeline(open_client):
    client, _ = open_client(answer(document={**REPORT, "timeline": TIMELINE}))
    timeline = client.classify(b"x", explain=True).timeline
    assert (timeline.queue_ms, timeline.decode_ms) == (0.5, 3.0)
    assert (timeline.tasks[0].outcome, timeline.tasks[0].ended_ms) == ("given up", None)


def test_a_query_has_no_key_which_would_cost_the_service_two_looks_into_its_store(open_client):
    client, service = open_client(problem(503), answer())
    client.classify(b"first")
    assert len(service.requests) == 2
    assert all("Idempotency-Key" not in request.headers for request in service.requests)


def test_every_try_of_a_retry_safe_call_is_the_same_request_and_every_call_has_a_key_of_its_own(open_client):
    client, service = open_client(problem(503), problem(429), answer(), retry_safe=True)
    client.classify([b"first", b"second"])
    keys = [request.headers["Idempotency-Key"] for request in service.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len({request.content for request in service.requests}) == 1
    client.classify(b"first")
    assert service.requests[-1].headers["Idempotency-Key"] != keys[0]


@pytest.mark.parametrize(
    ("header", "waited"),
    [
        ("7", 7.05),
        ("0", 0.05),
        (formatdate(NOW + 9, usegmt=True), 9.05),
        (formatdate(NOW - 9, usegmt=True), 0.05),
        ("soon", 0.05),
        ("-3", 0.05),
        ("9" * 400, 0.05),
    ],
)
def test_retry_after_is_respected_in_seconds_and_as_a_date(open_client, time, header, waited):
    client, _ = open_client(problem(429, retry_after=header), answer())
    client.classify(b"x")
    assert time.waits == [waited]


def test_without_retry_after_waits_double_up_to_a_bound(open_client, time):
    client, service = open_client(problem(503), retries=8)
    with pytest.raises(ServiceUnavailableError):
        client.classify(b"x")
    assert time.waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.5, 2.5]
    assert len(service.requests) == 9


@pytest.mark.parametrize("header", ["60", "59", formatdate(NOW + 3600, usegmt=True)])
def test_a_retry_past_the_timeout_fails_at_once(open_client, time, header):
    client, service = open_client(problem(429, retry_after=header), timeout_s=59.0)
    with pytest.raises(ServiceUnavailableError, match="because") as caught:
        client.classify(b"x")
    assert (time.waits, len(service.requests)) == ([], 1)
    assert caught.value.retry_after_s == pytest.approx(float(header) if header.isdigit() else 3600)


def test_each_try_is_bounded_by_the_remaining_timeout(open_client, time):
    took = iter([4.0, 4.0, 1.8])

    def slow(_):
        time.now += next(took)
        return problem(503)

    client, service = open_client(slow, timeout_s=10.0)
    with pytest.raises(ServiceUnavailableError):
        client.classify(b"x")
    allowed = [request.extensions["timeout"] for request in service.requests]
    assert [round(one["read"], 2) for one in allowed] == [10.0, 5.95, 1.85]
    assert [round(one["connect"], 2) for one in allowed] == [5.0, 5.0, 1.85]


@pytest.mark.parametrize(
    "fault",
    [
        httpx.ConnectError("[Errno 111] Connection refused"),
        httpx.ReadError(""),
        httpx.WriteError(""),
        httpx.RemoteProtocolError("Server disconnected without sending a response."),
        httpx.ConnectTimeout("timed out"),
        answer(502, {}),
        httpx.Response(503, text="<html>no server is available</html>"),
        httpx.Response(504, text="<html>a balancer's</html>"),
    ],
    ids=repr,
)
def test_transient_errors_are_retried(open_client, fault):
    client, service = open_client(fault, fault, answer())
    assert client.classify(b"x").model == "small"
    assert len(service.requests) == 3


def test_after_the_last_retry_the_last_error_is_raised_with_its_cause(open_client):
    client, service = open_client(problem(503), httpx.ConnectError("refused"), retries=1)
    with pytest.raises(ServiceUnavailableError, match="refused") as caught:
        client.classify(b"x")
    assert isinstance(caught.value, UnavailableError)
    assert (caught.value.exit_code, caught.value.status, len(service.requests)) == (4, None, 2)
    assert isinstance(caught.value.__context__, httpx.ConnectError)


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        (400, RequestRefusedError, 3),
        (401, KeyRefusedError, 2),
        (404, RequestRefusedError, 3),
        (408, RequestRefusedError, 3),
        (413, RequestRefusedError, 3),
        (422, InputError, 3),
        (500, ServiceError, 1),
        (504, DeadlineError, 1),
        (504, ServiceDeadlineError, 1),
    ],
)
def test_permanent_errors_are_not_retried(open_client, code, kind, exit_code):
    client, service = open_client(problem(code, "no\nsuch\x1b[31m thing", retry_after="1"))
    with pytest.raises(kind) as caught:
        client.classify(b"x")
    error = caught.value
    assert str(error) == f"no such [31m thing (HTTP {code}, request req-7)"
    assert (error.status, error.detail, error.request_id) == (code, "no such [31m thing", "req-7")
    assert (error.exit_code, len(service.requests)) == (exit_code, 1)


def test_time_that_runs_out_while_waiting_for_an_answer_is_not_tried_again(open_client):
    client, service = open_client(httpx.ReadTimeout(""))
    with pytest.raises(ServiceDeadlineError, match="timeout_s"):
        client.classify(b"x")
    assert len(service.requests) == 1


def test_a_reply_that_trickles_ends_with_the_timeout(time):
    def trickle():
        while True:
            time.now += 1.0
            yield b" "

    service = Service(time, lambda _: httpx.Response(200, content=trickle()))
    with (
        Client("http://serfer.test", transport=httpx.MockTransport(service), clock=time.clock(), timeout_s=5) as client,
        pytest.raises(ServiceDeadlineError),
    ):
        client.classify(b"x")
    assert time.now < 7


def test_a_reply_that_trickles_ends_with_the_timeout_async():
    async def trickle():
        while True:
            await asyncio.sleep(0.001)
            yield b""

    async def ask():
        transport = httpx.MockTransport(lambda _: httpx.Response(200, content=trickle()))
        async with AsyncClient("http://serfer.test", transport=transport, timeout_s=0.1) as client:
            await client.classify(b"x")

    with pytest.raises(ServiceDeadlineError):
        asyncio.run(ask())


def test_a_service_that_moved_is_not_followed(open_client):
    client, service = open_client(httpx.Response(308, headers={"Location": "http://elsewhere.test"}))
    with pytest.raises(ServiceError, match="base_url"):
        client.classify(b"x")
    assert len(service.requests) == 1


def test_unknown_newer_fields_are_ignored(open_client):
    images = [{**REPORT["images"][0], "caption": "a cat"}]
    client, _ = open_client(answer(document={**REPORT, "images": images, "carbon": 1.0}))
    assert client.classify(b"x").images[0].name == "a.png"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (json.dumps({name: value for name, value in REPORT.items() if name != "plan"}), "report lacks 'plan'"),
        (json.dumps({**REPORT, "stages": [{**STAGE, "ms": "1"}]}), r"report\.stages\[0\]\.ms should be a number"),
        (json.dumps({**REPORT, "timeline": {}}), r"report\.timeline lacks"),
        (json.dumps({**REPORT, "latency_ms": float("nan")}), "no JSON"),
        ("[]", "report should be an object"),
        ("<html>", "no JSON"),
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("\xff", "no JSON"),
    ],
)
def test_an_invalid_report_is_refused_by_name(open_client, body, fault):
    client, service = open_client(httpx.Response(200, content=body.encode("latin-1")))
    with pytest.raises(ServiceError, match=fault) as caught:
        client.classify(b"x")
    assert "\n" not in str(caught.value)
    assert len(service.requests) == 1


def test_an_answer_is_bounded(open_client, monkeypatch):
    monkeypatch.setattr("serfer.client.wire.MAX_REPLY_BYTES", 1000)
    client, _ = open_client(httpx.Response(200, content=b" " * 1001))
    with pytest.raises(ServiceError, match="more than 1000 bytes"):
        client.classify(b"x")


def test_an_answer_is_not_unpacked(open_client):
    packed = httpx.Response(200, headers={"Content-Encoding": "x-unknown"}, content=json.dumps(REPORT).encode())
    client, service = open_client(packed)
    with pytest.raises(ServiceError, match="compressed"):
        client.classify(b"x")
    assert service.requests[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("mute", [b"", b"{}", b"[1]", b'{"detail": 3}', b'{"detail": "' + b"x" * 100_000])
def test_a_problem_without_detail_is_reported_by_its_status(open_client, mute):
    headers = {"Content-Type": "application/problem+json", "X-Request-Id": "abc"}
    client, _ = open_client(httpx.Response(422, headers=headers, content=mute))
    with pytest.raises(RequestRefusedError) as caught:
        client.classify(b"x")
    assert str(caught.value).endswith("(HTTP 422, request abc)")


def test_a_long_detail_is_cut(open_client):
    client, _ = open_client(problem(422, "x" * 100_000))
    with pytest.raises(RequestRefusedError) as caught:
        client.classify(b"x")
    assert len(str(caught.value)) < 600


def test_a_job_is_polled_as_often_as_the_service_says(open_client, time):
    running = answer(document=status("running"), retry_after="1")
    client, service = open_client(
        answer(202, status("queued"), location="/v1/results/job/1"),
        answer(document=status("queued"), retry_after="2"),
        problem(503),
        running,
        answer(document=status("done", result={**REPORT, "timeline": TIMELINE})),
    )
    job = client.submit(b"x", model="small")
    assert job.id == "job/1"
    assert job.result().timeline.answered_ms == 12.5
    assert time.waits == [2.0, 0.05, 1.0]
    first, *looks = service.requests
    assert (first.method, first.headers["Prefer"]) == ("POST", "respond-async")
    assert {(look.method, look.url.raw_path) for look in looks} == {("GET", b"/prod/v1/results/job%2F1")}


def test_a_job_without_retry_after_is_polled_less_and_less_often(open_client, time):
    running = answer(document=status("running"))
    client, _ = open_client(
        answer(202, status("queued")), running, running, running, answer(document=status("done", result=REPORT))
    )
    client.submit(b"x").result()
    assert time.waits == [0.05, 0.1, 0.2]


def test_a_job_that_does_not_end_in_time_is_left_running(open_client, time):
    client, service = open_client(answer(202, status("queued")), answer(document=status("running"), retry_after="10"))
    job = client.submit(b"x")
    with pytest.raises(ServiceDeadlineError, match="within 25 s"):
        job.result(25.0)
    assert time.waits[:2] == [10.0, 10.0]
    assert 24.9 < time.now <= 25.0
    assert all(request.method != "DELETE" for request in service.requests)


def test_a_job_says_how_far_it_is(open_client):
    client, _ = open_client(answer(202, status("queued")), answer(document=status("running")))
    job = client.submit(b"x").status()
    assert (job.status, job.ended, job.result, job.problem) == ("running", False, None, None)
    assert job.stages[0].tiles == (1, 0, 0, 0)


@pytest.mark.parametrize(
    ("code", "kind"), [(400, RequestRefusedError), (503, ServiceUnavailableError), (504, DeadlineError)]
)
def test_a_failed_job_raises_its_problem_and_is_not_looked_at_again(open_client, code, kind):
    ended = status("failed", problem={"title": "No", "status": code, "detail": "a.png is not an image"})
    client, service = open_client(answer(202, status("queued")), answer(document=ended))
    job = client.submit(b"x")
    with pytest.raises(kind, match=r"a\.png is not an image") as caught:
        job.result()
    assert (caught.value.status, len(service.requests)) == (code, 2)


@pytest.mark.parametrize("ended", [status("done"), status("cancelled"), status("failed", problem=None)])
def test_a_job_that_ended_with_nothing_is_an_error(open_client, ended):
    client, _ = open_client(answer(202, status("queued")), answer(document=ended))
    job = client.submit(b"x")
    with pytest.raises(ServiceError, match="neither result nor problem"):
        job.result()


@pytest.mark.parametrize("gone", [httpx.Response(204), problem(404)], ids=repr)
def test_cancelling_a_missing_job_succeeds(open_client, gone):
    client, service = open_client(answer(202, status("queued")), gone)
    client.submit(b"x").cancel()
    assert (service.requests[-1].method, service.requests[-1].url.raw_path) == ("DELETE", b"/prod/v1/results/job%2F1")


def test_models_are_listed(open_client):
    model = {
        "name": "small",
        "plan": "ab",
        "input": {"height": 34, "width": 35, "channels": 3},
        "default": True,
        "more": 1,
    }
    client, _ = open_client(answer(document={"models": [model]}))
    assert client.models() == (ServedModel("small", "ab", ModelInput(34, 35, 3), default=True),)


@pytest.mark.parametrize(("code", "ready"), [(200, True), (503, False)])
def test_readiness_is_queried_once(open_client, code, ready):
    client, service = open_client(answer(code, {"ready": ready}))
    assert client.ready() is ready
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"names": ["a", "b"]}, "2 names were given for 1 images"),
        ({"idempotency_key": "a b"}, "idempotency_key"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"images": []}, "at least one image"),
    ],
)
def test_contradicting_arguments_are_not_sent(open_client, options, word):
    client, service = open_client(answer())
    with pytest.raises(UsageError, match=word):
        client.classify(**{"images": b"x", **options})
    assert service.requests == []


def test_an_image_that_cannot_be_read_is_named(open_client, tmp_path):
    client, _ = open_client(answer())
    with pytest.raises(ImageError, match=r"nothing\.png cannot be read: No such file"):
        client.classify([tmp_path / "nothing.png"])


@pytest.mark.parametrize(
    ("url", "options", "word"),
    [
        ("localhost:8000", {}, "http://"),
        ("ftp://host", {}, "http://"),
        ("http://", {}, "host"),
        ("http://me:hush@host", {}, "api_key"),
        ("http://host?key=hush", {}, "api_key"),
        ("http://host:hush", {}, "not a URL"),
        *(("http://host", {"api_key": key}, "api_key") for key in ("", "hush hush", "hush\n", "hüsh")),
        *(("http://host", {"timeout_s": seconds}, "timeout_s") for seconds in (0, float("nan"))),
        ("http://host", {"retries": -1}, "retries"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_wrong_arguments_of_a_client_are_named_and_no_secret_is_repeated(kind, url, options, word):
    with pytest.raises(UsageError, match=word) as caught:
        kind(url, **options)
    assert "hush" not in str(caught.value)
    assert "hüsh" not in str(caught.value)


def test_the_key_is_nowhere_to_be_seen(open_client, caplog):
    caplog.set_level("DEBUG")
    client, _ = open_client(answer(202, status("queued")), problem(401, f"unknown key {KEY}"))
    job = client.submit(b"x")
    with pytest.raises(KeyRefusedError) as caught:
        client.classify(b"x")
    for text in (repr(client), repr(job), str(caught.value), repr(caught.value), caught.value.detail, caplog.text):
        assert KEY not in text
    assert "http://serfer.test/prod" in repr(client)


class ClosedTransport(httpx.MockTransport):
    is_closed = False

    def close(self):
        self.is_closed = True

    async def aclose(self):
        self.is_closed = True


async def test_a_client_closes_its_connections():
    transport = ClosedTransport(lambda _: answer())
    with Client("http://serfer.test", transport=transport):
        assert not transport.is_closed
    assert transport.is_closed
    transport = ClosedTransport(lambda _: answer())
    async with AsyncClient("http://serfer.test", transport=transport):
        assert not transport.is_closed
    assert transport.is_closed


def test_the_client_imports_nothing_that_computes_or_serves():
    heavy = {
        *("torch", "torchvision", "numpy", "boto3", "botocore", "fastapi", "starlette", "onnx", "onnxruntime"),
        *("onnxscript", "aiohttp", "PIL", "redis", "msgpack"),
    }
    code = f"import sys, serfer; serfer.Client; serfer.AsyncClient; print(sorted({heavy!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
