"""Two at once: each file and record that two processes may change is changed by four; nothing is lost or half there."""

import asyncio
import json
import multiprocessing
import time
from dataclasses import replace
from unittest import mock

import numpy as np
import onnx
import pytest

from serfer.api.auth.keys import add_key, read_keys, remove_key
from serfer.api.jobs.offline import OfflineRecord
from serfer.api.jobs.runner import Runner
from serfer.core.errors import UnavailableError
from serfer.core.geometry import Span
from serfer.files import write_whole
from serfer.plan_directory import check_artefacts, load_plan
from serfer.raster.results.parts import ResultParts
from serfer.registry import open_registry
from serfer.registry.registration import RegistrationRequest, Registrations, RegistrationState, RegistrationStep
from serfer.settings import Settings
from serfer.storage import open_store
from serfer.wiring.network_file import plan_of_file
from tests.applications.worlds import DIGEST, NOW, register, variant, version
from tests.e2e.small import CLASSES, small_onnx, split_small
from tests.results.stored import array_of, dense

PROCESSES = range(4)
PATIENCE = 60.0
ID = "ab" * 16
TIMES = range(5)  # that each process changes it


def _meet(barrier):
    global _together  # noqa: PLW0603 - an initializer can keep it nowhere else
    _together = barrier


def _run(work, number, arguments):
    _together.wait(PATIENCE)  # one piece of work for each process, and all of them at once
    work(number, *arguments)


@pytest.fixture(scope="module")
def by_four():
    """Call a function of this module with 0 to 3 and its other arguments in four processes, which begin together."""
    spawn = multiprocessing.get_context("spawn")  # tests' own process is too large to be forked
    with spawn.Pool(len(PROCESSES), _meet, (spawn.Barrier(len(PROCESSES)),)) as pool:
        yield lambda work, *arguments: pool.starmap_async(
            _run, [(work, number, arguments) for number in PROCESSES], chunksize=1
        ).get(PATIENCE)


def change_keys(process, path):
    for number in TIMES:
        add_key(path, f"new-{process}-{number}", None)
    remove_key(path, f"old-{process}")


@pytest.mark.two_at_once
def test_a_file_of_keys_keeps_each_key_that_was_printed_and_none_that_was_removed(tmp_path, by_four):
    path = tmp_path / "keys.json"
    for process in PROCESSES:
        add_key(path, f"old-{process}", None)
    by_four(change_keys, path)
    assert {entry.name for entry in read_keys(path)} == {
        f"new-{process}-{n}" for process in PROCESSES for n in range(5)
    }
    assert {each.name for each in tmp_path.iterdir()} == {"keys.json", ".keys.json.lock"}


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "registry")


def change_application(process, place):
    registry = open_registry(place)
    for number in TIMES:
        register(registry, "faces", version(f"net-{process}", number + 1, variant(f"net-{process}.{number}")))
        networks = {f"net-{process}": number + 1}
        registry.update(
            "faces",
            lambda record, networks=networks: record.promoted(
                record.networks_with(networks), NOW, "test", f"by {networks}"
            ),
        )


@pytest.mark.two_at_once
def test_an_applications_record_keeps_each_version_and_each_release(place, by_four):
    by_four(change_application, place)
    record = open_registry(place).application("faces")
    made = {(f"net-{process}", number + 1) for process in PROCESSES for number in TIMES}
    assert {(each.network, each.version) for each in record.networks} == made
    assert record.live_release.networks == {f"net-{process}": len(TIMES) for process in PROCESSES}
    assert record.live_release.number >= len(made)


def open_file(process, place):
    said = []
    directory = plan_of_file(place / "small.onnx", Settings(cache_dir=place / "cache"), said.append)
    (place / f"{process} {directory.name}").write_text("".join(said))


@pytest.mark.two_at_once
def test_a_network_file_becomes_one_plan_that_one_process_makes(tmp_path, by_four):
    onnx.save(small_onnx(), tmp_path / "small.onnx")
    by_four(open_file, tmp_path)
    [plan] = [path for path in (tmp_path / "cache" / "plans").iterdir() if not path.name.startswith(".")]
    check_artefacts(load_plan(plan), plan)
    told = [tmp_path / f"{process} {plan.name}" for process in PROCESSES]
    assert sum("reading small.onnx, once" in path.read_text() for path in told) == 1


def register_one(process, place, owners):
    mine = Registrations(open_registry(place), f"worker {process}")
    claimed = mine.claim(RegistrationRequest("faces", "net", DIGEST, DIGEST, "{}"), "test")
    if not mine.holds(claimed):
        return
    (owners / f"owner {process}").touch()
    for number in TIMES:
        step = RegistrationStep(f"step {number}", RegistrationState.DONE, variant=variant(f"net.{number}"))
        mine.record(claimed.id, step)
    mine.finish(claimed.id, classes=CLASSES, labels=DIGEST)


