"""Applications and plans that are served over HTTP in this process."""

import asyncio
import io
import queue
import threading
import time
from contextlib import ExitStack, contextmanager

import httpx
import numpy as np
import uvicorn
from fastapi import _compat
from PIL import Image

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing
from serfer.api.decoding.decoders import Decoders
from serfer.api.service import Service
from serfer.pipeline.event_loop import run
from serfer.settings import Settings
from serfer.storage import open_store

PATIENCE = 60.0
PNG = {"Content-Type": "image/png"}

_adapters = {}
_making = getattr(_compat, "v2", _compat)  # a module of its own since FastAPI 0.119


def _type_adapter(annotated, config=None, make=_making.TypeAdapter):
    """Make what validates a parameter of a route, once for the same annotation: each application has 200 of them."""
    key = annotated.__origin__, repr(annotated.__metadata__), repr(config)
    if key not in _adapters:
        _adapters[key] = make(annotated, config=config), annotated
    return _adapters[key][0]


_making.TypeAdapter = _type_adapter


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


def ended(http, reply):
    """Wait for the end of a query that is answered later, and return its state."""
    deadline = time.monotonic() + PATIENCE
    while (state := http.get(reply.headers["Location"]).json())["status"] in ("queued", "running"):
        assert time.monotonic() < deadline, state
    return state


@contextmanager
def running(app, **config):
    """Serve an application on a port of its own, in a thread, by uvicorn's `config`; yields its URL."""

    async def made():
        return app

    with running_made(made, **config) as url:
        yield url


@contextmanager
def running_made(make, **config):
    """Serve the application that `make` returns on the event loop that serves it; yields its URL."""
    started = queue.SimpleQueue()
    config = {"port": 0, "http": "h11", "log_config": None, "access_log": False, **config}

    async def serve():
        server = uvicorn.Server(uvicorn.Config(await make(), **config))
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


@contextmanager
def asking(app, **client):
    """Serve an application; yields a client of it, which has its URL as `base_url`."""
    with running(app) as url, httpx.Client(base_url=url, timeout=PATIENCE, **client) as http:
        yield http


@contextmanager
def service_of(plans, *, forks=None, observed=None, admission=None, kept=None, **choices):
    """Open the plan directories of `plans` as a service's models, by these choices; `kept` is its store of results."""
    with ExitStack() as opened:
        pipelines = {
            name: opened.enter_context(serfer.open(plan, **{"store": "memory://", "workers": "inprocess", **choices}))
            for name, plan in plans.items()
        }
        yield Service(
            {name: pipeline.asynchronous for name, pipeline in pipelines.items()},
            admission or Admission(4, 8),
            observed or Observed(),
            Decoders(forks=forks),
            results=kept,
        )


@contextmanager
def served(plans, *, forks=None, observed=None, admission=None, keys=None, results=None, streams=True, **settings):
    """Serve the plan directories of `plans` by name, by these settings; yields the URL.

    `keys` is a file of keys, `results` the URL of a store of results.
    """
    with ExitStack() as opened:
        kept = opened.enter_context(open_store(results)) if results else None
        opening = service_of(plans, forks=forks, observed=observed, admission=admission, kept=kept, results=results)
        ring = KeyRing(keys, time.monotonic) if keys else None
        app = make_app(opened.enter_context(opening), Settings(**settings), ring, streams=streams)
        yield opened.enter_context(running(app))
