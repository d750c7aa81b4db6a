"""The threads of a map's windows, whatever comes while they work."""

import signal
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
