"""Registrations: one for one request, resumed after a kill, taken over by change, finished once."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from serfer.core.errors import InputError, RegistrationLostError, UsageError
from serfer.core.variants import Validation
from serfer.registry import open_registry
from serfer.registry.registration import (
    TAKEOVER_S,
    RegistrationRequest,
    Registrations,
    RegistrationState,
    RegistrationStep,
)
from tests.registry.records import DIGEST, variant
from tests.support.hand_clock import Clock

REQUEST = RegistrationRequest("faces", "net", DIGEST, DIGEST, '{"precisions": ["fp32"]}')
DONE, FAILED, RUNNING = RegistrationState.DONE, RegistrationState.FAILED, RegistrationState.RUNNING
CLASSES = {"classes": 10, "labels": DIGEST}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "registry"


@pytest.fixture
def worker(root):
    def make(owner, clock=None):
        return Registrations(open_registry(str(root)), owner, clock or Clock())

    return make


def made(worker, registration, *names):
    for name in names:
        worker.record(registration.id, RegistrationStep(name, DONE, variant=variant(name)))


def begun(worker, *names, request=REQUEST):
    claimed = worker.claim(request, "ann")
    made(worker, claimed, *names)
    return claimed


def test_a_registration_that_is_finished_is_a_network_version(worker):
    mine = worker("me")
    claimed = mine.claim(REQUEST, "ann")
    assert mine.holds(claimed)
    made(mine, claimed, "2x2", "whole")
    mine.record(claimed.id, RegistrationStep("int8", FAILED, "its accuracy is too low"))
    done = mine.finish(claimed.id, **CLASSES, validation=Validation(DIGEST, 100, 10), remarks=("no int8",))
    assert (done.state, done.version, done.owner) == (DONE, 1, "")
    record = mine.registry.application("faces")
    (version,) = record.networks
    assert (version.network, version.version, version.by, version.source) == ("net", 1, "ann", DIGEST)
    assert version.remarks == ("no int8",)
    assert [each.name for each in version.variants] == ["net-v1-2x2", "net-v1-whole"]
    assert record.live_release.networks == {"net": 1}


def test_the_same_request_again_is_the_same_registration(worker):
    mine, other = worker("me"), worker("other")
    claimed = mine.claim(REQUEST, "ann")
    assert other.claim(REQUEST, "bob").owner == "me"
    made(mine, claimed, "a")
    mine.finish(claimed.id, **CLASSES)
    again = other.claim(REQUEST, "bob")
    assert (again.state, again.version, again.by) == (DONE, 1, "ann")
    assert not other.holds(again)
    assert len(mine.registry.application("faces").networks) == 1


@pytest.mark.parametrize("field", ["application", "network", "source", "validation", "settings"])
def test_another_request_is_another_registration(field):
    assert replace(REQUEST, **{field: "ba" * 32}).id != REQUEST.id


def test_two_registrations_of_one_network_get_numbers_of_their_own(worker):
    def register(number):
        mine = worker(f"worker-{number}")
        claimed = begun(mine, "a", "b", request=replace(REQUEST, settings=str(number)))
        return mine.finish(claimed.id, **CLASSES).version

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(register, range(4))) == [1, 2, 3, 4]
    record = worker("reader").registry.application("faces")
    assert [each.version for each in record.versions("net")] == [1, 2, 3, 4]
    assert record.live_release.networks == {"net": 1}


@pytest.mark.who_may
def test_a_silent_owner_is_followed_and_learns_it_and_what_is_done_is_kept(worker):
    clock = Clock()
    first, second = worker("first"), worker("second", clock)
    claimed = begun(first, "a")
    first.record(claimed.id, RegistrationStep("b", RUNNING))
    assert not second.holds(second.claim(REQUEST, "ann"))
    clock.now = TAKEOVER_S - 1
    first.heartbeat(claimed.id)
    assert not second.holds(second.claim(REQUEST, "ann"))
    clock.now += TAKEOVER_S - 1
    assert not second.holds(second.claim(REQUEST, "ann"))
    clock.now += 1
    taken = second.claim(REQUEST, "ann")
    assert second.holds(taken)
    assert [step.name for step in taken.steps] == ["a"]
    for call in (
        lambda: first.heartbeat(claimed.id),
        lambda: first.record(claimed.id, RegistrationStep("c", DONE)),
        lambda: first.fail(claimed.id, "x"),
        lambda: first.finish(claimed.id, **CLASSES),
    ):
        with pytest.raises(RegistrationLostError):
            call()
    assert second.registry.applications() == []
    assert second.finish(taken.id, **CLASSES).version == 1


def test_a_failed_or_abandoned_registration_is_claimed_at_once_and_goes_on(worker):
    first, second, third = worker("first"), worker("second"), worker("third")
    claimed = begun(first, "a")
    failed = first.fail(claimed.id, "no room " * 1000)
    assert (failed.state, len(failed.detail)) == (FAILED, 1000)
    claimed = second.claim(REQUEST, "ann")
    assert (claimed.detail, [step.name for step in claimed.steps]) == ("", ["a"])
    second.abandon(claimed.id)
    with pytest.raises(RegistrationLostError):
        second.heartbeat(claimed.id)
    assert third.holds(third.claim(REQUEST, "ann"))
    assert third.read(REQUEST.id).owner == "third"


@pytest.mark.killed
@pytest.mark.parametrize("after", ["update", "nothing"])
def test_a_finish_that_is_interrupted_adds_one_version(worker, after):
    clock = Clock()
    first, second = worker("first"), worker("second", clock)
    claimed = begun(first, "a")
    update = first.registry.update

    def killed(name, step):
        if after == "update":
            update(name, step)
        raise KeyboardInterrupt

    first.registry.update = killed
    with pytest.raises(KeyboardInterrupt):
        first.finish(claimed.id, **CLASSES)
    second.claim(REQUEST, "ann")
    clock.now = TAKEOVER_S
    assert second.finish(second.claim(REQUEST, "ann").id, **CLASSES).version == 1
    assert len(second.registry.application("faces").networks) == 1


def test_a_registration_whose_version_was_retired_begins_again(worker):
    mine = worker("me")
    for number in (1, 2):
        claimed = mine.claim(REQUEST, "ann")
        assert (mine.holds(claimed), claimed.steps) == (True, ())
        made(mine, claimed, "a")
        assert mine.finish(claimed.id, **CLASSES).version == number
        other = begun(mine, "b", request=replace(REQUEST, settings=f"other {number}", network="other"))
        mine.finish(other.id, **CLASSES)
        when = {"created": "2026-01-31T12:00:00+00:00", "by": "ann", "why": "test"}
        mine.registry.update("faces", lambda record, when=when: record.promoted({"other": 1}, **when))
        mine.registry.update("faces", lambda record, number=number: record.retired("net", number))


def test_another_number_of_classes_or_other_labels_are_refused(worker):
    mine = worker("me")
    claimed = begun(mine, "a")
    mine.finish(claimed.id, **CLASSES)
    claimed = begun(mine, "a", request=replace(REQUEST, settings="2"))
    with pytest.raises(InputError, match="faces has 10 classes, net has 11"):
        mine.finish(claimed.id, classes=11, labels=DIGEST)
    with pytest.raises(InputError, match="net has other labels than application faces"):
        mine.finish(claimed.id, classes=10, labels="ba" * 32)
    assert mine.holds(mine.read(claimed.id))
    assert len(mine.registry.application("faces").networks) == 1


def test_a_registration_without_a_variant_is_not_finished(worker):
    mine = worker("me")
    claimed = mine.claim(REQUEST, "ann")
    with pytest.raises(InputError, match="1 to 200 variants, not 0"):
        mine.finish(claimed.id, **CLASSES)
    assert mine.registry.applications() == []


def test_what_cannot_be_a_request_is_refused(worker):
    for request in (replace(REQUEST, application="a/b"), replace(REQUEST, network=""), replace(REQUEST, source="x")):
        with pytest.raises((UsageError, InputError)):
            worker("me").claim(request, "ann")


def test_a_foreign_record_is_refused_by_name(worker):
    mine = worker("me")
    name = f"registrations/{REQUEST.id}.json"
    mine.registry.store.compare_and_set(name, None, b'{"format": 2}')
    with pytest.raises(InputError, match=name):
        mine.claim(REQUEST, "ann")
    with pytest.raises(UsageError, match="not the id"):
        mine.read("../x")


_WORKER = """
import sys
from serfer.registry import open_registry
from serfer.registry.registration import Registrations
from tests.registry.test_registration import REQUEST, CLASSES, made
mine = Registrations(open_registry(sys.argv[1]), "killed")
claimed = mine.claim(REQUEST, "ann")
for number in range(100):
    made(mine, claimed, f"step-{number}")
    print(number, flush=True)
"""


@pytest.mark.killed
def test_a_worker_that_is_killed_is_followed_where_it_was(worker, root):
    killed = subprocess.Popen([sys.executable, "-c", _WORKER, root], stdout=subprocess.PIPE)
    while int(killed.stdout.readline()) < 5:
        pass
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(60)
    killed.stdout.close()
    clock = Clock()
    mine = worker("me", clock)
    mine.claim(REQUEST, "ann")
    clock.now = TAKEOVER_S
    claimed = mine.claim(REQUEST, "ann")
    assert mine.holds(claimed)
    assert [step.name for step in claimed.steps] == [f"step-{number}" for number in range(len(claimed.steps))]
    assert len(claimed.steps) >= 6
    assert len(mine.registry.application("faces").networks if mine.registry.application("faces") else ()) == 0
    assert mine.finish(claimed.id, **CLASSES).version == 1
