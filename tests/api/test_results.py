import asyncio
import threading
import time

import pytest

from serfer.api.http.problems import Problem
from serfer.api.jobs.queries import AsyncQueries, AsyncQuery
from serfer.api.requests import IdempotencyKey
from serfer.core.errors import StoreUnavailableError
from serfer.storage.coordination import InterceptedCoordination
from serfer.storage.memory import MemoryStore
from tests import bugs
from tests.support.hand_clock import Clock
from tests.support.served import until

PATIENCE = 30.0


class SlowCoordination(InterceptedCoordination):
    """Writes take as long as the test likes, and land afterwards."""

    def __init__(self):
        super().__init__(MemoryStore().coordination(), lambda _: None)
        self.writing, self.may_write = threading.Event(), threading.Event()
        self.may_write.set()

    def compare_and_set(self, *arguments):
        self.writing.set()
        assert self.may_write.wait(PATIENCE)
        return super().compare_and_set(*arguments)

    async def cancel_during_write(self, queries, job_id, cause):
        """Set the event that causes a write, and cancel a job while that is under way."""
        self.writing.clear()
        self.may_write.clear()
        cause.set()
        await until(self.writing.is_set)
        cancelling = asyncio.create_task(queries.cancel(job_id, ""))
        await asyncio.sleep(0.02)
        self.may_write.set()
        await cancelling


def coordination():
    return MemoryStore().coordination()


async def begin(results, work, once=None, owner=""):
    return await results.begin(AsyncQuery(owner, "m", time.time() + 60.0, once, work, tuple, lambda: None))


async def endless(_):
    await asyncio.get_running_loop().create_future()


async def at_once(_):
    return {"answer": 1}


async def status(results, job_id, owner=""):
    try:
        return (await results.find(job_id, owner))["status"]
    except Problem as problem:
        return problem.status


async def test_a_result_that_is_deleted_while_its_state_is_being_written_stays_deleted():
    slow = SlowCoordination()
    results, may_end = AsyncQueries(slow, 600.0), asyncio.Event()

    async def work(_):
        await may_end.wait()
        return {}

    job_id = (await begin(results, work))["id"]
    await slow.cancel_during_write(results, job_id, may_end)
    assert await status(results, job_id) == 404
    await until(lambda: not results.runner)
    assert await status(results, job_id) == 404


async def test_a_result_that_another_driver_deletes_stops_and_does_not_come_back():
    """Also where the delete comes while its driver writes."""
    slow = SlowCoordination()
    mine, other, stopped = AsyncQueries(slow, 600.0, beat_s=0.04), AsyncQueries(slow, 600.0), asyncio.Event()

    async def work(watch):
        try:
            await may_go_on.wait()
            watch([1])
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.set()

    may_go_on = asyncio.Event()
    job_id = (await begin(mine, work))["id"]
    await slow.cancel_during_write(other, job_id, may_go_on)  # the driver is about to write "running"
    await stopped.wait()
    await until(lambda: not mine.runner)
    assert await status(other, job_id) == 404


async def test_a_job_without_progress_makes_few_store_requests():
    requests, looks = [], []
    results = AsyncQueries(InterceptedCoordination(coordination(), requests.append), 600.0, beat_s=0.02)

    def progress(_):
        looks.append(1)
        return ()

    async def work(watch):
        watch([1])
        await endless(watch)

    query = AsyncQuery("", "m", time.time() + 60.0, None, work, progress, lambda: None)
    job_id = (await results.begin(query))["id"]
    await until(lambda: len(looks) > 12)
    assert set(requests) == {"compare_and_set"}
    assert 4 <= len(requests) <= 3 + len(looks) / 4  # the first, "running", and one of four looks
    await results.cancel(job_id, "")
    assert await status(results, job_id) == 404


