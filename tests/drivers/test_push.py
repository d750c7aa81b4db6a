"""The push driver with workers of the tests' own, in memory: no process, no network, no model."""

import asyncio
import itertools
import threading
from dataclasses import replace

import pytest

from serfer.core.checksum import protect, verified
from serfer.core.errors import (
    DeadlineError,
    LambdaUnavailableError,
    MissingKeyError,
    StoreUnavailableError,
    TaskFailedError,
)
from serfer.core.keys import StoreCounts, input_key, output_key
from serfer.core.retry import Backoff
from serfer.core.run_machine import Failure, FailureKind, Retry
from serfer.core.wire import Crop, Report
from serfer.drivers.clock import LOOP_CLOCK
from serfer.drivers.driver import TTL_MARGIN_S, RequestContext
from serfer.drivers.push import PushDriver
from tests.core.plans import small_plan
from tests.drivers.conftest import AwayStore, WatchedStore
from tests.drivers.fake_clock import FakeClock
from tests.drivers.plans import READ, linked_plan, part_of

PATIENCE = 60.0
TILES = (4, 2, 1)
CROPS = [Crop("uint8", bytes([tile]) * 10) for tile in range(TILES[0])]
PLAN = small_plan()
SOON = Retry(backoff=Backoff(base=0.001, longest=0.004))


def written(task):
    """Return what a tile writes: float32s, as far as anybody can tell."""
    return f"{task.query[:24]} {task.stage:3} {task.tile:3}".encode() * task.batch


def stored(task):
    """Return what a tile puts into the store, or answers with."""
    return protect(written(task), output_key(task.query, task.stage, task.tile))


def read(task, source):
    """Return what a tile reads of tile `source` of the stage before."""
    value, scale = written(replace(task, stage=task.stage - 1, tile=source)), 4 * task.batch
    return [value[scale * part.offset : scale * (part.offset + part.elements)] for part in READ]


def report(output=None):
    return Report("e", 0.0, 1.0, 1.0, 1.0, 3.0, 1, 1, StoreCounts(puts=1), output)


class Workers:
    """An invoker that writes each tile's output, or answers with it; `script` may do otherwise first."""

    def __init__(self, store, script=None, tiles=TILES):
        self.store = store
        self.tasks = []
        self.sent = []
        self.crops = []
        self._script = script
        self._tiles = tiles

    async def invoke(self, function, task, timeout_s):
        assert timeout_s == 5
        assert function == PLAN.function(task.stage, part_of(task.tile, self._tiles[task.stage]))
        self.tasks.append((task.stage, task.tile))
        self.sent.append(task)
        if task.stage == 0:
            self.crops.append(task.crop)
        if self._script and (result := await self._script(task, len(self.tasks))):
            return result
        return self.finish(task)

    def finish(self, task):
        if task.inline:
            return report(stored(task))
        self.store.put(output_key(task.query, task.stage, task.tile), stored(task), task.ttl)
        return report()

    async def close(self):
        pass


def failing(kind, times, *, stage=1, tile=0, error_type="Oops"):
    left = itertools.count(times, -1)

    async def script(task, _number):
        if (task.stage, task.tile) == (stage, tile) and next(left) > 0:
            return Failure(kind, error_type, "on purpose")
        return None

    return script


def driver(workers, store, tiles=TILES, inline_limit=1000, inline=(), **settings):
    plan = linked_plan(tiles, inline)
    chosen = {"timeout_s": 5, "retry": SOON, "clock": LOOP_CLOCK, **settings}
    return PushDriver(plan, workers, store, inline_limit=inline_limit, **chosen)


def ask(workers, store, *, crops=CROPS, deadline_s=PATIENCE, batch=1, clock=None, **settings):
    clock = clock or FakeClock()

    async def main():
        pushing = driver(workers, store, clock=clock, **settings)
        try:
            return await asyncio.wait_for(pushing.run(crops, batch, deadline_s), PATIENCE)
        finally:
            await asyncio.wait_for(pushing.close(), PATIENCE)

    return clock.run(main())


