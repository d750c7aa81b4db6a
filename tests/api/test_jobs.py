"""Offline jobs: images of an archive are answered when online queries leave room, and who may know of it."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, add_key
from serfer.api.decoding.decoders import Decoders
from serfer.api.offline import jobs
from serfer.api.offline.jobs import OfflineJobs
from serfer.api.offline.record import OfflineRecord, OfflineRecords
from serfer.api.online_load import LoadMonitor
from serfer.api.service import Service
from serfer.control.offline.throttle import OnlineLoad
from serfer.settings import Settings
from storage import open_store
from tests import bugs
from tests.api.conftest import PATIENCE, Observed, png, running
from tests.variants.test_unpacking import zipped

SECRET = "whsec_" + "A" * 43 + "="
QUIET, BUSY = OnlineLoad("this service", 0.0), OnlineLoad("this service", 0.9)


@pytest.fixture
def store():
    with open_store("memory://") as opened:
        yield opened


@pytest.fixture
def load():
    """The online load, which a test may change."""
    return [QUIET]


@pytest.fixture
def driver(small_plan, store, load, tmp_path, forks):
    return driver_in(tmp_path, small_plan, store, load, forks)


def driver_in(folder, small_plan, store, load, forks):
    """Return what starts a driver with offline jobs and yields a client of it."""

    @contextmanager
    def begin(name="one", keys=None, **settings):
        pipeline = serfer.open(small_plan, store="memory://", workers="inprocess")
        service = Service({"small": pipeline}, Admission(4, 8), Observed(), Decoders(forks=forks))
        service.jobs = OfflineJobs(
            OfflineRecords(store, 600.0), folder / name / "uploads", lambda: load[0], period_s=0.05
        )
        app = make_app(service, Settings(webhook_secret=SECRET, **settings), keys)
        with running(app) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
            yield client

    return begin


@pytest.fixture(scope="module")
def refusing(tmp_path_factory, small_plan, forks):
    """A client of a driver for what it refuses, and the driver's folder."""
    folder = tmp_path_factory.mktemp("refusing")
    with (
        open_store("memory://") as store,
        driver_in(folder, small_plan, store, [QUIET], forks)(notify_hosts=("hooks.example",)) as client,
    ):
        yield client, folder


@pytest.fixture
def http(driver):
    with driver() as client:
        yield client


@pytest.fixture
def archive(tmp_path):
    files = [("a.png", png(seed=1)), ("more/b.png", png(seed=2)), ("more/broken.png", b"no image")]
    return zipped(tmp_path / "images.zip", files).read_bytes()


def post(client, archive, query="", headers=None, **values):
    return client.post(f"/v1/jobs{query}", files={"images": ("i.zip", archive)}, data=values, headers=headers)


def until(client, location, holds, headers=None):
    end = time.monotonic() + PATIENCE
    while not holds(found := client.get(location, headers=headers).json()):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


def test_each_image_is_answered_as_a_query_would_be_and_any_driver_has_the_results(http, archive, driver):
    begun = post(http, archive, "?top_k=2&model=small")
    assert (begun.status_code, begun.json()["images"]) == (202, 3), begun.text
    location = begun.headers["location"]
    with driver("two") as other:
        found = until(other, location, lambda found: found["state"] == "done")
        assert (found["answered"], found["failed"], found["paused"]) == (3, 1, "")
        reply = other.get(f"{location}/results")
        assert reply.headers["content-type"].startswith("application/jsonl")
        lines = [json.loads(line) for line in reply.text.splitlines()]
        assert [line["images"][0]["name"] for line in lines] == ["a.png", "b.png", "broken.png"]
        one = http.post("/v1/classify?top_k=2", files={"image": ("a.png", png(seed=1))}).json()
        assert lines[0]["images"] == one["images"]
        assert "broken.png" in lines[2]["error"]
        assert other.delete(location).status_code == 204
        assert http.get(location).status_code == http.get(f"{location}/results").status_code == 404


