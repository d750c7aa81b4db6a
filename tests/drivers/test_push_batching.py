"""The push driver when queries share invocations: fewer of them, and the same answers."""

import asyncio
import gc
import random
import weakref
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serfer.core.errors import DeadlineError, SerferError, TaskFailedError, UsageError
from serfer.core.run_machine import Failure, FailureKind
from serfer.drivers import push
from serfer.drivers.batching import Batching, BatchTerms
from tests.drivers.conftest import WatchedStore
from tests.drivers.test_push import CROPS, PATIENCE, TILES, Workers, driver, failing, written

MOST = 8
BATCHING = Batching({2: BatchTerms(image_s=0.0, rest_s=0.0)}, MOST, passing_s=0.0)
OOPS = Failure(FailureKind.TIMED_OUT, "Sandbox.Timedout", "on purpose")


class SharedWorkers(Workers):
    """Workers that also run several tasks at once; `script` is asked about each of them, `fail` about all."""

    def __init__(self, store, script=None, tiles=TILES, fail=None):
        super().__init__(store, script, tiles)
        self.groups = []
        self.together = []  # the places of each invocation
        self.images = []  # of each group, together
        self.alone = Counter()
        self._fail = fail

    async def invoke(self, function, task, timeout_s):
        self.alone[task.stage] += 1
        self.together.append([(task.stage, task.tile)])
        await asyncio.sleep(0)
        return await super().invoke(function, task, timeout_s)

    async def invoke_shared(self, function, tasks, timeout_s):
        assert len(tasks) > 1
        assert len({task.stage for task in tasks}) == 1
        tiles, queries = {task.tile for task in tasks}, {task.query for task in tasks}
        assert sorted((len(tiles), len(queries))) == [1, len(tasks)]
        self.together.append([(task.stage, task.tile) for task in tasks])
        self.groups.append([task.query for task in tasks])
        self.images.append(sum(task.batch for task in tasks))
        await asyncio.sleep(0)
        if self._fail and (failure := await self._fail(tasks)):
            return [failure] * len(tasks)
        return [await Workers.invoke(self, function, task, timeout_s) for task in tasks]

    def invocations(self, stage):
        return self.alone[stage] + len(self.groups)


def run(main):
    return asyncio.run(asyncio.wait_for(main, PATIENCE))


async def queried(workers, store, queries=20, **settings):
    """Ask queries at once and return their answers or errors; checks that all slots come back and no key is left."""
    settings = {"slots": 2, "batching": BATCHING, **settings}
    pushing = driver(workers, store, **settings)
    answers = await asyncio.gather(*(pushing.run(CROPS, 1, PATIENCE) for _ in range(queries)), return_exceptions=True)
    await pushing.close()
    await all_slots_are_back(pushing, settings["slots"])
    assert store.keys == set()
    return answers


async def all_slots_are_back(pushing, concurrency):
    slots = pushing.dispatcher._slots
    for _ in range(concurrency):
        await asyncio.wait_for(slots.acquire(0), 60)
    for _ in range(concurrency):
        slots.release()
    assert len(pushing.dispatcher._waiting) == 0


def burst(workers, store, queries=40, **settings):
    """Run a burst and return the answers; checks that each query got its own."""
    answers = run(queried(workers, store, queries, **settings))
    for answer in answers:
        (last,) = (task for task in workers.sent if (task.query, task.stage) == (answer.query, 2))
        assert answer.outputs == [(written(last),)]
    return answers


def test_burst_shares_invocations_oldest_first_or_not(store):
    workers = SharedWorkers(store)
    burst(workers, store)
    assert workers.invocations(2) <= 10
    assert MOST / 2 < max(map(len, workers.groups)) <= MOST
    assert workers.alone[0] == 40 * 4  # tiles of a map go alone
    workers = SharedWorkers(store)
    burst(workers, store, oldest_first=False)
    assert workers.invocations(2) <= 10
    workers = SharedWorkers(store)
    burst(workers, store, batching=None)
    assert (workers.groups, workers.alone[2]) == ([], 40)


@pytest.mark.parametrize("concurrency", [4, 200])
def test_nothing_waits_for_company_while_a_slot_is_free(store, concurrency):
    workers = SharedWorkers(store)
    burst(workers, store, queries=1 if concurrency == 4 else 40, slots=concurrency)
    assert workers.groups == []


def test_no_query_lets_more_younger_ones_pass_than_share_an_invocation(store):
    ended = []

    async def main():
        pushing = driver(SharedWorkers(store), store, slots=2, batching=BATCHING)

        async def query(number):
            await pushing.run(CROPS, 1, PATIENCE)
            ended.append(number)

        await asyncio.gather(*(query(number) for number in range(40)))
        await pushing.close()

    run(main())
    for place, number in enumerate(ended):
        assert sum(other > number for other in ended[:place]) <= MOST


