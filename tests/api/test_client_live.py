"""The client against the service itself, over sockets: both sides mean the same."""

import asyncio
import json
import re
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, add_key
from serfer.api.decoding.decoders import Decoders
from serfer.api.http.problems import Problem
from serfer.api.service import Service
from serfer.core.errors import DeadlineError, InputError, KeyRefusedError, RequestRefusedError, ServiceUnavailableError
from serfer.settings import Settings
from serfer.storage import open_store
from tests.api.conftest import PATIENCE, Observed, png, running
from tests.e2e.small import SIZE

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "reference" / "client.md"
QUERIES = ((0, "a"), (1, "b"))


@pytest.fixture
def client(url):
    with serfer.Client(url, timeout_s=PATIENCE) as client:
        yield client


@pytest.fixture
def lasting(lasting_url):
    with serfer.Client(lasting_url, timeout_s=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def expected(small_plan):
    """What the pipeline itself says of the same bytes."""
    with serfer.open(small_plan, workers="inprocess") as pipeline:
        return pipeline.classify([png(seed=0), png(seed=1)], names=["a", "b"], top_k=3)


def test_a_query_gets_the_pipelines_answer(lasting, expected):
    report = lasting.classify([png(seed=0), png(seed=1)], names=["a", "b"], top_k=3, model="small", deadline_ms=60_000)
    assert report.images == tuple(expected)
    assert [stage.tasks for stage in report.stages] == [4, 4, 1]
    assert report.timeline is None


def test_both_clients_get_the_same(client, url, expected):
    async def ask():
        async with serfer.AsyncClient(url, timeout_s=PATIENCE) as other:
            return await asyncio.gather(
                *(other.classify(png(seed=seed), top_k=3, names=[name]) for seed, name in QUERIES)
            )

    assert [report.images[0] for report in asyncio.run(ask())] == list(expected)
    assert [client.classify(png(seed=seed), top_k=3, names=[name]).images[0] for seed, name in QUERIES] == list(
        expected
    )


@pytest.mark.parametrize(
    "name", ["käse 🧀.png", 'a "quoted".png', r"back\slash.png", "100%.png", "%22.png", "a;b=c.png"]
)
def test_image_names_are_returned_unchanged(lasting, name):
    assert lasting.classify(png(), names=[name]).images[0].name == name


def test_files_are_read_and_called_by_their_names(lasting, tmp_path):
    (tmp_path / "cat.png").write_bytes(png())
    assert lasting.classify(tmp_path / "cat.png").images[0].name == "cat.png"


def test_an_explained_report_says_where_the_time_went(lasting):
    timeline = lasting.classify(png(), explain=True).timeline
    assert len(timeline.tasks) == 9
    assert {task.outcome for task in timeline.tasks} == {"answered"}
    assert all(task.asked_ms <= task.started_ms <= task.ended_ms <= timeline.answered_ms for task in timeline.tasks)


@pytest.mark.exact
def test_the_same_idempotency_key_gets_the_same_answer(client, observed):
    reports = [client.classify(png(), idempotency_key="once", names=["a"]) for _ in range(2)]
    assert reports[0] == reports[1]
    assert len(observed.answers) == 1


def test_a_job_is_answered_later(client, expected):
    job = client.submit([png(seed=0), png(seed=1)], names=["a", "b"], top_k=3)
    report = job.result()
    assert report.images == tuple(expected)
    assert report.timeline.tasks
    status = job.status()
    assert (status.status, status.result) == ("done", report)
    assert [stage.tiles for stage in status.stages] == [(1,) * 4, (1,) * 4, (1,)]
    assert abs(time.time() - status.created) < PATIENCE


def test_a_cancelled_job_is_not_found(client):
    job = client.submit(png())
    job.cancel()
    job.cancel()
    with pytest.raises(RequestRefusedError, match="no such result") as caught:
        job.result()
    assert caught.value.status == 404


def test_a_failed_job_says_why(client):
    with pytest.raises(DeadlineError, match="no answer by the deadline"):
        client.submit(png(), deadline_ms=1).result()


def test_refusals_are_errors_with_the_services_words(lasting):
    with pytest.raises(InputError, match=r"b\.png cannot be decoded"):
        lasting.classify([png(), png()[:200]], names=["a.png", "b.png"])
    with pytest.raises(RequestRefusedError, match="no model 'other' here: there is small"):
        lasting.classify(png(), model="other")
    with pytest.raises(DeadlineError):
        lasting.classify(png(), deadline_ms=1)


def test_the_client_retries_a_full_service_after_retry_after(app, service):
    refusals = [Problem(429, "come again", headers={"Retry-After": str(number)}) for number in (3, 2)]
    usual, waits = service.admission.check, []

    def check(client, left_s):
        if refusals:
            raise refusals.pop(0)
        usual(client, left_s)

    service.admission.check = check
    large = png(1500, 1200)  # more than sockets take before anybody reads
    with running(app) as url, serfer.Client(url, timeout_s=PATIENCE, sleep=waits.append) as client:
        assert client.classify(large).model == "small"
    assert [int(wait) for wait in waits] == [3, 2]


def test_a_request_needs_a_valid_key(service, settings, tmp_path):
    path = tmp_path / "keys.json"
    key = add_key(path, "me", None)
    with running(make_app(service, settings, KeyRing(path, time.monotonic))) as url:
        with serfer.Client(url, api_key=key, timeout_s=PATIENCE) as client:
            assert client.classify(png()).model == "small"
        for wrong in (None, "sk-wrong"):
            with serfer.Client(url, api_key=wrong) as client, pytest.raises(KeyRefusedError) as caught:
                client.classify(png())
            assert "sk-wrong" not in str(caught.value)


def test_models_are_listed_with_the_picture_that_each_takes(client, service):
    [model] = client.models()
    assert (model.name, model.default) == ("small", True)
    assert (model.input.height, model.input.width, model.input.channels) == (SIZE, SIZE, 3)
    assert model.plan == service.pipelines["small"].plan.digest


def test_a_service_says_whether_it_takes_queries(client, service):
    assert client.ready() is True
    service.drain()
    assert client.ready() is False


def test_an_error_names_the_request_as_the_services_log_does(lasting):
    with pytest.raises(RequestRefusedError) as caught:
        lasting.classify(b"nothing")
    assert caught.value.request_id
    assert f"request {caught.value.request_id}" in str(caught.value)


@pytest.fixture
def keeping(small_plan, forks, tmp_path):
    """A service that keeps results; yields its URL."""
    place = (tmp_path / "results").as_uri()
    with serfer.open(small_plan, store="memory://", results=place) as pipeline, open_store(place) as store:
        service = Service(
            {"small": pipeline.asynchronous}, Admission(4, 8), Observed(), Decoders(forks=forks), results=store
        )
        with running(make_app(service, Settings())) as url:
            yield url


def test_documented_examples_work(keeping, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("cat.jpg", "dog.jpg"):
        Path(name).write_bytes(png())
    examples = re.findall(r"```python\n(.*?)```", DOCUMENTATION.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 6
    known = {}
    for example in examples:
        exec(example.replace("http://localhost:8000", keeping), known)  # noqa: S102 - our own words
    assert "label-" in capsys.readouterr().out
    assert len(known["report"].images) == 2
    assert np.array_equal(np.load("scores.npy"), known["array"])


@contextmanager
def listening(*replies):
    """Serve one connection for each of `replies`: read a request's head, send the bytes, close."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)

        def serve():
            for reply in replies:
                connection, _ = server.accept()
                with connection:
                    while b"\r\n\r\n" not in connection.recv(65536):
                        pass
                    connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(PATIENCE)


def test_connections_that_break_are_tried_again():
    body = json.dumps({"models": []}).encode()
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    waits = []
    with (
        listening(b"", whole[:-3], b"HTTP/1.1 nonsense\r\n\r\n", whole, whole) as url,
        serfer.Client(url, timeout_s=PATIENCE, sleep=waits.append) as client,
    ):
        assert client.models() == ()
        assert len(waits) == 3
        assert client.models() == ()  # the connection that was kept has been closed meanwhile


def test_a_connection_error_names_the_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with (
        serfer.Client(url, retries=1, sleep=lambda _: None) as client,
        pytest.raises(ServiceUnavailableError, match=url) as caught,
    ):
        client.ready()
    assert caught.value.exit_code == 4
