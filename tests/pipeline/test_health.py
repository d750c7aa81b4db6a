import asyncio
import math
import threading
from types import SimpleNamespace

import pytest

from serfer.core.errors import StoreUnavailableError
from serfer.core.report import FunctionLoad
from serfer.core.run_machine import Failure, FailureKind, Retry
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.query_store import retry_store
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.health import FunctionGauge, Health, Probe, probes
from serfer.storage import open_store
from serfer.storage.wrapping import InterceptingStore
from tests.core.plans import small_plan


class World:
    def __init__(self, limit, throttled=0):
        self.now = 0.0
        self.slots = PrioritySemaphore(limit, lambda: self.now)
        self.gauge = FunctionGauge(self.slots, SimpleNamespace(throttled=throttled), of_account=True)

    def read(self, now):
        self.now = now
        return self.gauge.read()


def test_the_utilisation_is_the_share_of_the_slots_in_use_lately():
    world = World(4, throttled=7)
    asyncio.run(world.slots.acquire(0, 3))
    assert world.read(0.0) == FunctionLoad(3, 4, 0.0, 7, of_account=True), "but not for long enough to count"
    assert world.read(100.0).utilisation == pytest.approx(0.75)
    world.slots.release(3)
    assert world.read(100.0) == FunctionLoad(0, 4, pytest.approx(0.75), 7, of_account=True)
    assert world.read(200.0).utilisation < 0.001


@pytest.mark.parametrize("every_s", [0.01, 0.5])
def test_slots_that_are_taken_half_of_the_time_count_as_half_however_often_they_are_read(every_s):
    world = World(4)
    for tick in range(2000):
        world.now = tick * 0.01
        if tick % 2:
            world.slots.release(4)
        else:
            asyncio.run(world.slots.acquire(0, 4))
        if tick * 0.01 % every_s < 0.01:
            share = world.gauge.read().utilisation
    assert share == pytest.approx(0.5, rel=0.05)


class Functions:
    """Answers every look with the next of these failures, or with None."""

    def __init__(self, *results):
        self._results = list(results)

    async def check(self, _function):
        return self._results.pop(0)

    async def warm(self, _function, _request):
        return self._results.pop(0)


BUSY = Failure(FailureKind.THROTTLED, "TooManyRequestsException", "Rate Exceeded.")
GONE = Failure(FailureKind.UNREACHABLE, "ResourceNotFoundException", "Function not found")


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize(
    ("failure", "health"),
    [
        ((None, None), Health()),
        ((BUSY, BUSY), Health(busy=True)),
        ((BUSY, GONE), Health(functions="unreachable: Function not found", busy=True)),
        ((GONE, None), Health(functions="unreachable: Function not found")),
    ],
)
def test_a_throttle_is_busy_and_not_a_failure(start, failure, health):
    """A full account made every driver unready, and the Auto Scaling group replaced all of them."""
    store = open_store("memory://")
    look = Probe(small_plan(), store, Functions(*failure)).look(start=start)
    assert asyncio.run(look) == health
    assert health.ready == (GONE not in failure)
    store.close()


def test_a_look_at_the_store_does_not_wait_behind_the_drivers_calls():
    """A driver's calls and the look shared a few threads: while S3 was slow, /readyz said that it was away."""
    plan, together, done = small_plan(), threading.Barrier(33), threading.Event()

    def call():
        together.wait(30)
        done.wait(30)

    loop = LoopThread()
    with open_store("memory://") as store:
        probe = Probe(plan, store, None)
        calls = [loop.submit(retry_store(call, Retry(), math.inf)) for _ in range(32)]
        together.wait(30)  # all 32 are made at once, whatever the processors
        more = [loop.submit(retry_store(lambda: done.wait(30), Retry(), math.inf)) for _ in range(100)]
        assert loop.wait(probe.look()) == Health()
        done.set()
        for each in (*calls, *more):
            each.result()
        loop.close()


def test_store_that_takes_nothing_is_not_well_until_it_does():
    """A full Redis, or a replica, answers who asks what exists."""

    class Refusing(InterceptingStore):
        operations, refuses = [], False

        def before(self, operation, *_size):
            self.operations.append(operation)
            if self.refuses and operation == "put":
                raise StoreUnavailableError("the store is full")

    async def looks():
        yield await probe.look()
        Refusing.refuses = True
        probe._writes_at = 0  # the time for another write has come
        for _ in range(2):
            yield await probe.look()
        Refusing.refuses = False
        for _ in range(3):
            yield await probe.look()

    async def everything():
        return [health.store async for health in looks()]

    memory = open_store("memory://")
    probe = Probe(small_plan(), Refusing(memory), None)
    assert asyncio.run(everything()) == ["", "the store is full", "the store is full", "", "", ""]
    assert Refusing.operations.count("put") == 4, "two that worked, and not more often than every ten seconds"
    assert not any(memory.exists(probes(small_plan())))
    memory.close()
