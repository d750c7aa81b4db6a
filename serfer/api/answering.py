"""One query of a client's, answered by a model or by the variant of an application that is selected for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from serfer.api.http.uploads import Upload
from serfer.api.objectives import OPENING, is_cold, same_classes, selected
from serfer.api.observability.timeline import served_prediction, served_report
from serfer.api.results.document import place_of
from serfer.api.service import Service, ServiceQuery, ServiceResult
from serfer.applications.answering import ApplicationQuery, Choice, Run
from serfer.core.http_messages import ServedReport
from serfer.core.plan import Plan
from serfer.core.report import PredictedImage, PredictedOutput
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.pipeline.query import Wanted


@dataclass(frozen=True)
class Question:
    """A query of some images: what it wants of each, whether explained, and what it asks of an application."""

    query: ServiceQuery
    wanted: Wanted
    explain: bool
    asked: ApplicationQuery | None


async def run_question(
    service: Service, question: Question, images: Sequence[Upload], runs: Callable[[Plan], None] = lambda _: None
) -> tuple[ServiceResult, ServedReport]:
    """Return the answer of a query, and its report; `runs` is told on which plan it runs.

    Raises what `Service.predict` and `VariantAnswering.answer` raise.
    """
    data, names = [image.data for image in images], [image.name for image in images]
    used: dict[str, AsyncPipeline] = {}  # a variant may be closed as soon as its query has ended

    async def run(model: str) -> ServiceResult:
        used[model] = service.pipelines[model]
        runs(used[model].plan)
        query = question.query if model == question.query.model else replace(question.query, model=model)
        return await service.predict(query, data, names, question.wanted)

    choice: Choice | None = None
    if question.asked is None or service.applications is None:
        answered = await run(question.query.model)
    else:
        query = question.query
        runs_on = Run(lambda chosen: run(chosen.model), lambda: query.in_time(OPENING), is_cold, same_classes)
        choice, answered = await service.applications.answering.answer(question.asked, runs_on)
    pipeline = used[choice.model if choice else question.query.model]
    plan, chosen = answered.result.plan or pipeline.plan, selected(choice) if choice else None
    report = served_report(answered, plan, pipeline.facts, explain=question.explain, selected=chosen)
    return answered, report if question.wanted.classes else served_prediction(report, plan, _images(answered))


def _images(answered: ServiceResult) -> Sequence[PredictedImage]:
    """Return what was found in a query's images; outputs that are kept are where the result is."""
    images = [image for image in answered.result.report.images if isinstance(image, PredictedImage)]
    kept = answered.result.kept
    if kept is None:
        return images
    outputs = tuple(
        PredictedOutput(output.name, output.dtype, output.dims, href=f"{place_of(kept)}/zarr/{number}")
        for number, output in enumerate(kept.outputs)
    )
    return [replace(image, outputs=outputs) for image in images]
