"""The client against the service itself, over sockets: both sides mean the same."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

import serfer
from serfer.api.http.problems import Problem
from serfer.core.errors import DeadlineError, InputError, RequestRefusedError
from tests.support.served import PATIENCE, png, running, served

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "reference" / "client.md"


@pytest.fixture
def lasting(lasting_url):
    with serfer.Client(lasting_url, timeout_s=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def expected(small_plan):
    with serfer.open(small_plan, workers="inprocess") as pipeline:
        return pipeline.classify([png(seed=0), png(seed=1)], names=["a", "b"], top_k=3)


def test_a_query_gets_the_pipelines_answer(lasting, expected):
    report = lasting.classify([png(seed=0), png(seed=1)], names=["a", "b"], top_k=3, model="small", deadline_ms=60_000)
    assert report.images == tuple(expected)
    assert [stage.tasks for stage in report.stages] == [4, 4, 1]
    assert report.timeline is None


@pytest.mark.parametrize(
    "name", ["käse 🧀.png", 'a "quoted".png', r"back\slash.png", "100%.png", "%22.png", "a;b=c.png"]
)
def test_image_names_are_returned_unchanged(lasting, name):
    assert lasting.classify(png(), names=[name]).images[0].name == name


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
    assert [(stage.name, stage.done) for stage in status.stages] == [("stage-0", 4), ("stage-1", 4), ("stage-2", 1)]
    assert [stage.tiles for stage in status.stages] == [(1,) * 4, (1,) * 4, (1,)]
    assert abs(time.time() - status.created) < PATIENCE


def test_a_cancelled_job_is_not_found_and_a_failed_one_says_why(client):
    job = client.submit(png())
    job.cancel()
    job.cancel()
    with pytest.raises(RequestRefusedError, match="no such result") as caught:
        job.result()
    assert caught.value.status == 404
    with pytest.raises(DeadlineError, match="no answer by the deadline"):
        client.submit(png(), deadline_ms=1).result()


def test_refusals_are_errors_with_the_services_words_and_name_the_request_as_its_log_does(lasting):
    with pytest.raises(InputError, match=r"b\.png cannot be decoded"):
        lasting.classify([png(), png()[:200]], names=["a.png", "b.png"])
    with pytest.raises(RequestRefusedError, match="no model 'other' here: there is small") as caught:
        lasting.classify(png(), model="other")
    assert caught.value.request_id
    assert f"request {caught.value.request_id}" in str(caught.value)
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


@pytest.fixture
def keeping(small_plan, forks, tmp_path):
    place = (tmp_path / "results").as_uri()
    with served({"small": small_plan}, forks=forks, results=place) as url:
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
