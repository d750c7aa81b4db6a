"""The only place that picks concrete classes: a plan directory and a few words become a running pipeline."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from serfer.core.costs.aws import LambdaFacts
from serfer.core.errors import PlanWarning, StoreUnavailableError, UsageError
from serfer.core.inline_outputs import CROP_BYTES, PAYLOAD_SHARE
from serfer.core.keys import NO_RESULT
from serfer.core.plan import CACHE, INLINE, Plan, Preprocess
from serfer.core.run_machine import Retry
from serfer.drivers.batching import plan_batching
from serfer.drivers.dispatching.observed_invoker import ObservedInvoker
from serfer.drivers.dispatching.plan_policy import PlanPolicy
from serfer.drivers.dispatching.prewarming import Prewarming
from serfer.drivers.dispatching.priority_semaphore import PrioritySemaphore
from serfer.drivers.driver import Driver
from serfer.drivers.inprocess import InProcessInvoker
from serfer.drivers.invoker import Invoker
from serfer.drivers.poll import PollInvoker
from serfer.drivers.push import PushDriver
from serfer.drivers.query_store import retry_store
from serfer.drivers.stepfunctions.driver import StepFunctionsDriver
from serfer.fleet.keep_warm import KeepWarm, WarmOptions, open_keep_warm
from serfer.fleet.open_pool import Routing, RunningPool, open_pool
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.health import FunctionGauge, Probe, probes
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.pipeline.plan_choice import OnePlan, TwoPlans, terms
from serfer.pipeline.result_cache import Keeper, ResultCache
from serfer.pipeline.warm import Warmer, keep_warm
from serfer.plan_directory import COLD_DIRECTORY, check_artefacts, is_network, load_cold_plan, load_plan
from serfer.results import Results
from serfer.settings import Settings, load_settings
from serfer.storage import Store, open_store, schemes
from serfer.storage.routed import open_routed
from serfer.system import processors
from serfer.wiring.deployed import Deployment, deployed_functions, find_deployment
from serfer.wiring.in_process import files_of, in_process_invoker
from serfer.wiring.options import TASK_TIMEOUT_S, Choices, workers_of

if TYPE_CHECKING:
    from serfer.drivers.lambda_http import LambdaInvoker
    from serfer.local.lambda_.service import LambdaService
    from serfer.splitter.network.named_models import NamedModel
    from serfer.wiring.local import LocalLambda

_OPENING = Retry(unavailable_attempts=4)


def open_pipeline(  # noqa: PLR0913 - what can be chosen, by name
    directory: Path | str | NamedModel,
    *,
    store: str | None = None,
    workers: str | None = None,
    driver: str = "push",
    object_store: str | None = None,
    stack: str | Deployment | None = None,
    inline: str = "planned",
    gangs: str = "planned",
    share: bool = True,
    hedge: bool = True,
    prewarm: str | None = None,
    cold_plan: str | None = None,
    cache_s: float = 0.0,
    results: str | None = None,
    routing: Routing | None = None,
    keep_warm: str | None = None,
    example: Any | None = None,  # noqa: ANN401 - an array or tensor
    preprocess: Preprocess | Path | str | None = None,
    labels: Sequence[str] | Path | str = (),
    activation: str | None = None,
    sizes: str | None = None,
    settings: Settings | None = None,
) -> Pipeline:
    """Open a plan directory for queries, or an .onnx file or a `NamedModel`, which is run as it is, in one task.

    `workers` is "inprocess" (threads of this process), "local" (the local Lambda service, one process for each
    execution environment) or "aws" (the plan's functions as deployed, in boto3's region and with its credentials). By
    default it is "inprocess", and "aws" where `stack` names the CloudFormation stack of a deployment (serfer deploy
    package), which says what its store, its functions and its state machine are called. A stack that was asked about
    already (find_deployment) is not asked again.

    `store` is a URL (docs/reference/stores.md); by default workers in process share memory, and local ones a Redis
    server that is started for them. `object_store` is the URL of a second one, for the stages whose path is "objects":
    without it they use the first. `driver` is "push", "poll", "stepfunctions" or "stepfunctions-express"
    (docs/reference/engines.md).

    `inline` is "planned" (what the plan says rides along does), "always" (whatever payloads can carry) or "never".
    `gangs` is "planned" (the plan's gangs run as such where the store has inboxes) or "never" (their stages run one by
    one). With `share`, queries that wait for the same tile of a fully connected stage may be one invocation
    (drivers/batching.py); with `hedge`, a task that is late gets a duplicate. `prewarm` is "auto" (the first
    query, and one after a time without any, warms the functions of later stages while its first stage runs; only the
    push driver does) or "never"; by default it is what SERFER_PREWARM says. `cold_plan` is "auto" (queries that would
    find the plan's functions cold run on the directory's cold plan, where it has one; only the push driver does) or
    "never"; by default it is what SERFER_COLD_PLAN says. Answers are kept, and given again to the same question, for
    `cache_s` seconds. `results` is the URL of the store where answers are kept for their owner
    (`Pipeline.run_to_result`), SERFER_RESULTS unless given; functions that run already have their own. `routing` sends
    queries to a pool of instances too (docs/how-to/routing.md). `keep_warm` is "lsth", "hybrid" or seconds: windows
    by which functions are pinged for as long as the pipeline is open (docs/how-to/keep-warm.md), by default what
    SERFER_KEEP_WARM says.
    `example`, `preprocess`, `labels` and `activation` say what a network does not, as `split` has them; a plan has
    its own. The network's plan is kept in the cache. Without `preprocess`, images are stretched to the input's size, as
    RGB times 1/255 (PlanWarning). With `sizes`, such as "32..2016x32..2016,multiple=32", it takes images of many
    sizes, a query of one (`whole_plan`).

    Every artefact's digest is checked first; with deployed functions, which have their own, plan.json is enough. Raises
    PlanError for a directory that is not whole or a plan that is not deployed, ModelError for a file that cannot be
    run, UsageError for a pair that cannot work, UnavailableError where something does not start; then nothing is left
    running.
    """
    named = stack.stack if isinstance(stack, Deployment) else stack
    choices = Choices(
        store,
        workers_of(workers, named),
        driver,
        object_store,
        inline,
        gangs,
        share=share,
        hedge=hedge,
        prewarm=prewarm,
        cold_plan=cold_plan,
        cache_s=cache_s,
        stack=named,
        results=results,
        keep_warm=keep_warm,
    )
    deployment = stack if isinstance(stack, Deployment) else None
    settings = settings or load_settings()
    choices.check()
    if is_network(directory):
        place = _of_network(directory, choices, settings, example, preprocess, labels, activation, sizes)
    else:
        place = Path(str(directory))
        if not (example is None and preprocess is None and not labels and activation is None and sizes is None):
            raise UsageError(f"example, preprocess, labels, activation and sizes describe a network; {place} is a plan")
    opening = _read(place, choices, settings, deployment, routing)
    loop, parts = LoopThread(), AsyncExitStack()
    try:
        return Pipeline(loop.wait(_assemble(opening, parts, loop)))
    except BaseException:
        loop.close(parts.aclose)  # an interrupt may come when the pipeline is complete but not yet returned
        raise


def _of_network(
    network: Path | str | NamedModel,
    choices: Choices,
    settings: Settings,
    example: Any | None,  # noqa: ANN401 - same
    preprocess: Preprocess | Path | str | None,
    labels: Sequence[str] | Path | str,
    activation: str | None,
    sizes: str | None,
) -> Path:
    if choices.workers == "aws":
        raise UsageError(
            f"{network} has no functions in AWS: split it, deploy the plan (serfer deploy package), open that"
        )
    from serfer.splitter.network.description import Description  # noqa: PLC0415 - same
    from serfer.splitter.network.named_models import NamedModel, is_named  # noqa: PLC0415 - same
    from serfer.wiring.network_file import assumption, plan_of_file  # noqa: PLC0415 - drivers in AWS have no splitter

    array = None if example is None else np.asarray(example)
    description = Description.of(preprocess, labels, activation)
    if not isinstance(network, NamedModel):
        network = NamedModel(str(network)) if is_named(str(network)) else Path(network)
    directory = plan_of_file(network, settings, lambda _step: None, array, description, sizes)
    if preprocess is None and (said := assumption(load_plan(directory))):
        warnings.warn(said, PlanWarning, stacklevel=3)
    return directory


async def open_on(
    loop: LoopThread,
    directory: Path,
    choices: Choices,
    settings: Settings,
    deployment: Deployment | None = None,
    routing: Routing | None = None,
) -> AsyncPipeline:
    """Open a plan directory as `open_pipeline` does, for a coroutine; what blocks is done in threads.

    The pipeline is on `loop`, which is closed with it, and where it cannot be opened.
    """
    try:
        opening = await asyncio.to_thread(_read, directory, choices, settings, deployment, routing)
        return await loop.run(_assemble(opening, AsyncExitStack(), loop))
    except BaseException:
        await asyncio.to_thread(loop.close)
        raise


def _read(
    directory: Path | str, choices: Choices, settings: Settings, deployment: Deployment | None, routing: Routing | None
) -> _Opening:
    choices.check()
    path = Path(directory)
    plan = load_plan(path)
    windows = choices.keep_warm or (settings.keep_warm if choices.workers != "inprocess" else None)
    choices = replace(choices, results=choices.results or settings.results, keep_warm=windows)
    choices.check()
    cold, reason = find_cold_plan(path, plan, choices, settings)
    if choices.workers == "inprocess":
        path = files_of(plan, path, settings)
    elif choices.workers == "local":
        check_artefacts(plan, path)
    opening = _Opening(plan, path, choices, settings, routing, cold, reason)
    if choices.stack is None:
        return opening
    return _in_stack(deployment or find_deployment(choices.stack), opening)


def _in_stack(deployment: Deployment, opening: _Opening) -> _Opening:
    choices = opening.choices
    deployment.check(opening.plan, choices.driver)
    if opening.cold:
        cold, reason = deployed_cold_plan(opening.cold, deployment)
        opening = replace(opening, cold=cold, plan_reason=reason)
    complete = replace(choices, store=choices.store or deployment.store)
    complete.check()
    advice = "" if choices.store else f"; {deployment.advice}"
    return replace(opening, choices=complete, settings=deployment.settings(opening.settings), store_advice=advice)


def find_cold_plan(path: Path, plan: Plan, choices: Choices, settings: Settings) -> tuple[Plan | None, str]:
    """Return the cold plan of a plan directory, if queries can use it, and else why they cannot, empty without one.

    Raises PlanError for one that is not whole, or not of the same network.
    """
    if (choices.cold_plan or settings.cold_plan) == "never":
        return None, _unused("it was turned off") if (path / COLD_DIRECTORY).exists() else ""
    cold = load_cold_plan(path, plan)
    if cold is None:
        return None, ""
    if choices.workers == "inprocess":
        return None, _unused("workers in process have no cold starts")
    if choices.driver != "push":
        return None, _unused(f"only the push driver chooses between plans, not {choices.driver}")
    facts = settings.facts().functions
    concurrency, least = concurrency_of(choices, settings, facts), terms(plan, cold, 0, facts).least
    if concurrency < least:
        return None, _unused(f"it needs {least} invocations at once, the concurrency is {concurrency}")
    if choices.workers == "local":
        check_artefacts(cold, path / COLD_DIRECTORY)
    return cold, ""


def deployed_cold_plan(cold: Plan, deployment: Deployment) -> tuple[Plan | None, str]:
    if cold.digest[:12] in deployment.plans:
        return cold, ""
    return None, _unused(f"the stack {deployment.stack} has not the functions of {cold.digest[:12]}")


def concurrency_of(choices: Choices, settings: Settings, facts: LambdaFacts) -> int:
    return facts.concurrency if choices.workers == "aws" else settings.local_concurrency


def _unused(why: str) -> str:
    return f"The cold plan is not used: {why}."


@dataclass(frozen=True)
class _Opening:
    """The parts of a pipeline; `plan_reason` says why a cold plan that there is is not used.

    `store_advice` ends the error of a store that does not answer.
    """

    plan: Plan
    directory: Path
    choices: Choices
    settings: Settings
    routing: Routing | None
    cold: Plan | None
    plan_reason: str
    store_advice: str = ""

    @property
    def facts(self) -> LambdaFacts:
        return self.settings.facts().functions


async def _assemble(opening: _Opening, parts: AsyncExitStack, loop: LoopThread) -> AsyncPipeline:
    try:
        return await _Assembly(opening, parts).pipeline(loop)
    except BaseException as error:
        await parts.aclose()
        if isinstance(error, StoreUnavailableError) and opening.store_advice:
            raise StoreUnavailableError(f"{error}{opening.store_advice}") from error
        raise


@dataclass(frozen=True)
class _Workers:
    """The invoker of functions, and the local Lambda service that has them: where it is, and it, if it is our own."""

    invoker: InProcessInvoker | LambdaInvoker
    running: LocalLambda | None = None
    service: LambdaService | None = None


@dataclass(frozen=True)
class _Stores:
    """The store of a driver's queries, at `url`, and that of results, if there is one."""

    main: Store
    url: str
    results: Store | None


