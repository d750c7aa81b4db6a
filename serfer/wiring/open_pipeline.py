"""The only place that picks concrete classes: a plan directory and a few words become a running pipeline."""

from __future__ import annotations

import math
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from drivers.batching import plan_batching
from drivers.dispatching.prewarming import Prewarming
from drivers.driver import Driver
from drivers.inprocess import InProcessInvoker
from drivers.lambda_http import LambdaInvoker
from drivers.poll import PollInvoker
from drivers.push import PushDriver
from drivers.query_store import retry_store
from drivers.stepfunctions.client import connect
from drivers.stepfunctions.driver import StepFunctionsDriver
from serfer.core.costs.aws import LambdaFacts
from serfer.core.errors import StoreUnavailableError, UsageError
from serfer.core.inline import CROP_BYTES
from serfer.core.plan import CACHE, INLINE, Plan
from serfer.core.run_machine import Retry
from serfer.fleet.open_pool import Routing, open_pool
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.health import Probe, probes
from serfer.pipeline.pipeline import Pipeline
from serfer.pipeline.result_cache import ResultCache
from serfer.plan_directory import check_artefacts, load_plan
from serfer.settings import Settings, load_settings
from serfer.wiring.deployed import Deployment, deployed_functions, find_deployment
from serfer.wiring.in_process import files_of, in_process_invoker
from serfer.wiring.options import TASK_TIMEOUT_S, Choices, workers_of
from storage import Store, schemes
from storage.routed import open_routed

if TYPE_CHECKING:
    from serfer.local.lambda_.faults import Faults
    from serfer.wiring.local import LocalLambda

_BASE64_SHARE = 0.7  # of a payload's limit: base64 takes 4/3, and the task's other fields need room
_OPENING = Retry(unavailable_attempts=4)


def open_pipeline(  # noqa: PLR0913 - what can be chosen, by name
    directory: Path | str,
    *,
    store: str | None = None,
    workers: str | None = None,
    driver: str = "push",
    object_store: str | None = None,
    stack: str | None = None,
    inline: str = "planned",
    gangs: str = "planned",
    share: bool = True,
    hedge: bool = True,
    prewarm: str | None = None,
    cache_s: float = 0.0,
    routing: Routing | None = None,
    faults: Faults | None = None,
    settings: Settings | None = None,
) -> Pipeline:
    """Open a plan directory for queries.

    `workers` is "inprocess" (threads of this process), "local" (the local Lambda service, one process for each
    execution environment) or "aws" (the plan's functions as deployed, in boto3's region and with its credentials). By
    default it is "inprocess", and "aws" where `stack` names the CloudFormation stack of a deployment (serfer package),
    which says what its store, its functions and its state machine are called.

    `store` is a URL (docs/reference/stores.md); by default workers in process share memory, and local ones a Redis
    server that is started for them. `object_store` is the URL of a second one, for the stages whose path is "objects":
    without it they use the first. `driver` is "push", "poll", "stepfunctions" or "stepfunctions-express"
    (docs/reference/engines.md).

    `inline` is "planned" (what the plan says rides along does), "always" (whatever payloads can carry) or "never".
    `gangs` is "planned" (the plan's gangs run as such where the store has inboxes) or "never" (their stages run one by
    one). With `share`, queries that wait for the same tile of a fully connected stage may be one invocation
    (drivers/batching.py); with `hedge`, a task that is late gets a duplicate. `prewarm` is "auto" (the first
    query, and one after a time without any, warms the functions of later stages while its first stage runs; only the
    push driver does) or "never"; by default it is what SERFER_PREWARM says. Answers are kept, and given again to the
    same question, for `cache_s` seconds. `routing` sends queries to a pool of instances too (docs/how-to/routing.md).
    `faults` are what the local Lambda service does wrong on purpose.

    Every artefact's digest is checked first; with deployed functions, which have their own, plan.json is enough. Raises
    PlanError for a directory that is not whole or a plan that is not deployed, UsageError for a pair that cannot work,
    UnavailableError where something does not start; then nothing is left running.
    """
    workers = workers_of(workers, stack)
    choices = Choices(
        store,
        workers,
        driver,
        object_store,
        inline,
        gangs,
        share=share,
        hedge=hedge,
        prewarm=prewarm,
        cache_s=cache_s,
        stack=stack,
    )
    choices.check()
    path = Path(directory)
    plan = load_plan(path)
    settings = settings or load_settings()
    if choices.workers == "inprocess":
        path = files_of(plan, path, settings)
    elif choices.workers == "local":
        check_artefacts(plan, path)
    if stack is None:
        return _opened(_Opening(plan, path, choices, settings, routing, faults))
    return _opened_in(find_deployment(stack), _Opening(plan, path, choices, settings, routing, faults))


