"""The Lambda handler of a stage's function; the one place of lambdas/ that reads the environment.

LAMBDA_TASK_ROOT holds plan.json and the stage's files, unless a layer holds those; SERFER_STORE is the store's URL,
SERFER_OBJECT_STORE perhaps the URL of a second one, for the stages whose path is "objects". What can fail for good
fails here, in the environment's init, and not at the first query.

With SnapStart an init's memory is copied into any number of environments, each of which replaces what copies must not
share: its name, and connections to stores.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from aws_lambda_powertools import Logger

from lambdas.artefacts import artefact_directory
from lambdas.worker import Worker
from serfer.core.costs.vcpus import threads
from serfer.core.errors import PlanError, SerferError
from serfer.core.plan import Plan
from serfer.core.wire import requests_in
from serfer.plan_directory import load_plan
from storage.routed import open_routed
from storage.store import Store

logger = Logger(service="serfer", serialize_stacktrace=False)


def _ms_since_process_start() -> float:
    """Return the age of this process in milliseconds: interpreter, runtime client and imports so far."""
    started_ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, age_s * 1000)


def _store(plan: Plan) -> Store:
    url = os.environ.get("SERFER_STORE")
    if not url:
        raise PlanError("SERFER_STORE is not set: give the function the URL of its store")
    return open_routed(plan, url, os.environ.get("SERFER_OBJECT_STORE") or None)


def _name() -> str:
    return uuid.uuid4().hex[:8]


def _worker(root: Path, plan: Plan) -> Worker:
    directory = artefact_directory(plan, root, sys.path)
    memory_mb = float(os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", plan.memory_per_vcpu))
    granted = threads(memory_mb, plan.memory_per_vcpu)
    return Worker(plan, directory, _store(plan), _name(), granted, _ms_since_process_start())


_ROOT = Path(os.environ["LAMBDA_TASK_ROOT"])
_PLAN = load_plan(_ROOT)
_WORKER = _worker(_ROOT, _PLAN)


def _restored() -> None:
    """Continue as a copy of the environment that the snapshot was taken of."""
    started = time.perf_counter()
    _WORKER.restore(_name(), _store(_PLAN), started)


try:
    from snapshot_restore_py import register_after_restore  # type: ignore[import-untyped]
except ImportError:  # a part of Lambda's own runtimes since python3.12
    pass
else:
    register_after_restore(_restored)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:  # noqa: ANN401 - awslambdaric's context
    """Do what the event asks; an error is logged with the ids of the requests it served, and becomes a function error.

    With POWERTOOLS_LOG_LEVEL=DEBUG what went well is logged too.
    """
    try:
        answer = _WORKER.handle(event)
    except SerferError as error:  # what can happen: its line says all
        known = {"invocation": context.aws_request_id, "requests": requests_in(event)}
        logger.error("task failed", error=type(error).__name__, reason=str(error), **known)  # noqa: TRY400 - no traceback
        raise
    except Exception:
        logger.exception("task failed", invocation=context.aws_request_id, requests=requests_in(event))
        raise
    if logger.log_level <= logging.DEBUG:
        logger.debug("task done", invocation=context.aws_request_id, requests=requests_in(event))
    return answer
