"""Whose turn it is: the oldest query's, and nothing is lost when somebody gives up waiting."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from tests.support.hand_clock import Clock


def run(main):
    return asyncio.run(asyncio.wait_for(main, 10))


async def test_the_oldest_query_is_first_then_first_come_first_served():
    slots, served = PrioritySemaphore(1), []

    async def work(age, name):
        await slots.acquire(age)
        served.append(name)
        slots.release()

    await slots.acquire(0)
    waiting = [asyncio.create_task(work(age, f"{age}{name}")) for age, name in [(2, "a"), (1, "a"), (1, "b"), (0, "a")]]
    await asyncio.sleep(0)
    slots.release()
    await asyncio.gather(*waiting)
    assert served == ["0a", "1a", "1b", "2a"]


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 4)), max_size=30))
def test_slots_are_bounded_and_all_released(limit, work):
    async def main():
        slots, busy, most = PrioritySemaphore(limit), 0, 0

        async def task(age, count):
            nonlocal busy, most
            await slots.acquire(age, count)
            busy += count
            most = max(most, busy)
            try:
                await asyncio.sleep(0)
            finally:
                busy -= count
                slots.release(count)

        tasks = [(asyncio.create_task(task(age, min(count, limit))), dropped) for age, dropped, count in work]
        await asyncio.sleep(0)
        for started, dropped in tasks:
            if dropped:
                started.cancel()
        done = await asyncio.gather(*(started for started, _ in tasks), return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in done)
        assert most <= limit
        return slots

    async def checked():
        slots = await main()
        for _ in range(limit):
            await asyncio.wait_for(slots.acquire(0), 60)

    run(checked())


async def test_a_waiter_gets_all_its_slots_at_once_and_nobody_younger_passes_it():
    slots, served = PrioritySemaphore(3), []

    async def work(age, count):
        await slots.acquire(age, count)
        served.append((age, count))

    await slots.acquire(0, 2)
    waiting = [asyncio.create_task(work(age, count)) for age, count in [(1, 2), (2, 1), (3, 1)]]
    await asyncio.sleep(0)
    assert served == [], "one slot is free, and the oldest waits for two"
    slots.release(2)
    await asyncio.sleep(0)
    assert served == [(1, 2), (2, 1)]
    slots.release(2)
    await asyncio.gather(*waiting)
    assert served[-1] == (3, 1)


async def test_who_gives_up_waiting_for_several_slots_lets_the_next_ones_pass():
    slots = PrioritySemaphore(2)
    await slots.acquire(0)
    wide = asyncio.create_task(slots.acquire(1, 2))
    narrow = asyncio.create_task(slots.acquire(2))
    await asyncio.sleep(0)
    assert not narrow.done()
    wide.cancel()
    await narrow


async def test_who_is_older_than_those_that_wait_takes_free_slots_at_once():
    """The retry of a member must not wait behind a younger gang: its own gang, which holds the slots, waits for it."""
    slots = PrioritySemaphore(2)
    await slots.acquire(0, 2)
    younger = asyncio.create_task(slots.acquire(1, 2))
    await asyncio.sleep(0)
    slots.release()
    await asyncio.wait_for(slots.acquire(0), 60)
    assert not younger.done()
    slots.release(2)
    await younger


async def test_the_seconds_of_all_slots_in_use_are_counted():
    clock = Clock()
    slots = PrioritySemaphore(4, clock)
    await slots.acquire(0, 2)
    clock.now = 10.0
    assert slots.try_acquire()
    assert (slots.used, slots.slot_seconds()) == (3, (10.0, 20.0))
    clock.now = 20.0
    slots.release(3)
    clock.now = 100.0
    assert (slots.used, slots.slot_seconds()) == (0, (100.0, 50.0))


async def test_a_waiter_that_gives_up_just_as_its_caller_ends_the_waiting_had_no_slot():
    slots, turn = PrioritySemaphore(1), asyncio.get_running_loop().create_future()
    assert await slots.acquire(0)
    waiting = asyncio.create_task(slots.acquire(1, 1, turn))
    await asyncio.sleep(0)
    turn.set_result(False)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (waiting.cancelled(), slots.used) == (True, 1)
    slots.release()
    assert slots.used == 0
