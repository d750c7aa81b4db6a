"""The push driver with gangs: admitted whole, unshared, aborted with their query, or run stage by stage."""

import asyncio
import threading
from dataclasses import replace

import pytest

from serfer.core.errors import DeadlineError, UsageError
from serfer.core.keys import inbox_key
from serfer.core.plan import Gang, sealed
from serfer.core.plan.borders import BORDER_HEADER
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.wire import Crop
from serfer.drivers.batching import Batching, BatchTerms
from serfer.drivers.push import PushDriver
from serfer.storage.exchange import START, Message
from serfer.storage.memory import MemoryStore
from tests.drivers.conftest import WatchedStore
from tests.drivers.fake_clock import FakeClock
from tests.drivers.plans import linked_plan
from tests.drivers.test_push import PATIENCE, SOON, report, stored
from tests.drivers.test_push_batching import MOST

MEMBERS, STOP = 3, 3
THROTTLED = Failure(FailureKind.THROTTLED, "", "no room")
STALLED = Failure(FailureKind.FAILED_IN_CODE, "GangStalledError", "in vain")
CROPS = [Crop("uint8", b"0123456789")] * MEMBERS


def plan(members=MEMBERS):
    """Stages 0 to 2 are a gang; the last stage reads what its last stage wrote."""
    linked = linked_plan((members, members, members, 1))
    one = [
        replace(
            stage,
            tiles=tuple(replace(tile, function=0) for tile in stage.tiles),
            functions=stage.functions[:1],
            memory_mb=1769,
        )
        for stage in linked.stages
    ]
    return sealed(replace(linked, stages=tuple(one), gangs=(Gang(0, STOP, 1.0, 1e-6),)))


PLAN = plan()


class Members:
    """An invoker of a gang plan: members answer once all of theirs run; `script` may do otherwise first."""

    def __init__(self, store, script=None):
        self.store = store
        self.tasks, self.running, self.most = [], {}, 0
        self._script = script
        self._together = {}

    async def invoke(self, function, task, timeout_s):
        del timeout_s
        assert function == PLAN.function(task.stage, 0)
        self.tasks.append(task)
        self.running[task.query] = self.running.get(task.query, 0) + 1
        self.most = max(self.most, sum(self.running.values()))
        try:
            if self._script and (result := await self._script(task, len(self.tasks))):
                return result
            return await self._member(task) if task.gang else self._stage(task)
        finally:
            self.running[task.query] -= 1

    async def _member(self, task):
        all_run = self._together.setdefault(task.query, asyncio.Barrier(MEMBERS))
        await all_run.wait()
        last = replace(task, stage=task.gang.stop - 1, gang=None)
        self.store.put(f"serfer:{task.query}:{last.stage}:{task.tile}", stored(last), task.ttl)
        return replace(report(), later=(report(),) * (task.gang.stop - task.stage - 1))

    def _stage(self, task):
        if task.inline:
            return report(stored(task))
        self.store.put(f"serfer:{task.query}:{task.stage}:{task.tile}", stored(task), task.ttl)
        return report()

    async def invoke_shared(self, function, tasks, timeout_s):
        raise AssertionError(f"{function}: {len(tasks)} tasks for {timeout_s} s share an invocation")

    async def close(self):
        pass


def driver(workers, store, **settings):
    return PushDriver(PLAN, workers, store, **{"inline_limit": 1000, "timeout_s": 5, "retry": SOON, **settings})


def ask(workers, store, *, queries=1, deadline_s=PATIENCE, **settings):
    async def main():
        pushing = driver(workers, store, **settings)
        try:
            runs = (pushing.run(CROPS, 1, deadline_s) for _ in range(queries))
            return await asyncio.wait_for(asyncio.gather(*runs), PATIENCE)
        finally:
            await pushing.close()

    return asyncio.run(main())


def once(failure, *, tile=1):
    seen = set()

    async def script(task, _number):
        if task.gang and task.tile == tile and task.query not in seen:
            seen.add(task.query)
            return failure
        return None

    return script


class Messages(WatchedStore):
    """Remembers every message that was sent; `aborted` is set by the first."""

    def __init__(self):
        super().__init__()
        self.sent, self.aborted = [], threading.Event()
        send = self._exchange.send

        def remembered(messages, ttl):
            send(messages, ttl)
            self.sent.extend(messages)
            self.aborted.set()

        self._exchange.send = remembered


@pytest.fixture
def store():
    return Messages()


def test_a_gang_is_one_invocation_of_each_member(store):
    workers = Members(store)
    [answer] = ask(workers, store)
    assert [(task.stage, task.gang and task.gang.stop) for task in workers.tasks] == [(0, 3)] * MEMBERS + [(3, None)]
    assert [len(stage.reports) for stage in answer.stages] == [MEMBERS, MEMBERS, MEMBERS, 1]
    assert store.keys == set()
    assert not store.sent


@pytest.mark.parametrize("concurrency", [3, 4, 5, 7])
def test_gangs_get_their_slots_together_so_none_waits_for_a_member_in_the_queue(store, concurrency):
    workers = Members(store)
    assert len(ask(workers, store, queries=8, slots=concurrency)) == 8
    assert workers.most <= concurrency


