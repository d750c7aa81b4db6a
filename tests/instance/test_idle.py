"""An instance that nobody asks ends by itself: once it may, and never while a request runs."""

import asyncio
import signal

import httpx
import pytest

from serfer.api.entrypoints import instance
from serfer.api.entrypoints.instance import Idle, IdleWatch
from tests import bugs


class Time:
    """A clock that only sleeping moves; `events` happen on the way, at their times."""

    def __init__(self):
        self.now = 100.0
        self.slept = []
        self.events = {}

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.slept.append(seconds)
        end = self.now + seconds
        for at in sorted(at for at in self.events if self.now < at <= end):
            self.now = at
            await self.events.pop(at)()
        self.now = end


async def app(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def request(watch):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(watch), base_url="http://it") as client:
        assert (await client.get("/anything")).status_code == 200


def test_every_request_restarts_the_idle_time():
    clock = Time()
    watch = IdleWatch(app, 10.0, clock)
    clock.events = {105.0: lambda: request(watch), 109.0: lambda: request(watch)}
    asyncio.run(watch.passed(clock.sleep))
    assert (clock.now, clock.slept) == (119.0, [10.0, 9.0])


async def test_nothing_is_idle_while_a_request_runs_however_it_ends():
    clock, began, going = Time(), asyncio.Event(), asyncio.Event()

    async def slow(_scope, _receive, _send):
        began.set()
        await going.wait()
        raise RuntimeError("it ends so")

    watch = IdleWatch(slow, 10.0, clock)
    running = asyncio.ensure_future(request(watch))
    await began.wait()
    clock.now = 1000.0
    assert watch.left_s == 10.0
    going.set()
    with pytest.raises(RuntimeError):
        await running
    clock.now = 1004.0
    assert watch.left_s == 6.0


def test_other_asgi_messages_pass_through():
    seen = []

    async def inner(scope, _receive, _send):
        seen.append(scope["type"])

    clock = Time()
    watch = IdleWatch(inner, 10.0, clock)
    clock.now = 107.0
    asyncio.run(watch({"type": "lifespan"}, None, None))
    assert (seen, watch.left_s) == (["lifespan"], 3.0)


@pytest.mark.killed
def test_it_exits_as_on_sigterm_unless_it_may_not_leave_its_group_or_a_bug_keeps_it(monkeypatch, caplog):
    raised, answers = [], [lambda: False, bugs.buggy, lambda: True]
    monkeypatch.setattr(instance.signal, "raise_signal", raised.append)
    clock = Time()

    class Watch(IdleWatch):
        async def passed(self, sleep=clock.sleep):
            await super().passed(sleep)

    idle = Idle(10.0, lambda: answers.pop(0)() is True)
    asyncio.run(instance._end_when_idle(Watch(app, 10.0, clock), idle))
    assert (raised, answers, clock.now) == ([signal.SIGTERM], [], 130.0)
    assert bugs.logged(caplog.records) == 1
