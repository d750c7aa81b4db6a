"""One query of a client's, answered by a model or by the variant of an application that is selected for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from serfer.api.http.uploads import Upload
from serfer.api.objectives import OPENING, is_cold, same_classes, selected
from serfer.api.observability.timeline import served_report
from serfer.api.service import Service, ServiceQuery, ServiceResult
from serfer.applications.applications import ApplicationQuery, Choice, Run
from serfer.core.http_messages import ServedReport
from serfer.core.plan import Plan
from serfer.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class Question:
    """A query of some images: how many classes it wants, whether explained, and what it asks of an application."""

    query: ServiceQuery
    top_k: int
    explain: bool
    asked: ApplicationQuery | None


async def answer(
    service: Service, question: Question, images: Sequence[Upload], runs: Callable[[Plan], None] = lambda _: None
) -> tuple[ServiceResult, ServedReport]:
    """Return the answer of a query, and its report; `runs` is told on which plan it runs.

    Raises what `Service.classify` and `Applications.answer` raise.
    """
    data, names = [image.data for image in images], [image.name for image in images]
    used: dict[str, Pipeline] = {}  # a variant may be closed as soon as its query has ended

    async def classified(model: str) -> ServiceResult:
        used[model] = service.pipelines[model]
        runs(used[model].plan)
        return await service.classify(replace(question.query, model=model), data, names, question.top_k)

    choice: Choice | None = None
    if question.asked is None or service.applications is None:
        answered = await classified(question.query.model)
    else:
        query = question.query
        run = Run(lambda chosen: classified(chosen.model), lambda: query.in_time(OPENING), is_cold, same_classes)
        choice, answered = await service.applications.answer(question.asked, run)
    pipeline = used[choice.model if choice else question.query.model]
    plan, chosen = answered.result.plan or pipeline.plan, selected(choice) if choice else None
    return answered, served_report(answered, plan, pipeline.facts, explain=question.explain, selected=chosen)
