"""Local assembly: plans of the zoo, and the local Lambda service with functions of plans.

Apart from open_pipeline.py, because a driver in AWS has neither the splitter nor local parts in its package.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from botocore.credentials import Credentials

from serfer.build_cache import cache_of
from serfer.core.errors import UnavailableError, UsageError
from serfer.core.plan import CONTAINER, Plan
from serfer.core.plan.gang_times import function_timeout_s
from serfer.core.sigv4 import Access
from serfer.drivers.lambda_http import LambdaInvoker
from serfer.drivers.stepfunctions.asl import EXPRESS_LIMIT_S, compile_plan, local_functions
from serfer.drivers.stepfunctions.client import Client, connect
from serfer.local.lambda_.access import concurrency_at, ensure_functions
from serfer.local.lambda_.function import REGION, FunctionConfig
from serfer.local.lambda_.runtime import runtime_directory
from serfer.local.lambda_.service import LambdaService
from serfer.local.servers.redis import RedisServer
from serfer.local.servers.step_functions import StepFunctionsServer
from serfer.packaging.bundle import (
    HANDLER,
    WEIGHTS,
    dependencies,
    directory_bytes,
    function_directory,
    keep_weights,
)
from serfer.plan_directory import check_artefacts, load_plan
from serfer.settings import Settings, aws_access
from serfer.splitter.network import zoo
from serfer.storage import distribution, schemes
from serfer.wiring.network_file import plan_name
from serfer.wiring.options import TASK_TIMEOUT_S, Choices
from serfer.wiring.plan_cache import cached_plan, planned_for

_EXECUTION_S = {"standard": 3600, "express": EXPRESS_LIMIT_S}


@dataclass(frozen=True)
class LocalLambda:
    """A local Lambda service that runs: its URL, and the credentials that its callers sign with."""

    url: str
    access: Access


def zoo_plan(name: str, settings: Settings, progress: Callable[[str], None]) -> Path:
    """Return the plan directory of a zoo model: what `serfer split NAME` writes by default.

    It is made when it is first needed, and again whenever the splitter's own code changes, or its files did. Raises
    ModelError for an unknown name.
    """
    zoo.find(name)  # refuses an unknown name
    circumstances = planned_for(settings)

    def make(directory: Path) -> None:
        from serfer.splitter.split import split  # noqa: PLC0415 - imports onnx and torch, which a plan in the cache spares

        progress(f"planning {name}, once: the plan stays in {directory.parent}")
        split(name, out=directory, progress=progress, **circumstances)

    return cached_plan(settings.cache_dir, plan_name(name, {"for": repr(circumstances)}), make)


def dependency_bytes(settings: Settings, progress: Callable[[str], None]) -> int:
    """Return the bytes of a function's code and dependencies as installed here, assembled in the cache if need be."""
    progress("measuring a function's dependencies")
    with cache_of(settings.cache_dir):
        return directory_bytes(dependencies(settings.cache_dir))


def local_service(
    plans: Iterable[tuple[Plan, Path]],
    store: str,
    settings: Settings,
    *,
    objects: str | None = None,
    results: str | None = None,
    on_log: Callable[[str], None] | None = None,
    wrapper: Path | None = None,
    grows: bool = False,
) -> LambdaService:
    """Return a local Lambda service, not started yet, with the functions of several plans in their directories.

    All of them use the store at the URL `store`, and the second one at `objects` if there is one; answers are kept in
    the one at `results`, if there is one. `on_log` gets every line that a worker writes; `wrapper` is run around each
    worker's bootstrap (FunctionConfig). One that `grows` takes the functions of further plans from its clients.
    """
    stores = _StoreUrls(store, objects, results)

    def provide(directory: Path) -> list[FunctionConfig]:
        plan = load_plan(directory)
        check_artefacts(plan, directory)
        return _functions([(plan, directory)], stores, settings, wrapper)

    with cache_of(settings.cache_dir):
        runtime = runtime_directory(settings.cache_dir / "runtime")
    return LambdaService(
        _functions(plans, stores, settings, wrapper),
        facts=settings.facts().functions,
        runtime=runtime,
        concurrency=settings.local_concurrency,
        port=settings.local_port,
        access=settings.signing_access(),
        on_log=on_log,
        provide=provide if grows else None,
        freezes=settings.local_freeze,
    )


@dataclass(frozen=True)
class _StoreUrls:
    main: str
    objects: str | None
    results: str | None

    @property
    def all(self) -> str:
        return f"{self.main} {self.objects or ''} {self.results or ''}"

    @property
    def variables(self) -> dict[str, str]:
        variables = {"SERFER_STORE": self.main, **_access(self.all)}
        if self.objects:
            variables["SERFER_OBJECT_STORE"] = self.objects
        if self.results:
            variables["SERFER_RESULTS"] = self.results
        return variables


