"""Offline jobs: images below a prefix are answered when online queries leave room, and who may know of it."""

import hashlib
import json
import time
from contextlib import contextmanager
from urllib.parse import parse_qsl

import httpx
import pytest
from botocore.session import Session

from serfer.api.app import make_app
from serfer.api.jobs import offline
from serfer.api.jobs.offline import MOST_JOBS, JobImages, OfflineJobs, OfflineRecord
from serfer.control.online_load import LoadMonitor
from serfer.control.throttle import OnlineLoad
from serfer.core.errors import ImageError, ImageTooLargeError
from serfer.settings import Settings
from serfer.storage import open_store
from serfer_bench.core.s3_server import S3Server
from tests import bugs
from tests.e2e.conftest import eventually
from tests.support.served import PATIENCE, asking, png, running, service_of

QUIET, BUSY = OnlineLoad("this service", 0.0), OnlineLoad("this service", 0.9)


@pytest.fixture
def store():
    with open_store("memory://") as opened:
        yield opened


@pytest.fixture
def load():
    return [QUIET]


@pytest.fixture
def driver(small_plan, store, load, tmp_path, forks):
    @contextmanager
    def begin(keys=None, **settings):
        with service_of({"small": small_plan}, forks=forks) as service:
            place = JobImages(str(tmp_path / "photos"))
            service.jobs = OfflineJobs(store, 600.0, place, lambda: load[0], period_s=0.05)
            with asking(make_app(service, Settings(**settings), keys)) as client:
                yield client

    return begin


@pytest.fixture
def http(driver):
    with driver() as client:
        yield client


@pytest.fixture
def images(tmp_path):
    """The prefix of a job's images, one of which is none."""
    (tmp_path / "photos" / "june" / "more").mkdir(parents=True)
    for name, data in (("a.png", png(seed=1)), ("more/b.png", png(seed=2)), ("more/broken.png", b"no image")):
        (tmp_path / "photos" / "june" / name).write_bytes(data)
    (tmp_path / "photos" / "june" / "notes.txt").write_text("no image")
    (tmp_path / "secret.png").write_bytes(png(seed=3))
    return "june"


def post(client, prefix, query="", headers=None):
    return client.post("/v1/jobs", params={"images": prefix, **dict(parse_qsl(query))}, headers=headers)


def until(client, location, holds, headers=None):
    def looked():
        found = client.get(location, headers=headers).json()
        return found if holds(found) else None

    return eventually(looked, "the job gets there", every=0.02)


def is_done(found):
    return found["state"] == "done"


def test_each_image_is_answered_as_a_query_would_be_and_any_driver_has_the_results(http, images, driver):
    begun = post(http, images, "top_k=2&model=small")
    assert (begun.status_code, begun.json()["images"]) == (202, 3), begun.text
    location = begun.headers["location"]
    with driver() as other:
        found = until(other, location, is_done)
        assert (found["answered"], found["failed"], found["paused"]) == (3, 1, "")
        reply = other.get(f"{location}/results")
        assert reply.headers["content-type"].startswith("application/jsonl")
        said = [json.loads(line) for line in reply.text.splitlines()]
        assert [line["images"][0]["name"] for line in said] == ["june/a.png", "june/more/b.png", "june/more/broken.png"]
        one = http.post("/v1/classify?top_k=2", files={"image": ("a.png", png(seed=1))}).json()
        assert said[0]["images"][0]["predictions"] == one["images"][0]["predictions"]
        assert "broken.png" in said[2]["error"]
        assert other.delete(location).status_code == 204
        assert http.get(location).status_code == http.get(f"{location}/results").status_code == 404


def test_it_waits_while_online_queries_leave_no_room_and_any_driver_cancels_it(http, images, load, driver):
    load[0] = BUSY
    location = post(http, images).headers["location"]
    found = until(http, location, lambda found: found["paused"] and "90%" in found["paused"])
    assert (found["state"], found["answered"]) == ("running", 0)
    assert http.get(f"{location}/results").status_code == 409
    load[0] = QUIET
    until(http, location, is_done)
    load[0] = BUSY
    with driver() as other:
        for client in (http, other):
            location = post(http, images).headers["location"]
            assert client.delete(location).status_code == 204
            assert http.get(location).status_code == 404


@pytest.mark.killed
def test_a_driver_that_ends_interrupts_its_jobs_and_says_so(driver, images, load, http):
    load[0] = BUSY
    with driver() as first:
        location = post(first, images).headers["location"]
    found = http.get(location).json()
    assert (found["state"], "stopped" in found["detail"]) == ("interrupted", True)


def test_a_bug_is_told_as_one_and_logged_with_its_traceback(http, images, monkeypatch, caplog):
    monkeypatch.setattr(offline.OfflineThrottle, "observe", bugs.buggy)
    location = post(http, images).headers["location"]
    found = until(http, location, lambda found: found["state"] not in ("queued", "running"))
    assert (found["state"], found["detail"]) == ("failed", "a bug of the service's; its log says more")
    assert bugs.logged(caplog.records) == 1


