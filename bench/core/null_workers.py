"""Workers that compute nothing: they answer after a fixed time, so that a burst of thousands shows the driver alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from serfer.core.checksum import protect
from serfer.core.keys import StoreCounts, output_key
from serfer.core.plan import Plan
from serfer.core.plan.borders import Member
from serfer.core.run_machine import Failure
from serfer.core.units import FLOAT_BYTES
from serfer.core.wire import Report, Task
from serfer.drivers.push import PushDriver
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.health import Probe
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.storage.memory import MemoryStore
from serfer.storage.store import Store

_MS_PER_S = 1000.0
_BASE64_SHARE = 0.7  # as in serfer/wiring/open_pipeline.py


def last_stage(task: Task) -> int:
    return task.gang.stop - 1 if task.gang else task.stage


def null_report(plan: Plan, task: Task, stage_ms: Sequence[float]) -> Report:
    gang = plan.gang_of(task.stage) if task.gang else None
    stages = Member(plan, gang, task.tile).stages if gang else [task.stage]
    carries = task.inline and stages[-1] == last_stage(task)
    reports = [
        Report("null", 0.0, 0.0, stage_ms[stage], 0.0, stage_ms[stage], 1, 1, StoreCounts(), shared=len(stages))
        for stage in stages
    ]
    reports[-1] = replace(reports[-1], output=null_output(plan, task) if carries else None)
    return replace(reports[0], later=tuple(reports[1:]))


def null_output(plan: Plan, task: Task) -> bytes:
    """Return zeros of the length that a task's tile writes, with a true checksum where the driver reads them."""
    number = last_stage(task)
    stage = plan.stages[number]
    if stage is not plan.stages[-1]:
        return bytes(stage.written(stage.tiles[task.tile], task.batch))
    zeros = bytes(FLOAT_BYTES * task.batch * stage.outputs[0].channels * stage.tiles[task.tile].outputs[0].area)
    return protect(zeros, output_key(task.query, number, task.tile))


class NullInvoker:
    """Answers every task after its stages' seconds of `service_s` with zeros of the length that its tile writes.

    Outputs that no answer carries are written for the last stage only: no other is read.
    """

    def __init__(self, plan: Plan, store: Store, service_s: Sequence[float]) -> None:
        self._plan = plan
        self._store = store
        self._service_ms = [each * _MS_PER_S for each in service_s]

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:  # noqa: ARG002 - a contract
        report, last = null_report(self._plan, task, self._service_ms), len(self._plan.stages) - 1
        await asyncio.sleep(sum(stage.total_ms for stage in report.stages) / _MS_PER_S)
        if not task.inline and last_stage(task) == last and task.tile < len(self._plan.stages[last].tiles):
            self._store.put(output_key(task.query, last, task.tile), null_output(self._plan, task), task.ttl)
        return report

    async def close(self) -> None:
        """Do nothing."""


def null_pipeline(
    directory: Path, settings: Settings, *, oldest_first: bool, service_s: float | Sequence[float]
) -> Pipeline:
    """Open a plan directory with the true driver and null workers; raises PlanError for an invalid one.

    A task takes `service_s` seconds for each of its stages, of which there may be a figure each.
    """
    plan, loop = load_plan(directory), LoopThread()
    seconds = [service_s] * len(plan.stages) if isinstance(service_s, float) else service_s
    try:
        return loop.wait(_assemble(plan, settings, loop, oldest_first=oldest_first, service_s=seconds))
    except BaseException:
        loop.close()
        raise


async def _assemble(
    plan: Plan, settings: Settings, loop: LoopThread, *, oldest_first: bool, service_s: Sequence[float]
) -> Pipeline:
    facts = settings.facts().functions
    store = MemoryStore()
    driver = PushDriver(
        plan,
        NullInvoker(plan, store, service_s),
        store,
        inline_limit=int(facts.sync_payload_limit * _BASE64_SHARE),
        slots=settings.local_concurrency,
        oldest_first=oldest_first,
    )
    probe = Probe(plan, store, None)
    return Pipeline(AsyncPipeline(plan, driver, loop, driver.close, facts, settings.image_limits(), probe))
