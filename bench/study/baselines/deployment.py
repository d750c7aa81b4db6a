"""Baselines under load: their functions on the local Lambda service, in packages like ours with other handlers."""

from __future__ import annotations

import hashlib
import os
import shutil
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from serfer.build_cache import assembled, in_use
from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.core.plan import ZIP, Plan
from serfer.core.plan.layout import PLAN_FILE
from serfer.local.lambda_.access import random_access
from serfer.local.lambda_.function import FunctionConfig
from serfer.local.lambda_.runtime import runtime_directory
from serfer.local.lambda_.service import LambdaService
from serfer.local.servers.redis import RedisServer
from serfer.packaging.bundle import code_stamp, dependencies, function_directory
from serfer.pipeline.event_loop import LoopThread
from serfer.plan_directory import check_artefacts, load_plan
from serfer.settings import Settings
from serfer_bench.core.environments import copy_package
from serfer_bench.core.system import Logits, Pixels, System

TIMEOUT_S = 60.0
_HANDLERS = "serfer_bench.study.baselines.handlers"
T = TypeVar("T")


def package(plan: Plan, directory: Path, parts: Sequence[tuple[int, int]], cache: Path) -> Path:
    """Return a function's package directory: the handlers, and the files of these (stage, number) of the plan."""
    if any(stage.weights_in != ZIP for stage in plan.stages):
        raise UsageError("baselines have their weights in zips, and this plan does not: split with --set weights=zip")
    base = dependencies(cache)
    bases = [function_directory(plan, directory, *part, base) for part in parts] or [base]
    name = "\0".join([plan.digest, code_stamp((_HANDLERS,)), *(base.name for base in bases)])
    target = cache / "functions" / f"baseline-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
    if in_use(target):
        return target
    with assembled(target) as fresh:
        for base in bases:
            shutil.copytree(base, fresh, copy_function=_link, dirs_exist_ok=True)
        if not parts:
            shutil.copyfile(directory / PLAN_FILE, fresh / PLAN_FILE)
        copy_package(_HANDLERS, fresh)
    return target


def _link(source: str, target: str) -> None:
    if not Path(target).exists():
        os.link(source, target)


class LocalStack:
    """Redis and the Lambda service as our own local pipelines start them; `close` ends what was started."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.access = random_access()
        self._parts = ExitStack()
        self._loop = LoopThread()
        self._parts.callback(self._loop.close)

    def run(self, build: Callable[[], T]) -> T:
        async def run() -> T:
            return build()

        return self._loop.wait(run())

    def start_redis(self) -> str:
        server = self.run(RedisServer)
        self._parts.callback(server.stop)
        return server.url

    def start_service(self, functions: Sequence[FunctionConfig]) -> str:
        service = LambdaService(
            functions,
            facts=self._settings.facts().functions,
            runtime=runtime_directory(self._settings.cache_dir / "runtime"),
            concurrency=self._settings.local_concurrency,
            port=self._settings.local_port,
            access=self.access,
        )
        try:
            self._loop.wait(service.start())
        except OSError as error:
            raise UnavailableError(f"the Lambda service cannot listen at {service.url}: {error.strerror}") from error
        self._parts.callback(lambda: self._loop.wait(service.stop()))
        return service.url

    def close(self) -> None:
        self._parts.close()


def queries_at_once(chosen: int | None, tasks: int, settings: Settings) -> int:
    """Return how many queries may be in flight, by default all that the concurrency limit never refuses a task of.

    Each has `tasks` tasks at once. A refused event waits for a second, and a master whose workers are refused fails.
    Raises UsageError where more are chosen.
    """
    limit = settings.local_concurrency
    most = limit // tasks
    in_flight = most if chosen is None else chosen
    if not 1 <= in_flight <= most:
        raise UsageError(
            f"{in_flight} queries in flight, {tasks} tasks each: SERFER_LOCAL_CONCURRENCY={limit} is enough for "
            f"{most}; raise it, or have fewer in flight"
        )
    return in_flight


class Baseline(System):
    """A system under load: `in_flight` threads each wait for the answer to a query.

    By default there are as many as never have an invocation refused. Raises what opening a pipeline raises, and
    UsageError for a plan with gangs: functions of baselines hold one stage each.
    """

    def __init__(self, directory: Path, settings: Settings, in_flight: int | None) -> None:
        self.plan = load_plan(directory)
        if gangs := len(self.plan.gangs):
            raise UsageError(f"{self.name} runs stages, this plan has {gangs} gangs: split with --set gang=never")
        check_artefacts(self.plan, directory)
        self.in_flight = queries_at_once(in_flight, self._tasks_at_once(), settings)
        self._stack = LocalStack(settings)
        self._queries = ThreadPoolExecutor(self.in_flight, thread_name_prefix=self.name)
        try:
            self._start(directory, settings)
        except BaseException:
            self.close()
            raise

    def submit(self, pixels: Pixels) -> Future[Logits]:
        check_pixels(self.plan, pixels)
        return self._queries.submit(self._run, pixels)

    @abstractmethod
    def _tasks_at_once(self) -> int: ...

    @abstractmethod
    def _start(self, directory: Path, settings: Settings) -> None: ...

    @abstractmethod
    def _run(self, pixels: Pixels) -> Logits: ...


def check_pixels(plan: Plan, pixels: NDArray[Any]) -> None:
    shape = plan.input
    wanted = (shape.height, shape.width, shape.channels)
    if pixels.dtype != np.uint8 or pixels.ndim != 1 + len(wanted) or pixels.shape[1:] != wanted or not len(pixels):
        raise InputError(
            f"the batch is {pixels.dtype} with shape {pixels.shape}; this plan takes "
            f"(N, {shape.height}, {shape.width}, {shape.channels}) uint8 pixels"
        )
