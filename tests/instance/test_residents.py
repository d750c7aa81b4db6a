"""Networks of one instance: loaded when needed, within the bound, and gone when another needs the room."""

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serfer.core.errors import DeadlineError, NetworkLoadError, OverloadedError, UnavailableError
from serfer.drivers.driver import NO_CONTEXT
from serfer.instance.measuring import NetworkMeasurement
from serfer.instance.residents import Residents
from tests.e2e.small import batch
from tests.instance.conftest import PATIENCE, QUICK, Gated, pixels

LONG = 60.0
SIZE = 10


class Loader:
    """Loads networks when it is let, and notes which; `error` is raised in place of a network."""

    def __init__(self, run):
        self._run = run
        self.loaded, self.networks = [], {}
        self.error = None
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, known):
        name = known.directory.name
        self.loaded.append(name)
        self.entered.release()
        assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        network = self.networks[name] = Gated(self._run)
        return network

    async def wait(self):
        assert await asyncio.to_thread(self.entered.acquire, timeout=PATIENCE)


@pytest.fixture
def loader(whole):
    return Loader(whole)


@pytest.fixture
def measured(plan, directory):
    def of(name, size=SIZE, load_s=0.0, load_size=None):
        return NetworkMeasurement(
            plan=plan,
            directory=directory.parent / name,
            device="cpu",
            precision="fp32",
            max_batch=8,
            profile=QUICK,
            loss=0.0,
            size=size,
            load_size=load_size or size,
            load_s=load_s,
            stamps=(),
        )

    return of


@pytest.fixture
def residents_of(loader, measured):
    """Make residents, none of them in memory; must be called on the loop."""

    def make(names, bound, **about):
        residents = Residents(bound, loader)
        for name in names:
            residents.add(name, measured(name, **about), None, 0.0)
        return residents

    return make


def ask(residents, name, images=None, deadline_s=LONG):
    given = batch() if images is None else images
    return asyncio.ensure_future(residents[name].run(given, deadline_s, NO_CONTEXT))


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


@asynccontextmanager
async def computing(residents, loader, name="a"):
    """Have a network that is loaded compute a query until the block ends."""
    network = loader.networks[name]
    before = len(network.sizes)
    with network.held():
        query = ask(residents, name)
        await until(lambda: len(network.sizes) > before)
        yield
    await query


async def end(residents, names):
    for name in names:
        await residents[name].close()


def status(residents):
    return {name: one.status for name, one in residents.states().items()}


@pytest.mark.two_at_once
async def test_two_queries_for_a_cold_network_load_it_once(residents_of, loader, whole):
    residents = residents_of("ab", 100)
    loader.gate.clear()
    asked = [ask(residents, "a", batch(1, 1)), ask(residents, "a", pixels(2, 2))]
    await loader.wait()
    assert status(residents) == {"a": "loading", "b": "unloaded"}
    loader.gate.set()
    answers = await asyncio.gather(*asked)
    state = residents.states()["a"]
    await end(residents, "ab")
    assert loader.loaded == ["a"]
    assert np.array_equal(answers[0].logits, whole(batch(1, 1)))
    assert np.array_equal(answers[1].logits, whole(pixels(2, 2)))
    assert (state.status, state.loads, state.unloads, state.resident_bytes) == ("loaded", 1, 0, SIZE)
    assert (state.signals.images, state.signals.waiting, state.failure) == (3, 0, "")
    assert state.idle_s is not None


async def test_the_least_recently_used_network_goes_when_another_needs_room(residents_of, loader):
    residents = residents_of("abc", 2 * SIZE)
    for name in "abac":
        await ask(residents, name)
    states = status(residents)
    await ask(residents, "b")
    held = residents.held
    await end(residents, "abc")
    assert states == {"a": "loaded", "b": "unloaded", "c": "loaded"}
    assert held == 2 * SIZE
    assert loader.loaded == ["a", "b", "c", "b"]


async def test_a_network_that_computes_stays_and_the_next_waits_until_it_rests(residents_of, loader):
    residents = residents_of("ab", SIZE)
    await ask(residents, "a")
    async with computing(residents, loader):
        waits = ask(residents, "b")
        await until(lambda: residents["b"].engine.waiting == 1)
        assert status(residents) == {"a": "loaded", "b": "unloaded"}
        with pytest.raises(DeadlineError):
            await ask(residents, "b", deadline_s=0.05)
        assert not waits.done()
    await waits
    states = status(residents)
    await end(residents, "ab")
    assert states == {"a": "unloaded", "b": "loaded"}


