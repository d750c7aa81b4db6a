"""The end of a query: its logits and its report, from the plan's functions, an instance, or answers that were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drivers.driver import Answer, Overheads
from drivers.target import InstanceAnswer
from serfer.core.costs.aws import LambdaFacts
from serfer.core.errors import NotFiniteError
from serfer.core.plan import Plan
from serfer.core.report import ImageAnswer, QueryReport, StoreCounts
from serfer.pipeline.query import Query
from serfer.pipeline.report import best_classes, cached_report, gpu_report, make_report

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Result:
    """A query's end: (N, K) float32 logits, its report, and the most often that any of its workers read its weights.

    `answer` is the driver's record: every attempt of every task, with times. On the same clock, in seconds, are when
    decoding and cutting into crops began and ended (`split`), and when the logits were there (`answered`). `served` is
    an instance's answer, where one took the query; then no stage ran, as for an answer that was kept. `plan` is
    the one that the query ran on, where functions answered it.
    """

    logits: Logits
    report: QueryReport
    weight_loads: int
    answer: Answer
    split: tuple[float, float]
    answered: float
    served: InstanceAnswer | None = None
    plan: Plan | None = None


def from_functions(
    plan: Plan, query: Query, answer: Answer, facts: LambdaFacts, now: float, plan_reason: str = ""
) -> Result:
    """Return the result of a query that the plan's functions answered; raises NotFiniteError."""
    columns = [np.frombuffer(output, dtype="<f4").reshape(query.batch, -1) for output in answer.outputs]
    logits = _finite(np.concatenate(columns, axis=1))
    images = _images(plan, query.names, logits, query.top_k)
    report = make_report(plan, answer, images, now - query.cut[0], facts, plan_reason)
    loads = max((report.weight_loads for run in answer.stages for report in run.reports), default=0)
    return Result(logits, report, loads, answer, query.cut, now, plan=plan)


def from_instance(plan: Plan, query: Query, served: InstanceAnswer, started: float, now: float) -> Result:
    """Return the result of a query that an instance answered; raises NotFiniteError."""
    images = _images(plan, query.names, _finite(served.logits), query.top_k)
    report = gpu_report(plan, images, now - query.cut[0], served.cost_usd)
    answer = Answer("", started, now, (), (), (), Overheads())
    return Result(served.logits, report, 0, answer, query.cut, now, served)


def from_cache(plan: Plan, logits: Logits, names: Sequence[str], top_k: int, started: float, now: float) -> Result:
    """Return the result of a query whose answer was kept."""
    counts = StoreCounts(bytes_get=logits.nbytes, gets=1)
    report = cached_report(plan, _images(plan, names, logits, top_k), now - started, counts)
    answer = Answer("", started, now, (), (), (), Overheads(counts=counts))
    return Result(logits, report, 0, answer, (started, started), now)


def _images(plan: Plan, names: Sequence[str], logits: Logits, top_k: int) -> list[ImageAnswer]:
    return [ImageAnswer(name, best_classes(plan, row, top_k)) for name, row in zip(names, logits, strict=False)]


def _finite(logits: Logits) -> Logits:
    """Return the logits; raises NotFiniteError where one is NaN or infinite."""
    if np.isfinite(logits).all():
        return logits
    image, index = np.argwhere(~np.isfinite(logits))[0].tolist()
    raise NotFiniteError(
        f"the network's output {index} for image {image} is {logits[image, index]}, which is not a finite number: "
        "look at the model, or at the preprocessing, with this input"
    )