def test_it_waits_while_online_queries_leave_no_room_and_can_be_cancelled(http, archive, load, tmp_path):
    load[0] = BUSY
    location = post(http, archive).headers["location"]
    found = until(http, location, lambda found: found["paused"] and "90%" in found["paused"])
    assert (found["state"], found["answered"]) == ("running", 0)
    assert http.get(f"{location}/results").status_code == 409
    load[0] = QUIET
    until(http, location, lambda found: found["state"] == "done")
    load[0] = BUSY
    location = post(http, archive).headers["location"]
    assert http.delete(location).status_code == 204
    assert http.get(location).status_code == 404
    assert not [*tmp_path.glob("one/uploads/*/upload-*")]


def test_one_that_another_driver_cancels_stops_and_leaves_nothing(http, archive, load, driver, tmp_path):
    load[0] = BUSY
    location = post(http, archive).headers["location"]
    with driver("two") as other:
        assert other.delete(location).status_code == 204
    end = time.monotonic() + PATIENCE
    while [*tmp_path.glob("one/uploads/*/upload-*")]:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert http.get(location).status_code == 404


def test_a_driver_that_ends_interrupts_its_jobs_and_says_so(driver, archive, load, http):
    load[0] = BUSY
    with driver("first") as first:
        location = post(first, archive).headers["location"]
    found = http.get(location).json()
    assert (found["state"], "stopped" in found["detail"]) == ("interrupted", True)


def test_a_bug_is_told_as_one_and_logged_with_its_traceback(http, archive, monkeypatch, caplog):
    monkeypatch.setattr(jobs.OfflineThrottle, "observe", bugs.buggy)
    location = post(http, archive).headers["location"]
    found = until(http, location, lambda found: found["state"] not in ("queued", "running"))
    assert (found["state"], found["detail"]) == ("failed", "a bug of the service's; its log says more")
    assert bugs.logged(caplog.records) == 1


def test_a_bug_in_writing_how_far_it_is_ends_no_heartbeats(http, archive, load, monkeypatch, caplog):
    load[0] = BUSY
    location = post(http, archive).headers["location"]
    before = until(http, location, lambda found: found["paused"])
    with monkeypatch.context() as broken:
        broken.setattr(OfflineRecords, "write", bugs.buggy)
        end = time.monotonic() + PATIENCE
        while bugs.logged(caplog.records) < 2:
            assert time.monotonic() < end
            time.sleep(0.02)
    load[0] = QUIET
    found = until(http, location, lambda found: found["state"] == "done")
    assert (before["state"], found["answered"]) == ("running", 3)


