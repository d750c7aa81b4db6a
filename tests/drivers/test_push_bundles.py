"""Tiles of one query that would have to wait for a slot go with those that have one."""

import asyncio

import pytest

from serfer.core.run_machine import Failure, FailureKind
from serfer.drivers.batching import Batching
from tests.drivers.test_push import CROPS, PATIENCE, TILES, WatchedStore, Workers, driver, failing, written

LAST = len(TILES) - 1


class Bundles(Workers):
    """Workers that note which tasks came together."""

    def __init__(self, store, script=None, fail=None):
        super().__init__(store, script)
        self.together = []
        self._fail = fail

    async def invoke(self, function, task, timeout_s):
        self.together.append([(task.stage, task.tile)])
        return await super().invoke(function, task, timeout_s)

    async def invoke_shared(self, function, tasks, timeout_s):
        self.together.append([(task.stage, task.tile) for task in tasks])
        if self._fail and (failure := self._fail(tasks)):
            return [failure] * len(tasks)
        return [await Workers.invoke(self, function, task, timeout_s) for task in tasks]


@pytest.fixture
def store():
    return WatchedStore()


def ask(workers, store, bundles, queries=1, **settings):
    async def main():
        batching = Batching({}, 1, passing_s=0.0, bundles=bundles)
        pushing = driver(workers, store, slots=2, batching=batching, **settings)
        answers = await asyncio.gather(*(pushing.run(CROPS, 1, PATIENCE) for _ in range(queries)))
        await pushing.close()
        return answers

    return asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_a_stage_of_more_tiles_than_slots_takes_no_more_invocations_than_slots(store):
    """The last tile of a stage has a function of its own here, so it goes by itself."""
    workers = Bundles(store)
    [answer] = ask(workers, store, (2, 1, 1))
    assert workers.together == [[(0, 0), (0, 1)], [(0, 2)], [(0, 3)], [(1, 0)], [(1, 1)], [(LAST, 0)]]
    assert answer.outputs == [(written(workers.sent[-1]),)]
    assert store.keys == set()


def test_without_bundles_every_tile_has_its_own_invocation(store):
    workers = Bundles(store)
    ask(workers, store, ())
    assert all(len(group) == 1 for group in workers.together)


def test_a_task_too_large_for_a_shared_payload_is_invoked_alone(store):
    workers = Bundles(store)
    ask(workers, store, (2, 1, 1), inline_limit=15)  # a crop has 10 bytes
    assert all(len(group) == 1 for group in workers.together)


def test_every_query_of_a_burst_is_answered_and_no_slot_is_lost(store):
    workers = Bundles(store)
    answers = ask(workers, store, (3, 2, 1), queries=30)
    assert [len(answer.outputs) for answer in answers] == [1] * 30
    assert {tuple(sorted({place[0] for place in group})) for group in workers.together} == {(0,), (1,), (2,)}


def test_a_tile_that_fails_is_tried_again_alone(store):
    workers = Bundles(store, failing(FailureKind.FAILED_IN_CODE, 1, stage=0, tile=1))
    [answer] = ask(workers, store, (2, 1, 1))
    assert answer.overheads.retries == 1
    assert [(0, 1)] in workers.together


def test_when_the_invocation_fails_each_of_its_tiles_is_tried_again_alone(store):
    failed = []

    def once(tasks):
        if not failed:
            failed.extend(tasks)
            return Failure(FailureKind.TIMED_OUT, "Sandbox.Timedout", "on purpose")
        return None

    workers = Bundles(store, fail=once)
    [answer] = ask(workers, store, (2, 1, 1))
    assert answer.overheads.retries == 2
    assert [[(task.stage, task.tile)] for task in failed if [(task.stage, task.tile)] in workers.together] == [
        [(0, 0)],
        [(0, 1)],
    ]
