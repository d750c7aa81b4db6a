"""The only place that picks concrete classes: a plan directory and a few words become a running pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.credentials import Credentials

from drivers.inprocess import InProcessInvoker
from drivers.invoker import Invoker
from drivers.lambda_http import LambdaInvoker
from drivers.push import PushDriver
from drivers.sharing import plan_sharing
from serfer.background import LoopThread
from serfer.core.errors import PlanError, UnavailableError, UsageError
from serfer.core.plan import Plan, check_artefacts, load_plan
from serfer.local.function import REGION, FunctionConfig
from serfer.local.lambda_service import LambdaService
from serfer.local.redis_server import RedisServer
from serfer.local.runtime import runtime_directory
from serfer.pipeline import Pipeline
from serfer.settings import Settings, load_settings
from splitter import zoo
from splitter.bundle import HANDLER, code_stamp, dependencies, directory_bytes, function_directory
from splitter.cache import forget_unused, in_use
from storage import Store, open_store

if TYPE_CHECKING:
    from lambdas.worker import Worker

WORKERS = ("inprocess", "local")
DRIVERS = ("push",)
_TASK_TIMEOUT_S = 60.0
_CONNECTIONS = 256
_BASE64_SHARE = 0.7  # of a payload's limit: base64 takes 4/3, and the task's other fields need room


def open_pipeline(
    directory: Path | str,
    *,
    store: str | None = None,
    workers: str = "inprocess",
    driver: str = "push",
    share: bool = True,
    settings: Settings | None = None,
) -> Pipeline:
    """Open a plan directory for queries.

    `workers` is "inprocess" (threads of this process) or "local" (the local Lambda service, one process for each
    execution environment). `store` is a URL; by default workers in process share memory, and local ones a Redis server
    that is started for them. `driver` is "push". With `share`, queries that wait for the same tile of a fully connected
    stage may be one invocation (drivers/sharing.py). Every artefact's digest is checked first.

    Raises PlanError for a directory that is not whole, UsageError for a pair that cannot work, UnavailableError where
    something does not come up; then nothing is left running.
    """
    settings = settings or load_settings()
    _check_choices(store, workers, driver)
    path = Path(directory)
    plan = load_plan(path)
    check_artefacts(plan, path)
    loop = LoopThread()
    try:
        return loop.wait(_assemble(plan, path, store, workers, settings, loop, share=share))
    except BaseException:
        loop.close()
        raise


def zoo_plan(name: str, settings: Settings, progress: Callable[[str], None]) -> Path:
    """Return the plan directory of a zoo model, in the grids that the zoo shows it in, splitting it when first asked.

    It is split again whenever the splitter's own code changes, or its files did. Raises ModelError for an unknown name.
    """
    entry = zoo.find(name)
    target = settings.cache_dir / "plans" / f"{name}-{code_stamp(('splitter', 'serfer.core'))}"
    if not (in_use(target) and _is_whole(target)):
        from splitter.split import split  # noqa: PLC0415 - imports onnx and torch, which a plan in the cache spares

        progress(f"splitting {name}, once: the plan stays in {target.parent}")
        split(name, out=target, grids=list(entry.grids) or "auto", progress=progress)
        forget_unused(target.parent)
    return target


def dependency_bytes(settings: Settings, progress: Callable[[str], None]) -> int:
    """Return the bytes of a function's code and dependencies: measured on the true directory, assembled if need be."""
    progress("measuring a function's dependencies")
    with _cache_in_use(settings.cache_dir):
        return directory_bytes(dependencies(settings.cache_dir))


def _is_whole(directory: Path) -> bool:
    try:
        check_artefacts(load_plan(directory), directory)
    except PlanError:
        return False
    return True


def _check_choices(store: str | None, workers: str, driver: str) -> None:
    if workers not in WORKERS:
        raise UsageError(f"workers are {' or '.join(WORKERS)}, not {workers!r}")
    if driver not in DRIVERS:
        raise UsageError(f"the driver is {' or '.join(DRIVERS)}, not {driver!r}")
    if workers == "local" and (store or "").startswith("memory:"):
        raise UsageError("memory:// cannot be shared with local workers, which are processes: use redis:// or file://")


async def _assemble(
    plan: Plan,
    directory: Path,
    store_url: str | None,
    workers: str,
    settings: Settings,
    loop: LoopThread,
    *,
    share: bool,
) -> Pipeline:
    """Start the parts, each to be stopped in the opposite order: workers, driver, invoker, store."""
    facts = settings.facts().functions
    async with AsyncExitStack() as parts:
        url = store_url or _default_store(workers, parts)
        store = parts.enter_context(open_store(url))
        if workers == "local":
            service = _local_service(plan, directory, url, settings)
            await _start(service)
            invoker: Invoker = LambdaInvoker(service.url, REGION, Credentials("local", "local"), _CONNECTIONS)
        else:
            worker = _worker(plan, directory, store)
            invoker = InProcessInvoker(worker.run, os.cpu_count() or 1, worker.run_shared)
        driver = PushDriver(
            plan,
            invoker,
            store,
            inline_limit=int(facts.sync_payload_limit * _BASE64_SHARE),
            timeout_s=_TASK_TIMEOUT_S,
            concurrency=settings.local_concurrency,
            sharing=plan_sharing(plan, facts.memory_per_vcpu, settings.local_concurrency) if share else None,
        )
        parts.push_async_callback(invoker.close)
        parts.push_async_callback(driver.close)
        if workers == "local":
            parts.push_async_callback(service.stop)  # first: what is in flight ends, and with it what could still write
        return Pipeline(plan, driver, loop, parts.pop_all().aclose, facts, settings.image_limits())
    raise AssertionError("unreachable: the exit stack swallows nothing")


def _default_store(workers: str, parts: AsyncExitStack) -> str:
    if workers == "inprocess":
        return "memory://"
    server = RedisServer()
    parts.callback(server.stop)
    return server.url


def _local_service(plan: Plan, directory: Path, store_url: str, settings: Settings) -> LambdaService:
    cache = settings.cache_dir
    with _cache_in_use(cache):
        directories = {part: function_directory(plan, directory, *part, cache) for part in plan.functions}
        runtime = runtime_directory(cache / "runtime")
    functions = [
        FunctionConfig(
            name=plan.function(*part),
            directory=path,
            handler=HANDLER,
            memory_mb=plan.stages[part[0]].memory_mb,
            timeout_s=_TASK_TIMEOUT_S,
            environment={"SERFER_STORE": store_url, "POWERTOOLS_LOG_LEVEL": "WARNING"},
        )
        for part, path in directories.items()
    ]
    return LambdaService(
        functions,
        facts=settings.facts().functions,
        runtime=runtime,
        concurrency=settings.local_concurrency,
        port=settings.local_port,
    )


@contextmanager
def _cache_in_use(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError(f"SERFER_CACHE_DIR: {cache} cannot be used: {reason}") from error


async def _start(service: LambdaService) -> None:
    try:
        await service.start()
    except OSError as error:
        raise UnavailableError(f"the local Lambda service cannot listen at {service.url}: {error.strerror}") from error


def _worker(plan: Plan, directory: Path, store: Store) -> Worker:
    from lambdas.worker import Worker  # noqa: PLC0415 - it imports ONNX Runtime, which only workers in process need

    return Worker(plan, directory, store, "inprocess", threads=1, init_ms=0.0)