@pytest.mark.two_at_once
@pytest.mark.who_may
def test_a_registration_has_one_owner_and_adds_one_version(place, tmp_path, by_four):
    by_four(register_one, place, tmp_path)
    assert len([*tmp_path.glob("owner *")]) == 1
    [made] = open_registry(place).application("faces").networks
    assert (made.version, len(made.variants)) == (1, len(TIMES))


def begin_one(process, store, owners):
    async def check():
        with open_store(store) as opened:
            runner = Runner(opened.coordination(), OfflineRecord, lambda _: PATIENCE, event="test", beat_s=0.02)
            mine = OfflineRecord(id=ID, updated=time.time(), model=f"driver {process}", created=NOW, images=1)
            is_own = await runner.begin(ID, mine, work, after) is mine
            (owners / f"{'owner' if is_own else 'other'} {process}").touch()
            await runner.close(PATIENCE)

    async def work(job):
        while len([*owners.glob("o* *")]) < len(PROCESSES):
            job.record = replace(job.record, answered=job.record.answered + 1)
            await asyncio.sleep(0.01)
        job.record = replace(job.record, answered=len(TIMES))

    async def after(_):
        pass

    asyncio.run(check())


@pytest.mark.two_at_once
def test_of_four_drivers_that_begin_the_same_job_one_does_and_none_of_its_writes_is_lost(store, tmp_path, by_four):
    by_four(begin_one, store, tmp_path)
    assert len([*tmp_path.glob("owner *")]) == 1
    with open_store(store) as opened:
        record = OfflineRecord.decode(ID, opened.coordination().get(ID).value)
    assert (record.state, record.answered) == ("done", len(TIMES))


@pytest.fixture
def store(tmp_path):
    return (tmp_path / "store").as_uri()


def is_whole(data):
    """Whether bytes are those that one process wrote."""
    return len(data) == LENGTH and len({*data}) == 1


LENGTH = 300_000


def put_and_get(process, store):
    with open_store(store) as opened:
        for _ in TIMES:
            opened.put("result", bytes([process]) * LENGTH, 600.0)
            assert is_whole(bytes(opened.get("result")))


@pytest.mark.two_at_once
def test_what_a_store_keeps_under_one_key_is_one_writers(store, by_four):
    """Pieces, results and the lines of jobs: all of them are written twice at times."""
    by_four(put_and_get, store)


def fetch(process, place, digest, folder):
    registry = open_registry(place)
    fetched = registry.directory(digest, folder / "cache", again=process == 0)
    if process:  # process 0 fetches the directory again, and its files are missing for a moment
        own = registry.directory(digest, folder / f"own {process}")
        check_artefacts(load_plan(own), own)
    assert fetched.name == digest


@pytest.mark.two_at_once
def test_a_plan_directory_is_fetched_into_the_cache_whole(place, tmp_path, by_four):
    registry = open_registry(place)
    digest = registry.put_directory(split_small(tmp_path / "plan", grids=[(1, 1)]))
    by_four(fetch, place, digest, tmp_path)
    found = registry.directory(digest, tmp_path / "cache")
    check_artefacts(load_plan(found), found)
    assert [each.name for each in (tmp_path / "cache").iterdir() if not each.name.endswith(".lock")] == [digest]


PARTS = len(PROCESSES) * len(TIMES)
ARRAY = array_of("scores", dense(1, 2 * PARTS, 3), 1, (PARTS, 1))


def put_parts(process, path):
    for number in TIMES:
        while True:
            try:
                parts = ResultParts.create_or_resume(path, {"plan": "one"}, ARRAY)
            except UnavailableError:  # another works there
                continue
            with parts:
                parts.put(process * len(TIMES) + number, np.full((1, 2, 3), process, np.float32))
            break


@pytest.mark.two_at_once
def test_the_parts_of_a_map_are_one_processs_at_a_time_and_none_is_lost(tmp_path, by_four):
    by_four(put_parts, tmp_path / "map.parts")
    with ResultParts.create_or_resume(tmp_path / "map.parts", {"plan": "one"}, ARRAY) as parts:
        assert parts.verify() == set()
        assert {int(parts.rows(number, 0, Span(0, 2)).flat[0]) for number in range(PARTS)} == {*PROCESSES}


def write_file(process, path):
    with mock.patch("os.getpid", return_value=1):
        for _ in TIMES:
            write_whole(path, json.dumps([process] * 50_000).encode())
            assert len({*json.loads(path.read_bytes())}) == 1


@pytest.mark.two_at_once
def test_a_file_that_four_write_is_one_of_theirs(tmp_path, by_four):
    """Output of commands, states on a volume of containers, each of whose process has the same id."""
    by_four(write_file, tmp_path / "out.json")
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]
