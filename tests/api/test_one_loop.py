"""A service's one event loop: a query changes threads and processes twice, and nothing on the loop takes long."""

import asyncio
import gc
import io
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
from PIL import Image

from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.decoding.decoders import Decoders
from serfer.api.service import Service
from serfer.applications.pipelines import VariantPipelines
from serfer.core.errors import UsageError
from serfer.pipeline.event_loop import RunningLoop, run
from serfer.settings import Settings
from serfer.wiring.open_pipeline import open_on
from serfer.wiring.options import Choices
from tests import left_behind
from tests.e2e.small import batch, split_small
from tests.support.served import Observed, png, running_made

AT_ONCE = 12
LONGEST_S = 0.02
PATIENCE = 120  # s: 12 photographs take 1 on two idle cores


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One function, one tile."""
    return split_small(tmp_path_factory.mktemp("whole"), grids=[(1, 1)])


@contextmanager
def serving(directory, forks, run=run):
    """Serve a plan on the loop that serves HTTP; yields a client."""

    async def make():
        settings = Settings(api_deadline_ms=1000 * PATIENCE)
        pipeline = await open_on(RunningLoop(), directory, Choices("memory://", "inprocess", "push"), settings)
        decoders = Decoders(forks=forks)
        return make_app(Service({"small": pipeline}, Admission(AT_ONCE, AT_ONCE), Observed(), decoders), settings)

    with running_made(make, run) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        yield client


def classify(client, image, kind="jpeg"):
    reply = client.post("/v1/classify", content=image, headers={"Content-Type": f"image/{kind}"})
    assert reply.status_code == 200, reply.text


def photograph():
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((4000, 3000)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


@contextmanager
def nothing_old_is_collected():
    """Keep what other tests left in this process out of garbage collections, which run on any thread."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def test_a_query_goes_to_a_decoder_and_to_a_worker_and_nowhere_else(whole, forks, monkeypatch):
    changes = []

    def counted(owner, name, what):
        call = getattr(owner, name)

        def watched(*arguments, **more):
            changes.append(what)
            return call(*arguments, **more)

        monkeypatch.setattr(owner, name, watched)

    with serving(whole, forks) as client:
        classify(client, png(), "png")  # a decoder is started, the worker's session built
        counted(Decoders, "decode", "decoder")  # a process that the loop writes to
        counted(ThreadPoolExecutor, "submit", "thread")
        counted(asyncio, "run_coroutine_threadsafe", "loop")
        classify(client, png(seed=1), "png")
        monkeypatch.undo()
    assert changes == ["decoder", "thread"]


def test_an_open_pipeline_of_a_service_has_no_loop_of_its_own(whole, forks):
    before = left_behind.present().threads
    with serving(whole, forks) as client:
        classify(client, png(), "png")
        assert left_behind.present().threads == before


async def test_a_variant_that_is_not_kept_is_closed_on_the_loop_on_which_others_go_on(whole):
    loop, served = RunningLoop(), {}

    async def opened(*_):
        return await open_on(loop, whole, Choices("memory://", "inprocess", "push"), Settings())

    variants = VariantPipelines(opened, served)
    variants.keep(["old", "new"])
    for name in ("old", "new"):
        await variants.open(name, None, "")
    old = served["old"]
    variants.keep(["new"])
    await variants.close()
    with pytest.raises(UsageError, match="closed"):
        await old.answer(batch())
    assert (await served["new"].answer(batch())).logits.shape == (1, 7)
    await served["new"].close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_nothing_on_the_loop_takes_long_while_photographs_are_in_flight(whole, forks, monkeypatch):
    took, run_one, image = [], asyncio.Handle._run, photograph()  # uvloop's cannot be watched

    def timed(handle):
        began = time.thread_time()  # the processor's: another process of this machine may hold the loop up
        run_one(handle)
        took.append((time.thread_time() - began, repr(handle)))

    with (
        serving(whole, forks, asyncio.run) as client,
        ThreadPoolExecutor(AT_ONCE) as threads,
        nothing_old_is_collected(),
    ):
        classify(client, image)
        monkeypatch.setattr(asyncio.Handle, "_run", timed)
        for sent in [threads.submit(classify, client, image) for _ in range(AT_ONCE)]:
            sent.result()
        monkeypatch.undo()
    slowest = max(took)
    assert slowest[0] < LONGEST_S, slowest