async def test_nothing_is_unloaded_for_a_query_that_has_gone(residents_of, loader):
    residents = residents_of("ab", SIZE)
    await ask(residents, "a")
    async with computing(residents, loader):
        gone = ask(residents, "b")
        await until(lambda: residents["b"].engine.waiting == 1)
        gone.cancel()
        await until(lambda: residents["b"].bringing is None)
    states = status(residents)
    await end(residents, "ab")
    assert states == {"a": "loaded", "b": "unloaded"}
    assert loader.loaded == ["a"]


async def test_a_query_that_waits_for_loading_keeps_its_deadline_and_the_load_serves_the_next(residents_of, loader):
    residents = residents_of("a", SIZE)
    loader.gate.clear()
    with pytest.raises(DeadlineError, match="no answer by the deadline of 50 ms"):
        await ask(residents, "a", deadline_s=0.05)
    loader.gate.set()
    await ask(residents, "a")
    await end(residents, "a")
    assert loader.loaded == ["a"]


async def test_a_query_that_loading_would_make_late_is_refused_at_once_and_loads_all_the_same(residents_of, loader):
    residents = residents_of("a", SIZE, load_s=5.0)
    with pytest.raises(OverloadedError) as refused:
        await ask(residents, "a", deadline_s=3.0)
    await until(lambda: residents["a"].status == "loaded")
    await ask(residents, "a", deadline_s=3.0)
    await end(residents, "a")
    result = refused.value.retry_after_s
    assert 1.0 <= result <= 5.0
    assert loader.loaded == ["a"]


async def test_failed_load_fails_the_queries_that_wait_with_the_reason_and_a_later_one_tries_again(
    residents_of, loader
):
    residents = residents_of("a", SIZE)
    loader.gate.clear()
    loader.error = OSError(f"{residents['a'].measured.directory}/unsplit.onnx: no such file\nand more")
    asked = [ask(residents, "a"), ask(residents, "a")]
    await loader.wait()
    loader.gate.set()
    for each in asked:
        with pytest.raises(NetworkLoadError, match=r"^a cannot be loaded: small/unsplit.onnx: no such file$"):
            await each
    state = residents.states()["a"]
    loader.error = None
    await ask(residents, "a")
    after = residents.states()["a"]
    await end(residents, "a")
    assert (state.status, state.failure, state.resident_bytes) == ("unloaded", "small/unsplit.onnx: no such file", 0)
    assert (after.status, after.failure, after.loads) == ("loaded", "", 1)


async def test_pixels_that_were_being_normalised_while_a_load_failed_have_it_tried_again(residents_of, loader):
    residents = residents_of("a", SIZE)
    engine = residents["a"].engine
    engine._preparing += 1  # as if a query's pixels were being normalised
    loader.error = OSError("gone")
    first = ask(residents, "a")
    with pytest.raises(NetworkLoadError):
        await first
    loader.error = None
    engine._preparing -= 1
    answer = await engine.run(pixels(1), LONG, NO_CONTEXT)  # it is queued without anybody having wanted the network
    await end(residents, "a")
    assert answer.batch == 1
    assert loader.loaded == ["a", "a"]


async def test_loading_takes_more_than_what_is_loaded_and_that_room_is_made_first(residents_of):
    residents = residents_of("abc", 30, size=10, load_size=20)
    for name in "abc":
        await ask(residents, name)
    states = status(residents)
    await end(residents, "abc")
    assert states == {"a": "unloaded", "b": "loaded", "c": "loaded"}


async def test_networks_are_loaded_and_unloaded_on_request_but_none_that_has_queries(residents_of, loader):
    residents = residents_of("ab", SIZE)
    await residents.load("a", LONG)
    assert status(residents) == {"a": "loaded", "b": "unloaded"}
    async with computing(residents, loader):
        assert not await residents.unload("a")
        with pytest.raises(OverloadedError, match="there was no room for b"):
            await residents.load("b", 0.05)
    await until(lambda: residents["b"].bringing is None)
    assert await residents.unload("a")
    assert await residents.unload("a")
    assert residents.held == 0
    loader.error = OSError("no file")
    with pytest.raises(NetworkLoadError, match="b cannot be loaded: no file"):
        await residents.load("b", LONG)
    await end(residents, "ab")
    assert loader.loaded == ["a", "b"]