def test_a_query_passes_every_stage_in_order_and_leaves_nothing(store):
    workers = Workers(store)
    answer = ask(workers, store)
    assert answer.outputs == [(written(workers.sent[-1]),)]
    assert sorted(workers.tasks[:4]) == [(0, tile) for tile in range(4)]
    assert sorted(workers.tasks[4:6]) == [(1, 0), (1, 1)]
    assert workers.tasks[6:] == [(2, 0)]
    assert workers.crops == CROPS
    assert [len(stage.reports) for stage in answer.stages] == list(TILES)
    assert answer.payload_bytes == [40, 0, 0]
    assert (answer.overheads.retries, answer.overheads.counts) == (0, StoreCounts())
    assert {task.ttl for task in workers.sent} == {PATIENCE + TTL_MARGIN_S}, "a late task still finds what it reads"
    assert len(store.ever) == 6


def test_a_last_stage_of_several_tiles_answers_in_their_order(store):
    clock = FakeClock()

    async def later_for_the_first(task, _number):
        if task.stage == 1:
            await clock.sleep(3 - task.tile)
            return report(protect(b"%32d" % task.tile, output_key(task.query, 1, task.tile)))
        return None

    tiles = (2, 3)
    answer = ask(Workers(store, later_for_the_first, tiles), store, crops=CROPS[:2], tiles=tiles, clock=clock)
    assert answer.outputs == [(b"%32d" % tile,) for tile in range(3)]
    assert len(store.ever) == 2


async def test_a_stage_waits_for_all_tiles_of_the_one_before(store):
    slow, reached = asyncio.Event(), asyncio.Event()

    async def script(task, number):
        if number == TILES[0]:
            reached.set()
        if (task.stage, task.tile) == (0, 2):
            await slow.wait()

    workers = Workers(store, script)
    pushing = driver(workers, store)
    query = asyncio.create_task(pushing.run(CROPS, 1, PATIENCE))
    await reached.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert {stage for stage, _ in workers.tasks} == {0}
    slow.set()
    await query
    await pushing.close()
    assert len(workers.tasks) == sum(TILES)


@pytest.mark.parametrize("kind", FailureKind)
def test_a_task_that_fails_once_is_tried_again(store, kind):
    workers = Workers(store, failing(kind, 1))
    answer = ask(workers, store)
    assert answer.overheads.retries == 1
    assert workers.tasks.count((1, 0)) == 2


def test_a_task_that_fails_for_good_ends_the_query_and_leaves_nothing(store):
    workers = Workers(store, failing(FailureKind.UNREACHABLE, 99))
    with pytest.raises(LambdaUnavailableError, match=r"stage 1, tile 0: on purpose"):
        ask(workers, store)
    assert workers.tasks.count((1, 0)) == SOON.attempts
    assert not [task for task in workers.tasks if task[0] == 2]
    assert len(store.ever) == 5


def test_throttling_is_waited_out_where_failures_would_not_be(store):
    workers = Workers(store, failing(FailureKind.THROTTLED, 5))
    assert ask(workers, store).overheads.retries == 5


def test_the_deadline_ends_a_query_whose_task_hangs(store):
    clock = FakeClock()

    async def hang(task, _number):
        if task.stage == 1:
            await clock.sleep(20.0)

    workers = Workers(store, hang)
    with pytest.raises(DeadlineError, match="stage 1 of 3 was running"):
        ask(workers, store, deadline_s=10.0, clock=clock)
    assert clock.now == 1020.0, "the stragglers were waited for"
    assert not [task for task in workers.tasks if task[0] == 2]
    assert output_key("0" * 32, 1, 0)[-4:] in {key[-4:] for key in store.ever}  # the stragglers did write


async def test_cancelling_stops_later_stages_and_deletes_what_stragglers_write(store):
    started, leave = asyncio.Event(), asyncio.Event()

    async def script(task, _number):
        if task.stage == 1:
            started.set()
            await leave.wait()

    workers = Workers(store, script)
    pushing = driver(workers, store)
    query = asyncio.create_task(pushing.run(CROPS, 1, PATIENCE))
    await started.wait()
    query.cancel()
    with pytest.raises(asyncio.CancelledError):
        await query
    leave.set()
    await pushing.close()
    assert {stage for stage, _ in workers.tasks} == {0, 1}
    assert len(store.ever) == 6


