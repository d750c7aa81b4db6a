"""A pipeline whose opening is interrupted at the last moment."""

import pytest

from serfer.drivers.inprocess import InProcessInvoker
from serfer.pipeline.event_loop import LoopThread
from serfer.settings import Settings
from serfer.wiring.open_pipeline import open_pipeline
from tests.e2e.small import split_small


def test_a_pipeline_that_is_complete_but_was_not_returned_is_closed(tmp_path, monkeypatch):
    plan = split_small(tmp_path, grids=[(1, 1)])
    closed, close, wait = [], InProcessInvoker.close, LoopThread.wait

    async def watched(invoker):
        closed.append(invoker)
        await close(invoker)

    def interrupted(loop, coroutine):
        monkeypatch.setattr(LoopThread, "wait", wait)
        loop.wait(coroutine)
        raise KeyboardInterrupt

    monkeypatch.setattr(InProcessInvoker, "close", watched)
    monkeypatch.setattr(LoopThread, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_pipeline(plan, workers="inprocess", settings=Settings())
    assert len(closed) == 1
