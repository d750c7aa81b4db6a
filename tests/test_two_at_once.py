"""Two at once: each file and record that two processes may change is changed by four; nothing is lost or half there."""

import json
import multiprocessing
import os
import time
import traceback
from dataclasses import replace

import numpy as np
import pytest

from serfer.api.auth.keys import add_key, read_keys, remove_key
from serfer.api.offline.record import OfflineRecord, OfflineRecords
from serfer.core.errors import UnavailableError
from serfer.files import write_whole
from serfer.fleet.beside.recorder import Recorder
from serfer.fleet.beside.state_places import open_place
from serfer.plan_directory import check_artefacts, load_plan
from serfer.raster.results.parts import ResultParts
from serfer.registry import Registrations, open_registry, submission
from serfer.registry.registration import RegistrationRequest, RegistrationState, RegistrationStep
from serfer.registry.submission import Submission
from storage import open_store
from tests.applications.worlds import DIGEST, NOW, register, variant, version
from tests.e2e.small import CLASSES, split_small

PROCESSES = range(4)
PATIENCE = 60.0
TIMES = range(5)  # that each process changes it


def by_four(work):
    """Call `work` with 0 to 3 in four processes, which begin together; each has to end without an error."""
    fork = multiprocessing.get_context("fork")  # starts in milliseconds, and takes a closure
    together = fork.Barrier(len(PROCESSES))

    def run(number):
        together.wait(PATIENCE)
        try:
            work(number)
        except BaseException:
            traceback.print_exc()
            raise

    processes = [fork.Process(target=run, args=(number,)) for number in PROCESSES]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
        process.kill()
    assert [process.exitcode for process in processes] == [0] * len(PROCESSES)


def test_a_file_of_keys_keeps_each_key_that_was_printed_and_none_that_was_removed(tmp_path):
    path = tmp_path / "keys.json"
    for process in PROCESSES:
        add_key(path, f"old-{process}", None)

    def change(process):
        for number in TIMES:
            add_key(path, f"new-{process}-{number}", None)
        remove_key(path, f"old-{process}")

    by_four(change)
    assert {entry.name for entry in read_keys(path)} == {
        f"new-{process}-{n}" for process in PROCESSES for n in range(5)
    }
    assert {each.name for each in tmp_path.iterdir()} == {"keys.json", ".keys.json.lock"}


@pytest.fixture
def registry(tmp_path):
    return open_registry(str(tmp_path / "registry"))


def test_an_applications_record_keeps_each_version_and_each_release(registry):
    def change(process):
        for number in TIMES:
            register(registry, "faces", version(f"net-{process}", number + 1, variant(f"net-{process}.{number}")))
            networks = {f"net-{process}": number + 1}
            registry.update(
                "faces",
                lambda record, networks=networks: record.promoted(
                    record.networks_with(networks), NOW, "test", f"by {networks}"
                ),
            )

    by_four(change)
    record = registry.application("faces")
    made = {(f"net-{process}", number + 1) for process in PROCESSES for number in TIMES}
    assert {(each.network, each.version) for each in record.networks} == made
    assert record.live_release.networks == {f"net-{process}": len(TIMES) for process in PROCESSES}
    assert record.live_release.number >= len(made)


def test_a_registration_has_one_owner_and_adds_one_version(registry, tmp_path):
    request = RegistrationRequest("faces", "net", DIGEST, DIGEST, "{}")

    def work(process):
        mine = Registrations(registry, f"worker {process}")
        claimed = mine.claim(request, "test")
        if not mine.holds(claimed):
            return
        (tmp_path / f"owner {process}").touch()
        for number in TIMES:
            step = RegistrationStep(f"step {number}", RegistrationState.DONE, variant=variant(f"net.{number}"))
            mine.record(claimed.id, step)
        mine.finish(claimed.id, classes=CLASSES, labels=DIGEST)

    by_four(work)
    assert len([*tmp_path.glob("owner *")]) == 1
    [made] = registry.application("faces").networks
    assert (made.version, len(made.variants)) == (1, len(TIMES))


def counted(change):
    """Change a record until each process has done so as often as it should, whoever comes between."""
    for _ in TIMES:
        while not change():
            pass