async def test_a_bug_in_an_invoker_reaches_the_caller_and_nothing_more_is_started(store):
    leave = asyncio.Event()

    async def script(task, _number):
        if task.stage == 1 and task.tile == 0:
            raise ZeroDivisionError
        if task.stage == 1:
            await leave.wait()

    workers = Workers(store, script)
    pushing = driver(workers, store)
    with pytest.raises(ZeroDivisionError):
        await pushing.run(CROPS, 1, PATIENCE)
    leave.set()
    await pushing.close()
    assert {stage for stage, _ in workers.tasks} == {0, 1}


def test_after_a_bug_failures_of_other_tiles_are_not_tried_again(store):
    async def main():
        broken, retried = asyncio.Event(), asyncio.Event()

        async def script(task, number):
            if number > TILES[0]:
                retried.set()
            if task.tile == 0:
                broken.set()
                raise ZeroDivisionError
            await broken.wait()
            return Failure(FailureKind.THROTTLED, "x", "x")

        pushing = driver(Workers(store, script), store, clock=clock)
        with pytest.raises(ZeroDivisionError):
            await pushing.run(CROPS, 1, PATIENCE)
        await clock.sleep(100.0)
        assert not retried.is_set()
        await pushing.close()

    clock = FakeClock()
    clock.run(main())


def test_a_crop_that_no_payload_can_carry_goes_through_the_store(store):
    crops = [Crop("float32", b"x" * (200 if tile == 2 else 4)) for tile in range(4)]
    seen = {}

    async def script(task, _number):
        if task.stage == 0:
            key = input_key(task.query, task.tile)
            seen[task.tile] = task.crop.data or verified(store.get(key), key)

    workers = Workers(store, script)
    answer = ask(workers, store, crops=crops, inline_limit=100)
    assert [crop.data for crop in sorted(workers.crops, key=lambda crop: crop.data is None)][-1] is None
    assert [seen[tile] for tile in range(4)] == [crop.data for crop in crops]
    assert answer.overheads.counts == StoreCounts(bytes_put=204, puts=1)
    assert answer.payload_bytes == [12, 0, 0]


def test_large_crops_go_through_the_store_before_payloads_must(store):
    crops = [Crop("float32", b"x" * size) for size in (20, 60, 20, 60)]
    workers = Workers(store)
    ask(workers, store, crops=crops, inline_limit=1000, crop_limit=50)
    assert sorted(len(crop.data or b"") for crop in workers.crops) == [0, 0, 20, 20]


def test_payloads_carry_crops_that_the_store_does_not_take(store):
    crops = [Crop("float32", b"x" * 60)] * 4
    workers = Workers(store)
    answer = ask(workers, AwayStore(store, put=1), crops=crops, inline_limit=1000, crop_limit=50)
    assert [crop.data for crop in workers.crops] == [b"x" * 60] * 4
    assert answer.overheads.retries == 0


def test_crops_in_the_store_are_deleted_when_the_store_fails_halfway(store):
    class Failing(WatchedStore):
        def put(self, key, value, ttl):
            if key.endswith(":2"):
                raise StoreUnavailableError("gone")
            super().put(key, value, ttl)

    store = Failing()
    with pytest.raises(StoreUnavailableError, match="gone"):
        ask(Workers(store), store, inline_limit=1)
    assert len(store.ever) == 2, "those before the one that failed"
    assert store.keys == set()


