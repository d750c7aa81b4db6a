"""A service's one event loop: where a query goes, how many calls it takes, and what of it is copied."""

import asyncio
import io
import logging
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager

import httpx
import numpy as np
import pytest
from PIL import Image

from serfer.api import service as service_module
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.decoding.decoders import DecodeLimits, Decoders
from serfer.api.http.protocol import limited_protocol
from serfer.api.service import Service, ServiceQuery
from serfer.applications.pipelines import VariantPipelines
from serfer.core.errors import UsageError
from serfer.core.plan import pixels as pixels_module
from serfer.core.plan.pixels import normalise
from serfer.drivers.driver import NO_CONTEXT
from serfer.drivers.short_run import ShortRun
from serfer.images import DecodedImage, decode_image
from serfer.lambdas.sessions import SessionCache
from serfer.pipeline.event_loop import RunningLoop
from serfer.pipeline.query import Wanted
from serfer.settings import Settings
from serfer.wiring.open_pipeline import open_on
from serfer.wiring.options import Choices
from tests import left_behind
from tests.e2e.small import batch, split_small
from tests.support.served import PATIENCE, PNG, Observed, png, running_made

CALLS = 385  # of a query, which differ by up to a tenth; the bound is only lowered
_WARM_UP, _QUERIES = 5, 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One function, one tile."""
    return split_small(tmp_path_factory.mktemp("whole"), grids=[(1, 1)])


@asynccontextmanager
async def opened(directory, forks):
    pipeline = await open_on(RunningLoop(), directory, Choices("memory://", "inprocess", "push"), Settings())
    service = Service({"small": pipeline}, Admission(1, 1), Observed(), Decoders(forks=forks))
    yield service
    await service.close()


@contextmanager
def serving(directory, forks, loops=None, limits=None):
    """Serve a plan on the loop that serves HTTP, which goes into `loops`; yields a client."""

    async def make():
        if loops is not None:
            loops.append(asyncio.get_running_loop())
        pipeline = await open_on(RunningLoop(), directory, Choices("memory://", "inprocess", "push"), Settings())
        decoders = Decoders(limits, forks)
        return make_app(Service({"small": pipeline}, Admission(1, 1), Observed(), decoders), Settings())

    protocol = limited_protocol(PATIENCE, 10)
    with running_made(make, http=protocol) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        yield client


def classify(client, image):
    client.post("/v1/classify", content=image, headers=PNG).raise_for_status()


def bmp():
    """Return a file that is not plain."""
    file = io.BytesIO()
    Image.open(io.BytesIO(png())).save(file, "BMP")
    return file.getvalue()


@pytest.mark.parametrize(
    ("image", "limits", "way"),
    [
        (png(seed=1), None, ["thread"]),
        (png(seed=1), DecodeLimits(plain_bytes=0), ["decoder", "thread"]),
        (bmp(), None, ["decoder", "thread"]),
    ],
)
def test_a_query_goes_to_a_decoder_unless_it_is_plain_and_to_a_worker_and_nowhere_else(
    whole, forks, monkeypatch, image, limits, way
):
    changes = []

    def counted(owner, name, what):
        call = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **more: changes.append(what) or call(*given, **more))

    with serving(whole, forks, limits=limits) as client:
        client.post("/v1/classify", content=bmp(), headers=PNG)  # a decoder is started, the worker's session built
        counted(Decoders, "decode", "decoder")  # a process that the loop writes to
        counted(ShortRun, "_compute", "thread")
        counted(ThreadPoolExecutor, "submit", "another thread")
        counted(asyncio, "run_coroutine_threadsafe", "loop")
        classify(client, image)
        monkeypatch.undo()
    assert changes == way


def test_a_query_takes_few_calls_of_the_event_loops_thread(whole, forks, caplog):
    """Of Python's functions and built-in ones, as `serfer bench service profile` counts them."""
    calls, loops = Counter(), []
    caplog.set_level(logging.WARNING, "serfer")  # commands of other tests leave INFO, and pytest formats each line
    with serving(whole, forks, loops) as client:
        for _ in range(_WARM_UP):
            classify(client, png())
        loops[0].call_soon_threadsafe(sys.setprofile, lambda _, event, __: calls.update([event]))
        for _ in range(_QUERIES):
            classify(client, png())
        loops[0].call_soon_threadsafe(sys.setprofile, None)
        classify(client, png())
    assert 0 < (calls["call"] + calls["c_call"]) / _QUERIES <= CALLS


async def test_no_bytes_of_a_file_or_a_tensor_are_copied_on_their_way_to_the_pass(whole, forks, monkeypatch):
    given, computed = [], []

    def decode(data, *arguments, **more):
        given.append(data)
        given.append(decode_image(data, *arguments, **more).pixels)
        return DecodedImage(given[-1], (1, 1))

    def convert(pixels, levels):
        computed.append(pixels)
        return normalise(pixels, levels)

    def compute(self, stage, tile, inputs):
        computed.extend(inputs.values())
        return run_session(self, stage, tile, inputs)

    run_session = SessionCache.run
    monkeypatch.setattr(service_module, "decode_image", decode)
    monkeypatch.setattr(pixels_module, "normalise", convert)
    monkeypatch.setattr(SessionCache, "run", compute)
    file, array = png(), batch()
    async with opened(whole, forks) as service:
        query = ServiceQuery("small", time.monotonic() + PATIENCE, PATIENCE, NO_CONTEXT)
        await service.predict(query, [file], ["a.png"], Wanted())
        await service.run(query, array)
    decoded, read, _, tensor = given[1], *computed
    assert given[0] is file
    assert np.shares_memory(decoded, read)
    assert np.shares_memory(array, tensor)


def test_an_open_pipeline_of_a_service_has_no_loop_of_its_own(whole, forks):
    before = left_behind.present().threads
    with serving(whole, forks) as client:
        classify(client, png())
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
