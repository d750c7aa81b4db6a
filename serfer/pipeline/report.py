"""Make a query's report: its predictions, where its time and bytes went, what Lambda charges for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drivers.driver import Answer
from serfer.core.costs.aws import LambdaFacts
from serfer.core.costs.cost_model import invocation_usd
from serfer.core.plan import Plan, Stage
from serfer.core.report import ImageAnswer, Prediction, QueryReport, StageReport, StoreCounts
from serfer.core.run_machine import StageRun


def make_report(
    plan: Plan, answer: Answer, images: Sequence[ImageAnswer], latency_s: float, facts: LambdaFacts
) -> QueryReport:
    """Put a query's report together."""
    reports = [report for run in answer.stages for report in run.reports]
    pairs = list(zip(plan.stages, answer.stages, strict=True))
    return QueryReport(
        model=plan.model,
        weights=plan.weights,
        untrained=plan.untrained,
        images=tuple(images),
        latency_ms=round(latency_s * 1000, 3),
        cost_usd=sum(
            invocation_usd(stage.memory_mb, report.billed_ms, facts, report.shared)
            for stage, run in pairs
            for report in run.reports
        ),
        plan=plan.digest,
        target="serverless",
        stages=tuple(
            _stage_report(number, stage, run, answer.payload_bytes[number]) for number, (stage, run) in enumerate(pairs)
        ),
        store=sum((report.counts for report in reports), answer.overheads.counts),
        retries=answer.overheads.retries,
        hedges=answer.overheads.hedges,
        restarts=answer.overheads.restarts,
    )


def cached_report(plan: Plan, images: Sequence[ImageAnswer], latency_s: float, counts: StoreCounts) -> QueryReport:
    """Put the report of a query together whose answer was kept: no stage ran, and Lambda charges nothing."""
    return _without_stages(plan, images, latency_s, 0.0, "cache", counts)


def gpu_report(plan: Plan, images: Sequence[ImageAnswer], latency_s: float, usd: float) -> QueryReport:
    """Put the report of a query together that an instance answered, whose share of its price is `usd`."""
    return _without_stages(plan, images, latency_s, usd, "gpu", StoreCounts())


def _without_stages(
    plan: Plan, images: Sequence[ImageAnswer], latency_s: float, usd: float, target: str, counts: StoreCounts
) -> QueryReport:
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


def _stage_report(number: int, stage: Stage, run: StageRun, carried: int) -> StageReport:
    ended = run.started if run.ended is None else run.ended
    return StageReport(
        name=f"stage-{number}",
        grid=str(stage.grid),
        tasks=stage.grid.tiles,
        ms=round((ended - run.started) * 1000, 3),
        cold=sum(report.init_ms > 0 for report in run.reports),
        bytes_in=carried + sum(report.counts.bytes_get for report in run.reports),
        bytes_out=sum(report.counts.bytes_put + len(report.output or b"") for report in run.reports),
    )


def best_classes(plan: Plan, logits: NDArray[np.float32], top_k: int) -> tuple[Prediction, ...]:
    """Return the `top_k` best classes of one image's logits, (K,) float32, scored by the plan's activation."""
    scores = _scores(logits.astype(np.float64), plan.activation)
    order = np.argsort(-scores, kind="stable")[:top_k]
    return tuple(
        Prediction(plan.labels[index] if plan.labels else str(index), int(index), float(scores[index]))
        for index in order
    )


def _scores(logits: NDArray[np.float64], activation: str) -> NDArray[np.float64]:
    if activation == "softmax":
        powers = np.exp(logits - logits.max())
        return np.asarray(powers / powers.sum())
    if activation == "sigmoid":
        return np.asarray((1 + np.tanh(logits / 2)) / 2)  # the sigmoid, without overflow
    return logits
