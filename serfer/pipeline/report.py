"""Make a query's report: its predictions, where its time and bytes went, what Lambda charges for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.aws import LambdaFacts
from serfer.core.costs.cost_model import invocation_usd
from serfer.core.plan import Plan, Stage
from serfer.core.report import ImageAnswer, Prediction, QueryReport, StageReport
from serfer.core.run_machine import StageRun, gang_starts
from serfer.core.units import MS_PER_S
from serfer.core.wire import Report
from serfer.drivers.driver import Answer

_MB_PER_GB = 1024


def make_report(
    plan: Plan,
    answer: Answer,
    images: Sequence[ImageAnswer],
    latency_s: float,
    facts: LambdaFacts | None = None,
    plan_reason: str = "",
    target: str = "serverless",
    usd: float = 0.0,
) -> QueryReport:
    """Return the report of a query that functions answered, priced by `facts`, or another target for `usd` dollars."""
    overheads, gangs = answer.overheads, gang_starts(answer.stages)
    counts, stages, wait_gb_s = overheads.counts, [], 0.0
    for number, (run, gang, stage) in enumerate(zip(answer.stages, gangs, plan.stages, strict=False)):
        reports = run.reports
        stages.append(_stage_report(number, stage, run, reports, gang, answer))
        wait_gb_s += stage.memory_mb / _MB_PER_GB * stages[-1].wait_ms / MS_PER_S
        for report in reports:
            counts += report.counts
            usd += task_usd(stage.memory_mb, report, facts) if facts and gang in (None, number) else 0.0
    usd += sum([invocation_usd(warm_up.memory_mb, warm_up.ms, facts) for warm_up in overheads.warm_ups if facts])
    return QueryReport(
        model=plan.model,
        weights=plan.weights,
        untrained=plan.untrained,
        images=tuple(images),
        latency_ms=round(latency_s * 1000, 3),
        cost_usd=usd,
        plan=plan.digest,
        target=target,
        stages=tuple(stages),
        store=counts,
        retries=overheads.retries,
        hedges=overheads.hedges,
        restarts=overheads.restarts,
        wait_gb_s=wait_gb_s,
        disbanded=len([run for run in answer.stages if run.gang and not run.gang_stop]),
        warm_ups=len(overheads.warm_ups),
        plan_reason=plan_reason,
    )


def task_usd(memory_mb: int, report: Report, facts: LambdaFacts) -> float:
    """Price a task's invocation, with all of its stages where a member of a gang was invoked, or its share of one."""
    shared = 1 if report.later else report.shared
    return invocation_usd(memory_mb, report.invocation_ms, facts, shared)


def _stage_report(
    number: int, stage: Stage, run: StageRun, reports: Sequence[Report], gang: int | None, answer: Answer
) -> StageReport:
    cold, received, written, wait_ms, fetch_ms = 0, 0, 0, 0.0, 0.0
    for report in reports:
        cold += report.init_ms > 0
        received += report.counts.bytes_get
        written += report.counts.bytes_put + len(report.output or b"")
        wait_ms += report.wait_ms
        fetch_ms += report.fetch_ms
    for warm_up in answer.overheads.warm_ups:
        if warm_up.stage == number and warm_up.result and not warm_up.plan:
            cold += warm_up.cold
            fetch_ms += warm_up.result.fetch_ms
    ended = run.started if run.ended is None else run.ended
    return StageReport(
        name=f"stage-{number}",
        grid=str(stage.grid),
        tasks=stage.grid.tiles,
        ms=round((ended - run.started) * 1000, 3),
        cold=cold,
        bytes_in=answer.payload_bytes[number] + received,
        bytes_out=written,
        gang=gang,
        bytes_exchanged=received if gang is not None and gang < number else 0,
        wait_ms=round(wait_ms, 3),
        fetch_ms=round(fetch_ms, 3),
    )


def best_classes(plan: Plan, logits: NDArray[np.float32], top_k: int) -> tuple[Prediction, ...]:
    scores = logits.astype(np.float64)
    if plan.activation == "softmax":
        np.exp(scores - np.maximum.reduce(scores), out=scores)
        scores /= np.add.reduce(scores)
    elif plan.activation == "sigmoid":
        scores = (1 + np.tanh(scores / 2)) / 2  # the sigmoid, without overflow
    ranks, most = -scores, min(top_k, len(scores))
    ordered = ranks.copy()
    ordered.partition(most - 1)  # to sort them all takes four times as long
    [places] = (ranks <= ordered[most - 1]).nonzero()
    order = places[ranks[places].argsort(kind="stable")][:most]  # of equal ones, the first come first
    return tuple(
        [
            Prediction(plan.labels[index] if plan.labels else str(index), index, score)
            for index, score in zip(order.tolist(), scores[order].tolist(), strict=True)
        ]
    )
