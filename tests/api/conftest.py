import asyncio
import io
import queue
import threading
from contextlib import contextmanager

import fastapi._compat.v2
import httpx
import numpy as np
import pytest
import uvicorn
from PIL import Image

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.decoding.decoders import Decoders
from serfer.api.decoding.fork_server import ForkServer
from serfer.api.service import Service
from serfer.pipeline.event_loop import run
from serfer.settings import Settings
from tests.e2e.small import split_small

PATIENCE = 60.0

_adapters = {}


def _type_adapter(annotated, config=None, make=fastapi._compat.v2.TypeAdapter):
    """Make what validates a parameter of a route, once for the same annotation: each application has 200 of them."""
    key = annotated.__origin__, repr(annotated.__metadata__), repr(config)
    if key not in _adapters:
        _adapters[key] = make(annotated, config=config), annotated
    return _adapters[key][0]


fastapi._compat.v2.TypeAdapter = _type_adapter


class Observed:
    def __init__(self):
        self.answers, self.failures = [], []

    def answered(self, model, answered):
        self.answers.append((model, answered))

    def failed(self, model, error):
        self.failures.append((model, error))


def png(width=48, height=40, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


async def until(condition):
    """Wait for what other threads or processes do."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - as it says
            await asyncio.sleep(0.001)


@contextmanager
def running(app):
    """Serve an application on a port of its own, in a thread; yields its URL."""

    async def made():
        return app

    with running_made(made) as url:
        yield url


@contextmanager
def running_made(make, run=run):
    """Serve the application that `make` returns on the event loop that serves it; yields its URL."""
    started = queue.SimpleQueue()

    async def serve():
        server = uvicorn.Server(uvicorn.Config(await make(), port=0, http="h11", log_config=None, access_log=False))
        started.put(server)
        await server.serve()

    thread = threading.Thread(target=lambda: run(serve()), daemon=True)
    thread.start()
    server = started.get(timeout=PATIENCE)
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive(), "the server did not start"
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def small_plan(tmp_path_factory):
    """Four tiles, four tiles, one."""
    return split_small(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def forks():
    """The process that image decoders are forked from: one for all services of the tests, as its imports take time."""
    server = ForkServer()
    server.launch()  # here, not with the first image: it is the session's, and no file's
    yield server
    server.close()


@pytest.fixture
def observed():
    return Observed()


@pytest.fixture
def settings():
    return Settings()


@pytest.fixture
def service(small_plan, observed, forks):
    """One model, "small", with workers in this process; the application closes it."""
    pipeline = serfer.open(small_plan, store="memory://", workers="inprocess")
    yield Service({"small": pipeline.asynchronous}, Admission(4, 8), observed, Decoders(forks=forks))
    pipeline.close()


@pytest.fixture
def app(service, settings):
    return make_app(service, settings)


@pytest.fixture
def url(app):
    with running(app) as url:
        yield url


@pytest.fixture
def http(url):
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def client(url):
    with serfer.Client(url, timeout_s=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def lasting_url(small_plan, forks):
    """The URL of a file's own service, for tests that change nothing of it."""
    with serfer.open(small_plan, store="memory://", workers="inprocess") as pipeline:
        service = Service({"small": pipeline.asynchronous}, Admission(4, 8), Observed(), Decoders(forks=forks))
        with running(make_app(service, Settings())) as url:
            yield url


@pytest.fixture
def lasting_http(lasting_url):
    with httpx.Client(base_url=lasting_url, timeout=PATIENCE) as client:
        yield client
