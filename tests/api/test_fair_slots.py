"""Slots that clients share: who is next, who is refused, and that none is ever lost."""

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest

from serfer.api.decoding.fair_slots import FairSlots
from serfer.api.http.problems import Problem


class Requests:
    """Requests for a single slot, which each holds until the next one is let in."""

    def __init__(self, slots):
        self.slots, self.order, self.tasks = slots, [], []

    async def add(self, client, served=0):
        self.tasks.append(asyncio.create_task(self._hold(client, served)))
        await asyncio.sleep(0)

    async def _hold(self, client, served):
        async with self.slots.hold(client, served):
            self.order.append(client)
            await asyncio.sleep(0)

    async def all(self):
        return await asyncio.gather(*self.tasks, return_exceptions=True)


def run(check):
    asyncio.run(check())


def test_clients_take_turns_however_many_requests_each_has():
    async def check():
        requests = Requests(slots := FairSlots(1, 100))
        async with slots.hold("hostile", 0):
            for client in ["hostile"] * 6 + ["alice", "bob", "alice"]:
                await requests.add(client)
        await requests.all()
        assert requests.order == ["hostile", "alice", "bob", "hostile", "alice", *["hostile"] * 4]

    run(check)


def test_of_one_client_those_that_were_served_least_come_first():
    async def check():
        slots = FairSlots(1, 100)
        order = []

        async def hold(name, served):
            async with slots.hold("everybody", served):
                order.append(name)

        async with slots.hold("everybody", 0):
            tasks = [asyncio.create_task(hold(*each)) for each in (("a7", 7), ("b2", 2), ("c0", 0), ("d2", 2))]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert order == ["c0", "b2", "d2", "a7"]

    run(check)


def test_full_slots_refuse_the_client_with_the_most_queries():
    async def check():
        slots = FairSlots(1, 4)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(slots.hold("hostile", 0))
            requests = Requests(slots)
            for _ in range(5):
                await requests.add("hostile")
            assert slots.waiting == 4
            await requests.add("alice")
            assert slots.waiting == 4
        results = await requests.all()
        refused = [number for number, result in enumerate(results) if isinstance(result, Problem)]
        assert refused == [3, 4]
        assert (results[4].status, results[4].headers["Retry-After"], slots.refused) == (429, "1", 2)
        assert "alice" in requests.order

    run(check)


def test_a_request_that_is_cancelled_gives_its_place_or_its_slot_back():
    async def check():
        slots = FairSlots(1, 100)
        for cancelled_after in (0, 1, 2):
            async with slots.hold("a", 0):
                requests = Requests(slots)
                await requests.add("b")
            for _ in range(cancelled_after):
                await asyncio.sleep(0)
            requests.tasks[0].cancel()
            with suppress(asyncio.CancelledError):
                await requests.tasks[0]
            assert (slots.waiting, slots._free) == (0, 1)

    run(check)


def test_a_refused_client_gets_retry_after():
    async def check():
        now = [0.0]
        slots = FairSlots(2, 100, lambda: now[0])
        async with slots.hold("a", 0):
            now[0] = 4.0
        async with slots.hold("a", 0), slots.hold("a", 0):
            requests = Requests(slots)
            for _ in range(9):
                await requests.add("a")
            assert slots.expected_s("a") == pytest.approx(20)
            assert slots.expected_s("b") == pytest.approx(4)
            slots.check("b", 5)
            with pytest.raises(Problem, match="come again in 15 s"):
                slots.check("a", 5)
        await requests.all()
        slots.check("a", 0.1)

    run(check)
