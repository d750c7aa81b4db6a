"""The clock of the event loop, and timeouts on a clock."""

import asyncio

import pytest

from serfer.drivers.clock import LOOP_CLOCK, timeout_at


def test_sleeping_takes_its_time():
    async def main(clock):
        started = clock.time()
        await clock.sleep(0.01)
        return clock.time() - started

    assert asyncio.run(main(LOOP_CLOCK)) == pytest.approx(0.01, abs=0.5)


def test_timers_fire_in_order_and_not_once_cancelled():
    async def main(clock):
        fired = []
        timers = [clock.call_at(clock.time() + after / 100, fired.append, after) for after in (3, 1, 2)]
        timers[2].cancel()
        await clock.sleep(0.05)
        timers[0].cancel()
        return fired

    assert asyncio.run(main(LOOP_CLOCK)) == [1, 3]


def test_a_timeout_cancels_the_awaited_work():
    async def main(clock):
        with pytest.raises(TimeoutError):
            async with timeout_at(clock, clock.time() + 0.01) as limit:
                await asyncio.Event().wait()
        assert limit.expired()
        async with timeout_at(clock, clock.time() + 0.01) as limit:
            pass
        await clock.sleep(0.02)
        assert not limit.expired()

    asyncio.run(main(LOOP_CLOCK))


def test_a_cancellation_from_outside_is_not_a_timeout():
    async def main(clock):
        async def work():
            async with timeout_at(clock, clock.time() + 10.0):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main(LOOP_CLOCK))
