"""The only place that picks concrete classes: a plan directory and a few words become a running pipeline."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from botocore.credentials import Credentials

from drivers.asl import EXPRESS_LIMIT_S, compile_plan, local_functions
from drivers.driver import Driver
from drivers.executions import connect
from drivers.inprocess import InProcessInvoker
from drivers.lambda_http import LambdaInvoker
from drivers.lasting import patiently
from drivers.poll import PollInvoker
from drivers.push import PushDriver
from drivers.sharing import plan_sharing
from drivers.stepfunctions import StepFunctionsDriver
from serfer.background import LoopThread
from serfer.choices import Choices
from serfer.core.aws import LambdaFacts
from serfer.core.errors import PlanError, UnavailableError, UsageError
from serfer.core.plan import CACHE, INLINE, Plan, check_artefacts, load_plan
from serfer.core.run import Retry
from serfer.local.faults import Faults
from serfer.local.function import REGION, FunctionConfig
from serfer.local.lambda_service import LambdaService
from serfer.local.redis_server import RedisServer
from serfer.local.running import check_functions
from serfer.local.runtime import runtime_directory
from serfer.local.step_functions import StepFunctionsServer
from serfer.pipeline import Pipeline
from serfer.probe import Probe, probes
from serfer.result_cache import ResultCache
from serfer.settings import Settings, aws_access, load_settings
from splitter import zoo
from splitter.bundle import HANDLER, code_stamp, dependencies, directory_bytes, function_directory
from splitter.cache import forget_unused, in_use
from storage import Store, distribution, schemes
from storage.routed import open_routed

_TASK_TIMEOUT_S = 60.0
_CONNECTIONS = 256
_BASE64_SHARE = 0.7  # of a payload's limit: base64 takes 4/3, and the task's other fields need room
_EXECUTION_S = {"standard": 3600, "express": EXPRESS_LIMIT_S}
_LOCAL = Credentials("local", "local")
_OPENING = Retry(unavailable_attempts=4)


def open_pipeline(  # noqa: PLR0913 - what can be chosen, by name
    directory: Path | str,
    *,
    store: str | None = None,
    workers: str = "inprocess",
    driver: str = "push",
    object_store: str | None = None,
    inline: str = "planned",
    share: bool = True,
    hedge: bool = True,
    cache_s: float = 0.0,
    faults: Faults | None = None,
    settings: Settings | None = None,
) -> Pipeline:
    """Open a plan directory for queries.

    `workers` is "inprocess" (threads of this process), "local" (the local Lambda service, one process for each
    execution environment) or "aws" (the plan's functions as deployed, in boto3's region and with its credentials).
    `store` is a URL (docs/stores.md); by default workers in process share memory, and local ones a Redis server that is
    started for them. `object_store` is the URL of a second one, for the stages whose path is "objects": without it they
    use the first. `driver` is "push", "poll", "stepfunctions" or "stepfunctions-express" (docs/engines.md).

    `inline` is "planned" (what the plan says rides along does), "always" (whatever payloads can carry) or "never". With
    `share`, queries that wait for the same tile of a fully connected stage may be one invocation (drivers/sharing.py);
    with `hedge`, a task that is late gets a duplicate. Answers are kept, and given again to the same question, for
    `cache_s` seconds. `faults` are what the local Lambda service does wrong on purpose.

    Every artefact's digest is checked first. Raises PlanError for a directory that is not whole, UsageError for a pair
    that cannot work, UnavailableError where something does not come up; then nothing is left running.
    """
    choices = Choices(store, workers, driver, object_store, inline, share=share, hedge=hedge, cache_s=cache_s)
    choices.check()
    path = Path(directory)
    plan = load_plan(path)
    check_artefacts(plan, path)
    loop = LoopThread()
    try:
        return loop.wait(_assemble(_Opening(plan, path, choices, settings or load_settings(), faults), loop))
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


@dataclass(frozen=True)
class _Opening:
    """What a pipeline is put together from."""

    plan: Plan
    directory: Path
    choices: Choices
    settings: Settings
    faults: Faults | None

    @property
    def facts(self) -> LambdaFacts:
        return self.settings.facts().functions


async def _assemble(opening: _Opening, loop: LoopThread) -> Pipeline:
    """Start the parts, each to be stopped in the opposite order: workers, driver, invoker, store."""
    choices, plan = opening.choices, opening.plan
    _check_shared_service(opening)
    async with AsyncExitStack() as parts:
        url = choices.store or _default_store(choices.workers, parts)
        store = parts.enter_context(open_routed(plan, url, choices.objects))
        # A store that cannot be used is told of now, not by every query.
        await patiently(lambda: store.exists(probes(plan)), _OPENING, math.inf)
        invoker: InProcessInvoker | LambdaInvoker
        service, lambda_url = None, ""
        if choices.workers == "inprocess":
            invoker = _in_process(opening, store)
        elif choices.workers == "local":
            service, lambda_url = await _local_functions(opening, url, parts)
            invoker = LambdaInvoker(lambda_url, REGION, _LOCAL, _CONNECTIONS)
        else:
            invoker = _deployed()
        if choices.driver.startswith("stepfunctions"):
            parts.push_async_callback(invoker.close)
            driver: Driver = _state_machine(opening, lambda_url, store, parts)
        else:
            driver = _driver(opening, invoker, store, parts)
        if service is not None:
            parts.push_async_callback(service.stop)  # first: what is in flight ends, and with it what could still write
        functions = invoker if isinstance(invoker, LambdaInvoker) else None
        return Pipeline(
            *(plan, driver, loop, parts.pop_all().aclose, opening.facts, opening.settings.image_limits()),
            Probe(plan, store, functions),
            warmer=functions,
            cache=ResultCache(store, plan, choices.cache_s) if choices.cache_s else None,
        )
    raise AssertionError("unreachable: the exit stack swallows nothing")


def _driver(
    opening: _Opening, invoker: InProcessInvoker | LambdaInvoker, store: Store, parts: AsyncExitStack
) -> Driver:
    """Put the driver together, which is closed before its invoker."""
    plan, facts, choices = _handed_on(opening.plan, opening.choices.inline), opening.facts, opening.choices
    concurrency = facts.concurrency if choices.workers == "aws" else opening.settings.local_concurrency
    polls = choices.driver == "poll"
    tasks = PollInvoker(invoker, store) if polls else invoker
    limit = facts.async_payload_limit if polls else facts.sync_payload_limit
    shares = choices.share and not polls
    driver = PushDriver(
        plan,
        tasks,
        store,
        inline_limit=int(limit * _BASE64_SHARE),
        answer_limit=0 if polls else None,
        timeout_s=_TASK_TIMEOUT_S,
        concurrency=concurrency,
        hedge=choices.hedge,
        sharing=plan_sharing(plan, facts.memory_per_vcpu, concurrency) if shares else None,
    )
    parts.push_async_callback(tasks.close)
    parts.push_async_callback(driver.close)
    return driver


def _handed_on(plan: Plan, inline: str) -> Plan:
    """Return the plan with other ways for its stages' output, which are the driver's business alone."""
    if inline == "planned":
        return plan
    last = plan.stages[-1]
    path = INLINE if inline == "always" else CACHE
    stages = [
        stage if stage is last or stage.inline == (path == INLINE) else replace(stage, path=path)
        for stage in plan.stages
    ]
    return replace(plan, stages=tuple(stages))


def _state_machine(opening: _Opening, lambda_url: str, store: Store, parts: AsyncExitStack) -> StepFunctionsDriver:
    """Put the Step Functions driver together: on a service of its own for local functions, else on the machine set."""
    plan, settings = opening.plan, opening.settings
    kind = "express" if opening.choices.driver.endswith("express") else "standard"
    server = None
    if lambda_url:
        functions = local_functions(plan)
        definition = compile_plan(
            *(plan, functions),
            express=kind == "express",
            task_timeout_s=_TASK_TIMEOUT_S,
            timeout_s=_EXECUTION_S[kind],
        )
        server = StepFunctionsServer(kind, itertools.chain(*functions), lambda_url, definition)
        client, arn = connect(REGION, endpoint=server.endpoint, credentials=_LOCAL), server.arn
    elif arn := settings.state_machine:
        client = connect(arn.split(":")[3])
    else:
        raise UsageError("--driver stepfunctions with --workers aws: set SERFER_STATE_MACHINE to the machine's ARN")
    driver = StepFunctionsDriver(plan, store, client, arn, kind=kind)
    parts.push_async_callback(driver.close)
    if server is not None:
        parts.callback(server.stop)  # before the driver, which would wait for executions to end
    return driver


def _default_store(workers: str, parts: AsyncExitStack) -> str:
    if workers == "inprocess":
        return "memory://"
    server = RedisServer()
    parts.callback(server.stop)
    return server.url


def _in_process(opening: _Opening, store: Store) -> InProcessInvoker:
    from lambdas.worker import Worker  # noqa: PLC0415 - it imports ONNX Runtime, which only workers in process need

    worker = Worker(opening.plan, opening.directory, store, "inprocess", threads=1, init_ms=0.0)
    return InProcessInvoker(worker.run, os.cpu_count() or 1, worker.run_shared, worker.reply)


def _deployed() -> LambdaInvoker:
    """Return an invoker of deployed functions; raises UnavailableError where boto3 finds no region or credentials."""
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - only deployed functions need botocore's sessions
    from botocore.session import get_session  # noqa: PLC0415 - same

    session = get_session()
    try:
        meta = session.create_client("lambda").meta
        credentials = session.get_credentials()
    except ValueError as error:  # of an address that is none
        raise UsageError(f"--workers aws: {error}: correct AWS_ENDPOINT_URL_LAMBDA") from error
    except BotoCoreError as error:
        reason = str(error).rstrip(".")
        raise UnavailableError(
            f"--workers aws: {reason}: set AWS_DEFAULT_REGION, or AWS_PROFILE to one there is"
        ) from error
    if credentials is None:
        raise UnavailableError("--workers aws: no credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret")
    return LambdaInvoker(meta.endpoint_url, meta.region_name, credentials, _CONNECTIONS)


def local_service(
    plans: Iterable[tuple[Plan, Path]],
    store: str,
    settings: Settings,
    *,
    objects: str | None = None,
    faults: Faults | None = None,
    on_log: Callable[[str], None] | None = None,
) -> LambdaService:
    """Return a local Lambda service, not started yet, with the functions of several plans in their directories.

    All of them use the store at the URL `store`, and the second one at `objects` if there is one. `on_log` gets every
    line that a worker writes.
    """
    cache, urls = settings.cache_dir, f"{store} {objects or ''}"
    variables = {"SERFER_STORE": store, "POWERTOOLS_LOG_LEVEL": "WARNING", **_access(urls)}
    if objects:
        variables["SERFER_OBJECT_STORE"] = objects
    with _cache_in_use(cache):
        plugin = distribution(urls)
        functions = [
            FunctionConfig(
                name=plan.function(*part),
                directory=function_directory(plan, directory, *part, cache, plugin),
                handler=HANDLER,
                memory_mb=plan.stages[part[0]].memory_mb,
                timeout_s=_TASK_TIMEOUT_S,
                environment=variables,
            )
            for plan, directory in {plan.digest: (plan, directory) for plan, directory in plans}.values()
            for part in plan.functions
        ]
        runtime = runtime_directory(cache / "runtime")
    return LambdaService(
        functions,
        facts=settings.facts().functions,
        runtime=runtime,
        concurrency=settings.local_concurrency,
        port=settings.local_port,
        on_log=on_log,
        faults=faults,
    )


async def start_service(service: LambdaService) -> None:
    """Start a local Lambda service; raises UnavailableError where its port is taken."""
    try:
        await service.start()
    except OSError as error:
        raise UnavailableError(
            f"the local Lambda service cannot listen at {service.url}: {error.strerror}: set SERFER_LOCAL_PORT"
        ) from error


def _check_shared_service(opening: _Opening) -> None:
    """Refuse what cannot be chosen for functions that were started by somebody else."""
    choices = opening.choices
    if choices.workers != "local" or not opening.settings.local_url:
        return
    if choices.store is None:
        raise UsageError("SERFER_LOCAL_URL needs --store: the URL of the store that its functions were started with")
    if opening.faults is not None:
        raise UsageError("faults are those of a local Lambda service of one's own: unset SERFER_LOCAL_URL")


async def _local_functions(opening: _Opening, store: str, parts: AsyncExitStack) -> tuple[LambdaService | None, str]:
    """Return the local Lambda service and its URL: one of our own, unless SERFER_LOCAL_URL names one that runs."""
    settings, plan = opening.settings, opening.plan
    if settings.local_url:
        await asyncio.to_thread(check_functions, settings.local_url, plan)
        return None, settings.local_url
    choices, faults = opening.choices, opening.faults
    service = local_service([(plan, opening.directory)], store, settings, objects=choices.objects, faults=faults)
    await start_service(service)
    parts.push_async_callback(service.stop)  # also where what follows fails
    return service, service.url


def _access(urls: str) -> dict[str, str]:
    """Return what local functions need beside their stores' URLs, where AWS gives deployed ones a role."""
    return aws_access() if "s3" in schemes(urls) or "iam=" in unquote(urls) else {}


@contextmanager
def _cache_in_use(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError(f"SERFER_CACHE_DIR: {cache} cannot be used: {reason}") from error
