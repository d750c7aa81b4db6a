"""The end of a query: its outputs and its report, from the plan's functions, an instance, or answers that were kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from serfer.core.costs.aws import LambdaFacts
from serfer.core.errors import NotFiniteError
from serfer.core.keys import StoreCounts
from serfer.core.plan import Plan
from serfer.core.plan.answers import Outputs, assembled, by_name
from serfer.core.report import QueryReport
from serfer.drivers.driver import Answer, Overheads
from serfer.drivers.target import InstanceAnswer
from serfer.pipeline.prediction import predicted
from serfer.pipeline.query import Query
from serfer.pipeline.report import make_report
from serfer.results import ResultManifest

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Result:
    """A query's end: its outputs by name, and its report.

    `answer` is the driver's record: every attempt of every task, with times. On the same clock, in seconds, are when
    decoding and cutting into crops began and ended (`split`), and when the outputs were there (`answered`). `served` is
    an instance's answer, where one took the query; then no stage ran, as for an answer that was kept. `plan` is
    the one that the query ran on, where functions answered it. Outputs that were `kept` are described there, and
    `outputs` has none.
    """

    outputs: Outputs
    report: QueryReport
    answer: Answer
    split: tuple[float, float]
    answered: float
    served: InstanceAnswer | None = None
    plan: Plan | None = None
    kept: ResultManifest | None = None

    @property
    def weight_loads(self) -> int:
        """The most often that any of its workers read its weights, up to then."""
        return max((report.weight_loads for run in self.answer.stages for report in run.reports), default=0)

    @property
    def logits(self) -> Logits:
        """The first output: of a network that classifies, the (N, K) float32 logits."""
        return next(iter(self.outputs.values()))


def from_functions(
    plan: Plan,
    query: Query,
    answer: Answer,
    facts: LambdaFacts,
    now: float,
    plan_reason: str = "",
    kept: ResultManifest | None = None,
) -> Result:
    outputs = {} if kept else _finite(assembled(plan, answer.outputs, query.batch))
    images = predicted(plan, outputs, query.images, query.wanted)
    report = make_report(plan, answer, images, now - min(query.cut[0], answer.started), facts, plan_reason)
    return Result(outputs, report, answer, query.cut, now, plan=plan, kept=kept)


def with_counts(answer: Answer, counts: StoreCounts) -> Answer:
    return replace(answer, overheads=answer.overheads + Overheads(counts=counts))


def from_instance(plan: Plan, query: Query, served: InstanceAnswer, started: float, now: float) -> Result:
    outputs = _finite(by_name(plan, served.logits))
    images = predicted(plan, outputs, query.images, query.wanted)
    answer = Answer("", started, now, (), (), (), Overheads())
    report = make_report(plan, answer, images, now - query.cut[0], target="gpu", usd=served.cost_usd)
    return Result(outputs, report, answer, query.cut, now, served)


def from_cache(plan: Plan, query: Query, outputs: Outputs, now: float) -> Result:
    started, images = query.cut[0], predicted(plan, outputs, query.images, query.wanted)
    counts = StoreCounts(bytes_get=sum(output.nbytes for output in outputs.values()), gets=1)
    answer = Answer("", started, now, (), (), (), Overheads(counts=counts))
    report = make_report(plan, answer, images, now - started, target="cache")
    return Result(outputs, report, answer, (started, started), now)


def _finite(outputs: Outputs) -> Outputs:
    for name, values in outputs.items():
        finite = np.isfinite(values)
        if not np.logical_and.reduce(finite, axis=None):
            image, *place = np.argwhere(~finite)[0].tolist()
            raise NotFiniteError(
                f"the network's output {name!r} for image {image} is {values[image, *place]} at {place}, which is not "
                "a finite number: look at the model, or at the preprocessing, with this input"
            )
    return outputs
