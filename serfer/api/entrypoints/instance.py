"""An instance's HTTP service: the application of every driver, over a pipeline whose target is the engine."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing
from serfer.api.decoding.decoders import Decoders
from serfer.api.entrypoints.opening import Address
from serfer.api.entrypoints.serving import decode_limits, make_admission
from serfer.api.http.server import serve
from serfer.api.observability.logs import reason, write
from serfer.api.observability.pool_metrics import InstanceMetrics
from serfer.api.observability.telemetry import open_telemetry
from serfer.api.service import Service
from serfer.instance.opening import Instance, MeasuredNetworks, open_instance
from serfer.pipeline.event_loop import RunningLoop
from serfer.settings import Settings
from serfer.system import processors

_NO_BOUND = 10_000  # queries: the engine refuses by time, and memory for bodies is bounded beside that


Sleep = Callable[[float], Awaitable[None]]


class IdleWatch:
    """A middleware that notes requests of any kind, those of health too; `clock` is in seconds."""

    def __init__(self, app: ASGIApp, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._idle_s = idle_s
        self._clock = clock
        self._running = 0
        self._last = clock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
            self.rest()

    def rest(self) -> None:
        self._last = self._clock()

    @property
    def left_s(self) -> float:
        """Seconds until it has been idle for long enough; 0 or less when it has."""
        return self._idle_s if self._running else self._last + self._idle_s - self._clock()

    async def passed(self, sleep: Sleep = asyncio.sleep) -> None:
        while (left_s := self.left_s) > 0:
            await sleep(left_s)


@dataclass(frozen=True)
class Idle:
    """The idle shutdown of an instance: after `seconds` without a request.

    Before, `release` is called, in a thread, and says whether it may.
    """

    seconds: float
    release: Callable[[], bool] = lambda: True


async def serve_instance(
    measured: MeasuredNetworks,
    address: Address,
    settings: Settings,
    *,
    idle: Idle | None,
    on_started: Callable[[str, Instance], None],
) -> None:
    """Serve networks on the running event loop until SIGTERM, SIGINT or `idle`; the first one is the default.

    `on_started` is called with the URL. Raises UnavailableError for an address that cannot be listened at.
    """
    keys = KeyRing(settings.keys_file, time.monotonic) if settings.keys_file else None
    instance = open_instance(measured, settings, RunningLoop())
    async with AsyncExitStack() as ended:
        for pipeline in instance.pipelines.values():
            ended.push_async_callback(pipeline.close)
        telemetry = open_telemetry(instance.pipelines)
        telemetry.metrics.registry.register(InstanceMetrics(instance.residents))
        bounds = decode_limits(settings, max(settings.api_decoders, processors()))
        admission, decoders = make_admission(settings, _NO_BOUND, 0), Decoders(bounds)
        service = Service(instance.pipelines, admission, telemetry, decoders, repository=instance.residents)
        decoders.launch()
        ended.callback(decoders.end)
        app = make_app(service, settings, keys, telemetry, address.answers_to(settings))
        watch = IdleWatch(app, idle.seconds if idle else float("inf"))
        ending: list[asyncio.Task[None]] = []

        def started(url: str) -> None:
            if idle is not None:
                watch.rest()
                ending.append(asyncio.get_running_loop().create_task(_end_when_idle(watch, idle)))
            on_started(url, instance)

        await serve(
            watch,
            listener=address.listen(),
            header_timeout_s=settings.api_header_timeout_s,
            connections_each=_NO_BOUND,
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
