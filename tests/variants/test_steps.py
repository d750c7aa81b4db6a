"""Steps of a registration: done once, by one process at a time, followed where another worker has it."""

import threading
from dataclasses import dataclass

import pytest

from serfer.core.errors import InputError
from serfer.registry import open_registry
from serfer.registry.registration import RegistrationRequest, Registrations, RegistrationState
from serfer.variants.steps import Steps, alone, claimed, heartbeats, owner_name
from tests import bugs
from tests.registry.records import DIGEST, variant
from tests.support.hand_clock import Clock

REQUEST = RegistrationRequest("faces", "net", DIGEST, DIGEST, "{}")


@dataclass(frozen=True)
class Value:
    number: int


@dataclass(frozen=True)
class Other:
    name: str


@pytest.fixture
def worker(tmp_path):
    def make(owner, clock=None):
        return Registrations(open_registry(str(tmp_path / "registry")), owner, clock or Clock())

    return make


def steps_of(worker, said=None):
    return Steps(worker, worker.claim(REQUEST, "ann"), (said if said is not None else []).append)


def test_a_step_that_is_done_is_not_done_again_by_the_next_process(worker):
    said = []
    assert steps_of(worker("machine"), said).done(Value, "one", "making one", lambda: Value(1)) == Value(1)
    assert said == ["step 1 of 1: making one"]
    later, said = steps_of(worker("machine"), []), []
    assert later.done(Value, "one", "making one", lambda: pytest.fail("done again")) == Value(1)
    assert said == []
    assert later.done(Value, "two", "making two", lambda: Value(2)) == Value(2)


def test_a_step_that_failed_is_done_again(worker):
    def fails():
        raise InputError("no memory")

    with pytest.raises(InputError, match="no memory"):
        steps_of(worker("machine")).done(Value, "one", "making one", fails)
    assert steps_of(worker("machine")).done(Value, "one", "making one", lambda: Value(3)) == Value(3)


def test_a_step_that_another_version_has_written_is_done_again(worker):
    steps_of(worker("machine")).done(Other, "one", "making one", lambda: Other("one"))
    assert steps_of(worker("machine")).done(Value, "one", "making one", lambda: Value(1)) == Value(1)


def test_variants_are_recorded_once(worker):
    mine = worker("machine")
    steps = steps_of(mine)
    steps.variant(variant("whole"))
    beats = mine.read(REQUEST.id).beats
    steps.variant(variant("whole"))
    assert mine.read(REQUEST.id).beats == beats
    assert [each.name for each in mine.read(REQUEST.id).variants] == ["whole"]


def test_a_worker_elsewhere_is_followed_until_it_is_done(worker):
    theirs, mine, said = worker("theirs"), worker("mine"), []
    theirs.claim(REQUEST, "bob")
    Steps(theirs, theirs.read(REQUEST.id), said.append).variant(variant("whole"))

    def finish(_seconds):
        theirs.finish(REQUEST.id, classes=10, labels=DIGEST)

    found = claimed(mine, REQUEST, "ann", said.append, sleep=finish)
    assert (found.state, found.version) == (RegistrationState.DONE, 1)
    assert said == ["a worker elsewhere registers this network: waiting for it, 1 steps so far"]


def test_processes_of_a_machine_share_a_name_and_work_one_at_a_time(tmp_path):
    assert owner_name(tmp_path) == owner_name(tmp_path)
    order, said = [], []
    waits = threading.Event()

    def second():
        with alone(tmp_path, "ab" * 16, lambda text: (said.append(text), waits.set())):
            order.append("second")

    thread = threading.Thread(target=second)
    with alone(tmp_path, "ab" * 16, said.append):
        thread.start()
        assert waits.wait(60)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert said == ["another process registers this network: waiting for it"]


def test_a_bug_in_a_heartbeat_is_logged_and_the_next_one_is_sent(worker, monkeypatch, caplog):
    monkeypatch.setattr("serfer.variants.steps.HEARTBEAT_S", 0.001)
    registrations, sent = worker("machine"), threading.Event()
    found = registrations.claim(REQUEST, "ann")
    beats = iter([bugs.buggy, lambda _: sent.set()])

    def heartbeat(registration):
        next(beats, lambda _: None)(registration)

    registrations.heartbeat = heartbeat
    with heartbeats(registrations, found.id):
        assert sent.wait(60)
    assert bugs.logged(caplog.records) == 1
