"""The Lambda handler of a stage's function; the one place of lambdas/ that reads the environment.

LAMBDA_TASK_ROOT holds plan.json and the stage's files, unless a layer holds those; SERFER_STORE is the store's URL,
SERFER_OBJECT_STORE perhaps the URL of a second one, for the stages whose path is "objects", and SERFER_RESULTS that of
the store of answers that are kept. What can fail for good
fails here, in the environment's init, and not at the first query.

A function whose weights are not in its package fetches them from SERFER_WEIGHTS (weights.py): here where that is
predicted to fit into Lambda's limit for an init, else in the first invocation, as after an init in which the bucket did
not answer. Either way the first report's `init_ms` has the time, and a line of the log.

With provisioned concurrency Lambda starts environments before there are queries, and an init may take minutes: it
builds all sessions, and the first report is of a warm environment.

With SnapStart an init's memory is copied into any number of environments, weights that it fetched and their sessions
included, each of which replaces what copies must not share: its name, random numbers, and connections to stores and
to weights.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads: unused, and a sixth of a start's processor time

from serfer.core.costs.sessions import function_session_bytes, register_arena
from serfer.core.costs.vcpus import threads
from serfer.core.errors import GangAbortedError, PlanError, SerferError, StoreUnavailableError
from serfer.core.plan import Artefact, Function, Plan
from serfer.core.wire import WarmUp, requests_in
from serfer.lambdas.artefacts import artefact_directory, functions_in, functions_to_fetch
from serfer.lambdas.deferred_init import defer_init
from serfer.lambdas.worker import Worker
from serfer.plan_directory import load_plan
from serfer.storage import open_store
from serfer.storage.routed import open_routed
from serfer.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aws_lambda_powertools.logging import Logger

    from serfer.lambdas.weights import WeightSource

_PROVISIONED = "provisioned-concurrency"
_LEVELS = "POWERTOOLS_LOG_LEVEL", "LOG_LEVEL", "AWS_LAMBDA_LOG_LEVEL"
"""The variables that the logger takes its level from."""


@functools.cache
def _logger() -> Logger:
    """Return the logger of this environment, imported when there is a line to write, which few cold starts have."""
    for name in filter(os.environ.__contains__, _LEVELS):  # Powertools compares names, which it knows in upper case
        os.environ[name] = os.environ[name].upper()
    defer_init("aws_lambda_powertools")  # a worker takes its logger, not metrics and tracing
    from aws_lambda_powertools.logging import Logger  # noqa: PLC0415 - takes a twentieth of a cold start

    return Logger(service="serfer", serialize_stacktrace=False)


@functools.cache
def _logs_details() -> bool:
    wanted = any(os.environ.get(name, "").upper() == "DEBUG" for name in _LEVELS)
    return wanted and bool(_logger().log_level <= logging.DEBUG)


def _ms_since_process_start() -> float:
    started_ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, age_s * 1000)


def _store(plan: Plan) -> Store:
    url = os.environ.get("SERFER_STORE")
    if not url:
        raise PlanError("SERFER_STORE is not set: give the function the URL of its store")
    return open_routed(plan, url, os.environ.get("SERFER_OBJECT_STORE") or None)


def _results() -> Store | None:
    url = os.environ.get("SERFER_RESULTS")
    return open_store(url) if url else None


class _Environment:
    def __init__(self, root: Path, plan: Plan) -> None:
        directory = artefact_directory(plan, root, sys.path)
        memory_mb = float(os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", plan.memory_per_vcpu))
        granted = threads(memory_mb, plan.memory_per_vcpu)
        self._to_fetch: list[Function] = functions_to_fetch(plan, directory)
        self._weights = [part.weights for part in self._to_fetch]
        self._functions = functions_in(plan, directory)
        source = _source(self._weights, memory_mb) if self._to_fetch else None
        store, results, age_ms = _store(plan), _results(), _ms_since_process_start()
        name = os.urandom(4).hex()
        room = function_session_bytes(plan, memory_mb)
        register_arena()
        self.worker = Worker(plan, directory, store, name, granted, age_ms, source, results, session_bytes=room)

    def load_at_init(self) -> None:
        """Fetch weights now, if an init is predicted to have the time; what is in the way may be gone later."""
        if not self._to_fetch:
            return
        from serfer.core.costs.aws import shipped_aws  # noqa: PLC0415 - reads a file that few environments need
        from serfer.core.costs.cold_starts import fetched_at_init  # noqa: PLC0415 - same

        if fetched_at_init(sum(weights.bytes for weights in self._weights), shipped_aws().functions):
            try:
                self.load()
            except StoreUnavailableError as error:
                _logger().warning("weights not fetched at init", reason=str(error))

    def prepare(self, plan: Plan) -> None:
        """Fetch weights and build sessions, whatever time it takes; a store that is away may be there later."""
        try:
            self.load()
            for stage, part in self._functions:
                self.worker.warm(WarmUp(plan.digest, stage, part, hold_s=0.0))
        except StoreUnavailableError as error:
            _logger().warning("not prepared at init", reason=str(error))

    def load(self) -> None:
        if self._to_fetch:
            taken_ms = self.worker.load(self._to_fetch)
            self._to_fetch = []
            fetched = sum(weights.bytes for weights in self._weights)
            _logger().info("weights fetched", bytes=fetched, ms=round(taken_ms))


def _source(weights: Sequence[Artefact], memory_mb: float) -> WeightSource:
    from serfer.lambdas.weights import WeightSource, check_memory, open_ranges  # noqa: PLC0415 - threads, which few need

    url = os.environ.get("SERFER_WEIGHTS")
    if not url:
        raise PlanError("SERFER_WEIGHTS is not set: give the function the URL of its weights")
    source = WeightSource(open_ranges(url))
    check_memory(weights, memory_mb)
    return source


_ROOT = Path(os.environ["LAMBDA_TASK_ROOT"])
_PLAN = load_plan(_ROOT)
_ENVIRONMENT = _Environment(_ROOT, _PLAN)
_WORKER = _ENVIRONMENT.worker
if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == _PROVISIONED:
    _ENVIRONMENT.prepare(_PLAN)
else:
    _ENVIRONMENT.load_at_init()


def _continue_restored() -> None:
    started = time.perf_counter()
    random.seed()  # all copies would wait for the same times before they try again
    _WORKER.restore(os.urandom(4).hex(), _store(_PLAN), started, _results())


try:
    from snapshot_restore_py import register_after_restore  # type: ignore[import-untyped]
except ImportError:  # a part of Lambda's own runtimes since python3.12
    pass
else:
    register_after_restore(_continue_restored)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:  # noqa: ANN401 - awslambdaric's context
    """Do what the event asks; an error is logged with the ids of the requests it served, and becomes a function error.

    A member of an aborted gang is logged at INFO, below the level that alarms count: it has not failed.
    With POWERTOOLS_LOG_LEVEL=DEBUG what went well is logged too.
    """
    try:
        _ENVIRONMENT.load()
        answer = _WORKER.handle(event)
    except GangAbortedError:
        _logger().info("gang aborted", invocation=context.aws_request_id, requests=requests_in(event))
        raise
    except SerferError as error:  # what can happen: its line says all
        known = {"invocation": context.aws_request_id, "requests": requests_in(event)}
        _logger().error("task failed", error=type(error).__name__, reason=str(error), **known)
        raise
    except Exception:
        _logger().exception("task failed", invocation=context.aws_request_id, requests=requests_in(event))
        raise
    if _logs_details():
        _logger().debug("task done", invocation=context.aws_request_id, requests=requests_in(event))
    return answer