async def test_the_device_computes_what_is_due_first_whichever_network_it_is_for(residents_of, loader):
    order = []
    residents = residents_of("ab", 100)
    await asyncio.gather(ask(residents, "a"), ask(residents, "b"))

    async def noted(name, deadline_s):
        await ask(residents, name, deadline_s=deadline_s)
        order.append((name, deadline_s))

    async with computing(residents, loader):
        waiting = [asyncio.ensure_future(noted(*each)) for each in (("a", 50.0), ("b", 40.0))]
        await until(lambda: residents["a"].engine.waiting == residents["b"].engine.waiting == 1)
    await asyncio.gather(*waiting)
    await end(residents, "ab")
    assert order == [("b", 40.0), ("a", 50.0)]


async def test_another_networks_queries_count_for_the_predicted_deadline(loader, measured):
    residents = Residents(None, loader)
    for name in "ab":
        slow = replace(measured(name), profile=replace(QUICK, batches=((1, 10_000.0), (8, 10_000.0))))
        residents.add(name, slow, None, 0.0)
    await asyncio.gather(residents.load("a", LONG), residents.load("b", LONG))
    async with computing(residents, loader):
        waiting = [ask(residents, "a", deadline_s=25.0), ask(residents, "b")]
        await until(lambda: residents["a"].engine.waiting == residents["b"].engine.waiting == 1)
        with pytest.raises(OverloadedError):  # a's running batch, a's query, which is due before, and its own: 30 s
            await ask(residents, "b", deadline_s=29.0)
        waiting.append(ask(residents, "b", deadline_s=24.0))  # this one is due before a's: 20 s
        await until(lambda: waiting[-1].done() or residents["b"].engine.waiting == 2)
        assert not waiting[-1].done()
    await asyncio.gather(*waiting, return_exceptions=True)
    await end(residents, "ab")


async def test_images_that_wait_are_bounded_over_all_networks(residents_of, loader):
    residents = residents_of("ab", 100)
    residents.device.most_held = 3 * batch().nbytes
    await asyncio.gather(residents.load("a", LONG), residents.load("b", LONG))
    async with computing(residents, loader):
        waiting = [ask(residents, "a", batch(2)), ask(residents, "b")]
        await until(lambda: residents.device.held_bytes == residents.device.most_held)
        with pytest.raises(OverloadedError, match="all the memory"):
            await ask(residents, "b")
    await asyncio.gather(*waiting)
    await end(residents, "ab")


async def test_closing_ends_what_waits_for_a_network(residents_of, loader):
    residents = residents_of("ab", SIZE)
    loader.gate.clear()
    waits = ask(residents, "a")
    await loader.wait()
    closing = asyncio.ensure_future(end(residents, "ab"))
    with pytest.raises(UnavailableError, match="closing"):
        await waits
    loader.gate.set()
    await closing


STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["ask", "ask", "leave", "load", "unload", "pause"])), max_size=24
)
SIZES = {"a": 10, "b": 20, "c": 30, "d": 45}


class Watched(Residents):
    """Residents that note what memory was taken at each load, and whether a network computed after it had gone."""

    def __init__(self, bound, run):
        super().__init__(bound, self._watched)
        self.taken, self.alive = [], set()
        self._run = run

    def _watched(self, known):
        name = known.directory.name
        self.taken.append(self.held)
        self.alive.add(name)
        network = Gated(lambda images: self._run(images) if name in self.alive else None)
        network.name = name
        return network

    async def _unload(self, residents):
        self.alive.difference_update(one.name for one in residents)
        assert not any(one.engine.busy for one in residents)
        await super()._unload(residents)


async def follow(residents, steps):
    doing = []
    for name, what in steps:
        if what == "pause":
            await asyncio.gather(*doing, return_exceptions=True)
        elif what == "load":
            doing.append(asyncio.ensure_future(residents.load(name, LONG)))
        elif what == "unload":
            doing.append(asyncio.ensure_future(residents.unload(name)))
        else:
            doing.append(ask(residents, name))
            if what == "leave":
                await asyncio.sleep(0)
                doing[-1].cancel()
    answers = await asyncio.gather(*doing, return_exceptions=True)
    await end(residents, SIZES)
    return [each for each in answers if isinstance(each, Exception)]


@pytest.fixture
def watched(whole, measured):
    async def of(bound, steps):
        residents = Watched(bound, whole)
        for name, size in SIZES.items():
            residents.add(name, measured(name, size), None, 0.0)
        return residents, await follow(residents, steps)

    return of


@given(steps=STEPS, bound=st.integers(45, 110))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_memory_is_bounded_and_no_network_goes_while_it_computes(watched, steps, bound):
    residents, errors = asyncio.run(watched(bound, steps))
    assert errors == []
    assert all(taken <= bound for taken in residents.taken)
