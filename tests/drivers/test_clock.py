"""Injected time: what is built on a clock behaves on the event loop's as on the tests' own."""

import asyncio

import pytest

from serfer.drivers.clock import LOOP_CLOCK, timeout_at
from tests.drivers.fake_clock import FakeClock


def on_loop(main):
    return asyncio.run(main(LOOP_CLOCK))


def on_fake(main):
    clock = FakeClock()
    return clock.run(main(clock))


@pytest.fixture(params=[on_loop, on_fake])
def run(request):
    return request.param


def test_sleeping_takes_its_time(run):
    async def main(clock):
        started = clock.time()
        await clock.sleep(0.01)
        return clock.time() - started

    assert run(main) == pytest.approx(0.01, abs=0.5)


def test_timers_fire_in_order_and_not_once_cancelled(run):
    async def main(clock):
        fired = []
        timers = [clock.call_at(clock.time() + after / 100, fired.append, after) for after in (3, 1, 2)]
        timers[2].cancel()
        await clock.sleep(0.05)
        timers[0].cancel()
        return fired

    assert run(main) == [1, 3]


def test_a_timeout_cancels_the_awaited_work(run):
    async def main(clock):
        with pytest.raises(TimeoutError):
            async with timeout_at(clock, clock.time() + 0.01) as limit:
                await asyncio.Event().wait()
        assert limit.expired()
        async with timeout_at(clock, clock.time() + 0.01) as limit:
            pass
        await clock.sleep(0.02)
        assert not limit.expired()

    run(main)


def test_a_cancellation_from_outside_is_not_a_timeout(run):
    async def main(clock):
        async def work():
            async with timeout_at(clock, clock.time() + 10.0):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)


def test_the_fake_clock_does_not_wait():
    async def main(clock):
        await asyncio.to_thread(lambda: None)
        await clock.sleep(1e6)
        return clock.time()

    assert on_fake(main) == 1000.0 + 1e6