def test_a_bug_in_writing_how_far_it_is_ends_no_heartbeats(http, images, load, monkeypatch, caplog):
    load[0] = BUSY
    location = post(http, images).headers["location"]
    before = until(http, location, lambda found: found["paused"])
    with monkeypatch.context() as broken:
        broken.setattr(OfflineRecord, "encode", bugs.buggy)
        eventually(lambda: bugs.logged(caplog.records) == 2, "both are logged")
    load[0] = QUIET
    found = until(http, location, is_done)
    assert (before["state"], found["answered"]) == ("running", 3)


def test_more_jobs_than_there_is_room_for_are_refused(http, images, load):
    load[0] = BUSY
    replies = [post(http, images) for _ in range(MOST_JOBS + 1)]
    assert [reply.status_code for reply in replies] == [*[202] * MOST_JOBS, 429]
    assert replies[-1].headers["retry-after"]


@pytest.mark.killed
def test_a_job_of_a_driver_that_was_killed_is_found_interrupted(http, store):
    """Its record is as drivers of before have written it, too."""
    stored = {"id": "0" * 32, "model": "small", "created": "now", "images": 3, "updated": time.time(), "answered": 1}
    stored |= {"state": "running", "failed": 0, "paused": "", "detail": ""}
    key, version = f"serfer:job:{hashlib.sha256(b'0::' + b'0' * 32).hexdigest()}", None
    for updated, state, words in ((time.time(), "running", ""), (time.time() - 41.0, "interrupted", "was killed")):
        data = json.dumps(stored | {"updated": updated}).encode()
        version = store.coordination().compare_and_set(key, version, data, 60.0)
        found = http.get(f"/v1/jobs/{'0' * 32}").json()
        assert (found["state"], found["answered"], words in found["detail"]) == (state, 1, True)


def test_results_are_bounded(http, images, monkeypatch):
    monkeypatch.setattr(offline, "MOST_LINES_BYTES", 10)
    found = until(http, post(http, images).headers["location"], lambda found: found["state"] == "failed")
    assert (found["failed"], "more than 10 bytes" in found["detail"]) == (0, True)


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize(
    ("prefix", "query", "status", "words"),
    [
        ("june", "model=none", 404, "none"),
        ("june", "top_k=0", 422, "top_k"),
        ("june", "latency_ms=5", 422, "no applications"),
        ("june", "deadline_ms=5", 422, "deadline_ms"),
        ("june", "notify=https://hooks.example/", 422, "notify"),
        ("july", "", 422, "no images below 'july'"),
        ("june/notes.txt", "", 422, "no images below"),
    ],
)
def test_job_that_cannot_be_asked_is_refused(http, prefix, query, status, words):
    reply = post(http, prefix, query)
    assert (reply.status_code, words in reply.json()["detail"]) == (status, True), reply.text


@pytest.mark.hostile
@pytest.mark.parametrize(
    "prefix", ["..", ".", "june/../..", "/etc", "", "s3://other/june", "june//a", "a\0b", "x" * 501]
)
def test_prefix_that_may_lead_elsewhere_is_refused(http, prefix):
    assert post(http, prefix).status_code == 422


@pytest.mark.hostile
@pytest.mark.usefixtures("images")
def test_link_out_of_the_place_leads_to_no_images(http, tmp_path):
    (tmp_path / "photos" / "away").symlink_to(tmp_path)
    assert "no images below 'away'" in post(http, "away").json()["detail"]


@pytest.mark.hostile
def test_image_that_is_too_large_fails_alone(driver, images, tmp_path):
    (tmp_path / "photos" / "june" / "large.png").write_bytes(bytes(50_001))
    with driver(api_max_body_bytes=50_000) as http:
        location = post(http, images).headers["location"]
        assert until(http, location, is_done)["failed"] == 2
        lines = [json.loads(line) for line in http.get(f"{location}/results").text.splitlines()]
        [error] = [line["error"] for line in lines if line["images"][0]["name"] == "june/large.png"]
        assert "50,000 bytes" in error


def test_images_of_a_bucket_are_those_below_the_prefix(monkeypatch):
    with S3Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        client = Session().create_client("s3", endpoint_url=server.endpoint)
        for name in ("in/june/a.png", "in/june/more/b.PNG", "in/june/notes.txt", "in/july/c.png", "secret.png"):
            client.put_object(Bucket=server.bucket, Key=name, Body=name.encode())
        images = JobImages(f"s3://{server.bucket}/in?endpoint={server.endpoint}")
        assert images.names("june") == ["june/a.png", "june/more/b.PNG"]
        assert images.read("june/a.png", 100) == b"in/june/a.png"
        for name, error in (("june/a.png", ImageTooLargeError), ("june/none.png", ImageError)):
            with pytest.raises(error, match=name):
                images.read(name, 5)


def test_without_the_setting_there_are_no_jobs(app, images):
    with running(app) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        assert "SERFER_API_JOBS" in post(client, images).json()["detail"]


def test_the_online_load_is_without_offline_queries():
    now = [1000.0]
    monitor = LoadMonitor({}, 4, lambda: now[0])
    monitor.change(now[0], 2)
    with monitor.offline():
        now[0] += 100
        busy = monitor.read().utilisation
        assert monitor.online().utilisation == pytest.approx(busy / 2)
    monitor.change(now[0], -1)
    with monitor.offline():
        now[0] += 100
        assert monitor.online().utilisation == pytest.approx(0.0, abs=1e-6)