def test_a_gang_wider_than_the_driver_is_refused_when_it_is_opened(store):
    with pytest.raises(UsageError, match="stages 0 to 2 needs 3 invocations at once, 2 are allowed"):
        driver(Members(store), store, slots=2)


@pytest.mark.parametrize("failure", [THROTTLED, STALLED])
def test_a_gang_that_cannot_run_whole_is_aborted_and_runs_stage_by_stage(store, failure):
    async def script(task, _number):
        if task.gang and task.tile == 1:
            return failure
        if task.gang:
            await asyncio.to_thread(store.aborted.wait)
            return Failure(FailureKind.FAILED_IN_CODE, "GangAbortedError", "told to stop")
        return None

    workers = Members(store, script)
    [answer] = ask(workers, store)
    query = workers.tasks[0].query
    assert {(message.inbox, message.value) for message in store.sent} == {
        (inbox_key(query, 0, member), b"") for member in range(MEMBERS)
    }
    staged = [(task.stage, task.tile) for task in workers.tasks if not task.gang]
    assert staged == [(stage, tile) for stage in range(3) for tile in range(MEMBERS)] + [(3, 0)]
    assert [len(stage.reports) for stage in answer.stages] == [MEMBERS, MEMBERS, MEMBERS, 1]


def test_a_member_that_fails_is_invoked_again_and_alone(store):
    away = Failure(FailureKind.FAILED_IN_CODE, "StoreUnavailableError", "away")
    workers = Members(store, once(away))
    batching = Batching({0: BatchTerms(image_s=0.0, rest_s=0.0)}, MOST, passing_s=0.0)
    answers = ask(workers, store, queries=4, slots=6, batching=batching)
    assert [answer.overheads.retries for answer in answers] == [1] * 4


def test_gangs_run_stage_by_stage_where_they_have_to(store):
    class NoInboxes(MemoryStore):
        def exchange(self):
            return None

    store = NoInboxes()
    workers = Members(store)
    ask(workers, store)
    assert not any(task.gang for task in workers.tasks)
    workers = Members(store)
    ask(workers, store, gangs=False, slots=1)
    assert not any(task.gang for task in workers.tasks)


def test_the_deadline_aborts_the_members_that_run(store):
    async def script(_task, _number):
        await asyncio.to_thread(store.aborted.wait)
        return Failure(FailureKind.FAILED_IN_CODE, "GangAbortedError", "told to stop")

    workers = Members(store, script)
    with pytest.raises(DeadlineError):
        ask(workers, store, deadline_s=0.05)
    query = workers.tasks[0].query
    assert {message.inbox for message in store.sent} == {inbox_key(query, 0, member) for member in range(MEMBERS)}
    assert store.exchange().receive(inbox_key(query, 0, 0), START, 0.0) == [], "the inboxes are deleted"


def test_a_member_waits_for_borders_no_longer_than_the_query_has_time(store):
    workers = Members(store)
    ask(workers, store, deadline_s=3.0)
    assert all(0 < task.gang.patience_s <= 3.0 for task in workers.tasks if task.gang)
    workers = Members(store)
    ask(workers, store, deadline_s=500.0)
    assert all(task.gang.patience_s <= 11 for task in workers.tasks if task.gang), "ten seconds and what it may compute"


def test_a_member_whose_report_lacks_stages_has_failed(store):
    async def script(task, number):
        return report() if task.gang and number == 1 else None

    workers = Members(store, script)
    [answer] = ask(workers, store)
    assert answer.overheads.retries == 1


def test_a_duplicate_that_waits_with_another_member_s_is_invoked_though_that_one_is_not_needed_any_more(store):
    """Members 0 and 1 are late; the first answers before its duplicate has a slot, the second fails."""
    clock, four = FakeClock(), plan(4)

    class Late:
        def __init__(self):
            self.queries, self.seen = [], set()

        async def invoke(self, _function, task, _timeout_s):
            if not task.gang:
                return report(stored(task))
            if task.query not in self.queries:
                self.queries.append(task.query)
            first = (task.query, task.tile) not in self.seen
            self.seen.add((task.query, task.tile))
            last = len(self.queries) == 10 and first
            if last and task.tile >= 2:
                board = inbox_key(task.query, 0, 4)
                store.exchange().send([Message(board, BORDER_HEADER.pack(0, task.tile))], task.ttl)
            await clock.sleep((20.0, 40.0, 60.0, 60.0)[task.tile] if last else 1.0)
            if last and task.tile == 1:
                return Failure(FailureKind.UNREACHABLE, "", "gone")
            end = replace(task, stage=2, gang=None)
            store.put(f"serfer:{task.query}:2:{task.tile}", stored(end), task.ttl)
            return replace(report(), later=(report(),) * 2)

    async def main():
        settings = {"inline_limit": 1000, "timeout_s": 5, "retry": SOON, "clock": clock, "slots": 4}
        pushing = PushDriver(four, Late(), store, **settings)
        try:
            return [await pushing.run([*CROPS, CROPS[0]], 1, 100.0) for _ in range(10)][-1]
        finally:
            await pushing.close()

    assert clock.run(main()).overheads.hedges >= 2
