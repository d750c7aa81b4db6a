"""One driver: models opened, the application made, and served until a signal."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing
from serfer.api.decoding.decoders import DecodeLimits, Decoders
from serfer.api.entrypoints.opening import Address, Opening
from serfer.api.http.server import serve
from serfer.api.jobs.offline import JobImages, OfflineJobs
from serfer.api.observability.logs import write
from serfer.api.observability.pool_metrics import KeepWarmMetrics, PoolMetrics, VariantMetrics
from serfer.api.observability.telemetry import Telemetry, open_telemetry
from serfer.api.service import Service
from serfer.applications.applications import Applications
from serfer.applications.opening import ApplicationOptions, open_applications
from serfer.applications.scaling.controller import VariantFleet
from serfer.applications.served import FunctionsPlace
from serfer.control.throttle import OnlineLoad
from serfer.core.errors import PlanError
from serfer.core.plan import Plan
from serfer.core.plan.layout import PLAN_FILE
from serfer.core.variants import Variant
from serfer.fleet.keep_warm import KeepWarm
from serfer.fleet.open_pool import RunningPool
from serfer.pipeline.event_loop import LoopThread, RunningLoop
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.storage import open_store
from serfer.storage.store import Store
from serfer.system import raise_file_limit
from serfer.wiring.deployed import find_deployment
from serfer.wiring.open_pipeline import concurrency_of, open_on

_State = tuple[int, int, int]


class PlanWatch:
    """Logs a plan directory's change once: what is served of it stays the same until the service starts again."""

    def __init__(self, directories: Mapping[str, Path], plans: Mapping[str, Plan]) -> None:
        """`plans` are those that are served, by the models' names, as are their `directories`."""
        self._directories, self._plans = directories, plans
        self._seen: dict[str, _State] = {}

    def look(self) -> None:
        """Look at each plan.json, and read it where it is another file than at the last look; blocks."""
        for model, directory in self._directories.items():
            with suppress(OSError, PlanError):  # removed, or half copied: the next look may find more
                status = (directory / PLAN_FILE).stat()
                state = status.st_ino, status.st_size, status.st_mtime_ns
                if self._seen.get(model) != state:
                    self._compare(model, load_plan(directory))
                    self._seen[model] = state

    def _compare(self, model: str, plan: Plan) -> None:
        served = self._plans[model]
        if plan.digest != served.digest:
            what = f"its directory has another plan, {plan.digest[:12]}, than is served, {served.digest[:12]}"
        elif plan.description != served.description:
            what = "its plan was described again: images, labels or scores are served as they were before"
        else:
            return
        write(logging.WARNING, "restart to serve what has changed", {"model": model, "reason": what})


