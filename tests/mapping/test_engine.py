"""The threads of a map's windows, whatever comes while they work."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from serfer.mapping.engine import Engine
from serfer.offline.gate import OfflineGate
from tests.support.signals import signalled


@pytest.mark.killed
def test_an_interrupt_at_any_line_ends_the_threads(monkeypatch):
    """A lock of the standard library that it leaves locked is one that they need to end."""
    monkeypatch.setattr("serfer.mapping.engine._TICK_S", 0.001)
    task = SimpleNamespace(concurrency=1, gate=OfflineGate([]))

    def run(seconds, line=0):
        engine = Engine(task, lambda _: None)
        engine._work = lambda: engine._stop.wait(seconds)
        return signalled(lambda: engine.run([0]), signal.SIGINT, line)

    lines = run(0.002)
    assert lines > 100
    for line in range(1, lines):
        with pytest.raises(KeyboardInterrupt):
            run(60.0, line)


@pytest.mark.killed
def test_a_second_interrupt_leaves_threads_that_do_not_end(monkeypatch):
    monkeypatch.setattr("serfer.mapping.engine._TICK_S", 0.001)
    engine = Engine(SimpleNamespace(concurrency=1, gate=OfflineGate([])), lambda _: None)
    freed = threading.Event()

    def stuck():
        os.kill(os.getpid(), signal.SIGINT)
        engine._stop.wait(60.0)
        os.kill(os.getpid(), signal.SIGINT)
        freed.wait(5.0)

    engine._work = stuck
    with pytest.raises(KeyboardInterrupt):
        engine.run([0])
    left = [thread.daemon for thread in threading.enumerate() if thread.name == "serfer-map"]
    freed.set()
    assert left == [True]  # so that the process ends without it
