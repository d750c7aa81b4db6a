"""An instance's HTTP service: the application of every driver, over a pipeline whose target is the engine."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing
from serfer.api.decoding.decoders import Decoders
from serfer.api.entrypoints.serving import Address, decode_limits, make_admission
from serfer.api.http.idle import IdleWatch
from serfer.api.http.server import serve
from serfer.api.observability.instance_metrics import InstanceMetrics
from serfer.api.observability.logs import reason, write
from serfer.api.observability.telemetry import open_telemetry
from serfer.api.repository import InstanceRepository
from serfer.api.service import Service
from serfer.instance.network import processors
from serfer.instance.opening import Instance, InstanceChoices, open_instance
from serfer.settings import Settings

_NO_BOUND = 10_000  # queries: the engine refuses by time, and memory for bodies is bounded beside that


@dataclass(frozen=True)
class Idle:
    """The idle shutdown of an instance: after `seconds` without a request.

    Before, `release` is called, in a thread, and says whether it may.
    """

    seconds: float
    release: Callable[[], bool] = lambda: True


def serve_instance(
    models: Mapping[str, Path],
    choices: InstanceChoices,
    address: Address,
    settings: Settings,
    *,
    idle: Idle | None,
    on_started: Callable[[str, Instance], None],
    progress: Callable[[str], None],
) -> None:
    """Serve plan directories' whole networks by name until SIGTERM, SIGINT or `idle`; the first one is the default.

    `on_started` is called with the URL. Raises what `open_instance` raises, and UnavailableError for an address that
    cannot be listened at.
    """
    keys = KeyRing(settings.keys_file, time.monotonic) if settings.keys_file else None
    instance = open_instance(models, choices, settings, progress)
    with ExitStack() as ended:
        for pipeline in instance.pipelines.values():
            ended.enter_context(pipeline)
        repository = InstanceRepository(instance.residents, instance.loop)
        telemetry = open_telemetry(instance.pipelines)
        telemetry.metrics.registry.register(InstanceMetrics(repository))
        bounds = decode_limits(settings, max(settings.api_decoders, processors()))
        admission = make_admission(settings, _NO_BOUND, 0)
        service = Service(instance.pipelines, admission, telemetry, Decoders(bounds), repository=repository)
        service.decoders.launch()
        ended.callback(service.decoders.end)
        app = make_app(service, settings, keys, telemetry, address.answers_to(settings))
        watch = IdleWatch(app, idle.seconds if idle else float("inf"))
        ending: list[asyncio.Task[None]] = []

        def started(url: str) -> None:
            if idle is not None:
                watch.rest()
                ending.append(asyncio.get_running_loop().create_task(_end_when_idle(watch, idle)))
            on_started(url, instance)

        serve(
            watch,
            host=address.host,
            port=address.port,
            header_timeout_s=settings.api_header_timeout_s,
            drain_s=settings.api_drain_s,
            on_drain=service.drain,
            on_started=started,
        )


async def _end_when_idle(watch: IdleWatch, idle: Idle) -> None:
    """Wait until no requests come, leave the group, and drain as after SIGTERM.

    An instance that cannot leave its group continues: the group would start another one in its place.
    """
    while True:
        await watch.passed()
        released = False
        try:
            released = await asyncio.to_thread(idle.release)
        except Exception as error:  # noqa: BLE001 - even a bug leaves it to be tried again
            write(logging.ERROR, "idle", {"message": repr(error)[:300], **reason(error)})
        if released:
            write(logging.INFO, "idle", {"seconds": idle.seconds})
            signal.raise_signal(signal.SIGTERM)
            return
        watch.rest()
