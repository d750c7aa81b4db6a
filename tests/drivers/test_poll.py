"""The poll driver with workers of the tests' own, in memory."""

import asyncio
import threading
from dataclasses import replace

import pytest

from serfer.core.checksum import protect
from serfer.core.errors import StoreError, StoreUnavailableError
from serfer.core.keys import StoreCounts, output_key, reply_key
from serfer.core.retry import Backoff
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Report, Task, TaskError, pack_result
from serfer.drivers.poll import POLLING, PollInvoker
from serfer.drivers.push import PushDriver
from serfer.storage.memory import MemoryStore
from tests.drivers.conftest import WatchedStore
from tests.drivers.fake_clock import FakeClock
from tests.drivers.plans import linked_plan
from tests.drivers.test_push import CROPS, TILES, stored, written

PATIENCE = 60.0
QUERY = "0" * 32
TASK = Task("d" * 64, QUERY, 1, 2, 1, 60.0)
REPORT = Report("e", 0.0, 1.0, 1.0, 1.0, 3.0, 1, 1, StoreCounts(bytes_put=7, puts=1))


class Events:
    """Takes events and runs them at once; `script` may say otherwise."""

    def __init__(self, store, script=None):
        self.store, self.script = store, script
        self.tasks = []
        self.running = set()

    async def start(self, _function, task):
        self.tasks.append(task)
        refused = self.script(task, len(self.tasks)) if self.script else None
        if isinstance(refused, Failure):
            return refused
        job = asyncio.get_running_loop().create_task(self.run(task, refused))
        self.running.add(job)
        return None

    async def run(self, task, result):
        await asyncio.sleep(0)
        if result != "silent":
            self.finish(task, result or REPORT)

    def finish(self, task, result):
        if isinstance(result, Report):
            self.store.put(output_key(task.query, task.stage, task.tile), stored(replace(task, reply=None)), task.ttl)
        key = reply_key(task.query, task.stage, task.tile, task.reply)
        value = result if isinstance(result, bytes) else pack_result(result)
        self.store.put(key, protect(value, key), task.ttl)

    async def close(self):
        for job in self.running:
            await job


class LookedAt(WatchedStore):
    def __init__(self):
        super().__init__()
        self.looks = []
        self.looked = threading.Event()

    def exists(self, keys):
        self.looks.append(list(keys))
        self.looked.set()
        return super().exists(keys)


@pytest.fixture
def store():
    return LookedAt()


def ask(store, script=None, *, times=1, timeout_s=PATIENCE, backoff=POLLING):
    clock = FakeClock()

    async def main():
        invoker = PollInvoker(Events(store, script), store, backoff, clock)
        try:
            return await asyncio.gather(*(invoker.invoke("f", TASK, timeout_s) for _ in range(times)))
        finally:
            await invoker.close()

    return clock.run(asyncio.wait_for(main(), PATIENCE))


def test_a_task_returns_its_report_and_deletes_its_reply(store):
    [report] = ask(store)
    size = len(pack_result(REPORT)) + 4
    looks = len(store.looks)
    assert report == replace(REPORT, counts=REPORT.counts + StoreCounts(size, size, 1, 1, looks))
    assert store.keys == {output_key(QUERY, 1, 2)}


def test_replies_of_many_tasks_are_polled_together(store):
    assert len(ask(store, times=50)) == 50
    assert max(map(len, store.looks)) >= 25
    assert sum(map(len, store.looks)) < 50 * 4


def test_polling_backs_off(store):
    [failure] = ask(store, lambda *_: "silent", timeout_s=40.0, backoff=Backoff(1.0, 10.0))
    assert failure.kind is FailureKind.TIMED_OUT
    assert len(store.looks) == 6, "after 1, 2, 4, 8, 10 and 10 s"


async def test_a_task_started_during_a_poll_is_polled_in_time(store):
    events = Events(store, lambda task, _: "silent" if task.tile == 0 else None)
    invoker = PollInvoker(events, store, Backoff(0.01, PATIENCE, factor=1000.0))
    slow = asyncio.create_task(invoker.invoke("f", replace(TASK, tile=0), 2 * PATIENCE))
    await asyncio.to_thread(store.looked.wait, PATIENCE)
    report = await asyncio.wait_for(invoker.invoke("f", TASK, PATIENCE), PATIENCE / 2)
    slow.cancel()
    await asyncio.wait([slow])
    await invoker.close()
    assert isinstance(report, Report)


def test_a_failed_task_says_why(store):
    [failure] = ask(store, lambda *_: TaskError("PlanError", "no such file"))
    assert failure == Failure(FailureKind.FAILED_IN_CODE, "PlanError", "no such file")


def test_a_refused_event_is_a_failure_at_once(store):
    refused = Failure(FailureKind.THROTTLED, "TooManyRequestsException", "Rate exceeded")
    assert ask(store, lambda *_: refused) == [refused]
    assert store.looks == []


@pytest.mark.parametrize("reply", [b"\x01", b"\xc1", b"\x80"])
def test_an_invalid_reply_is_a_failure(store, reply):
    [failure] = ask(store, lambda *_: reply)
    assert (failure.kind, failure.error_type) == (FailureKind.FAILED_IN_CODE, "InputError")


def test_polling_resumes_when_the_store_recovers():
    class Shaky(LookedAt):
        def exists(self, keys):
            exists = super().exists(keys)
            if len(self.looks) < 4:
                raise StoreUnavailableError("gone")
            return exists

    assert isinstance(ask(Shaky())[0], Report)


def test_a_store_that_refuses_ends_the_task():
    class Refusing(MemoryStore):
        def exists(self, _keys):
            raise StoreError("WRONGTYPE")

    with pytest.raises(StoreError, match="WRONGTYPE"):
        ask(Refusing())


class TestAWholeQuery:
    @staticmethod
    def ask(store, script=None):
        clock = FakeClock()

        async def main():
            events = Events(store, script)
            invoker = PollInvoker(events, store, clock=clock)
            driver = PushDriver(
                linked_plan(TILES, inline={0}),
                invoker,
                store,
                inline_limit=1000,
                answer_limit=0,
                timeout_s=5,
                clock=clock,
            )
            try:
                return await driver.run(CROPS, 1, PATIENCE), events
            finally:
                await driver.close()
                await invoker.close()

        return clock.run(asyncio.wait_for(main(), PATIENCE))

    def test_it_passes_every_stage_and_leaves_nothing(self, store):
        answer, events = self.ask(store)
        assert [(task.stage, task.tile) for task in events.tasks] == [
            (stage, tile) for stage, count in enumerate(TILES) for tile in range(count)
        ]
        assert answer.outputs == [(written(replace(events.tasks[-1], reply=None)),)]
        assert sum(report.counts.exists for stage in answer.stages for report in stage.reports) >= sum(TILES)
        assert store.keys == set()

    def test_a_second_try_is_not_taken_for_the_first(self, store):
        first = {}

        def script(task, _number):
            if (task.stage, task.tile) == (1, 0) and first.setdefault("failed", task) is task:
                return TaskError("ValueError", "on purpose")
            return None

        answer, _ = self.ask(store, script)
        assert answer.overheads.retries == 1
        assert store.keys == set()
