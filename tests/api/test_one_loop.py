"""A service's one event loop: a query changes threads and processes twice."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.decoding.decoders import Decoders
from serfer.api.service import Service
from serfer.applications.pipelines import VariantPipelines
from serfer.core.errors import UsageError
from serfer.pipeline.event_loop import RunningLoop
from serfer.settings import Settings
from serfer.wiring.open_pipeline import open_on
from serfer.wiring.options import Choices
from tests import left_behind
from tests.e2e.small import batch, split_small
from tests.support.served import PATIENCE, PNG, Observed, png, running_made


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One function, one tile."""
    return split_small(tmp_path_factory.mktemp("whole"), grids=[(1, 1)])


@contextmanager
def serving(directory, forks):
    """Serve a plan on the loop that serves HTTP; yields a client."""

    async def make():
        pipeline = await open_on(RunningLoop(), directory, Choices("memory://", "inprocess", "push"), Settings())
        return make_app(Service({"small": pipeline}, Admission(1, 1), Observed(), Decoders(forks=forks)), Settings())

    with running_made(make) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        yield client


def classify(client, image):
    client.post("/v1/classify", content=image, headers=PNG).raise_for_status()


def test_a_query_goes_to_a_decoder_and_to_a_worker_and_nowhere_else(whole, forks, monkeypatch):
    changes = []

    def counted(owner, name, what):
        call = getattr(owner, name)

        def watched(*arguments, **more):
            changes.append(what)
            return call(*arguments, **more)

        monkeypatch.setattr(owner, name, watched)

    with serving(whole, forks) as client:
        classify(client, png())  # a decoder is started, the worker's session built
        counted(Decoders, "decode", "decoder")  # a process that the loop writes to
        counted(ThreadPoolExecutor, "submit", "thread")
        counted(asyncio, "run_coroutine_threadsafe", "loop")
        classify(client, png(seed=1))
        monkeypatch.undo()
    assert changes == ["decoder", "thread"]


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
