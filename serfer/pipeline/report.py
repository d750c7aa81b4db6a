"""Make a query's report: its predictions, where its time and bytes went, what Lambda charges for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.aws import LambdaFacts
from serfer.core.costs.cost_model import invocation_usd
from serfer.core.keys import StoreCounts
from serfer.core.plan import Plan, Stage
from serfer.core.report import ImageAnswer, Prediction, QueryReport, StageReport
from serfer.core.run_machine import StageRun, gang_starts
from serfer.core.units import MS_PER_S
from serfer.core.wire import Report, WarmUpAnswer
from serfer.drivers.driver import Answer

_MB_PER_GB = 1024


def make_report(
    plan: Plan,
    answer: Answer,
    images: Sequence[ImageAnswer],
    latency_s: float,
    facts: LambdaFacts,
    plan_reason: str = "",
) -> QueryReport:
    reports = [run.reports for run in answer.stages]
    gangs = gang_starts(answer.stages)
    numbered = [*zip(plan.stages, answer.stages, reports, gangs, strict=True)]
    stages = tuple(_stage_report(number, *stage, answer) for number, stage in enumerate(numbered))
    invoked = (
        task_usd(stage.memory_mb, report, facts)
        for number, (stage, _, of_stage, gang) in enumerate(numbered)
        if gang in (None, number)
        for report in of_stage
    )
    waits = (stage.memory_mb / _MB_PER_GB * report.wait_ms for stage, report in zip(plan.stages, stages, strict=True))
    warm_ups = [invocation_usd(warm_up.memory_mb, warm_up.ms, facts) for warm_up in answer.overheads.warm_ups]
    usd = sum(invoked) + sum(warm_ups)
    counts = sum((report.counts for of_stage in reports for report in of_stage), answer.overheads.counts)
    return replace(
        report_without_stages(plan, images, latency_s, usd, "serverless", counts),
        stages=stages,
        retries=answer.overheads.retries,
        hedges=answer.overheads.hedges,
        restarts=answer.overheads.restarts,
        wait_gb_s=sum(wait / MS_PER_S for wait in waits),
        disbanded=sum(any(tile.void for tile in run.tiles) for run in answer.stages),
        warm_ups=len(warm_ups),
        plan_reason=plan_reason,
    )


def task_usd(memory_mb: int, report: Report, facts: LambdaFacts) -> float:
    """Price a task's invocation, with all of its stages where a member of a gang was invoked, or its share of one."""
    shared = 1 if report.later else report.shared
    return invocation_usd(memory_mb, report.invocation_ms, facts, shared)


def report_without_stages(
    plan: Plan, images: Sequence[ImageAnswer], latency_s: float, usd: float, target: str, counts: StoreCounts
) -> QueryReport:
    """Return the report of a query that an instance answered (`target` "gpu"), or whose answer was kept ("cache")."""
    return QueryReport(
        model=plan.model,
        weights=plan.weights,
        untrained=plan.untrained,
        images=tuple(images),
        latency_ms=round(latency_s * 1000, 3),
        cost_usd=usd,
        plan=plan.digest,
        target=target,
        stages=(),
        store=counts,
        retries=0,
        hedges=0,
        restarts=0,
    )


def _stage_report(
    number: int, stage: Stage, run: StageRun, reports: Sequence[Report], gang: int | None, answer: Answer
) -> StageReport:
    received = sum(report.counts.bytes_get for report in reports)
    ended = run.started if run.ended is None else run.ended
    warm_ups = [warm_up for warm_up in answer.overheads.warm_ups if warm_up.stage == number and not warm_up.plan]
    fetches: list[Report | WarmUpAnswer] = [*reports, *(warm_up.result for warm_up in warm_ups if warm_up.result)]
    return StageReport(
        name=f"stage-{number}",
        grid=str(stage.grid),
        tasks=stage.grid.tiles,
        ms=round((ended - run.started) * 1000, 3),
        cold=sum(report.init_ms > 0 for report in reports) + sum(warm_up.cold for warm_up in warm_ups),
        bytes_in=answer.payload_bytes[number] + received,
        bytes_out=sum(report.counts.bytes_put + len(report.output or b"") for report in reports),
        gang=gang,
        bytes_exchanged=received if gang is not None and gang < number else 0,
        wait_ms=round(sum(report.wait_ms for report in reports), 3),
        fetch_ms=round(sum(fetch.fetch_ms for fetch in fetches), 3),
    )


def best_classes(plan: Plan, logits: NDArray[np.float32], top_k: int) -> tuple[Prediction, ...]:
    scores = logits.astype(np.float64)
    if plan.activation == "softmax":
        powers = np.exp(scores - scores.max())
        scores = np.asarray(powers / powers.sum())
    elif plan.activation == "sigmoid":
        scores = np.asarray((1 + np.tanh(scores / 2)) / 2)  # the sigmoid, without overflow
    places = np.arange(len(scores))
    if top_k < len(scores):  # to sort them all takes four times as long
        places = places[scores >= np.partition(scores, -top_k)[-top_k]]
    order = places[(-scores[places]).argsort(kind="stable")][:top_k]  # of equal ones, the first come first
    return tuple(
        Prediction(plan.labels[index] if plan.labels else str(index), index, score)
        for index, score in zip(order.tolist(), scores[order].tolist(), strict=True)
    )
