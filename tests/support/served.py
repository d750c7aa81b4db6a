"""Plans that are served over HTTP by workers in this process."""

import time
from contextlib import ExitStack, contextmanager

import serfer
from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing
from serfer.api.decoding.decoders import Decoders
from serfer.api.service import Service
from serfer.settings import Settings
from serfer.storage import open_store
from tests.api.conftest import Observed, running


@contextmanager
def served(plans, *, forks=None, observed=None, keys=None, results=None, store="memory://", streams=True, **settings):
    """Serve the plan directories of `plans` by name, by these settings; yields the URL.

    `keys` is a file of keys, `results` the URL of a store of results.
    """
    with ExitStack() as opened:
        pipelines = {
            name: opened.enter_context(serfer.open(plan, store=store, workers="inprocess", results=results))
            for name, plan in plans.items()
        }
        service = Service(
            {name: pipeline.asynchronous for name, pipeline in pipelines.items()},
            Admission(4, 8),
            observed or Observed(),
            Decoders(forks=forks),
            results=opened.enter_context(open_store(results)) if results else None,
        )
        ring = KeyRing(keys, time.monotonic) if keys else None
        yield opened.enter_context(running(make_app(service, Settings(**settings), ring, streams=streams)))
