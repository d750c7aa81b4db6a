"""Offline jobs: images of an archive are answered when online queries leave room, and who may know of it."""

import asyncio
import hashlib
import json
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, add_key
from serfer.api.decoding.decoders import Decoders
from serfer.api.jobs import offline
from serfer.api.jobs.offline import MOST_JOBS, OfflineJob, OfflineJobs, OfflineRecord
from serfer.api.online_load import LoadMonitor
from serfer.api.routes import jobs
from serfer.api.service import Service
from serfer.control.offline.throttle import OnlineLoad
from serfer.settings import Settings
from serfer.storage import open_store
from serfer.variants.unpacking import unpack
from tests import bugs
from tests.api.conftest import PATIENCE, Observed, png, running
from tests.variants.test_unpacking import zipped

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
        service.jobs = OfflineJobs(store, 600.0, folder / name / "uploads", lambda: load[0], period_s=0.05)
        app = make_app(service, Settings(**settings), keys)
        with running(app) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
            yield client

    return begin


@pytest.fixture(scope="module")
def refusing(tmp_path_factory, small_plan, forks):
    """A client of a driver for what it refuses, and the driver's folder."""
    folder = tmp_path_factory.mktemp("refusing")
    with (
        open_store("memory://") as store,
        driver_in(folder, small_plan, store, [QUIET], forks)() as client,
    ):
        yield client, folder


@pytest.fixture
def http(driver):
    with driver() as client:
        yield client


@pytest.fixture
def images(tmp_path):
    files = [("a.png", png(seed=1)), ("more/b.png", png(seed=2)), ("more/broken.png", b"no image")]
    return zipped(tmp_path / "images.zip", files).read_bytes()


@pytest.fixture
def archive(images, monkeypatch):
    """The images in an archive that this process unpacks, for what is not of archives: each has its own process."""

    async def unpacked_here(job):
        return unpack(job)

    monkeypatch.setattr(jobs, "unpack", unpacked_here)
    return images


def post(client, archive, query="", headers=None, **values):
    return client.post(f"/v1/jobs{query}", files={"images": ("i.zip", archive)}, data=values, headers=headers)


def until(client, location, holds, headers=None):
    end = time.monotonic() + PATIENCE
    while not holds(found := client.get(location, headers=headers).json()):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


def test_each_image_is_answered_as_a_query_would_be_and_any_driver_has_the_results(http, images, driver):
    begun = post(http, images, "?top_k=2&model=small")
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


@pytest.mark.killed
def test_a_driver_that_ends_interrupts_its_jobs_and_says_so(driver, archive, load, http):
    load[0] = BUSY
    with driver("first") as first:
        location = post(first, archive).headers["location"]
    found = http.get(location).json()
    assert (found["state"], "stopped" in found["detail"]) == ("interrupted", True)


def test_a_bug_is_told_as_one_and_logged_with_its_traceback(http, archive, monkeypatch, caplog):
    monkeypatch.setattr(offline.OfflineThrottle, "observe", bugs.buggy)
    location = post(http, archive).headers["location"]
    found = until(http, location, lambda found: found["state"] not in ("queued", "running"))
    assert (found["state"], found["detail"]) == ("failed", "a bug of the service's; its log says more")
    assert bugs.logged(caplog.records) == 1


def test_a_bug_in_writing_how_far_it_is_ends_no_heartbeats(http, archive, load, monkeypatch, caplog):
    load[0] = BUSY
    location = post(http, archive).headers["location"]
    before = until(http, location, lambda found: found["paused"])
    with monkeypatch.context() as broken:
        broken.setattr(OfflineRecord, "encode", bugs.buggy)
        end = time.monotonic() + PATIENCE
        while bugs.logged(caplog.records) < 2:
            assert time.monotonic() < end
            time.sleep(0.02)
    load[0] = QUIET
    found = until(http, location, lambda found: found["state"] == "done")
    assert (before["state"], found["answered"]) == ("running", 3)


def test_more_jobs_than_there_is_room_for_are_refused(http, archive, load):
    load[0] = BUSY
    replies = [post(http, archive) for _ in range(MOST_JOBS + 1)]
    assert [reply.status_code for reply in replies] == [*[202] * MOST_JOBS, 429]
    assert replies[-1].headers["retry-after"]


@pytest.mark.parametrize("url", ["memory://", "file"])
def test_records_and_results_lie_in_any_store_and_are_their_owners(tmp_path, url):
    async def check(opened):
        offline_jobs = OfflineJobs(opened, 600.0, tmp_path / "uploads", lambda: QUIET, period_s=0.05)
        async with offline_jobs.uploads.receiving() as folder:
            begun = await offline_jobs.begin(OfflineJob("own", "small", [Path("a.png")], folder, answered))
        while (await offline_jobs.find("own", begun.id)).state.is_open:  # noqa: ASYNC110 - a record changes
            await asyncio.sleep(0.01)
        assert json.loads(await offline_jobs.lines("own", begun.id)) == {"name": "a.png"}
        assert await offline_jobs.find("other", begun.id) is await offline_jobs.lines("other", begun.id) is None
        await offline_jobs.cancel("own", begun.id)
        assert await offline_jobs.find("own", begun.id) is await offline_jobs.lines("own", begun.id) is None
        await offline_jobs.close()

    async def answered(path):
        return {"name": path.name}

    with open_store((tmp_path / "store").as_uri() if url == "file" else url) as opened:
        asyncio.run(asyncio.wait_for(check(opened), PATIENCE))


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


def test_results_are_bounded(http, archive, monkeypatch):
    monkeypatch.setattr(offline, "MOST_LINES_BYTES", 10)
    found = until(http, post(http, archive).headers["location"], lambda found: found["state"] == "failed")
    assert (found["failed"], "more than 10 bytes" in found["detail"]) == (0, True)


@pytest.mark.parametrize(
    ("query", "values", "status", "words"),
    [
        ("?model=none", {}, 404, "none"),
        ("?top_k=0", {}, 422, "top_k"),
        ("?latency_ms=5", {}, 422, "no applications"),
        ("?deadline_ms=5", {}, 422, "deadline_ms"),
        ("", {"model": "small"}, 422, "images"),
        ("", {"notify": "https://hooks.example/"}, 422, "one field"),
    ],
)
def test_what_cannot_be_asked_is_refused(refusing, archive, query, values, status, words):
    http, folder = refusing
    reply = post(http, archive, query, **values)
    assert (reply.status_code, words in reply.json()["detail"]) == (status, True), reply.text
    assert not [*folder.glob("one/uploads/*/upload-*")]


@pytest.mark.hostile
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
