"""Warm-ups of later stages: when they are sent, what waits for them, and what they cost."""

import asyncio

import pytest

from serfer.core.errors import DeadlineError
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import WarmUpAnswer
from serfer.drivers.batching import Batching
from serfer.drivers.dispatching.prewarming import Prewarming
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.driver import WarmUpRecord
from tests.drivers.fake_clock import FakeClock
from tests.drivers.test_push import CROPS, PATIENCE, TILES, Workers, driver

IDLE_S, START_S, PATIENCE_S = 300.0, 2.0, 10.0
LATER = (1, 1, 2)  # the stage of each environment that is warmed


class Functions(Workers):
    """Functions whose environments take `START_S` s to start; the first stage's tasks take `first_s` s."""

    def __init__(self, store, clock, *, first_s=1.0, start_s=START_S, failure=None, init_ms=500.0):
        super().__init__(store)
        self.clock, self.first_s, self.start_s, self.failure, self.init_ms = clock, first_s, start_s, failure, init_ms
        self.warmed, self.began = [], {}

    async def invoke(self, function, task, timeout_s):
        self.began.setdefault(task.stage, self.clock.time())
        if task.stage == 0:
            await self.clock.sleep(self.first_s)
        return await super().invoke(function, task, timeout_s)

    async def warm(self, function, request):
        assert function.endswith(f"-{request.stage}-{request.part}")
        assert request.hold_s == 0
        self.warmed.append(request.stage)
        await self.clock.sleep(self.start_s)
        return self.failure or WarmUpAnswer("e", self.init_ms, 1)


def prewarmed(store, *idle_s, slots=100, deadline_s=PATIENCE, **settings):
    """Run a query, and one more after each of the idle times; return the functions and the answers."""
    clock = FakeClock()
    functions = Functions(store, clock, **settings)

    async def main():
        terms = Prewarming(IDLE_S, PATIENCE_S)
        pushing = driver(functions, store, clock=clock, prewarming=terms, slots=slots, hedge=False)
        try:
            answers = [await pushing.run(CROPS, 1, deadline_s)]
            for idle in idle_s:
                await clock.sleep(idle)
                answers.append(await pushing.run(CROPS, 1, deadline_s))
            return answers
        finally:
            await asyncio.wait_for(pushing.close(), PATIENCE)

    return functions, clock.run(main())


def test_environments_of_later_stages_start_beside_the_first_stage(store):
    functions, [answer] = prewarmed(store)
    assert sorted(functions.warmed) == [*LATER]
    assert functions.began[1] - functions.began[0] == START_S
    assert answer.ended - answer.started == START_S  # the last stage's had been started at the same time
    sent, result = answer.started, WarmUpAnswer("e", 500.0, 1)
    records = [WarmUpRecord(stage, 1769, sent, 1000 * START_S, result) for stage in LATER]
    assert sorted(answer.overheads.warm_ups, key=lambda record: record.stage) == records
    assert all(record.cold for record in records)


def test_a_query_soon_after_another_warms_nothing_and_one_after_a_pause_does(store):
    _functions, answers = prewarmed(store, IDLE_S - 1, IDLE_S + 1, init_ms=0.0)
    assert [len(answer.overheads.warm_ups) for answer in answers] == [3, 0, 3]
    assert not any(record.cold for answer in answers for record in answer.overheads.warm_ups)


def test_only_free_slots_are_used(store):
    functions, [answer] = prewarmed(store, slots=TILES[0] + 1)
    assert functions.warmed == [1]
    assert len(answer.overheads.warm_ups) == 1
    functions, [answer] = prewarmed(store, slots=TILES[0])
    assert (functions.warmed, answer.overheads.warm_ups) == ([], ())


@pytest.mark.parametrize("kind", [FailureKind.THROTTLED, FailureKind.UNREACHABLE])
def test_a_warm_up_that_fails_neither_fails_the_query_nor_is_billed(store, kind):
    functions, [answer] = prewarmed(store, failure=Failure(kind, "", "on purpose"))
    assert sorted(functions.warmed) == [*LATER]
    assert answer.overheads.warm_ups == ()
    assert answer.overheads.retries == 0


def test_tasks_wait_for_a_warm_up_only_so_long(store):
    functions, [answer] = prewarmed(store, start_s=100.0, deadline_s=50.0)
    assert functions.began[1] - functions.began[0] == functions.first_s + PATIENCE_S
    assert [round(record.ms / 1000) for record in answer.overheads.warm_ups] == [21] * 3  # sent, so billed


def test_a_query_that_ends_stops_waiting_for_its_warm_ups(store):
    with pytest.raises(DeadlineError):
        prewarmed(store, first_s=100.0, start_s=1000.0, deadline_s=1.0)


def test_a_warm_up_keeps_its_slot_after_the_query_has_ended_until_lambda_has(store):
    clock, slots = FakeClock(), PrioritySemaphore(100)
    functions = Functions(store, clock, first_s=0.0, start_s=100.0)

    async def main():
        terms = Prewarming(IDLE_S, patience_s=0.0)
        pushing = driver(functions, store, clock=clock, prewarming=terms, slots=slots, hedge=False)
        try:
            answer = await pushing.run(CROPS, 1, PATIENCE)
            await clock.sleep(1.0)
            after = slots.used
            await clock.sleep(100.0)
            await asyncio.sleep(0)
            return answer, after, slots.used
        finally:
            await asyncio.wait_for(pushing.close(), PATIENCE)

    answer, after, later = clock.run(main())
    assert (after, later) == (len(LATER), 0)
    assert len(answer.overheads.warm_ups) == len(LATER)


def test_a_tile_that_another_one_takes_along_waits_for_its_warm_up_no_longer(store):
    """One slot is free, so tile 0 of the second stage has a warm-up; tile 1 has none, and takes it along."""

    class Sharing(Functions):
        async def invoke_shared(self, function, tasks, timeout_s):
            return [await self.invoke(function, task, timeout_s) for task in tasks]

    clock, tiles = FakeClock(), (1, 3, 1)
    functions = Sharing(store, clock, start_s=100.0)
    functions._tiles = tiles

    async def main():
        settings = {"prewarming": Prewarming(IDLE_S, PATIENCE_S), "batching": Batching({}, 1, 0.0, bundles=tiles)}
        pushing = driver(functions, store, clock=clock, tiles=tiles, slots=2, hedge=False, **settings)
        answer = await pushing.run(CROPS[:1], 1, PATIENCE)
        await pushing.close()
        return answer

    answer = clock.run(main())
    assert (functions.warmed, len(answer.overheads.warm_ups)) == ([1], 1)
    assert answer.ended - answer.started == functions.first_s
