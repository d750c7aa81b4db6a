import asyncio
from unittest.mock import AsyncMock

import pytest

from serfer.api.http.problems import Problem
from serfer.api.idempotency import IdempotencyStore
from serfer.api.requests import IdempotencyKey, digest_of
from serfer.core.errors import DeadlineError
from serfer.storage.memory import MemoryStore
from tests.support.served import until

ASKED = IdempotencyKey("alice", "key-1", digest_of([b"a picture"]))


class Answers:
    def __init__(self, body, *, ends=False):
        self.body = body
        self.may_end = asyncio.Event()
        self.computed = 0
        if ends:
            self.may_end.set()

    async def __call__(self, left_s):
        assert left_s > 0
        self.computed += 1
        await self.may_end.wait()
        return self.body


@pytest.fixture
def drivers():
    with MemoryStore() as store:
        yield IdempotencyStore(store.coordination(), 60.0), IdempotencyStore(store.coordination(), 60.0)


@pytest.mark.two_at_once
async def test_two_drivers_that_compute_the_same_query_give_one_answer(drivers):
    slow, quick = Answers(b"slow"), Answers(b"quick")
    waiting = [
        asyncio.create_task(driver.first_answer(ASKED, answers, 60.0))
        for driver, answers in zip(drivers, (slow, quick), strict=True)
    ]
    await until(lambda: slow.computed and quick.computed)
    quick.may_end.set()
    assert (await waiting[1]).body == b"quick"
    slow.may_end.set()
    late = await waiting[0]
    assert (late.body, late.replayed) == (b"quick", True)


async def test_a_failed_request_is_retried_under_its_key(drivers):
    first, second = drivers
    with pytest.raises(Problem, match="not now"):
        await first.first_answer(ASKED, AsyncMock(side_effect=Problem(503, "not now")), 60.0)
    answers = Answers(b"answer", ends=True)
    assert (await second.first_answer(ASKED, answers, 60.0)).replayed is False
    assert (await first.first_answer(ASKED, answers, 60.0)).replayed is True
    assert answers.computed == 1


async def test_a_waiting_duplicate_takes_over_a_cancelled_request(drivers):
    replies, given_up = drivers[0], Answers(b"x")
    leaving = asyncio.create_task(replies.first_answer(ASKED, given_up, 60.0))
    await until(lambda: given_up.computed)
    staying = asyncio.create_task(replies.first_answer(ASKED, Answers(b"answer", ends=True), 60.0))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).body == b"answer"


async def test_a_waiting_duplicate_keeps_its_own_deadline(drivers):
    replies, running = drivers[0], Answers(b"x")
    first = asyncio.create_task(replies.first_answer(ASKED, running, 60.0))
    await until(lambda: running.computed)
    with pytest.raises(DeadlineError, match="the same request still runs"):
        await replies.first_answer(ASKED, Answers(b"y"), 0.01)
    running.may_end.set()
    assert (await first).body == b"x"


async def test_a_key_belongs_to_its_owner(drivers):
    for owner in ("alice", "bob"):
        key, answers = IdempotencyKey(owner, "key-1", ASKED.digest), Answers(owner.encode(), ends=True)
        answer = await drivers[0].first_answer(key, answers, 60.0)
        assert (answer.body, answer.replayed) == (owner.encode(), False)


@pytest.mark.who_may
def test_owner_and_key_never_run_into_each_other():
    assert IdempotencyKey("a", "bc", "").name != IdempotencyKey("ab", "c", "").name
