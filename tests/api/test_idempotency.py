import asyncio

import pytest

from serfer.api.http.problems import Problem
from serfer.api.idempotency import IdempotencyStore
from serfer.api.requests import IdempotencyKey, digest_of
from serfer.core.errors import DeadlineError
from serfer.storage.memory import MemoryStore

ASKED = IdempotencyKey("alice", "key-1", digest_of([b"a picture"]))


class Answers:
    def __init__(self, body):
        self.body = body
        self.may_end = asyncio.Event()
        self.computed = 0

    async def __call__(self, left_s):
        assert left_s > 0
        self.computed += 1
        await self.may_end.wait()
        return self.body


def both_drivers(store):
    return IdempotencyStore(store.coordination(), 60.0), IdempotencyStore(store.coordination(), 60.0)


@pytest.mark.two_at_once
async def test_two_drivers_that_compute_the_same_query_give_one_answer():
    with MemoryStore() as store:
        first, second = both_drivers(store)
        slow, quick = Answers(b"slow"), Answers(b"quick")
        waiting = [
            asyncio.create_task(first.first_answer(ASKED, slow, 60.0)),
            asyncio.create_task(second.first_answer(ASKED, quick, 60.0)),
        ]
        while not (slow.computed and quick.computed):  # noqa: ASYNC110 - they look into the store in threads
            await asyncio.sleep(0.001)
        quick.may_end.set()
        assert (await waiting[1]).body == b"quick"
        slow.may_end.set()
        late = await waiting[0]
        assert (late.body, late.replayed) == (b"quick", True)


async def test_a_failed_request_is_retried_under_its_key():
    async def fails(_):
        raise Problem(503, "not now")

    with MemoryStore() as store:
        first, second = both_drivers(store)
        with pytest.raises(Problem, match="not now"):
            await first.first_answer(ASKED, fails, 60.0)
        answers = Answers(b"answer")
        answers.may_end.set()
        assert (await second.first_answer(ASKED, answers, 60.0)).replayed is False
        assert (await first.first_answer(ASKED, answers, 60.0)).replayed is True
        assert answers.computed == 1


async def test_a_waiting_duplicate_takes_over_a_cancelled_request():
    with MemoryStore() as store:
        replies, _ = both_drivers(store)
        given_up, answers = Answers(b"x"), Answers(b"answer")
        answers.may_end.set()
        leaving = asyncio.create_task(replies.first_answer(ASKED, given_up, 60.0))
        while not given_up.computed:  # noqa: ASYNC110 - it looks into the store in a thread
            await asyncio.sleep(0.001)
        staying = asyncio.create_task(replies.first_answer(ASKED, answers, 60.0))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).body == b"answer"


async def test_a_waiting_duplicate_keeps_its_own_deadline():
    with MemoryStore() as store:
        replies, _ = both_drivers(store)
        running = Answers(b"x")
        first = asyncio.create_task(replies.first_answer(ASKED, running, 60.0))
        while not running.computed:  # noqa: ASYNC110 - it looks into the store in a thread
            await asyncio.sleep(0.001)
        with pytest.raises(DeadlineError, match="the same request still runs"):
            await replies.first_answer(ASKED, Answers(b"y"), 0.01)
        running.may_end.set()
        assert (await first).body == b"x"


async def test_a_key_belongs_to_its_owner():
    with MemoryStore() as store:
        replies, _ = both_drivers(store)
        for owner in ("alice", "bob"):
            answers = Answers(owner.encode())
            answers.may_end.set()
            answer = await replies.first_answer(IdempotencyKey(owner, "key-1", ASKED.digest), answers, 60.0)
            assert (answer.body, answer.replayed) == (owner.encode(), False)


@pytest.mark.who_may
def test_owner_and_key_never_run_into_each_other():
    assert IdempotencyKey("a", "bc", "").name != IdempotencyKey("ab", "c", "").name