async def test_crops_in_the_store_are_deleted_when_the_query_is_cancelled_while_they_are_put():
    entered, leave = threading.Event(), threading.Event()

    class Slow(WatchedStore):
        def put(self, key, value, ttl):
            entered.set()
            assert leave.wait(PATIENCE)
            super().put(key, value, ttl)

    store = Slow()
    workers = Workers(store)
    pushing = driver(workers, store, inline_limit=1)
    query = asyncio.create_task(pushing.run(CROPS, 1, PATIENCE))
    assert await asyncio.to_thread(entered.wait, PATIENCE)
    query.cancel()
    with pytest.raises(asyncio.CancelledError):
        await query
    leave.set()
    await pushing.close()
    assert workers.tasks == []
    assert len(store.ever) == 4
    assert store.keys == set()


def test_a_store_failure_at_clean_up_keeps_the_answer():
    store = WatchedStore()
    assert ask(Workers(store), AwayStore(store, delete=99)).outputs


def test_calls_to_a_store_that_is_away_are_made_again(store):
    crops, away = [Crop("float32", b"x" * 200)] * 4, AwayStore(store, put=3, get=3, delete=2)
    answer = ask(Workers(store, tiles=(4, 3)), away, crops=crops, inline_limit=100, batch=32, tiles=(4, 3))
    assert [len(output) for (output,) in answer.outputs] == [32 * 32] * 3
    assert (answer.overheads.counts.puts, set(away.failures.values())) == (4, {0})


class TestInline:
    """What the driver carries itself, from answers into later payloads."""

    def test_the_store_sees_nothing_of_an_inline_stage(self, store):
        workers = Workers(store)
        answer = ask(workers, store, inline={0})
        assert answer.outputs == [(written(workers.sent[-1]),)]
        assert {key.rsplit(":", 2)[1] for key in store.ever} == {"1"}
        assert [task.inline for task in workers.sent] == [True] * 4 + [False] * 2 + [True]
        for task in workers.sent[4:6]:
            assert list(task.parts) == [part for source in range(4) for part in read(task, source)]
        assert workers.sent[6].parts == (None,) * 4
        assert answer.payload_bytes == [40, 2 * 4 * 12, 0]

    def test_parts_are_views_of_the_answers(self, store):
        sent = {}

        async def script(task, _number):
            if task.stage == 0:
                sent[task.tile] = stored(task)
                return report(sent[task.tile])
            return None

        workers = Workers(store, script)
        ask(workers, store, inline={0})
        assert [part.obj for part in workers.sent[4].parts[::2]] == [sent[tile] for tile in range(4)]

    def test_a_large_batch_goes_through_the_store(self, store):
        """A task of stage 1 would carry 4 * 12 bytes for each image, one of stage 2 half as many; an answer is 32."""
        for batch, stages in [(20, set()), (21, {"0"}), (31, {"0"}), (32, {"0", "1", "2"})]:
            store.ever.clear()
            workers = Workers(store)
            answer = ask(workers, store, inline={0, 1}, batch=batch)
            assert {key.rsplit(":", 2)[1] for key in store.ever} == stages
            assert answer.outputs == [(written(workers.sent[-1]),)]

    def test_an_answer_that_is_too_large_is_read_from_the_store(self, store):
        answer = ask(Workers(store, tiles=(4, 3)), store, batch=32, tiles=(4, 3))
        assert [len(output) for (output,) in answer.outputs] == [32 * 32] * 3
        assert answer.overheads.counts == StoreCounts(bytes_get=3 * (32 * 32 + 4), gets=3)

    def test_a_task_that_is_tried_again_is_the_same_task(self, store):
        workers = Workers(store, failing(FailureKind.TIMED_OUT, 2))
        assert ask(workers, store, inline={0, 1}).overheads.retries == 2
        tried = [task for task in workers.sent if (task.stage, task.tile) == (1, 0)]
        assert len(tried) == 3
        assert all(task is tried[0] for task in tried)

    async def test_a_late_duplicate_of_a_stage_that_fell_back_leaks_nothing(self, store):
        """The first attempt is given up, its environment goes on and writes after the second one."""
        late = []

        async def script(task, _number):
            if (task.stage, task.tile) == (0, 1) and not late:
                late.append(task)
                return Failure(FailureKind.TIMED_OUT, "x", "x")
            if task.stage == 1:
                workers.finish(late[0])
            return None

        workers = Workers(store, script)
        pushing = driver(workers, store, inline={0, 1})
        await pushing.run(CROPS, 21, PATIENCE)
        await pushing.close()
        assert len(store.ever) == 4

    @pytest.mark.parametrize("output", [None, b"", b"x" * 35, b"x" * 40])
    def test_an_answer_of_another_size_is_a_failure(self, store, output):
        async def script(task, _number):
            return report(output) if (task.stage, task.tile) == (0, 2) else None

        workers = Workers(store, script)
        with pytest.raises(TaskFailedError, match=r"stage 0, tile 2: answered with \d+ bytes, the plan says 36"):
            ask(workers, store, inline={0})
        assert workers.tasks.count((0, 2)) == 3


