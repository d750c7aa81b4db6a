"""Workers that compute nothing: they answer after a fixed time, so that a burst of thousands shows the driver alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from drivers.push import PushDriver
from serfer.core.checksum import protect
from serfer.core.keys import output_key
from serfer.core.plan import Plan
from serfer.core.report import StoreCounts
from serfer.core.run_machine import Failure
from serfer.core.units import FLOAT_BYTES
from serfer.core.wire import Report, Task
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.health import Probe
from serfer.pipeline.pipeline import Pipeline
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from storage.memory import MemoryStore
from storage.store import Store

_MS_PER_S = 1000.0
_BASE64_SHARE = 0.7  # as in serfer/wiring/open_pipeline.py


def null_output(plan: Plan, task: Task) -> bytes:
    """Return zeros of the length that a task's tile writes, with a true checksum where the driver reads them."""
    stage = plan.stages[task.stage]
    if stage is not plan.stages[-1]:
        return bytes(stage.written(stage.tiles[task.tile], task.batch))
    zeros = bytes(FLOAT_BYTES * task.batch * stage.outputs[0].channels * stage.tiles[task.tile].outputs[0].area)
    return protect(zeros, output_key(task.query, task.stage, task.tile))


class NullInvoker:
    """Answers every task after `service_s` seconds with zeros of the length that its tile writes.

    Outputs that no answer carries are written for the last stage only: no other is read.
    """

    def __init__(self, plan: Plan, store: Store, service_s: float) -> None:
        self._plan = plan
        self._store = store
        self._service_s = service_s

    async def invoke(self, function: str, task: Task, timeout_s: float) -> Report | Failure:  # noqa: ARG002 - a contract
        """Wait, and answer."""
        await asyncio.sleep(self._service_s)
        output = null_output(self._plan, task)
        if not task.inline and task.stage == len(self._plan.stages) - 1:
            self._store.put(output_key(task.query, task.stage, task.tile), output, task.ttl)
        ms = self._service_s * _MS_PER_S
        return Report("null", 0.0, 0.0, ms, 0.0, ms, 1, 1, StoreCounts(), output if task.inline else None)

    async def close(self) -> None:
        """Do nothing."""


def null_pipeline(directory: Path, settings: Settings, *, oldest_first: bool, service_s: float) -> Pipeline:
    """Open a plan directory with the true driver and null workers; raises PlanError for an invalid one."""
    plan, loop = load_plan(directory), LoopThread()
    try:
        return loop.wait(_assemble(plan, settings, loop, oldest_first=oldest_first, service_s=service_s))
    except BaseException:
        loop.close()
        raise


async def _assemble(
    plan: Plan, settings: Settings, loop: LoopThread, *, oldest_first: bool, service_s: float
) -> Pipeline:
    facts = settings.facts().functions
    store = MemoryStore()
    driver = PushDriver(
        plan,
        NullInvoker(plan, store, service_s),
        store,
        inline_limit=int(facts.sync_payload_limit * _BASE64_SHARE),
        concurrency=settings.local_concurrency,
        oldest_first=oldest_first,
    )
    probe = Probe(plan, store, None)
    return Pipeline(plan, driver, loop, driver.close, facts, settings.image_limits(), probe)