def _opened_in(deployment: Deployment, opening: _Opening) -> Pipeline:
    """Open a plan in a deployment, which says what the choices and settings leave open."""
    choices = opening.choices
    deployment.check(opening.plan, choices.driver)
    complete = replace(choices, store=choices.store or deployment.store)
    complete.check()
    try:
        return _opened(replace(opening, choices=complete, settings=deployment.settings(opening.settings)))
    except StoreUnavailableError as error:
        if choices.store is not None:
            raise
        raise StoreUnavailableError(f"{error}; {deployment.advice}") from error


def _opened(opening: _Opening) -> Pipeline:
    loop = LoopThread()
    try:
        return loop.wait(_assemble(opening, loop))
    except BaseException:
        loop.close()
        raise


@dataclass(frozen=True)
class _Opening:
    """The parts of a pipeline."""

    plan: Plan
    directory: Path
    choices: Choices
    settings: Settings
    routing: Routing | None
    faults: Faults | None

    @property
    def facts(self) -> LambdaFacts:
        return self.settings.facts().functions


async def _assemble(opening: _Opening, loop: LoopThread) -> Pipeline:
    parts = AsyncExitStack()
    try:
        return await _Assembly(opening, parts).pipeline(loop)
    except BaseException:
        await parts.aclose()
        raise


