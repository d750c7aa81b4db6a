"""The first answer of a plan whose functions are all cold: which part of which stage it waited for."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import SecretStr

from serfer.core.run_machine import StageRun
from serfer.drivers.driver import RequestContext
from serfer.pipeline.blocking import Pipeline
from serfer.wiring.local import LocalLambda
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.cold.functions import PROCESS, RESPONSE, Bench, ProbeLine, Seconds, image, probed_service

DRIVER = "driver"
OVERLAPPED = "started before its stage"
_DEADLINE_S = 120.0


@dataclass(frozen=True)
class FirstAnswer:
    """The seconds until a cold plan's first answer, and those of its second one.

    `parts` are those of each step's last environment, one after the other: they add up to the first answer. A step
    whose environment had started before is one part, OVERLAPPED. `usd` is what the query's report says, `page_cache`
    what was dropped from it.
    """

    seconds: float
    second: float
    environments: int
    parts: Seconds
    usd: float
    page_cache: str


async def measure_first_answer(bench: Bench) -> FirstAnswer:
    async with probed_service(bench) as probed:
        pipeline = await asyncio.to_thread(_opened, bench, probed.running)
        try:
            dropped = await asyncio.to_thread(bench.drop_page_cache, *bench.plan.functions)
            runs: list[Sequence[StageRun]] = []
            started = time.monotonic()
            usd = await asyncio.to_thread(_answered, pipeline, bench, runs)
            ended = time.monotonic()
            await asyncio.to_thread(_answered, pipeline, bench, [])
            second = time.monotonic() - ended
            await probed.count(len(bench.plan.functions))
        finally:
            await asyncio.to_thread(pipeline.close)
        parts: dict[str, float] = defaultdict(float)
        for start, number in bench.plan.functions:
            gang = bench.plan.gang_of(start)
            steps = [runs[-1][stage] for stage in (gang.stages if gang else [start])]
            if number == 0:  # the functions of a stage run at the same time
                names = {bench.plan.function(*part) for part in bench.plan.functions if part[0] == start}
                lines = [line for line in probed.lines if line.function in names]
                for name, seconds in _step_parts(steps[0].started, steps[-1].ended or ended, lines).items():
                    parts[name] += seconds
        parts[DRIVER] = ended - started - sum(parts.values())
        environments = len({line.pid for line in probed.lines})
        return FirstAnswer(ended - started, second, environments, parts, usd, dropped)


def _step_parts(started: float, ended: float, lines: Sequence[ProbeLine]) -> Seconds:
    """Return the parts of a step: those of the environment that ended last."""
    last = max((line for line in lines if started < line.now <= ended), key=lambda line: line.now)
    if last.first < started:
        return {OVERLAPPED: ended - started}
    return {PROCESS: last.first - started, **last.parts, RESPONSE: ended - last.now}


def _opened(bench: Bench, running: LocalLambda) -> Pipeline:
    access = SecretStr(f"{running.access.key_id}:{running.access.secret}")
    settings = bench.settings.model_copy(update={"local_url": running.url, "local_access": access})
    return open_pipeline(bench.directory, store=bench.url, workers="local", settings=settings)


def _answered(pipeline: Pipeline, bench: Bench, runs: list[Sequence[StageRun]]) -> float:
    context = RequestContext(watch=runs.append)
    return pipeline.submit(image(bench.plan), deadline_s=_DEADLINE_S, context=context).result().report.cost_usd