@pytest.mark.two_at_once
async def test_many_queries_at_once_keep_apart(store):
    failed = set()

    async def jitter(task, number):
        await asyncio.sleep((number * 7919 % 13) / 10_000)
        if task.query.strip("{")[0] in "01234567" and (task.query, task.stage) not in failed:
            failed.add((task.query, task.stage))
            return Failure(FailureKind.FAILED_IN_CODE, "x", "x")
        return None

    pushing = driver(Workers(store, jitter), store, inline={0}, hedge=False)  # a duplicate would save a retry
    answers = await asyncio.gather(*(pushing.run(CROPS, 1, PATIENCE) for _ in range(60)))
    await pushing.close()
    assert len({answer.query for answer in answers}) == 60
    assert all(bytes(answer.outputs[0][0]).startswith(answer.query[:24].encode()) for answer in answers)
    assert {answer.overheads.retries for answer in answers} == {0, 3}


async def test_queries_of_a_burst_end_in_the_order_in_which_they_came_those_in_the_background_last(store):
    async def a_turn(_task, _number):
        await asyncio.sleep(0)

    pushing, ended = driver(Workers(store, a_turn), store, slots=2), []  # far fewer slots than tasks

    async def query(number):
        await pushing.run(CROPS, 1, PATIENCE, RequestContext(background=number in range(1, 10)))
        ended.append(number)

    await asyncio.wait_for(asyncio.gather(*(query(number) for number in range(40))), PATIENCE)
    await pushing.close()
    assert ended == [0, *range(10, 40), *range(1, 10)]


async def test_first_come_first_served_starves_queries_that_are_under_way(store):
    """SerFer, section 9.2: no query ends before the first stages of all have run."""
    seen = []

    async def a_turn(task, _number):
        seen.append(task.stage)
        await asyncio.sleep(0)

    pushing = driver(Workers(store, a_turn), store, slots=2, oldest_first=False)
    await asyncio.gather(*(pushing.run(CROPS, 1, PATIENCE) for _ in range(40)))
    await pushing.close()
    assert seen.index(2) >= 40 * TILES[0]


def test_a_query_that_ends_early_starts_nothing_that_waits_for_a_slot(store):
    workers = Workers(store, failing(FailureKind.FAILED_IN_CODE, 99, stage=0, tile=0))
    with pytest.raises(TaskFailedError):
        ask(workers, store, slots=1)
    assert {stage for stage, _ in workers.tasks} == {0}


def test_a_straggler_gets_a_duplicate_whose_answer_counts(store):
    async def main():
        stuck = asyncio.Event()

        async def script(task, number):
            if number > 20 * sum(TILES) and (task.stage, task.tile) == (1, 0) and not stuck.is_set():
                stuck.set()
                await clock.sleep(PATIENCE / 10)

        workers = Workers(store, script)
        pushing = driver(workers, store, clock=clock)
        for _ in range(20):
            assert (await pushing.run(CROPS, 1, PATIENCE)).overheads.hedges == 0
        answer = await pushing.run(CROPS, 1, PATIENCE)
        assert (answer.overheads.hedges, answer.overheads.retries) == (1, 0)
        assert answer.ended - answer.started < PATIENCE / 10
        await pushing.close()

    clock = FakeClock()
    clock.run(main())