def test_more_jobs_than_there_is_room_for_are_refused(http, archive, load, monkeypatch):
    monkeypatch.setattr(jobs, "MOST_JOBS", 2)
    load[0] = BUSY
    replies = [post(http, archive) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [202, 202, 429]
    assert replies[-1].headers["retry-after"]


def test_records_and_results_lie_in_any_store_and_are_their_owners(tmp_path):
    for url in ("memory://", (tmp_path / "store").as_uri()):
        with open_store(url) as opened:
            records = OfflineRecords(opened, 600.0)
            record = OfflineRecord("0" * 32, "small", "now", 3, 0.0)
            first = records.write("own", record, None)
            assert records.write("own", record, None) is None
            assert records.lines("own", record.id) is None
            records.put_lines("own", record.id, b"{}\n")
            assert records.read("own", record.id) == (record, first)
            assert records.lines("own", record.id) == b"{}\n"
            assert records.read("other", record.id) is records.lines("other", record.id) is None
            records.delete("own", record.id)
            assert records.read("own", record.id) is records.lines("own", record.id) is None


def test_results_are_bounded(http, archive, monkeypatch):
    monkeypatch.setattr(jobs, "MOST_LINES_BYTES", 10)
    found = until(http, post(http, archive).headers["location"], lambda found: found["state"] == "failed")
    assert found["failed"] == 0


@pytest.mark.parametrize(
    ("query", "values", "status", "words"),
    [
        ("?model=none", {}, 404, "none"),
        ("?top_k=0", {}, 422, "top_k"),
        ("?latency_ms=5", {}, 422, "no applications"),
        ("?deadline_ms=5", {}, 422, "deadline_ms"),
        ("", {"model": "small"}, 422, "images"),
        ("", {"notify": "https://169.254.169.254/latest"}, 422, "SERFER_NOTIFY_HOSTS"),
        ("", {"notify": "https://hooks.example@169.254.169.254/"}, 422, "SERFER_NOTIFY_HOSTS"),
        ("", {"notify": "https://hooks.example:8443/"}, 422, "SERFER_NOTIFY_HOSTS"),
        ("", {"notify": "file:///etc/passwd"}, 422, "SERFER_NOTIFY_HOSTS"),
        ("", {"notify": "sqs://queue"}, 422, "SERFER_NOTIFY_HOSTS"),
        ("", {"notify": "http://hooks.example/"}, 422, "use https"),
    ],
)
def test_what_cannot_be_asked_or_notified_is_refused(refusing, archive, query, values, status, words):
    http, folder = refusing
    reply = post(http, archive, query, **values)
    assert (reply.status_code, words in reply.json()["detail"]) == (status, True), reply.text
    assert not [*folder.glob("one/uploads/*/upload-*")]


def test_hostile_archives_are_refused(driver, tmp_path):
    with driver(api_max_job_bytes=50_000) as http:
        bomb = zipped(tmp_path / "bomb.zip", [("a.png", bytes(1_000_000))]).read_bytes()
        assert "the archive has more than 50,000 bytes" in post(http, bomb).json()["detail"]
        outside = zipped(tmp_path / "out.zip", [("../a.png", b"x")]).read_bytes()
        assert "names below one folder" in post(http, outside).json()["detail"]
        assert post(http, bytes(50_001)).status_code == 413
        assert post(http, zipped(tmp_path / "none.zip", [("a.txt", b"x")]).read_bytes()).status_code == 422


def test_a_job_is_its_owners(driver, archive, tmp_path):
    file = tmp_path / "keys.json"
    own, other = ({"X-API-Key": add_key(file, name, None)} for name in ("own", "other"))
    with driver("keyed", KeyRing(file, time.monotonic)) as client:
        assert post(client, archive).status_code == 401
        location = post(client, archive, headers=own).headers["location"]
        until(client, location, lambda found: found["state"] == "done", own)
        for path in (location, f"{location}/results"):
            assert client.get(path, headers=other).status_code == 404
        assert client.delete(location, headers=other).status_code == 404
        assert client.get(f"{location}/results", headers=own).status_code == 200


def test_a_webhook_may_go_to_a_host_that_is_allowed(driver, archive, load):
    load[0] = BUSY  # nothing is answered, and so nothing told
    allowed = ("hooks.example", "other.example:8443")
    with driver(notify_hosts=allowed) as http:
        for place in allowed:
            assert post(http, archive, notify=f"https://{place}/x").status_code == 202


def test_its_end_is_told_to_a_webhook_that_the_operator_allows_with_a_signature(driver, archive):
    told = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            told.append((self.headers, json.loads(self.rfile.read(int(self.headers["content-length"])))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as hook:
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{hook.server_port}"
        with driver(notify_hosts=(place,)) as http:
            location = post(http, archive, notify=f"http://{place}/secret").headers["location"]
            assert until(http, location, lambda found: found["notified"])["notified"] == "delivered"
        hook.shutdown()
    [(headers, event)] = told
    assert headers["webhook-signature"].startswith("v1,")
    assert (event["data"]["status"], event["data"]["figures"]["answered"]) == ("done", 3)
    assert event["data"]["out"] == f"{location}/results"


def test_without_the_setting_there_are_no_jobs(app, archive):
    with running(app) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        assert "SERFER_API_JOBS" in post(client, archive).json()["detail"]


def test_the_online_load_is_without_offline_queries():
    now = [1000.0]
    monitor = LoadMonitor({}, 4, lambda: now[0])
    with monitor.running(), monitor.running(), monitor.offline():
        now[0] += 100
        busy = monitor.read().utilisation
        assert monitor.online().utilisation == pytest.approx(busy / 2)
    with monitor.running(), monitor.offline():
        now[0] += 100
        assert monitor.online().utilisation == pytest.approx(0.0, abs=1e-6)
