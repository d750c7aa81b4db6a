"""How often one query changes threads and calls the store: each costs time, and none of it may come back unnoticed."""

import asyncio

import pytest

from serfer.core.keys import output_key
from serfer.core.wire import Crop
from serfer.drivers.inprocess import InProcessInvoker
from serfer.drivers.push import PushDriver
from serfer.storage.memory import MemoryStore
from tests.drivers.plans import linked_plan
from tests.drivers.test_push import PATIENCE, SOON, report, stored
from tests.drivers.test_push_gangs import PLAN as GANG_PLAN
from tests.drivers.test_push_gangs import Members

SMALL, LARGE = Crop("uint8", b"x" * 10), Crop("uint8", b"x" * 2000)


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the changes of thread: calls that the loop has a thread do."""

    def __init__(self):
        super().__init__()
        self.threads = 0

    def run_in_executor(self, executor, func, *args):
        self.threads += 1
        return super().run_in_executor(executor, func, *args)


class DriversStore(MemoryStore):
    """The store as the driver sees it: `calls` are its own; what workers put goes to `put_by_worker`."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.put_by_worker = super().put

    def put(self, key, value, ttl):
        self.calls.append("put")
        super().put(key, value, ttl)

    def get_many(self, ranges):
        self.calls.append(f"get {len(ranges)}")
        return super().get_many(ranges)

    def exists(self, keys):
        self.calls.append("exists")
        return super().exists(keys)

    def delete(self, keys):
        self.calls.append(f"delete {len(keys)}")
        super().delete(keys)


class Workers:
    """Workers that answer at once, or put their outputs; `tasks` counts invocations."""

    def __init__(self, store):
        self.store, self.tasks = store, 0

    def run(self, task):
        self.tasks += 1
        if task.inline:
            return report(stored(task))
        self.store.put_by_worker(output_key(task.query, task.stage, task.tile), stored(task), task.ttl)
        return report()

    async def invoke(self, _function, task, _timeout_s):
        return self.run(task)


def counts_of_one_query(plan, crops, *, store=None, invoker=None, batch=1):
    """Return the changes of thread and the store calls of one query after another one; nothing may be left."""
    store = store or DriversStore()
    invoker = invoker or Workers(store)

    async def main():
        pushing = PushDriver(plan, invoker, store, inline_limit=1000, timeout_s=5, retry=SOON)
        loop = asyncio.get_running_loop()
        await pushing.run(crops, batch, PATIENCE)
        await asyncio.gather(*pushing._cleanups)
        loop.threads, store.calls[:] = 0, []
        await pushing.run(crops, batch, PATIENCE)
        await pushing.close()
        assert not store._values
        return loop.threads

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        threads = runner.run(asyncio.wait_for(main(), PATIENCE))
    return threads, store.calls


def test_a_query_whose_tensors_all_ride_along_has_no_thread_and_no_store_call():
    assert counts_of_one_query(linked_plan((4, 2, 1), {0, 1}), [SMALL] * 4) == (0, [])


def test_what_stages_leave_in_the_store_is_deleted_in_one_call():
    assert counts_of_one_query(linked_plan((4, 2, 1)), [SMALL] * 4) == (1, ["delete 6"])


def test_crops_that_payloads_do_not_carry_are_put_by_one_thread_and_large_answers_one_get():
    threads, calls = counts_of_one_query(linked_plan((4, 3), {0}), [LARGE] * 4, batch=32)
    assert (threads, sorted(calls)) == (3, ["delete 11", "get 3", "put", "put", "put", "put"])


def test_a_gang_costs_the_driver_no_call_but_the_deletion():
    store = DriversStore()
    members = Members(store)
    threads, calls = counts_of_one_query(GANG_PLAN, [SMALL] * 3, store=store, invoker=members)
    assert (threads, [call for call in calls if call != "put"]) == (1, ["delete 13"])
    assert len(members.tasks) == 2 * 4


@pytest.mark.parametrize("tiles", [(1,), (4, 2, 1)])
def test_workers_in_process_cost_a_change_of_thread_for_each_task(tiles):
    store = DriversStore()
    workers = Workers(store)
    invoker = InProcessInvoker(workers.run, threads=4)
    threads, calls = counts_of_one_query(
        linked_plan(tiles, set(range(len(tiles) - 1))), [SMALL] * tiles[0], store=store, invoker=invoker
    )
    assert (threads, calls) == (0, [])  # beside its own, to which each task goes once
    assert workers.tasks == 2 * sum(tiles)
    asyncio.run(invoker.close())
