"""Timeouts on the clock of the event loop."""

import asyncio

import pytest

from serfer.drivers.clock import LOOP_CLOCK, timeout_at
from tests.drivers.fake_clock import AT_REST, FakeClock


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


@pytest.mark.parametrize("begun", [0, 1, AT_REST // 2, AT_REST - 2])
def test_a_fake_clock_stands_still_until_what_a_thread_did_is_taken(begun):
    """A thread that ended in the last turn left its coroutine no turn: the clock jumped to its deadline."""
    clock = FakeClock()

    async def main():
        async with timeout_at(clock, clock.time() + 1.0):
            for turn in range(AT_REST):
                if turn == begun:
                    clock.count(1)
                await asyncio.sleep(0)
            clock.count(-1)
            for _ in range(AT_REST // 2):
                await asyncio.sleep(0)

    clock.run(main())
