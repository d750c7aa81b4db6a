"""The engine: queries that wait together are computed together, and nothing is computed in vain."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest

from serfer.control.batching import Profile
from serfer.core.errors import DeadlineError, OverloadedError, TaskFailedError, UnavailableError
from serfer.core.exactness import difference
from serfer.drivers.driver import NO_CONTEXT
from tests.e2e.conftest import eventually
from tests.e2e.small import batch
from tests.instance.conftest import PATIENCE, pixels
from tests.support.tensors import plain

LONG = 60.0


def ask(engine, images, deadline_s=LONG):
    return asyncio.ensure_future(engine.run(images, deadline_s, NO_CONTEXT))


@asynccontextmanager
async def computing(engine, network):
    """Have the engine compute an image, alone, until the block ends."""
    with network.held():
        first = ask(engine, batch())
        await asyncio.to_thread(network.wait)
        yield
    assert (await first).batch == 1


async def queued(engine, images):
    """Wait until so many images wait; pixels are normalised in a thread first."""
    async with asyncio.timeout(PATIENCE):
        while engine.waiting != images or engine._preparing:  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0)


async def test_floats_and_pixels_that_arrive_during_a_batch_form_the_next_and_each_gets_its_own(
    engine_of, network, whole
):
    engine = engine_of()
    batches = [batch(2, 1), pixels(3, 2), batch(1, 3), pixels(1, 4), batch(1, 5), pixels(2, 6)]
    async with computing(engine, network):
        others = [ask(engine, images) for images in batches]
        await queued(engine, 10)
    served = await asyncio.gather(*others)
    await engine.close()
    assert network.sizes == [1, 8, 2]
    assert [one.batch for one in served] == [8] * 5 + [2]
    assert all(one.computed_ms > 0 and one.instance == "it" for one in served)
    for images, one in zip(batches, served, strict=True):
        assert len(one.logits) == len(images)
        assert difference(one.logits, whole(images)).exact
    assert (engine.counts.batches, engine.counts.images, engine.counts.refused) == (3, 11, 0)


async def test_cancelled_queries_are_not_computed(engine_of, network):
    engine = engine_of()
    async with computing(engine, network):
        gone, stays = ask(engine, batch(2)), ask(engine, batch(3))
        await queued(engine, 5)
        gone.cancel()
        await asyncio.wait((gone,))
        assert engine.waiting == 3
    await stays
    await engine.close()
    assert network.sizes == [1, 3]


async def test_cancelling_one_query_of_a_batch_leaves_the_others(engine_of, network, whole):
    engine = engine_of()
    async with computing(engine, network):
        gone, stays = ask(engine, batch(1, 1)), ask(engine, batch(1, 2))
        await queued(engine, 2)
    with network.held():
        await asyncio.to_thread(network.wait)
        gone.cancel()
        await asyncio.wait((gone,))
    served = await stays
    await engine.close()
    assert (network.sizes, served.batch) == ([1, 2], 2)
    assert difference(served.logits, whole(batch(1, 2))).exact


async def test_a_passed_deadline_fails_at_once_without_computing(engine_of, network):
    engine = engine_of()
    async with computing(engine, network):
        with pytest.raises(DeadlineError, match="no answer by the deadline of 50 ms"):
            await engine.run(batch(2), 0.05, NO_CONTEXT)
        assert engine.waiting == 0
    await engine.close()
    assert network.sizes == [1]


async def test_a_predicted_deadline_miss_is_refused_at_once_with_retry_after(engine_of, network):
    engine = engine_of(profile=Profile(((1, 1000.0), (8, 8000.0))))
    async with computing(engine, network):
        waiting = [ask(engine, batch(8), 20.0), ask(engine, batch(8), 20.0)]
        await queued(engine, 16)
        with pytest.raises(OverloadedError, match="too much to do") as refused:
            await engine.run(batch(), 20.0, NO_CONTEXT)
        in_time = ask(engine, batch(), 30.0)
        await queued(engine, 17)
    await asyncio.gather(*waiting, in_time)
    await engine.close()
    retry_after_s = refused.value.retry_after_s
    assert 1.0 <= retry_after_s <= 60.0
    assert engine.counts.refused == 1


async def test_late_queries_are_refused_before_they_are_computed(engine_of, network):
    engine = engine_of(profile=Profile(((1, 1.0), (8, 4.0))))
    async with computing(engine, network):
        late, stays = ask(engine, batch(2), 20.0), ask(engine, batch(3))
        await queued(engine, 5)
        engine._times._scale = 2e4  # the machine turns out to be slow: two images take over 20 s, three not 60
    with pytest.raises(OverloadedError):
        await late
    await stays
    await engine.close()
    assert network.sizes == [1, 3]


async def test_an_idle_engine_accepts_a_query_despite_its_estimate(engine_of):
    engine = engine_of(profile=Profile(((1, 1e6),)))
    served = await engine.run(batch(), LONG, NO_CONTEXT)
    await engine.close()
    assert served.batch == 1


async def test_a_free_engine_waits_for_its_window(engine_of, network):
    engine = engine_of(window_s=LONG / 2)
    pending = [ask(engine, batch()) for _ in range(7)]
    await queued(engine, 7)
    assert network.sizes == []
    served = await asyncio.gather(*pending, ask(engine, batch()))  # the eighth makes it full
    soon = await engine_of(window_s=0.01).run(batch(), LONG, NO_CONTEXT)
    await engine.close()
    assert [one.batch for one in served] == [8] * 8
    assert soon.batch == 1


async def test_a_batch_that_fails_fails_its_queries_and_no_others(engine_of, network):
    network.error = RuntimeError("CUDA out of memory\nand much more")
    engine = engine_of()
    with pytest.raises(TaskFailedError, match=r"^the network failed: CUDA out of memory$"):
        await engine.run(batch(), LONG, NO_CONTEXT)
    assert engine.trouble
    network.error = None
    await engine.run(batch(), LONG, NO_CONTEXT)
    assert not engine.trouble
    await engine.close()


async def test_images_that_wait_are_bounded_in_bytes_but_one_query_always_has_room(engine_of, network):
    image_bytes = batch().nbytes
    engine = engine_of(most_held=3 * image_bytes)
    async with computing(engine, network):
        large = ask(engine, batch(5))
        await queued(engine, 5)
        with pytest.raises(OverloadedError, match="all the memory"):
            await engine.run(batch(), LONG, NO_CONTEXT)
    await large
    await engine.close()


async def test_closing_fails_waiting_queries_and_finishes_the_running_batch(engine_of, network):
    engine = engine_of()
    async with computing(engine, network):
        waiting = ask(engine, batch())
        await queued(engine, 1)
        closing = asyncio.ensure_future(engine.close())
        with pytest.raises(UnavailableError, match="closing"):
            await waiting
    await closing
    with pytest.raises(UnavailableError, match="closing"):
        await engine.run(batch(), LONG, NO_CONTEXT)
    assert network.sizes == [1]


async def test_a_query_of_pixels_is_normalised_as_the_plan_says(engine_of, whole):
    engine = engine_of()
    served = await engine.run(pixels(2), LONG, NO_CONTEXT)
    await engine.close()
    assert np.array_equal(served.logits, whole(pixels(2)))


def test_an_engine_that_fails_is_not_ready_until_it_computes_again(serving, network):
    url, engine = serving
    network.error = RuntimeError("no kernel image")
    with httpx.Client(base_url=url, timeout=PATIENCE) as http:
        failed = http.post("/v2/models/small/infer", json=plain(batch()))
        assert (failed.status_code, "no kernel image" in failed.text) == (503, False)
        eventually(lambda: http.get("/v2/health/ready").status_code == 503, "it says so")
        network.error = None
        eventually(lambda: http.get("/v2/health/ready").status_code == 200, "it recovers by itself")
        parameters = http.post("/v2/models/small/infer", json=plain(batch(3))).json()["parameters"]
        assert (parameters["batch"], parameters["computed_ms"] > 0) == (3, True)
    assert engine.trouble == ""
