import asyncio
import threading
import time

import pytest

from serfer.api.http.problems import Problem
from serfer.api.requests import Once
from serfer.api.routes.results import Results, new_job
from storage.counting import CountingStore
from storage.memory import MemoryStore

PATIENCE = 30.0


class SlowStore(MemoryStore):
    """Puts take as long as the test likes, and land afterwards."""

    def __init__(self):
        super().__init__()
        self.putting, self.may_put = threading.Event(), threading.Event()
        self.may_put.set()

    def put(self, key, value, ttl):
        self.putting.set()
        assert self.may_put.wait(PATIENCE)
        super().put(key, value, ttl)


async def begin(results, work, once=None, owner=""):
    job = new_job(owner, "m", once, time.time() + 60.0)
    return await results.begin(job, work, tuple, lambda: None)


async def endless(_):
    await asyncio.get_running_loop().create_future()


async def at_once(_):
    return {"answer": 1}


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what threads do
            await asyncio.sleep(0.005)


async def status(results, job_id, owner=""):
    try:
        return (await results.find(job_id, owner))["status"]
    except Problem as problem:
        return problem.status


def run(check):
    asyncio.run(asyncio.wait_for(check(), PATIENCE))


def test_a_result_that_is_deleted_while_its_state_is_being_written_stays_deleted():
    async def check():
        store = SlowStore()
        results, may_end = Results(store, 600.0), asyncio.Event()

        async def work(_):
            await may_end.wait()
            return {}

        job_id = (await begin(results, work))["id"]
        store.putting.clear()
        store.may_put.clear()
        may_end.set()
        await until(store.putting.is_set)
        deleting = asyncio.create_task(results.cancel(job_id, ""))
        await asyncio.sleep(0.02)
        store.may_put.set()
        await deleting
        assert await status(results, job_id) == 404
        await until(lambda: not results._running)
        assert await status(results, job_id) == 404

    run(check)


def test_a_result_that_another_driver_deletes_stops_and_does_not_come_back(monkeypatch):
    """Also where the delete comes between its driver's look at the state and the write of the next one."""
    monkeypatch.setattr("serfer.api.routes.results._TICK_S", 0.01)
    monkeypatch.setattr("serfer.api.routes.results._LOOK_S", 0.01)

    async def check():
        store = SlowStore()
        mine, other, stopped = Results(store, 600.0), Results(store, 600.0), asyncio.Event()

        async def work(watch):
            try:
                await may_go_on.wait()
                watch([1])
                await asyncio.get_running_loop().create_future()
            finally:
                stopped.set()

        may_go_on = asyncio.Event()
        job_id = (await begin(mine, work))["id"]
        store.putting.clear()
        store.may_put.clear()
        may_go_on.set()
        await until(store.putting.is_set)  # the driver is about to write "running"
        deleting = asyncio.create_task(other.cancel(job_id, ""))
        await asyncio.sleep(0.02)
        store.may_put.set()
        await deleting
        await stopped.wait()
        await until(lambda: not mine._running)
        assert await status(other, job_id) == 404

    run(check)


def test_a_job_that_shows_no_progress_asks_the_store_hardly_anything(monkeypatch):
    monkeypatch.setattr("serfer.api.routes.results._TICK_S", 0.005)
    monkeypatch.setattr("serfer.api.routes.results._LOOK_S", 0.02)

    async def check():
        store = CountingStore(MemoryStore())
        results, looks = Results(store, 600.0), 0
        ask = store.exists

        def exists(keys):
            nonlocal looks
            looks += 1
            return ask(keys)

        store.exists = exists
        job_id = (await begin(results, endless))["id"]
        await until(lambda: looks == 3)  # four ticks each
        counts = store.counts
        assert (counts.puts, counts.gets) == (1, 0)
        await results.cancel(job_id, "")
        assert await status(results, job_id) == 404

    run(check)


def test_ids_cannot_be_guessed_from_an_idempotency_key_and_are_the_same_on_every_driver():
    async def check():
        store, once = MemoryStore(), Once("", "1", "digest")
        first, second = Results(store, 600.0), Results(store, 600.0)
        state = await begin(first, at_once, once)
        assert state["id"] not in once.name
        again = await begin(second, endless, once)
        assert again["id"] == state["id"]
        await until(lambda: not first._running)
        assert await status(second, state["id"]) == "done"
        elsewhere = await begin(Results(MemoryStore(), 600.0), at_once, once)
        assert elsewhere["id"] != state["id"]
        with pytest.raises(Problem, match="came with another request"):
            await begin(second, at_once, Once("", "1", "another"))

    run(check)
