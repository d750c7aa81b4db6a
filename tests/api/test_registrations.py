"""Networks that are registered over HTTP: how far they are, who may, and what is refused at once."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from serfer.api.app import make_app
from serfer.api.auth.clients import Scope
from serfer.api.auth.keys import KeyRing, add_key
from serfer.api.jobs.registrations import WAITING, Event, Registrar, Submission
from serfer.core.errors import InputError
from serfer.registry import open_registry
from serfer.registry.registration_record import SUBMISSIONS, document_name
from serfer.settings import Settings
from tests.api.conftest import PATIENCE, running
from tests.applications.services import open_service
from tests.applications.worlds import register, variant, version
from tests.e2e.small import CLASSES
from tests.variants.test_unpacking import IMAGE, NAMES, zipped

REGISTRATIONS = "/v1/applications/faces/registrations"
OUTSIDE = b"j\x15\n\x08location\x12\tnet.data."  # of a tensor whose values are in another file
LABELS = "\n".join(map(str, range(CLASSES))).encode()


class Work:
    """What registers networks: each runs until it is let go, and ends as it is told."""

    def __init__(self):
        self.jobs, self.stopped = [], []
        self.go = threading.Event()
        self.error = None

    async def __call__(self, job, told):
        self.jobs.append(job)
        await told(Event("progress", f"step 1 of 9: {job.name}"))
        try:
            while not self.go.is_set():  # noqa: ASYNC110 - the test's thread sets it
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.stopped.append(job.name)
            raise
        if self.error is not None:
            raise self.error
        return Event("done", job.name, 2, live=True)


def registry_in(folder):
    found = open_registry(str(folder / "registry"))
    register(found, "faces", version("net", 1, variant("net.1")))
    return found


def driver_in(folder, registry, work, forks):
    """Return what starts a driver with folder/NAME as its own; that yields how it is asked."""

    @contextmanager
    def begin(name="one", keys=None, settings=None, *, registers=True):
        service = open_service(str(registry), folder / name, forks, opened=False)
        if registers:
            service.registrar = Registrar(registry, folder / name / "uploads", done, work, heartbeat_s=0.2)
        app = make_app(service, settings or Settings(open_registry=True), keys)
        with running(app) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
            yield client

    async def done():
        work.jobs.append("done")

    return begin


def posting(http):
    """Return what asks for a network to be registered; without images, which take a process to unpack."""

    def send(client=http, at=REGISTRATIONS, headers=None, **more):
        files = {"network": ("net.onnx", b"weights"), "labels": ("l.txt", LABELS)}
        files |= more.pop("files", {})
        kept = {name: file for name, file in files.items() if file is not None}
        return client.post(at, files=kept, data=more, headers=headers)

    return send


@pytest.fixture
def registry(tmp_path):
    return registry_in(tmp_path)


@pytest.fixture
def work():
    return Work()


@pytest.fixture
def driver(registry, work, tmp_path, forks):
    return driver_in(tmp_path, registry, work, forks)


@pytest.fixture
def http(driver):
    with driver() as client:
        yield client


@pytest.fixture
def post(http):
    return posting(http)


@pytest.fixture(scope="module")
def refusing(tmp_path_factory, forks):
    """How a driver is asked for what it refuses, what would register, and the folder of both."""
    folder, work = tmp_path_factory.mktemp("refusing"), Work()
    with driver_in(folder, registry_in(folder), work, forks)() as client:
        yield posting(client), work, folder


def until(look, holds):
    end = time.monotonic() + PATIENCE
    while not holds(found := look()):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


def state(client, location, wanted):
    return until(lambda: client.get(location).json(), lambda found: found["state"] == wanted)


def test_a_network_is_registered_in_the_background_and_any_driver_says_how_far_it_is(post, work, driver, tmp_path):
    images = zipped(tmp_path / "images.zip", [(name, IMAGE) for name in NAMES]).read_bytes()
    begun = post(most=3, files={"validation": ("v.zip", images)})
    assert (begun.status_code, begun.json()["state"]) == (202, "queued"), begun.text
    location = begun.headers["location"]
    with driver("two", registers=False) as other:
        found = until(lambda: other.get(location).json(), lambda found: found["state"] == "running")
        assert (found["network"], found["by"], found["resumable"]) == ("net", "http", False)
        [job] = work.jobs
        assert (job.application, job.most, job.output) == ("faces", 3, None)
        assert {str(path.relative_to(job.validation)) for path in Path(job.validation).rglob("*.png")} == {*NAMES}
        work.go.set()
        found = state(other, location, "done")
    assert (found["version"], found["live"]) == (2, True)
    until(lambda: work.jobs, lambda jobs: jobs[-1] == "done")


def test_the_same_again_is_one_registration_and_begins_anew_once_it_has_failed(post, http, work):
    work.error = InputError("labels that the network does not know")
    first, second = post(), post()
    assert first.headers["location"] == second.headers["location"]
    assert post(most=2).headers["location"] != first.headers["location"]
    work.go.set()
    found = state(http, first.headers["location"], "failed")
    assert (found["detail"], found["resumable"]) == ("labels that the network does not know", True)
    work.error = None
    assert post().json()["state"] == "queued"
    assert state(http, first.headers["location"], "done")["detail"] == ""


def test_one_runs_a_few_wait_and_more_are_refused_until_there_is_room(post, http, work):
    replies = [post(most=number) for number in range(1, WAITING + 3)]
    assert [reply.status_code for reply in replies] == [202] * (WAITING + 1) + [429]
    assert replies[-1].headers["retry-after"]
    assert len(until(lambda: work.jobs, bool)) == 1
    work.go.set()
    for reply in replies[:-1]:
        state(http, reply.headers["location"], "done")


def test_a_cancelled_one_stops_and_is_forgotten_with_what_was_uploaded(post, http, work, tmp_path):
    location = post().headers["location"]
    until(lambda: work.jobs, bool)
    assert http.delete(location).status_code == 204
    assert work.stopped == ["net"]
    assert http.get(location).status_code == http.delete(location).status_code == 404
    assert not [*tmp_path.glob("one/uploads/*/upload-*")]


def test_one_that_another_driver_cancels_is_stopped(post, work, driver):
    location = post().headers["location"]
    until(lambda: work.jobs, bool)
    with driver("two") as other:
        assert other.delete(location).status_code == 204
    until(lambda: work.stopped, bool)


@pytest.mark.killed
def test_a_driver_that_ends_interrupts_what_it_registers_and_another_begins_it_again(driver, post, work):
    with driver("first") as first:
        location = post(first).headers["location"]
        until(lambda: work.jobs, bool)
    assert work.stopped == ["net"]
    with driver("second") as second:
        found = second.get(location).json()
        assert (found["state"], found["resumable"]) == ("interrupted", True)
        work.go.set()
        assert post(second).headers["location"] == location
        state(second, location, "done")


def test_one_whose_driver_is_silent_begins_again_and_is_lost_to_that_driver(post, http, work, registry, driver):
    location = post().headers["location"]
    state(http, location, "running")
    key = document_name(location.rpartition("/")[2], SUBMISSIONS)
    registry.change(key, lambda data: replace(Submission.decode(key, data), updated=0.0, driver="killed").encode())
    assert http.get(location).json()["state"] == "silent"
    with driver("two") as other:
        assert post(other).json()["state"] == "queued"
        until(lambda: work.stopped, bool)
        work.go.set()
        state(other, location, "done")


@pytest.mark.killed
def test_what_a_driver_of_before_has_written_is_read_and_begins_again_where_that_was_killed(post, http, registry, work):
    work.go.set()
    location = post().headers["location"]
    state(http, location, "done")
    key = document_name(location.rpartition("/")[2], SUBMISSIONS)
    before = {"driver": "driver-dead", "state": "running", "updated": time.time()}

    def written(data):
        return json.dumps(json.loads(data) | before).encode()

    registry.change(key, written)
    assert http.get(location).json()["state"] == "running"
    assert post().json()["state"] == "running"
    before["updated"] -= 41.0
    registry.change(key, written)
    assert http.get(location).json()["resumable"]
    assert post().json()["state"] == "queued"
    state(http, location, "done")


@pytest.mark.killed
@pytest.mark.parametrize("named", ["driver-killed", "driver-killed/upload-1"])
def test_one_whose_driver_was_killed_on_this_machine_begins_again_at_once(post, http, registry, work, tmp_path, named):
    work.go.set()
    location = post().headers["location"]
    state(http, location, "done")
    killed = {"driver": named, "state": "running", "updated": time.time()}
    key = document_name(location.rpartition("/")[2], SUBMISSIONS)
    registry.change(key, lambda data: json.dumps(json.loads(data) | killed).encode())
    assert post().json()["state"] == "running"
    (tmp_path / "one/uploads/driver-killed").mkdir()  # and nobody has its lock
    assert post().json()["state"] == "queued"
    state(http, location, "done")


@pytest.mark.killed
def test_uploads_that_a_killed_driver_left_are_deleted_by_the_next(tmp_path, registry, work):
    left = tmp_path / "uploads/driver-dead/upload-1"
    left.mkdir(parents=True)
    alive = Registrar(registry, tmp_path / "uploads", None, work)
    Registrar(registry, tmp_path / "uploads", None, work)
    assert not left.exists()
    assert alive.uploads.folder.exists()


def test_a_network_without_classes_needs_no_images(post, work):
    reply = post(output="boxes:yolov8,score=0.3")
    assert reply.status_code == 202, reply.text
    until(lambda: work.jobs, bool)
    assert (work.jobs[0].validation, work.jobs[0].output) == (None, "boxes:yolov8,score=0.3")
    work.go.set()


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"files": {"network": None}}, 422, "no network"),
        ({"files": {"network": None}, "network": "os.py:system"}, 422, "network"),
        ({"files": {"network": None}, "network": "nonet"}, 422, "no network 'nonet' in the zoo: there is"),
        ({"network": "alexnet"}, 422, "'network' twice"),
        ({"files": {"validation": ("v.zip", b"no zip")}}, 422, "the validation set cannot be unpacked"),
        ({"files": {"validation": ("v.zip", IMAGE)}}, 422, "the validation set cannot be unpacked"),
        ({"files": {"labels": ("l.txt", b"zero\none\ntwo\n")}}, 422, "labels names 3 classes, application faces has"),
        ({"files": {"labels": ("l.txt", b"\xff")}}, 422, "labels is not text in UTF-8"),
        ({"files": {"preprocess": ("p.toml", b"crop = 1")}}, 422, "preprocess: crop should be"),
        ({"files": {"code": ("c.py", b"")}}, 422, "'code'"),
        ({"files": {"network": ("a network.onnx", b"x")}}, 422, "give name"),
        ({"files": {"network": ("n.onnx", OUTSIDE)}}, 422, "weights in other files: send one file"),
        ({"name": "a/b"}, 422, "name"),
        ({"most": "0"}, 422, "most"),
        ({"instance": "no.such"}, 422, "price of 'no.such'"),
        ({"device": "cuda"}, 422, "device"),
        ({"size": "99999x99999"}, 422, "too large"),
    ],
)
def test_what_is_known_to_be_wrong_is_refused_at_once(refusing, change, status, words):
    post, work, folder = refusing
    reply = post(**change)
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json"), reply.text
    assert words in reply.json()["detail"]
    assert str(folder) not in reply.text
    assert work.jobs == []
    assert not [*folder.glob("one/uploads/*/upload-*")]


@pytest.mark.hostile
def test_hostile_archives_are_refused_and_leave_nothing(post, tmp_path):
    for name in ("../../escaped.png", str(tmp_path / "escaped.png")):
        data = zipped(tmp_path / "bad.zip", [(name, IMAGE)]).read_bytes()
        assert "names below one folder" in post(files={"validation": ("v.zip", data)}).json()["detail"]
    assert not [*tmp_path.rglob("escaped.png")]


def test_a_body_and_what_is_in_its_archive_are_bounded(driver, post, tmp_path):
    with driver("small", settings=Settings(api_max_register_bytes=20_000, open_registry=True)) as client:
        assert post(client, files={"network": ("net.onnx", bytes(20_001))}).status_code == 413
        bomb = zipped(tmp_path / "bomb.zip", [("zero/a.png", bytes(1_000_000))]).read_bytes()
        reply = post(client, files={"validation": ("v.zip", bomb)})
        assert (reply.status_code, "more than 20,000 bytes unpacked" in reply.text) == (422, True)


def test_an_unknown_one_of_another_application_or_not_an_id_is_not_found(post, http):
    location = post().headers["location"]
    registration = location.rpartition("/")[2]
    for place in (f"/v1/applications/dogs/registrations/{registration}", f"{REGISTRATIONS}/{'0' * 32}"):
        assert http.get(place).status_code == http.delete(place).status_code == 404
    assert http.get(f"{REGISTRATIONS}/..%2f..%2fapplications%2ffaces").status_code == 404


def test_where_it_is_off_nothing_is_registered(driver, post):
    with driver("two", registers=False) as other:
        reply = post(other)
        assert (reply.status_code, "--register" in reply.json()["detail"]) == (404, True)


def test_only_keys_with_the_scope_and_for_the_application_register(driver, post, tmp_path):
    file = tmp_path / "keys.json"
    keys = {
        "asker": add_key(file, "asker", None),
        "trainer": add_key(file, "trainer", None, scopes=[Scope.REGISTER], applications={"faces": None}),
    }
    with driver("keyed", KeyRing(file, time.monotonic)) as client:

        def send(name, at=REGISTRATIONS):
            return post(client, at, headers={"X-API-Key": keys[name]} if name else None)

        assert (send(None).status_code, send("asker").status_code) == (401, 403)
        assert send("trainer", "/v1/applications/dogs/registrations").status_code == 403
        begun = send("trainer")
        assert (begun.status_code, begun.json()["by"]) == (202, "trainer")
        location = begun.headers["location"]
        assert client.get(location).status_code == 401
        assert client.get(location, headers={"X-API-Key": keys["asker"]}).status_code == 403
        assert client.get(location, headers={"X-API-Key": keys["trainer"]}).status_code == 200