async def test_ids_cannot_be_guessed_from_an_idempotency_key_and_are_the_same_on_every_driver():
    shared, once = coordination(), IdempotencyKey("", "1", "digest")
    first, second = AsyncQueries(shared, 600.0), AsyncQueries(shared, 600.0)
    state = await begin(first, at_once, once)
    assert state["id"] not in once.name
    again = await begin(second, endless, once)
    assert again["id"] == state["id"]
    await until(lambda: not first.runner)
    assert await status(second, state["id"]) == "done"
    elsewhere = await begin(AsyncQueries(coordination(), 600.0), at_once, once)
    assert elsewhere["id"] != state["id"]
    with pytest.raises(Problem, match="came with another request"):
        await begin(second, at_once, IdempotencyKey("", "1", "another"))


@pytest.mark.parametrize("written", [True, False])
async def test_a_job_continues_after_a_failed_write(written):
    failures = []

    class Lossy(InterceptedCoordination):
        def compare_and_set(self, key, expected, value, ttl):
            fails = b'"running"' in value and not failures
            version = super().compare_and_set(key, expected, value, ttl) if written or not fails else None
            if fails:
                failures.append(version)
                raise StoreUnavailableError("gone")
            return version

    results, may_end = AsyncQueries(Lossy(coordination(), lambda _: None), 600.0, beat_s=0.04), asyncio.Event()

    async def work(watch):
        watch([1])
        await may_end.wait()
        return {}

    job_id = (await begin(results, work))["id"]
    await until(lambda: failures)
    may_end.set()
    await until(lambda: not results.runner)
    assert await status(results, job_id) == "done"


@pytest.mark.two_at_once
async def test_of_two_drivers_that_try_a_failed_job_again_one_runs_it():
    async def fails(_):
        raise RuntimeError

    shared, once, ran = coordination(), IdempotencyKey("", "1", "digest"), []

    async def counted(_):
        ran.append(1)
        await asyncio.get_running_loop().create_future()

    first, second = AsyncQueries(shared, 600.0), AsyncQueries(shared, 600.0)
    job_id = (await begin(first, fails, once))["id"]
    await until(lambda: not first.runner)
    assert await status(second, job_id) == "failed"
    states = await asyncio.gather(begin(first, counted, once), begin(second, counted, once))
    await until(lambda: ran)
    assert [state["status"] for state in states] == ["queued"] * 2
    assert len(first.runner) + len(second.runner) == 1
    await first.cancel(job_id, "")
    await second.runner.close()


async def test_a_query_that_its_driver_stops_or_a_bug_ends_has_failed_and_says_why(caplog):
    results = AsyncQueries(coordination(), 600.0)
    job_id, broken = (await begin(results, endless))["id"], (await begin(results, bugs.buggy))["id"]
    await until(lambda: len(results.runner) == 1)
    await results.runner.close()
    stopped, failed = [await results.find(each, "") for each in (job_id, broken)]
    assert (stopped["status"], stopped["problem"]["status"]) == ("failed", 503)
    assert (failed["status"], failed["problem"]["status"]) == ("failed", 500)
    assert bugs.logged(caplog.records) == 1


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
async def test_a_wall_clock_that_jumps_ends_no_query_and_loses_no_answer(jump_s):
    clock, kept, may_end = Clock(1_800_000_000.0), coordination(), asyncio.Event()
    mine, other = (AsyncQueries(kept, 600.0, clock, beat_s=0.01) for _ in range(2))

    async def work(_):
        await may_end.wait()
        return {"answer": 1}

    job_id = (await mine.begin(AsyncQuery("", "m", clock.now + 60.0, None, work, tuple, lambda: None)))["id"]
    clock.now += jump_s
    assert await status(mine, job_id) == "queued"  # others, which see its deadline pass, can but take it for lost
    may_end.set()
    async with asyncio.timeout(PATIENCE):
        while await status(other, job_id) != "done":  # noqa: ASYNC110 - what another driver reads
            await asyncio.sleep(0.001)
    clock.now -= jump_s
    assert (await mine.find(job_id, ""))["result"] == (await other.find(job_id, ""))["result"] == {"answer": 1}
