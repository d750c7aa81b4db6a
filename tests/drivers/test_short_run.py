"""The short way of a query, and the same query by the run machine from its beginning: their ends are equal."""

import asyncio
import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core import keys
from serfer.core.retry import Backoff
from serfer.core.run_machine import Failure, FailureKind, Retry
from serfer.core.wire import Crop
from serfer.drivers import push
from serfer.drivers.driver import Answer, RequestContext
from serfer.drivers.push import PushDriver
from tests.drivers.conftest import WatchedStore
from tests.drivers.fake_clock import FakeClock
from tests.drivers.plans import linked_plan
from tests.drivers.test_push import report, stored

TIMEOUT_S, PATIENCE = 2 + 1 / 128, 20.0
PLAN = linked_plan((1,))
CROP = Crop("uint8", b"x" * 10)
RETRY = Retry(attempts=3, unavailable_attempts=4, throttled_attempts=3, restarts=2, backoff=Backoff(0.125, 0.5))
OOPS = ("Oops", "InputError", "PlanError", "NotFiniteError", "MissingKeyError", "StoreUnavailableError")
RIGHT = {
    "right": lambda task: report(stored(task)),
    "short": lambda task: report(stored(task)[:-4]),
    "empty": lambda _: report(),
    "altered": lambda task: report(bytes([stored(task)[0] ^ 1]) + stored(task)[1:]),
    "two stages": lambda task: replace(report(stored(task)), later=(report(),)),
}
failures = st.builds(Failure, st.sampled_from(FailureKind), st.sampled_from(OOPS), st.just("on purpose"))
times = st.integers(0, 48).map(lambda eighths: eighths / 8)  # seconds; of two things at once either may come first
attempts = st.tuples(times, st.one_of(st.just("right"), st.sampled_from(sorted(RIGHT)), failures))
histories = st.fixed_dictionaries(
    {
        "attempts": st.lists(attempts, min_size=1, max_size=4),
        "deadline_s": times.map(lambda time: time + 1 / 16),
        "cancelled_s": st.none() | times.map(lambda time: time + 1 / 32),
        "taken_s": st.none() | times.map(lambda time: time + 1 / 64),  # for which others have both slots
        "may_hedge": st.booleans(),
        "learnt_s": st.none() | times.map(lambda time: time + 1 / 512),
    }
)


class Scripted:
    """Tasks that take their time on the clock and end as their history says, the last attempt again and again."""

    def __init__(self, clock, history):
        self._clock = clock
        self._attempts = itertools.chain(history, itertools.repeat(history[-1]))

    async def invoke(self, function, task, timeout_s):
        took_s, outcome = next(self._attempts)
        await self._clock.sleep(min(took_s, timeout_s))
        if took_s > timeout_s:
            return Failure(FailureKind.TIMED_OUT, "TimeoutError", f"{function} took longer than {timeout_s:g} s")
        return outcome if isinstance(outcome, Failure) else RIGHT[outcome](task)

    async def close(self):
        pass


class InThreads(Scripted):
    """The same, in threads: the clock stands still while one of them computes."""

    def __init__(self, clock, history):
        super().__init__(clock, history)
        self._threads = ThreadPoolExecutor(8)
        self.sleeping = set()

    def submit(self, work, then):
        """Work in a thread, and then do the other on the loop."""
        self._loop = asyncio.get_running_loop()
        self._clock.count(1)

        def call():
            work()
            self._loop.call_soon_threadsafe(lambda: (self._clock.count(-1), then()))

        self._threads.submit(call)

    def run(self, _function, task, _timeout_s):
        took_s, outcome = next(self._attempts)
        over = threading.Event()
        self._loop.call_soon_threadsafe(self._begin, took_s, over)
        assert over.wait(PATIENCE)
        return outcome if isinstance(outcome, Failure) else RIGHT[outcome](task)

    def _begin(self, took_s, over):
        self._clock.count(-1)

        async def sleep():
            await self._clock.sleep(took_s)
            self._clock.count(1)
            over.set()

        self.sleeping.add(asyncio.create_task(sleep()))

    async def close(self):
        await asyncio.gather(*self.sleeping)
        self._threads.shutdown()


def end_of(history, invoker, *, short):
    clock, store, told = FakeClock(), WatchedStore(), []
    names = itertools.count()
    keys.urandom, push.secrets = lambda size: next(names).to_bytes(size), SimpleNamespace(randbits=lambda _: 7)
    workers = invoker(clock, history["attempts"])

    async def main():
        driver = PushDriver(
            PLAN, workers, store, inline_limit=1000, timeout_s=TIMEOUT_S, retry=RETRY, slots=2, clock=clock
        )
        for _ in range(40 if history["learnt_s"] is not None else 0):
            driver.hedging.learn(0, history["learnt_s"])
        while not history["may_hedge"] and driver.hedging.spend():
            pass
        if history["taken_s"] is not None:
            await driver.slots.acquire(0, 2)
            clock.call_at(clock.time() + history["taken_s"], driver.slots.release, 2)
        context, left_s = RequestContext("r", failed=told.append), history["deadline_s"]
        work = SimpleNamespace(crop=lambda: CROP, make=lambda answer: ("made", answer))
        assert driver.is_short(1, len(CROP.data), context) == (invoker is InThreads)
        began = clock.time()
        if short:
            query = asyncio.create_task(driver.run_in_thread(work, 1, left_s, context))
        else:
            query = asyncio.create_task(driver.run([CROP], 1, left_s, context))
        if history["cancelled_s"] is not None:
            clock.call_at(began + history["cancelled_s"], query.cancel)
        [answer] = await asyncio.gather(query, return_exceptions=True)
        ended, used = clock.time() - began, driver.slots.used
        await driver.close()
        await clock.sleep(PATIENCE)
        await workers.close()
        left = (driver.slots.used, driver.hedging.late_after(0), driver.hedging._budget._left, store.keys, store.ever)
        return *records(answer), ended, used, left, told

    try:
        return clock.run(main())
    finally:
        keys.urandom, push.secrets = RANDOM


RANDOM = keys.urandom, push.secrets


def records(answer):
    if isinstance(answer, tuple):
        [_, answer] = answer
    if not isinstance(answer, Answer):
        return type(answer), str(answer)
    return (
        answer.outputs,
        answer.query,
        answer.started,
        answer.ended,
        answer.stages,
        answer.payload_bytes,
        answer.overheads,
    )


def test_a_query_that_is_cancelled_leaves_nothing_that_asyncio_complains_of(caplog):
    history = dict.fromkeys(("taken_s", "may_hedge", "learnt_s"))
    history |= {"attempts": [(2.0, "right")], "deadline_s": 4.0, "cancelled_s": 1.0}
    assert end_of(history, InThreads, short=True)[0] is asyncio.CancelledError
    gc.collect()
    assert not caplog.records


@settings(deadline=None, max_examples=300)
@given(histories)
def test_both_ways_end_alike_whatever_happens(history):
    assert end_of(history, InThreads, short=True) == end_of(history, Scripted, short=False)