def _functions(
    plans: Iterable[tuple[Plan, Path]], stores: _StoreUrls, settings: Settings, wrapper: Path | None
) -> list[FunctionConfig]:
    cache = settings.cache_dir
    variables = {"POWERTOOLS_LOG_LEVEL": "WARNING", **stores.variables}
    by_digest = {plan.digest: (plan, directory) for plan, directory in plans}
    with cache_of(cache):
        base = dependencies(cache, distribution(stores.all))
        fetching = {"SERFER_WEIGHTS": _weights_url([*by_digest.values()], settings)}
        return [
            FunctionConfig(
                name=plan.function(*part),
                directory=function_directory(plan, directory, *part, base),
                handler=HANDLER,
                memory_mb=plan.stages[part[0]].memory_mb,
                timeout_s=function_timeout_s(plan, part[0], TASK_TIMEOUT_S),
                environment=variables | (fetching if plan.fetched(*part) else {}),
                image=plan.stages[part[0]].weights_in == CONTAINER,
                wrapper=wrapper,
            )
            for plan, directory in by_digest.values()
            for part in plan.functions
        ]


def _weights_url(plans: Sequence[tuple[Plan, Path]], settings: Settings) -> str:
    rate = settings.local_fetch_rate
    for plan, directory in plans:
        if any(stage.fetches for stage in plan.stages):
            keep_weights(plan, directory, settings.cache_dir)
    url = (settings.cache_dir / WEIGHTS).as_uri()
    return f"{url}?bytes_per_s={rate:.0f}" if rate else url


async def start_service(service: LambdaService) -> None:
    try:
        await service.start()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise UnavailableError(
            f"the local Lambda service cannot listen at {service.url}: {reason}: set SERFER_LOCAL_PORT"
        ) from error


def local_store(parts: AsyncExitStack) -> str:
    server = RedisServer()
    parts.callback(server.stop)
    return server.url


async def local_workers(
    plans: Sequence[tuple[Plan, Path]], store: str, choices: Choices, settings: Settings, parts: AsyncExitStack
) -> tuple[LambdaService | None, LocalLambda]:
    """Return the local Lambda service and where it is: one of our own, unless SERFER_LOCAL_URL names one that runs."""
    if settings.local_url:
        running = LocalLambda(settings.local_url, _shared_access(choices, settings))
        for plan, directory in plans:
            await asyncio.to_thread(ensure_functions, running.url, running.access, plan, directory)
        return None, running
    make = partial(local_service, objects=choices.objects, results=choices.results)
    service = await asyncio.to_thread(make, plans, store, settings)
    await start_service(service)
    parts.push_async_callback(service.stop)  # also where what follows fails
    return service, LocalLambda(service.url, service.access)


def local_concurrency(settings: Settings) -> int:
    """Return how many invocations run at once where functions are local: all drivers', in a service that runs already.

    Raises UnavailableError where that does not answer.
    """
    access = settings.signing_access()
    return concurrency_at(settings.local_url, access) if settings.local_url and access else settings.local_concurrency


def local_invoker(at: LocalLambda) -> LambdaInvoker:
    return LambdaInvoker(at.url, REGION, Credentials(at.access.key_id, at.access.secret))


def local_machine(plan: Plan, kind: str, at: LocalLambda) -> tuple[StepFunctionsServer, Client]:
    """Start a Step Functions service with the plan's state machine, and return it with a client of it."""
    functions = local_functions(plan)
    definition = compile_plan(
        plan, functions, express=kind == "express", task_timeout_s=TASK_TIMEOUT_S, timeout_s=_EXECUTION_S[kind]
    )
    names = dict.fromkeys(itertools.chain(*functions))  # the stages of a gang have one function
    server = StepFunctionsServer(kind, names, at.url, definition, at.access)
    return server, connect(REGION, endpoint=server.endpoint, credentials=Credentials("unused", "unused"))


def _shared_access(choices: Choices, settings: Settings) -> Access:
    """Return the credentials for a service that runs already; refuse what cannot be chosen for its functions."""
    if choices.store is None:
        raise UsageError("SERFER_LOCAL_URL needs --store: the URL of the store that its functions were started with")
    access = settings.signing_access()
    if access is None:
        raise UsageError("SERFER_LOCAL_URL needs SERFER_LOCAL_ACCESS: the credentials that its service runs with")
    return access


def _access(urls: str) -> dict[str, str]:
    return aws_access() if "s3" in schemes(urls) or "iam=" in unquote(urls) else {}