async def test_a_task_that_fails_for_itself_is_tried_again_and_the_others_are_answered(store):
    failed = set()

    async def script(task, _number):
        if task.stage == 2 and len(workers.groups) == 1 and not failed:
            failed.add(task.query)
            return Failure(FailureKind.FAILED_IN_CODE, "ValueError", "on purpose")
        return None

    workers = SharedWorkers(store, script)
    answers = await queried(workers, store)
    assert {answer.query for answer in answers if answer.overheads.retries} == failed
    assert sum(answer.overheads.retries for answer in answers) == 1


async def test_when_an_invocation_fails_each_of_its_tasks_is_tried_again_alone(store):
    async def fail(_tasks):
        return OOPS if len(workers.groups) == 1 else None

    workers = SharedWorkers(store, fail=fail)
    answers = await queried(workers, store)
    first, *others = workers.groups
    assert {answer.query for answer in answers if answer.overheads.retries} == set(first)
    assert not set(first) & {query for group in others for query in group}


def test_throttled_queries_may_share_again(store):
    async def fail(_tasks):
        return Failure(FailureKind.THROTTLED, "TooManyRequestsException", "x") if len(workers.groups) == 1 else None

    workers = SharedWorkers(store, fail=fail)
    answers = burst(workers, store, queries=60)
    first, *others = workers.groups
    assert sum(answer.overheads.retries for answer in answers) == len(first)
    assert set(first) & {query for group in others for query in group}


async def test_an_invocation_that_always_fails_ends_only_its_own_queries(store):
    doomed = set()

    async def fail(tasks):
        if len(workers.groups) == 1:
            doomed.update(task.query for task in tasks)
            return OOPS
        return None

    async def script(task, _number):
        return OOPS if task.query in doomed and task.stage == 2 else None

    workers = SharedWorkers(store, script, fail=fail)
    errors = [answer for answer in await queried(workers, store) if isinstance(answer, Exception)]
    assert {type(error) for error in errors} == {TaskFailedError}
    assert len(errors) == len(doomed) == len(workers.groups[0])


async def test_a_bug_in_an_invoker_reaches_every_query_that_shared(store):
    async def fail(_tasks):
        raise ZeroDivisionError

    workers = SharedWorkers(store, fail=fail)
    bugs = [answer for answer in await queried(workers, store) if isinstance(answer, ZeroDivisionError)]
    assert len(bugs) == sum(map(len, workers.groups)) > 1


async def test_a_query_that_ends_while_others_compute_for_it_too_leaves_nothing(store):
    """Its keys are deleted after the shared invocation, which may still write them."""
    batching = Batching({1: BatchTerms(0.0, 0.0)}, MOST, 0.0)
    shared, leave = asyncio.Event(), asyncio.Event()

    async def fail(_tasks):
        shared.set()
        await leave.wait()

    workers = SharedWorkers(store, fail=fail)
    pushing = driver(workers, store, slots=2, batching=batching)
    queries = [asyncio.create_task(pushing.run(CROPS, 1, PATIENCE)) for _ in range(20)]
    await shared.wait()
    for query in queries:
        query.cancel()
    await asyncio.gather(*queries, return_exceptions=True)
    leave.set()
    await pushing.close()
    assert any(key.startswith(f"serfer:{workers.groups[0][1]}:1:") for key in store.ever)


async def test_a_query_past_its_deadline_is_not_invoked(store):
    async def script(task, _number):
        if task.stage == 0 and task.tile == 0:
            await asyncio.sleep(0.03)

    workers = SharedWorkers(store, script)
    pushing = driver(workers, store, slots=1, batching=BATCHING)
    deadlines = [0.1 if number % 2 else PATIENCE for number in range(12)]
    queries = (pushing.run(CROPS, 1, deadline) for deadline in deadlines)
    answers = await asyncio.gather(*queries, return_exceptions=True)
    await pushing.close()
    await all_slots_are_back(pushing, 1)
    assert not [answer for answer in answers[::2] if isinstance(answer, Exception)]
    assert {type(answer) for answer in answers if isinstance(answer, Exception)} == {DeadlineError}


async def test_a_straggler_among_those_that_share_gets_a_duplicate_of_its_own(store):
    leave = asyncio.Event()

    async def fail(_tasks):
        await leave.wait()

    workers = SharedWorkers(store, fail=fail)
    pushing = driver(workers, store, slots=2, batching=BATCHING)
    for _ in range(20):
        await pushing.run(CROPS, 1, PATIENCE)
    before = workers.alone[2]
    answers = await asyncio.gather(*(pushing.run(CROPS, 1, PATIENCE) for _ in range(3)))
    assert workers.alone[2] == before + sum(answer.overheads.hedges for answer in answers) + 3 - len(workers.groups[0])
    assert sum(answer.overheads.hedges for answer in answers) == len(workers.groups[0])
    leave.set()
    await pushing.close()
    await all_slots_are_back(pushing, 2)


def test_an_invoker_without_shared_invocations_is_refused(store):
    with pytest.raises(UsageError, match="Workers cannot run several queries' tasks as one"):
        driver(Workers(store), store, batching=BATCHING)