async def serve_models(
    models: Mapping[str, Path],
    opening: Opening,
    address: Address,
    settings: Settings,
    *,
    on_started: Callable[[str], None],
    progress: Callable[[str], None],
) -> None:
    """Serve plan directories by name until SIGTERM or SIGINT; `on_started` is called with the URL.

    Everything is on the running event loop: what comes later, too, is opened, used and closed there. Raises what
    opening raises, and UnavailableError for an address that cannot be listened at; then nothing is left.
    """
    loop = RunningLoop()
    keys = KeyRing(settings.keys_file, time.monotonic) if settings.keys_file else None
    if stack := opening.choices.stack:  # asked once, not by each of its pipelines
        opening = replace(opening, deployment=await asyncio.to_thread(find_deployment, stack))
    async with AsyncExitStack() as opened:
        pipelines: dict[str, AsyncPipeline] = {}
        for name, directory in models.items():
            progress(f"opening {name}")
            routing = replace(opening.routing, model=name) if opening.routing and not pipelines else None  # the first's
            pipelines[name] = await open_model(directory, replace(opening, routing=routing), settings, loop)
            opened.push_async_callback(pipelines[name].close)
        store = None if pipelines else open_store(_store_url(opening))
        service, telemetry = make_service(pipelines, settings, store)
        service.restarts = address.state[3] if address.state else 0
        opened.callback(service.decoders.end)
        service.plan_watch = PlanWatch(models, {name: pipeline.plan for name, pipeline in pipelines.items()}).look
        if opening.applications is not None:
            service.applications = applications_for(service, opening, opening.applications, settings, lambda: loop)
            opened.push_async_callback(service.close_pipelines)
            opened.push_async_callback(service.applications.pipelines.close)
            if isinstance(fleet := service.applications.fleet, VariantFleet):
                telemetry.metrics.registry.register(VariantMetrics(fleet, service.applications.copies))
            progress("opening a variant of each application")
            await service.applications.open()
        if settings.api_jobs:
            service.jobs = make_jobs(service, settings)

        def started(url: str) -> None:
            if address.state is not None:
                address.state[0], service.admission.queries.shown = True, address.state[1:]
            on_started(url)

        await serve(
            make_app(service, settings, keys, telemetry, address.answers_to(settings)),
            listener=address.listen(),
            header_timeout_s=settings.api_header_timeout_s,
            connections_each=min(settings.api_client_connections, raise_file_limit() // 2),
            drain_s=settings.api_drain_s,
            on_drain=service.drain,
            on_started=started,
            passed_on=(address.state or (0, 0, 0))[2:],
        )


async def open_model(directory: Path, opening: Opening, settings: Settings, loop: LoopThread) -> AsyncPipeline:
    """Open a plan directory with the limits that hold for images from outside; raises what `serfer.open` raises.

    The pipeline is on `loop` (open_on).
    """
    bounded = {
        "max_image_bytes": min(settings.max_image_bytes, settings.api_max_body_bytes),
        "max_image_pixels": min(settings.max_image_pixels, settings.api_max_pixels),
    }
    settings = settings.model_copy(update=bounded)
    return await open_on(loop, directory, opening.choices, settings, opening.deployment, opening.routing)


def _store_url(opening: Opening) -> str:
    return opening.choices.store or (opening.deployment.store if opening.deployment else "memory://")


def applications_for(
    service: Service,
    opening: Opening,
    options: ApplicationOptions,
    settings: Settings,
    make_loop: Callable[[], LoopThread],
    *,
    alone: bool = False,
) -> Applications:
    """Return the applications of a service; nothing is read of the registry but which there are.

    `make_loop` returns the loop of a variant's pipeline. `alone`: other drivers are told nothing (open_applications).
    """
    plain, facts = replace(opening, routing=None, applications=None), settings.facts().functions
    return open_applications(
        options,
        service.pipelines,
        lambda directory: open_model(directory, plain, settings, make_loop()),
        settings,
        service.store,
        _store_url(opening),
        FunctionsPlace(_concurrency(opening, settings), facts.kept_warm),
        _is_deployed(opening, options),
        alone=alone,
        make_loop=make_loop,
    )


def make_jobs(service: Service, settings: Settings) -> OfflineJobs:
    def load() -> OnlineLoad:
        now = service.load.online()
        return OnlineLoad("this service", now.utilisation, now.latency, now.throttled, of_account=now.of_account)

    return OfflineJobs(service.store, settings.results_ttl_s, JobImages(settings.api_jobs), load)


def _concurrency(opening: Opening, settings: Settings) -> int:
    if opening.choices.workers != "local":
        return concurrency_of(opening.choices, settings, settings.facts().functions)
    from serfer.wiring.local import local_concurrency  # noqa: PLC0415 - not there in AWS

    return local_concurrency(settings)


def _is_deployed(opening: Opening, options: ApplicationOptions) -> Callable[[Variant], bool]:
    plans: Collection[str] | None = opening.deployment.plans if opening.deployment else options.plans
    return lambda variant: plans is None or variant.plan[:12] in plans


def make_service(
    pipelines: Mapping[str, AsyncPipeline], settings: Settings, store: Store | None = None
) -> tuple[Service, Telemetry]:
    """Return the service of open models, the first one its default, and its telemetry; `store` as Service's."""
    telemetry = open_telemetry(pipelines)
    for pipeline in pipelines.values():
        if isinstance(pipeline.target, RunningPool):
            telemetry.metrics.registry.register(PoolMetrics(pipeline.target))
    kept = {name: pipeline.warmth for name, pipeline in pipelines.items() if isinstance(pipeline.warmth, KeepWarm)}
    if kept:
        telemetry.metrics.registry.register(KeepWarmMetrics(kept))
    admission = make_admission(settings, settings.api_in_flight, settings.api_queue)
    bounds = decode_limits(settings, settings.api_decoders)
    results = open_store(settings.results) if settings.results else None
    service = Service(pipelines, admission, telemetry, Decoders(bounds), results=results, store=store)
    if not all(pipeline.in_threads for pipeline in pipelines.values()):  # which decode most images: the others wait
        service.decoders.launch()
    return service, telemetry


def make_admission(settings: Settings, in_flight: int, queue: int) -> Admission:
    return Admission(in_flight, queue, held_bytes=settings.api_held_bytes, downloads=settings.api_downloads)


def decode_limits(settings: Settings, processes: int) -> DecodeLimits:
    return DecodeLimits(processes, settings.api_max_request_pixels, settings.api_decode_cpu_s, settings.api_plain_bytes)