@dataclass(frozen=True)
class _Assembly:
    """Starts the parts of a pipeline: store, invoker, driver, workers; `parts` stops them in the opposite order."""

    opening: _Opening
    parts: AsyncExitStack

    async def pipeline(self, loop: LoopThread) -> Pipeline:
        opening = self.opening
        choices, plan, settings = opening.choices, opening.plan, opening.settings
        url = choices.store or self._default_store()
        store = self.parts.enter_context(open_routed(plan, url, choices.objects))
        # Fail now where the store is unusable, not with every query.
        await retry_store(lambda: store.exists(probes(plan)), _OPENING, math.inf)
        driver, invoker = await self._functions(url, store)
        pool = None
        if opening.routing is not None:
            pool = await open_pool(opening.routing, plan, opening.directory, store, url, settings)
            driver = pool.pool.counted(driver)
        functions = invoker if isinstance(invoker, LambdaInvoker) else None
        return Pipeline(
            plan=plan,
            driver=driver,
            loop=loop,
            close=self.parts.pop_all().aclose,
            facts=opening.facts,
            limits=settings.image_limits(),
            probe=Probe(plan, store, functions),
            warmer=functions,
            cache=ResultCache(store, plan, choices.cache_s) if choices.cache_s else None,
            target=pool,
        )

    def _default_store(self) -> str:
        if self.opening.choices.workers == "inprocess":
            return "memory://"
        from serfer.wiring.local import local_store  # noqa: PLC0415 - not there in AWS

        return local_store(self.parts)

    async def _functions(self, url: str, store: Store) -> tuple[Driver, InProcessInvoker | LambdaInvoker]:
        """Start the plan's functions, where they are not deployed, and the driver that invokes them."""
        opening = self.opening
        service, running = None, None
        invoker: InProcessInvoker | LambdaInvoker
        if opening.choices.workers == "inprocess":
            invoker = in_process_invoker(opening.plan, opening.directory, store, opening.settings)
        elif opening.choices.workers == "local":
            from serfer.wiring.local import local_invoker, local_workers  # noqa: PLC0415 - not there in AWS

            given = [(opening.plan, opening.directory)]
            service, running = await local_workers(
                given, url, opening.choices, opening.settings, opening.faults, self.parts
            )
            invoker = local_invoker(running)
        else:
            invoker = deployed_functions(opening.plan, opening.settings)
        if opening.choices.driver.startswith("stepfunctions"):
            self.parts.push_async_callback(invoker.close)
            driver: Driver = self._state_machine(running, store)
        else:
            driver = self._driver(invoker, store, url)
        if service is not None:
            # Stopped first: what is in flight ends, and with it what could still write.
            self.parts.push_async_callback(service.stop)
        return driver, invoker

    def _driver(self, invoker: InProcessInvoker | LambdaInvoker, store: Store, url: str) -> Driver:
        """Return a driver that invokes tasks itself; it is closed before its invoker."""
        choices, settings, facts = self.opening.choices, self.opening.settings, self.opening.facts
        plan = _with_inline(self.opening.plan, choices.inline)
        concurrency = facts.concurrency if choices.workers == "aws" else settings.local_concurrency
        polls, in_process = choices.driver == "poll", choices.workers == "inprocess"
        tasks = PollInvoker(invoker, store) if polls else invoker
        limit = facts.async_payload_limit if polls else facts.sync_payload_limit
        shares = choices.share and not polls
        self.parts.push_async_callback(tasks.close)  # also where the driver refuses the plan
        driver = PushDriver(
            plan,
            tasks,
            store,
            inline_limit=int(limit * _BASE64_SHARE),
            answer_limit=0 if polls else None,
            crop_limit=None if in_process or "s3" in schemes(url) else CROP_BYTES,
            timeout_s=TASK_TIMEOUT_S,
            retry=Retry(throttled_attempts=settings.throttled_attempts),
            concurrency=concurrency,
            hedge=choices.hedge and not (in_process and settings.function_memory_mb),  # all of its vCPUs are busy
            gangs=choices.gangs == "planned" and not polls,
            batching=plan_batching(plan, facts.memory_per_vcpu, concurrency) if shares else None,
            prewarming=Prewarming(facts.kept_warm, facts.init_limit)
            if (choices.prewarm or settings.prewarm) == "auto"
            else None,
        )
        self.parts.push_async_callback(driver.close)
        return driver

    def _state_machine(self, running: LocalLambda | None, store: Store) -> StepFunctionsDriver:
        """Return a driver by Step Functions: a local service where functions are local, else the deployed machine."""
        plan, settings = self.opening.plan, self.opening.settings
        kind = "express" if self.opening.choices.driver.endswith("express") else "standard"
        server = None
        if running is not None:
            from serfer.wiring.local import local_machine  # noqa: PLC0415 - not there in AWS

            server, client = local_machine(plan, kind, running)
            arn = server.arn
        elif arn := settings.state_machine:
            client = connect(arn.split(":")[3])
        else:
            raise UsageError("--driver stepfunctions with --workers aws: set SERFER_STATE_MACHINE to the machine's ARN")
        driver = StepFunctionsDriver(plan, store, client, arn, kind=kind)
        self.parts.push_async_callback(driver.close)
        if server is not None:
            self.parts.callback(server.stop)  # before the driver, which would wait for executions to end
        return driver


def _with_inline(plan: Plan, inline: str) -> Plan:
    """Return the plan with other paths for its stages' outputs, which concern the driver alone."""
    if inline == "planned":
        return plan
    last = plan.stages[-1]
    path = INLINE if inline == "always" else CACHE
    stages = [
        stage if stage is last or stage.inline == (path == INLINE) else replace(stage, path=path)
        for stage in plan.stages
    ]
    return replace(plan, stages=tuple(stages))