@settings(max_examples=40, deadline=None)
@given(
    concurrency=st.integers(1, 6),
    stages=st.sets(st.integers(0, 2)),
    most=st.integers(1, 6),
    inline=st.sets(st.integers(0, 1)),
    batches=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    cancelled=st.sets(st.integers(0, 11), max_size=3),
    seed=st.integers(0, 2**32),
)
@example(  # a query whose every invocation fails as a whole: none of its tasks runs
    concurrency=6,
    stages={0, 1, 2},
    most=3,
    inline=set(),
    batches=[3, 2, 1, 3, 1, 3, 2, 2, 1, 1, 1, 2],
    cancelled={1, 5, 6},
    seed=304,
)
def test_every_query_ends_with_its_answer_or_an_error_and_releases_its_slots(
    concurrency, stages, most, inline, batches, cancelled, seed
):
    chances = random.Random(seed)  # noqa: S311 - no secret
    store = WatchedStore()

    async def turns(*_):
        for _ in range(chances.randrange(4)):
            await asyncio.sleep(0)
        kind = chances.choice([*FailureKind])
        return Failure(kind, "x", "x") if chances.random() < 0.1 else None

    async def main():
        workers = SharedWorkers(store, turns, fail=turns)
        batching = Batching({stage: BatchTerms(0.0, 0.0) for stage in stages}, most, 0.0)
        pushing = driver(workers, store, slots=concurrency, batching=batching, inline=inline)
        queries = [asyncio.create_task(pushing.run(CROPS, batch, PATIENCE)) for batch in batches]
        for number in cancelled & set(range(len(queries))):
            for _ in range(chances.randrange(30)):
                await asyncio.sleep(0)
            queries[number].cancel()
        answers = await asyncio.gather(*queries, return_exceptions=True)
        await pushing.close()
        await all_slots_are_back(pushing, concurrency)
        return answers, workers

    answers, workers = run(main())
    for answer, batch in zip(answers, batches, strict=True):
        if isinstance(answer, BaseException):
            assert isinstance(answer, SerferError | asyncio.CancelledError)
            continue
        last = next(task for task in workers.sent if (task.query, task.stage) == (answer.query, 2))
        assert answer.outputs == [(written(last),)]
        assert last.batch == batch
    assert all(images <= most for images in workers.images)
    assert store.keys == set()


@pytest.mark.parametrize("batching", [None, BATCHING])
async def test_no_query_outlives_its_answer(store, batching, monkeypatch):
    living = weakref.WeakSet()

    class Watched(push.PushRun):
        def __init__(self, *args):
            super().__init__(*args)
            living.add(self)

    monkeypatch.setattr(push, "PushRun", Watched)
    pushing, left = driver(SharedWorkers(store), store, slots=3, batching=batching), []
    for _ in range(2):
        for _ in range(3):
            await asyncio.gather(*(pushing.run(CROPS, 1, PATIENCE) for _ in range(40)))
        await asyncio.gather(*pushing._cleanups)
        gc.collect()
        left.append(len(living))
    await pushing.close()
    assert max(left) <= 1


LAST = len(TILES) - 1


def ask(workers, store, bundles, queries=1, **settings):
    batching = Batching({}, 1, passing_s=0.0, bundles=bundles)
    return burst(workers, store, queries, batching=batching, **settings)


def test_a_stage_of_more_tiles_than_slots_takes_no_more_invocations_than_slots(store):
    """The last tile of a stage has a function of its own here, so it goes by itself."""
    workers = SharedWorkers(store)
    ask(workers, store, (2, 1, 1))
    assert workers.together == [[(0, 0), (0, 1)], [(0, 2)], [(0, 3)], [(1, 0)], [(1, 1)], [(LAST, 0)]]


def test_bundles_are_left_out_where_they_may_not_be(store):
    workers = SharedWorkers(store)
    ask(workers, store, ())
    assert all(len(group) == 1 for group in workers.together)
    workers = SharedWorkers(store)
    ask(workers, store, (2, 1, 1), inline_limit=15)  # a crop has 10 bytes
    assert all(len(group) == 1 for group in workers.together)


def test_every_query_of_a_burst_is_answered_and_no_slot_is_lost(store):
    workers = SharedWorkers(store)
    ask(workers, store, (3, 2, 1), queries=30)
    assert {tuple(sorted({place[0] for place in group})) for group in workers.together} == {(0,), (1,), (2,)}


def test_a_tile_that_fails_is_tried_again_alone(store):
    workers = SharedWorkers(store, failing(FailureKind.FAILED_IN_CODE, 1, stage=0, tile=1))
    [answer] = ask(workers, store, (2, 1, 1))
    assert answer.overheads.retries == 1
    assert [(0, 1)] in workers.together


def test_when_the_invocation_fails_each_of_its_tiles_is_tried_again_alone(store):
    failed = []

    async def once(tasks):
        if not failed:
            failed.extend(tasks)
            return OOPS
        return None

    workers = SharedWorkers(store, fail=once)
    [answer] = ask(workers, store, (2, 1, 1))
    assert answer.overheads.retries == 2
    assert [(task.stage, task.tile) for task in failed] == [(0, 0), (0, 1)]
    assert [(0, 0)] in workers.together
    assert [(0, 1)] in workers.together
