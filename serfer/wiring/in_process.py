"""Workers in this process: where a plan's files are, who fetches its weights, and on how many threads they compute.

A driver function that runs its plan itself (`Settings.function_memory_mb`) has graphs, and weights that are not
fetched, in a layer: they are told by names and sizes, as stage functions do it, since digests take time in a cold
start. Everyone else has a whole plan directory, whose every file is hashed.
"""

from __future__ import annotations

import sys
import uuid
from contextlib import suppress
from pathlib import Path

from serfer.core.costs.aws import AwsFacts, LambdaFacts
from serfer.core.costs.cold_starts import INIT_SHARE, cold_seconds
from serfer.core.costs.sessions import LONGEST_RUN_S, function_session_bytes, register_arena
from serfer.core.costs.vcpus import threads
from serfer.core.errors import StoreUnavailableError, UsageError
from serfer.core.plan import FETCHED, Plan
from serfer.core.units import MIB
from serfer.drivers.inprocess import InProcessInvoker
from serfer.plan_directory import check_artefacts
from serfer.settings import Settings
from serfer.storage import Store
from serfer.system import available_bytes, processors

_NAME = "inprocess"  # of the environment, in reports
_SHORT_MS = 20.0  # on one vCPU: a second thread takes a third more processor time, to be a twelfth sooner (ADR 71)
_FREE_SHARE = 0.5  # of the memory that is free: maps, images and whatever else runs here have the rest


def files_of(plan: Plan, directory: Path, settings: Settings) -> Path:
    """Return the directory that has a plan's graphs, and weights unless they are fetched, after checking them.

    Raises PlanError where a file is missing or is not the plan's.
    """
    if settings.function_memory_mb is None:
        check_artefacts(plan, directory)
        return directory
    from serfer.lambdas.artefacts import artefact_directory  # noqa: PLC0415 - not there in drivers of deployed functions

    return artefact_directory(plan, directory, sys.path)


def in_process_invoker(
    plan: Plan, directory: Path, store: Store, settings: Settings, results: Store | None = None
) -> InProcessInvoker:
    """Return an invoker of workers in this process, with the plan's files in `directory`.

    Weights that are not there are fetched from `settings.weights`: now where a function's initialisation is predicted
    to have the time, else by the first query, as after an attempt that failed. Raises UsageError where they have to be
    fetched and `settings.weights` is empty, PlanError for memory that cannot hold them.
    """
    from serfer.lambdas.artefacts import functions_to_fetch  # noqa: PLC0415 - not there in drivers of deployed functions
    from serfer.lambdas.weights import WeightSource, check_memory, open_ranges  # noqa: PLC0415 - same
    from serfer.lambdas.worker import Worker  # noqa: PLC0415 - imports ONNX Runtime, which only workers in process need

    facts, memory_mb = settings.facts(), settings.function_memory_mb
    missing = functions_to_fetch(plan, directory)
    weights = [part.weights for part in missing]
    if missing and not settings.weights:
        raise UsageError("SERFER_WEIGHTS is not set: give the URL of the weights that the plan's functions fetch")
    if memory_mb is not None:
        check_memory(weights, memory_mb)
    source = WeightSource(open_ranges(settings.weights)) if missing else None
    granted = _session_threads(plan, settings, facts.functions)
    name = _NAME if memory_mb is None else uuid.uuid4().hex[:8]
    room = _session_bytes(plan, settings)
    longest_s = LONGEST_RUN_S if memory_mb is None else None  # a function's timeout ends what it runs itself
    ours = memory_mb is not None or "serfer.cli.main" in sys.modules  # a function's process, or the command's
    if ours if settings.share_arena is None else settings.share_arena:
        register_arena()
    worker = Worker(
        plan, directory, store, name, granted, 0.0, source, results, session_bytes=room, longest_run_s=longest_s
    )
    if missing and _at_init(sum(file.bytes for file in weights), memory_mb, facts):
        with suppress(StoreUnavailableError):  # the first query tries again, and says what is wrong
            worker.load(missing)
    at_once = max(processors(), plan.widest_gang)
    return InProcessInvoker(worker.run, at_once, worker.run_shared, worker.reply, worker.close)


def _session_threads(plan: Plan, settings: Settings, facts: LambdaFacts) -> int:
    if settings.session_threads is not None:
        return settings.session_threads
    if settings.function_memory_mb is not None:
        return threads(settings.function_memory_mb, facts.memory_per_vcpu)
    tiles = [tile for stage in plan.stages for tile in stage.tiles]
    short = all(tile.serial_ms and tile.serial_ms + (tile.parallel_ms or 0.0) < _SHORT_MS for tile in tiles)
    return 1 if short else max(1, processors() // max(len(stage.tiles) for stage in plan.stages))


def _session_bytes(plan: Plan, settings: Settings) -> float:
    if settings.sessions_mb is not None:
        return settings.sessions_mb * MIB
    if settings.function_memory_mb is not None:
        return function_session_bytes(plan, settings.function_memory_mb)
    return available_bytes() * _FREE_SHARE


def _at_init(weight_bytes: int, memory_mb: int | None, facts: AwsFacts) -> bool:
    """Return whether weights are fetched before the first query: always, except where Lambda limits that time."""
    taken_s = facts.services.driver_init + cold_seconds(weight_bytes, FETCHED, facts.functions)
    return memory_mb is None or taken_s < INIT_SHARE * facts.functions.init_limit