async def test_closing_cancels_running_queries_and_leaves_nothing(store):
    reached, never = asyncio.Event(), asyncio.Event()

    async def script(task, _number):
        if task.stage == 1:
            reached.set()
            await never.wait()

    pushing = driver(Workers(store, script), store, slots=2)
    queries = [asyncio.create_task(pushing.run(CROPS, 1, PATIENCE)) for _ in range(5)]
    await reached.wait()
    closing = asyncio.create_task(pushing.close())
    done, _ = await asyncio.wait(queries)
    assert all(query.cancelled() for query in done)
    never.set()
    await closing
    assert store.ever


class TestLostPieces:
    """The store forgets what was written (evicted, expired, or restarted empty), or alters it."""

    @pytest.mark.parametrize("error", ["MissingKeyError", "AlteredPieceError"])
    def test_a_query_with_missing_or_altered_values_restarts_under_a_new_id(self, store, error):
        workers = Workers(store, failing(FailureKind.FAILED_IN_CODE, 2, error_type=error))
        answer = ask(workers, store)
        assert answer.outputs == [(written(workers.sent[-1]),)]
        assert (answer.overheads.restarts, answer.overheads.retries) == (2, 0)
        assert len({task.query for task in workers.sent}) == 3

    @pytest.mark.parametrize("batch", [1, 32])
    def test_an_answer_that_is_altered_on_its_way_or_in_the_store_is_made_again(self, store, batch):
        """Of one image it is in the function's answer, of 32 in the store."""
        altered = []

        async def script(task, _number):
            if task.stage != 2 or altered:
                return None
            altered.append(stored(task)[:-5] + b"?" + stored(task)[-4:])
            if task.inline:
                return report(altered[0])
            store.put(output_key(task.query, task.stage, task.tile), altered[0], task.ttl)
            return report()

        workers = Workers(store, script)
        answer = ask(workers, store, batch=batch)
        assert answer.outputs == [(written(workers.sent[-1]),)]
        assert (len(altered), answer.overheads.restarts) == (1, 1)

    def test_an_answer_missing_from_the_store_is_recomputed(self):
        class Forgetful(WatchedStore):
            forget = True

            def get_many(self, ranges):
                if self.forget:
                    self.forget = False
                    raise MissingKeyError("gone")
                return super().get_many(ranges)

        store = Forgetful()
        answer = ask(Workers(store, tiles=(4, 3)), store, batch=32, tiles=(4, 3))
        assert [len(output) for (output,) in answer.outputs] == [32 * 32] * 3
        assert answer.overheads.restarts == 1
        assert store.keys == set()

    def test_a_store_that_loses_everything_ends_the_query(self, store):
        workers = Workers(store, failing(FailureKind.FAILED_IN_CODE, 1000, error_type="MissingKeyError"))
        with pytest.raises(StoreUnavailableError, match=r"on purpose.*--store"):
            ask(workers, store)
        assert len({task.query for task in workers.sent}) == 1 + SOON.restarts

    def test_retries_before_a_restart_are_counted(self, store):
        lost = failing(FailureKind.FAILED_IN_CODE, 1, stage=2, error_type="MissingKeyError")
        failed = failing(FailureKind.TIMED_OUT, 1)

        async def script(task, number):
            return await failed(task, number) or await lost(task, number)

        answer = ask(Workers(store, script), store)
        assert (answer.overheads.restarts, answer.overheads.retries) == (1, 1)


@pytest.mark.parametrize(("batch", "together"), [(1, True), (2**13, False)])
def test_keys_of_small_queries_share_a_slot_of_a_cluster_and_those_of_large_ones_do_not(store, batch, together):
    workers = Workers(store)
    ask(workers, store, batch=batch)
    assert all(task.query.startswith("{") == together for task in workers.sent)
    assert len({len(task.query.strip("{}")) for task in workers.sent} - {32}) == 0


def test_with_an_answer_limit_of_0_everything_goes_through_the_store(store):
    answer = ask(Workers(store), store, inline={0, 1}, answer_limit=0)
    assert len(store.ever) == sum(TILES)
    assert [len(output) for (output,) in answer.outputs] == [32]
