"""Policies learn from a history while another one decides."""

import asyncio
from threading import Event

import pytest

from serfer.control.policies import make_policy
from serfer.control.recording import read_recording, replay
from serfer.control.router import Router
from serfer.fleet.decider import Decider, Lesson
from serfer.fleet.recorder import Recorder
from tests.control.worlds import QPS, scenario, seen, steps

WORLD = scenario(5.0, boot_s=40.0)
HISTORY = [*steps([(300, 0.0), (120, 1.5 * QPS)] * 12, 5.0)]
LOAD = [*steps([(300, 0.0), (120, 1.5 * QPS)] * 3, 5.0)]


def new_policy(name="break-even"):
    return make_policy(name, WORLD)


class Lessons:
    """A history that goes on when a test says so."""

    def __init__(self, fails=None):
        self.begun, self.goes_on = Event(), Event()
        self.fails = fails
        self.told = []

    def __call__(self, policy, wanted):
        self.begun.set()
        assert self.goes_on.wait(60)
        self.told.append(wanted())
        if self.fails:
            raise self.fails
        for seconds, rate in HISTORY:
            policy.observe(seen(seconds, rate))


async def decided(decider, load):
    return [await decider.decide(seen(seconds, rate), leads=True) for seconds, rate in load]


def finish(lesson):
    assert lesson._thread.close(60)


def messages(caplog):
    return [record.serfer["message"] for record in caplog.records if record.message == "policy history"]


@pytest.mark.parametrize("name", ["break-even", "mark"])
def test_a_policy_takes_over_with_the_history_and_what_came_meanwhile(tmp_path, caplog, name):
    caplog.set_level("INFO")
    teach = Lessons()
    lesson, recorder = Lesson(new_policy(name), teach), Recorder(tmp_path / "r.jsonl")
    decider = Decider(Router(WORLD, new_policy(name)), recorder, lesson=lesson)
    begun, rest = LOAD[:100], LOAD[100:]

    async def scene():
        before = await decided(decider, begun)
        teach.goes_on.set()
        await asyncio.to_thread(finish, lesson)
        after = await decided(decider, rest)
        await decider.close(leads=True)
        return before, after

    before, after = asyncio.run(scene())
    plain, taught = new_policy(name), new_policy(name)
    assert before == [plain.observe(seen(*each)) for each in begun]
    for each in (*HISTORY, *begun):
        taught.observe(seen(*each))
    assert after == [taught.observe(seen(*each)) for each in rest]
    assert messages(caplog) == ["seen, and 100 observations since the start"]
    header, events = read_recording(tmp_path / "r.jsonl")
    report = replay(header, events, WORLD, new_policy(name))
    assert (report.decisions, report.same) == (len(rest), len(rest))


def test_a_history_that_fails_leaves_the_policy_as_it_is(caplog):
    teach = Lessons(ValueError("no history"))
    teach.goes_on.set()
    lesson = Lesson(new_policy(), teach)
    decider = Decider(Router(WORLD, new_policy()), lesson=lesson)
    finish(lesson)
    plans = asyncio.run(decided(decider, LOAD))
    policy = new_policy()
    assert plans == [policy.observe(seen(*each)) for each in LOAD]
    assert messages(caplog) == ["left out: ValueError: no history"]


def test_a_service_that_ends_does_not_wait_for_a_history():
    teach = Lessons()
    lesson = Lesson(new_policy(), teach)
    decider = Decider(Router(WORLD, new_policy()), lesson=lesson)
    assert teach.begun.wait(60)
    asyncio.run(decider.close(leads=True))
    teach.goes_on.set()
    finish(lesson)
    assert teach.told == [False]
    assert lesson.graduate(seen(1.0, 0.0)) is None


def test_what_is_learnt_before_the_history_is_not_saved():
    class Keeper:
        troubles = {}  # noqa: RUF012 - of a test
        offered = []  # noqa: RUF012 - same

        def offer(self, policy):
            self.offered.append(policy)

        def close(self, patience_s):
            pass

    teach, keeper = Lessons(), Keeper()
    lesson = Lesson(new_policy(), teach)
    decider = Decider(Router(WORLD, new_policy()), keeper=keeper, lesson=lesson)
    asyncio.run(decided(decider, [(100.0, QPS)] * 6))
    assert keeper.offered == []
    teach.goes_on.set()
    finish(lesson)
    asyncio.run(decided(decider, [(100.0, QPS)] * 3))
    assert keeper.offered == [lesson._policy]


@pytest.mark.parametrize("name", ["serverless"])
def test_a_policy_without_snapshots_may_have_a_history(name, tmp_path, caplog):
    teach = Lessons()
    teach.goes_on.set()
    lesson, recorder = Lesson(make_policy(name, WORLD), teach), Recorder(tmp_path / "r.jsonl")
    decider = Decider(Router(WORLD, make_policy(name, WORLD)), recorder, lesson=lesson)
    finish(lesson)
    asyncio.run(decided(decider, LOAD[:3]))
    recorder.close(60)
    assert any("cannot be replayed" in record.serfer["message"] for record in caplog.records)
