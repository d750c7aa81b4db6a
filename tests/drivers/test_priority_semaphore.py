"""Whose turn it is: the oldest query's, and nothing is lost when somebody gives up waiting."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from drivers.priority_semaphore import PrioritySemaphore


def run(main):
    return asyncio.run(asyncio.wait_for(main, 10))


def test_the_oldest_query_is_first_then_first_come_first_served():
    async def main():
        slots, served = PrioritySemaphore(1), []

        async def work(age, name):
            await slots.acquire(age)
            served.append(name)
            slots.release()

        await slots.acquire(0)
        waiting = [
            asyncio.create_task(work(age, f"{age}{name}")) for age, name in [(2, "a"), (1, "a"), (1, "b"), (0, "a")]
        ]
        await asyncio.sleep(0)
        slots.release()
        await asyncio.gather(*waiting)
        assert served == ["0a", "1a", "1b", "2a"]

    run(main())


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_slots_are_bounded_and_all_released(limit, work):
    async def main():
        slots, busy, most = PrioritySemaphore(limit), 0, 0

        async def task(age):
            nonlocal busy, most
            await slots.acquire(age)
            busy += 1
            most = max(most, busy)
            try:
                await asyncio.sleep(0)
            finally:
                busy -= 1
                slots.release()

        tasks = [(asyncio.create_task(task(age)), dropped) for age, dropped in work]
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
            await asyncio.wait_for(slots.acquire(0), 1)

    run(checked())