def test_what_was_handed_in_loses_no_change(registry):
    first = Submission("ab" * 16, "faces", "net", NOW, "test", 0.0)
    submission.write(registry.store, first, None)

    def change():
        held = submission.read(registry.store, first.id)
        return submission.write(
            registry.store, replace(held.submission, version=held.submission.version + 1), held.version
        )

    by_four(lambda _: counted(change))
    assert submission.read(registry.store, first.id).submission.version == len(PROCESSES) * len(TIMES)


@pytest.fixture
def store(tmp_path):
    return (tmp_path / "store").as_uri()


def test_the_record_of_a_job_loses_no_change(store):
    first = OfflineRecord("job", "small", NOW, 100, time.time())
    with open_store(store) as opened:
        OfflineRecords(opened, 600.0).write("me", first, None)

    def work(_):
        with open_store(store) as opened:
            records = OfflineRecords(opened, 600.0)

            def change():
                found, held = records.read("me", "job")
                return records.write("me", replace(found, answered=found.answered + 1), held)

            counted(change)

    by_four(work)
    with open_store(store) as opened:
        assert OfflineRecords(opened, 600.0).read("me", "job")[0].answered == len(PROCESSES) * len(TIMES)


def is_whole(data):
    """Whether bytes are those that one process wrote."""
    return len(data) == LENGTH and len({*data}) == 1


LENGTH = 300_000


def test_what_a_store_keeps_under_one_key_is_one_writers(store):
    """Pieces, results and the lines of jobs: all of them are written twice at times."""

    def work(process):
        with open_store(store) as opened:
            for _ in TIMES:
                opened.put("result", bytes([process]) * LENGTH, 600.0)
                assert is_whole(bytes(opened.get("result")))

    by_four(work)


def test_a_policys_state_is_one_drivers_and_whole(tmp_path):
    place = open_place(str(tmp_path / "state"), "small", "mark")

    def work(process):
        for _ in TIMES:
            place.write(bytes([process]) * LENGTH)
            assert is_whole(place.read(2 * LENGTH))

    by_four(work)
    assert len([*(tmp_path / "state").iterdir()]) == 1


def test_recordings_of_one_name_are_a_file_each(tmp_path):
    def work(process):
        recorder = Recorder(tmp_path / "policy.jsonl")
        (tmp_path / f"place {process}").write_text(recorder.path.name)
        recorder.close(PATIENCE)

    by_four(work)
    assert len({place.read_text() for place in tmp_path.glob("place *")}) == len(PROCESSES)


def test_a_plan_directory_is_fetched_into_the_cache_whole(registry, tmp_path):
    digest = registry.put_directory(split_small(tmp_path / "plan", grids=[(1, 1)]))

    def work(process):
        place = registry.directory(digest, tmp_path / "cache", anew=process == 0)
        if process:  # the files of one that takes it anew go away for a moment
            check_artefacts(
                load_plan(registry.directory(digest, tmp_path / f"own {process}")), tmp_path / f"own {process}" / digest
            )
        assert place.name == digest

    by_four(work)
    found = registry.directory(digest, tmp_path / "cache")
    check_artefacts(load_plan(found), found)
    assert [each.name for each in (tmp_path / "cache").iterdir() if not each.name.endswith(".lock")] == [digest]


def test_the_parts_of_a_map_are_one_processs_at_a_time_and_none_is_lost(tmp_path):
    count = len(PROCESSES) * len(TIMES)

    def work(process):
        for number in TIMES:
            while True:
                try:
                    parts = ResultParts.create_or_resume(tmp_path / "map.parts", {"plan": "one"}, count)
                except UnavailableError:  # another works there
                    continue
                with parts:
                    parts.put(process * len(TIMES) + number, np.full((1, 2, 3), process, np.float32))
                break

    by_four(work)
    with ResultParts.create_or_resume(tmp_path / "map.parts", {"plan": "one"}, count) as parts:
        assert parts.verify() == set()
        assert {int(parts.get(number).flat[0]) for number in range(count)} == {*PROCESSES}


def test_a_file_that_four_write_is_one_of_theirs(tmp_path, monkeypatch):
    """Output of commands, learnt values, states on a volume of containers, each of whose process has the same id."""
    monkeypatch.setattr(os, "getpid", lambda: 1)

    def work(process):
        for _ in TIMES:
            write_whole(tmp_path / "out.json", json.dumps([process] * 50_000).encode())
            assert len({*json.loads((tmp_path / "out.json").read_bytes())}) == 1

    by_four(work)
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]
