"""Services of an application "faces" with three variants, whose workers run in this process."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from serfer.api.admission import Admission
from serfer.api.decoding.decoders import Decoders
from serfer.api.service import Service
from serfer.applications.opening import ApplicationOptions, open_applications
from serfer.applications.served import FunctionsPlace
from serfer.pipeline.event_loop import LoopThread
from serfer.registry import open_registry
from serfer.settings import Settings
from serfer.storage import open_store
from serfer.wiring.open_pipeline import open_on
from serfer.wiring.options import Choices
from tests.applications.worlds import plan_variant, register, version
from tests.support.served import Observed


def faces(root):
    """Register "small", whole and in tiles, and "other", which is more accurate; returns the registry's URL.

    Their files have other names for their outputs.
    """
    registry = open_registry(str(root / "registry"))
    tiles = plan_variant(registry, root / "tiles", "small.tiles", ms=20.0, usd=3e-5, correct=80, tasks=4)
    whole = plan_variant(registry, root / "whole", "small.whole", grids=[(1, 1)], ms=60.0, usd=1e-5, correct=80)
    other = plan_variant(
        registry, root / "other", "other.whole", "scores", seed=1, grids=[(1, 1)], ms=70.0, usd=4e-5, correct=99
    )
    register(registry, "faces", version("small", 1, tiles, whole), version("other", 1, other))
    return str(root / "registry")


def open_service(url, cache, forks=None, models=None, observer=None, *, opened=True):
    """Return a service of a registry's applications, a variant of each `opened`, beside models if there are any."""
    settings = Settings(cache_dir=cache)
    store = open_store("memory://")
    service = Service(models or {}, Admission(4, 8), observer or Observed(), Decoders(forks=forks), store=store)

    async def open_functions(directory):
        choices = Choices("memory://", "inprocess", "push", hedge=False)
        return await open_on(LoopThread(), directory, choices, settings)

    service.applications = open_applications(
        ApplicationOptions(url),
        service.pipelines,
        open_functions,
        settings,
        store,
        "memory://",
        FunctionsPlace(1000, 300.0),
    )
    if not opened:
        return service
    with ThreadPoolExecutor(1) as other:  # the thread of a test that drives a browser has an event loop already
        other.submit(asyncio.run, service.applications.open()).result()
    return service
