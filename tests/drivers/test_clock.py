"""Timeouts on the clock of the event loop."""

import asyncio

import pytest

from serfer.drivers.clock import LOOP_CLOCK, timeout_at


async def test_a_timeout_cancels_the_awaited_work():
    with pytest.raises(TimeoutError):
        async with timeout_at(LOOP_CLOCK, LOOP_CLOCK.time() + 0.01) as limit:
            await asyncio.Event().wait()
    assert limit.expired()
    async with timeout_at(LOOP_CLOCK, LOOP_CLOCK.time() + 0.01) as limit:
        pass
    await LOOP_CLOCK.sleep(0.02)
    assert not limit.expired()


async def test_a_cancellation_from_outside_is_not_a_timeout():
    async def work():
        async with timeout_at(LOOP_CLOCK, LOOP_CLOCK.time() + 10.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
