"""Tasks pass the gate while the online load leaves room; what runs is never stopped."""

import threading

import pytest

from serfer.control.throttle import PERIOD_S, OnlineLoad
from serfer.core.errors import UnavailableError, UsageError
from serfer.offline.gate import OfflineGate
from tests import bugs

QUIET, BUSY = OnlineLoad("a", 0.0), OnlineLoad("a", 0.9)


class Source:
    def __init__(self, says=QUIET):
        self.says = says

    def read(self):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


class World:
    def __init__(self, *sources, most=3):
        self.now, self.refused = 50.0, 0
        self.gate = OfflineGate(sources, most=most, refused=lambda: self.refused, clock=lambda: self.now)

    def see(self, *loads):
        self.now += PERIOD_S
        self.gate.observe(loads)

    def entered(self):
        count = 0
        while self.gate.try_enter():
            count += 1
        return count


def test_nothing_passes_before_the_load_is_known_then_one_more_each_time():
    world = World(Source())
    assert world.entered() == 0
    for _ in range(4):
        world.see(QUIET)
    assert world.entered() == 3


def test_while_it_is_paused_what_runs_ends_and_nothing_starts():
    world = World(Source())
    for _ in range(3):
        world.see(QUIET)
    assert world.entered() == 3
    world.see(BUSY)
    world.gate.leave()
    assert world.entered() == 0
    assert "utilisation 90% of a" in world.gate.reason
    world.see(QUIET)
    world.see(QUIET)
    world.gate.leave()
    world.gate.leave()
    assert (world.entered(), world.gate.reason) == (1, "")


def test_paused_time_is_counted():
    world = World(Source())
    for _ in range(3):
        world.see(BUSY)
    world.now += 1
    assert world.gate.paused_s == 2 * PERIOD_S + 1
    world.see(QUIET)
    world.see(QUIET)
    assert world.gate.paused_s == 4 * PERIOD_S + 1
    world.see(BUSY)
    world.now += 1
    assert world.gate.paused_s == 4 * PERIOD_S + 2


def test_refused_invocations_of_its_own_count_once():
    world = World(most=8)
    world.refused = 5
    world.see()
    assert world.entered() == 4
    world.see()
    assert world.entered() == 1


def test_a_job_without_a_service_to_yield_to_runs_as_it_always_has():
    world = World(most=5)
    assert world.entered() == 5
    world.gate.resize(7)
    assert world.entered() == 2


def test_a_waiting_task_starts_when_another_ends():
    gate = OfflineGate(most=1)
    order, first = [], threading.Event()

    def second():
        first.wait()
        with gate.task():
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with gate.task():
        first.set()
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


@pytest.mark.parametrize("error", [UsageError("another key"), UnavailableError("not there")])
def test_a_service_that_cannot_be_asked_at_first_is_an_error_and_no_pause(error):
    with pytest.raises(type(error), match=str(error)), OfflineGate([Source(error)]).watching():
        pytest.fail("it was watched")


def test_the_thread_observes_and_ends_with_its_block(monkeypatch):
    monkeypatch.setattr("serfer.offline.gate.PERIOD_S", 0.001)
    source = Source()
    gate = OfflineGate([source], most=2)
    with gate.watching():
        with gate.task():
            source.says = BUSY
            while not gate.reason:
                gate.wait(0.001)
        source.says = UnavailableError("it restarts")
        source.says = QUIET
        with gate.task():
            pass
        assert gate.paused_s > 0
    assert "serfer-offline" not in {thread.name for thread in threading.enumerate()}


def test_a_bug_in_a_source_is_logged_and_it_is_asked_again(caplog, monkeypatch):
    monkeypatch.setattr("serfer.offline.gate.PERIOD_S", 0.001)
    source, asked = Source(), threading.Event()
    gate = OfflineGate([source])
    with gate.watching():
        source.read = bugs.buggy
        while bugs.logged(caplog.records) < 2:
            gate.wait(0.01)
        source.read = lambda: asked.set() or QUIET
        assert asked.wait(60)
