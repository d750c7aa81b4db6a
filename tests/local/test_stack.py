import asyncio
import errno
import logging
import os
import subprocess
import sys

import pytest

from serfer.core.errors import UnavailableError
from serfer.local import stack
from serfer.local.stack import DriverProcess
from serfer.local.supervisor import Restarts
from serfer.pipeline.event_loop import run

RAISE = """
import resource
from serfer.system import raise_file_limit
print(raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_limit_is_raised_to_the_most_that_the_process_may_have():
    command = ["prlimit", "--nofile=64:256", sys.executable, "-c", RAISE]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["256"] * 3


PATIENCE = 30.0
LISTENS = """
import json, os, signal, sys
port = int(sys.argv[2]) or 4321
print("hello", flush=True)
print(json.dumps({"url": f"http://127.0.0.1:{port}", "pid": os.getpid()}), flush=True)
signal.pause()
"""
REFUSES = "print('serfer: no such plan'); raise SystemExit(4)"


class Heard:
    """What a driver said and what was said of it; `next` waits for something new."""

    def __init__(self):
        self.lines, self.events = [], asyncio.Queue()

    def driver(self, code):
        command = [sys.executable, "-c", code]
        return DriverProcess("driver 0", command, dict(os.environ), self.lines.append, self.say)

    def say(self, text, level):
        assert level == (logging.INFO if "is back" in text else logging.WARNING)
        self.events.put_nowait(text)

    async def next(self):
        return await asyncio.wait_for(self.events.get(), PATIENCE)


@pytest.mark.killed
def test_a_killed_driver_restarts_at_its_port_until_stopped():
    async def play():
        heard = Heard()
        driver = heard.driver(LISTENS)
        await driver.start()
        assert (driver.url, heard.lines) == ("http://127.0.0.1:4321", ["hello"])
        first = driver.pid
        driver.kill()
        assert await heard.next() == "driver 0 has ended (signal: killed): it is started again in 0.2 s"
        assert await heard.next() == "driver 0 is back at http://127.0.0.1:4321"
        assert driver.pid not in {None, first}
        await driver.stop()
        assert driver.pid is None
        assert heard.events.empty()

    run(play())


def test_driver_that_is_stopped_while_it_waits_to_be_started_again_stays_away():
    async def play():
        heard = Heard()
        driver = heard.driver(LISTENS)
        await driver.start()
        driver.kill()
        assert "started again" in await heard.next()
        await driver.stop()
        assert driver.pid is None

    run(play())


def test_driver_that_does_not_come_up_says_why():
    async def play():
        heard = Heard()
        driver = heard.driver(REFUSES)
        with pytest.raises(UnavailableError, match=r"^driver 0: no such plan$"):
            await driver.start()
        await driver.stop()
        assert heard.lines == []  # it is told once

    run(play())


def test_pauses_grow_to_a_bound():
    restarts = Restarts()
    assert [restarts.pause_s(0.0) for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert ({restarts.pause_s(0.0) for _ in range(2000)}, restarts.pause_s(3600.0)) == ({10.0}, 0.2)


def test_driver_that_cannot_be_started_again_is_tried_again_later(monkeypatch):
    class Short:
        def __init__(self, *_, **__):
            raise OSError(errno.EMFILE, "Too many open files")

    async def play():
        heard = Heard()
        driver = heard.driver(LISTENS)
        await driver.start()
        monkeypatch.setattr(stack, "WorkerProcess", Short)
        driver.kill()
        assert await heard.next() == "driver 0 has ended (signal: killed): it is started again in 0.2 s"
        line = await heard.next()
        assert line == "driver 0 could not be started (Too many open files): it is started again in 0.4 s"
        monkeypatch.undo()
        assert await heard.next() == "driver 0 is back at http://127.0.0.1:4321"
        await driver.stop()

    run(play())


def test_driver_that_cannot_be_started_at_all_says_why(monkeypatch):
    def short(*_, **__):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    async def play():
        monkeypatch.setattr(stack, "WorkerProcess", short)
        driver = Heard().driver(LISTENS)
        with pytest.raises(UnavailableError, match=r"^driver 0 cannot be started: Resource temporarily unavailable$"):
            await driver.start()
        await driver.stop()

    run(play())