@dataclass(frozen=True)
class _Assembly:
    """Starts the parts of a pipeline: store, invoker, driver, workers; `parts` stops them in the opposite order."""

    opening: _Opening
    parts: AsyncExitStack

    async def pipeline(self, loop: LoopThread) -> AsyncPipeline:
        opening = self.opening
        choices, plan, settings = opening.choices, opening.plan, opening.settings
        url = choices.store or self._default_store()
        stores = _Stores(await self._store(plan, url), url, await self._results())
        store, results = stores.main, stores.results
        workers = await self._workers(stores)
        # The one bound of what is in flight: what waited behind it would wait out of turn, its clock running.
        slots = PrioritySemaphore(min(concurrency_of(choices, settings, opening.facts), workers.invoker.at_once))
        plans = await self._plans(workers, stores, slots)
        if workers.service is not None:
            # Stopped first: what is in flight ends, and with it what could still write.
            self.parts.push_async_callback(workers.service.stop)
        functions = None if isinstance(workers.invoker, InProcessInvoker) else workers.invoker
        warmer = plans.warmer if isinstance(plans, TwoPlans) else functions
        pool = None
        if opening.routing is not None:
            ping = partial(keep_warm, plan, warmer) if warmer else None
            pool = await open_pool(opening.routing, plan, opening.directory, store, url, settings, ping)
            plans = plans.counted(pool.pool.counted)
        warmth = await self._keep_warm(warmer, store, pool)
        if warmth is not None:
            plans = plans.counted(warmth.in_flight.counted)
        return AsyncPipeline(
            plan=plan,
            driver=None,
            loop=loop,
            close=self.parts.aclose,
            facts=opening.facts,
            limits=settings.image_limits(),
            probe=Probe(plan, store, functions, opening.cold),
            warmer=warmer,
            cache=ResultCache(store, plan, choices.cache_s) if choices.cache_s else None,
            target=pool,
            plans=plans,
            keeper=Keeper(Results(results), settings.results_ttl_s) if results else None,
            gauge=None
            if choices.driver.startswith("stepfunctions")
            else FunctionGauge(slots, functions, of_account=choices.workers == "aws"),
            warmth=warmth,
        )

    async def _keep_warm(self, warmer: Warmer | None, store: Store, pool: RunningPool | None) -> KeepWarm | None:
        opening = self.opening
        if not opening.choices.keep_warm or warmer is None:
            return None
        options = WarmOptions(
            opening.choices.keep_warm,
            concurrency_of(opening.choices, opening.settings, opening.facts),
            opening.facts.kept_warm,
        )
        paid = pool.pool.pay_pings if pool else lambda _: None  # without a pool nobody limits dollars
        ping = partial(keep_warm, opening.plan, warmer)
        warmth = await open_keep_warm(options, opening.plan, store, ping, paid)
        self.parts.push_async_callback(warmth.close)
        return warmth

    def _default_store(self) -> str:
        if self.opening.choices.workers == "inprocess":
            return "memory://"
        from serfer.wiring.local import local_store  # noqa: PLC0415 - not there in AWS

        return local_store(self.parts)

    async def _store(self, plan: Plan, url: str) -> Store:
        return await self._open(partial(open_routed, plan, url, self.opening.choices.objects), probes(plan))

    async def _results(self) -> Store | None:
        url = self.opening.choices.results
        return await self._open(partial(open_store, url), [NO_RESULT.manifest_key]) if url else None

    async def _open(self, opener: Callable[[], Store], keys: Sequence[str]) -> Store:
        store = self.parts.enter_context(await asyncio.to_thread(opener))
        await retry_store(lambda: store.exists(keys), _OPENING, math.inf)
        return store

    async def _workers(self, stores: _Stores) -> _Workers:
        opening = self.opening
        if opening.choices.workers == "inprocess":
            given = opening.plan, opening.directory, stores.main, opening.settings, stores.results
            return _Workers(await asyncio.to_thread(in_process_invoker, *given))
        if opening.choices.workers == "aws":
            return _Workers(await deployed_functions(opening.plan, opening.settings, opening.cold))
        from serfer.wiring.local import local_invoker, local_workers  # noqa: PLC0415 - not there in AWS

        plans = [(opening.plan, opening.directory)]
        if opening.cold:
            plans.append((opening.cold, opening.directory / COLD_DIRECTORY))
        service, running = await local_workers(plans, stores.url, opening.choices, opening.settings, self.parts)
        return _Workers(local_invoker(running), running, service)

    async def _plans(self, workers: _Workers, stores: _Stores, slots: PrioritySemaphore) -> OnePlan | TwoPlans:
        opening, invoker = self.opening, workers.invoker
        plan, cold, facts = opening.plan, opening.cold, opening.facts
        if opening.choices.driver.startswith("stepfunctions"):
            self.parts.push_async_callback(invoker.close)
            return OnePlan(plan, self._state_machine(workers.running, stores.main), opening.plan_reason)
        if cold is None or isinstance(invoker, InProcessInvoker):
            tasks = PollInvoker(invoker, stores.main) if opening.choices.driver == "poll" else invoker
            self.parts.push_async_callback(tasks.close)  # also where the driver refuses the plan
            return OnePlan(plan, self._driver(plan, tasks, stores, slots), opening.plan_reason)
        self.parts.push_async_callback(invoker.close)
        policy = PlanPolicy(terms(plan, cold, slots.limit, facts))
        observed = ObservedInvoker(invoker, policy.environments)
        for_cold = replace(stores, main=await self._store(cold, stores.url))
        ways = (
            OnePlan(plan, self._driver(plan, observed, stores, slots)),
            OnePlan(cold, self._driver(cold, invoker, for_cold, slots)),
        )
        plans = TwoPlans(*ways, policy, observed, slots, facts)
        self.parts.push_async_callback(plans.close)
        return plans

    def _driver(self, plan: Plan, tasks: Invoker, stores: _Stores, slots: PrioritySemaphore) -> Driver:
        choices, settings, facts = self.opening.choices, self.opening.settings, self.opening.facts
        plan = _with_inline(plan, choices.inline)
        concurrency, local = concurrency_of(choices, settings, facts), choices.workers != "aws"
        at_once = min(concurrency, processors()) if local else concurrency  # of more here, none would end sooner
        polls, in_process = choices.driver == "poll", choices.workers == "inprocess"
        limit = facts.async_payload_limit if polls else facts.sync_payload_limit
        shares = choices.share and not polls
        driver = PushDriver(
            plan,
            tasks,
            stores.main,
            inline_limit=int(limit * PAYLOAD_SHARE),
            answer_limit=0 if polls else None,
            crop_limit=None if in_process or "s3" in schemes(stores.url) else CROP_BYTES,
            timeout_s=TASK_TIMEOUT_S,
            retry=Retry(throttled_attempts=settings.throttled_attempts),
            slots=slots,
            hedge=choices.hedge and not (in_process and settings.function_memory_mb),  # all of its vCPUs are busy
            gangs=choices.gangs == "planned" and not polls,
            batching=plan_batching(plan, facts.memory_per_vcpu, at_once) if shares else None,
            prewarming=Prewarming(facts.kept_warm, facts.init_limit)
            if (choices.prewarm or settings.prewarm) == "auto"
            else None,
            results=stores.results,
        )
        self.parts.push_async_callback(driver.close)
        return driver

    def _state_machine(self, running: LocalLambda | None, store: Store) -> StepFunctionsDriver:
        plan, settings = self.opening.plan, self.opening.settings
        kind = "express" if self.opening.choices.driver.endswith("express") else "standard"
        server = None
        if running is not None:
            from serfer.wiring.local import local_machine  # noqa: PLC0415 - not there in AWS

            server, client = local_machine(plan, kind, running)
            arn = server.arn
        elif arn := settings.state_machine:
            from serfer.drivers.stepfunctions.client import connect  # noqa: PLC0415 - for a machine of AWS alone

            client = connect(arn.split(":")[3])
        else:
            raise UsageError("engine=stepfunctions with --workers aws: set SERFER_STATE_MACHINE to the machine's ARN")
        driver = StepFunctionsDriver(plan, store, client, arn, kind=kind)
        self.parts.push_async_callback(driver.close)
        if server is not None:
            self.parts.callback(server.stop)  # before the driver, which would wait for executions to end
        return driver


def _with_inline(plan: Plan, inline: str) -> Plan:
    if inline == "planned":
        return plan
    last = plan.stages[-1]
    path = INLINE if inline == "always" else CACHE
    stages = [
        stage if stage is last or stage.inline == (path == INLINE) else replace(stage, path=path)
        for stage in plan.stages
    ]
    return replace(plan, stages=tuple(stages))
