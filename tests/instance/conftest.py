import threading
from contextlib import contextmanager

import numpy as np
import pytest

from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.service import Service
from serfer.control.batching import Profile
from serfer.control.dispatch import Batching, ServiceTimeEstimator
from serfer.instance.device import MAX_HELD, Device
from serfer.instance.engine import Engine
from serfer.instance.opening import EngineProbe
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.storage import open_store
from tests.e2e.conftest import cache, examples, serfer_, serfer_here, start  # noqa: F401 - fixtures
from tests.e2e.small import split_small
from tests.support.served import Observed, running

PATIENCE = 60.0
QUICK = Profile(((1, 1.0), (64, 8.0)))  # ms that the engine believes in; nothing takes that long here


@pytest.fixture(scope="session")
def directory(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("instance"), grids=[(1, 2), (1, 1)])


@pytest.fixture(scope="session")
def plan(directory):
    return load_plan(directory)


@pytest.fixture(scope="session")
def whole(plan, directory):
    return unsplit(plan, directory)


class Gated:
    """A network that computes when it is let; `sizes` are those of the batches that it was given."""

    def __init__(self, run, max_batch=8):
        self.device, self.precision, self.max_batch = "cpu", "fp32", max_batch
        self.sizes, self.inputs = [], []
        self.error = None
        self._run = run
        self._gate = threading.Event()
        self._gate.set()
        self.entered = threading.Semaphore(0)

    def run(self, batch):
        self.sizes.append(len(batch))
        self.inputs.append(batch)
        self.entered.release()
        assert self._gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self._run(batch)

    @contextmanager
    def held(self):
        self._gate.clear()
        try:
            yield
        finally:
            self._gate.set()

    def wait(self):
        assert self.entered.acquire(timeout=PATIENCE)


@pytest.fixture
def network(whole):
    return Gated(whole)


@pytest.fixture
def engine_of(plan, network):
    def make(*, profile=QUICK, window_s=0.0, most_held=MAX_HELD, **more):
        return Engine(
            plan,
            network,
            Batching(network.max_batch, window_s),
            ServiceTimeEstimator(profile, network.max_batch),
            name="it",
            device=Device(most_held),
            **more,
        )

    return make


@pytest.fixture
def pipeline_of(plan):
    opened = []

    def make(engine):
        store, settings = open_store("memory://"), Settings()

        async def close():
            store.close()

        facts, limits = settings.facts().functions, settings.image_limits()
        probe = EngineProbe(plan, store, engine)
        pipeline = Pipeline(AsyncPipeline(plan, None, LoopThread(), close, facts, limits, probe, target=engine))
        opened.append(pipeline)
        return pipeline

    yield make
    for pipeline in opened:
        pipeline.close()


@pytest.fixture
def serving(engine_of, pipeline_of):
    """Serve an engine over the gated network; yields the URL and the engine."""
    engine = engine_of()
    service = Service({"small": pipeline_of(engine).asynchronous}, Admission(100, 0), Observed())
    with running(make_app(service, Settings())) as url:
        yield url, engine


def pixels(count, seed=0, size=34):
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
