"""Queries of images: what each asks of a model, or of an application by objectives (docs/how-to/applications.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, cast

from pydantic import Field

from serfer.api.http.problems import Problem
from serfer.api.http.uploads import Upload
from serfer.api.http.validation import QueryParameters
from serfer.api.kept_results import place_of
from serfer.api.observability.timeline import timeline_of
from serfer.api.service import Service, ServiceQuery, ServiceResult
from serfer.applications.answering import ApplicationQuery, Choice, Run
from serfer.applications.applications import Applications
from serfer.core.http_messages import SelectedVariant, ServedPrediction, ServedReport
from serfer.core.plan import Plan
from serfer.core.report import PredictedImage, PredictedOutput
from serfer.core.variants import NAME, Objectives
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.pipeline.prediction import kind_of
from serfer.pipeline.query import Wanted

_MOST_CLASSES: Final = 65_536
OPENING: Final = "the variant that was selected for it was opened"
"""What a query that is late was doing."""
_MOST_MS, _MOST_USD = 900_000.0, 1_000_000.0
_NAME: Final = rf"^{NAME.pattern}$"
_NONE: Final = Objectives()


class ObjectiveParameters(QueryParameters):
    """The parameters of a query that an application may answer, beside those of its route."""

    top_k: int = Field(5, ge=1, le=_MOST_CLASSES, description="How many classes at most, best first.")
    model: str | None = Field(None, max_length=80, description="One of GET /v1/models.")
    application: str | None = Field(None, pattern=_NAME, description="One of GET /v1/applications, instead of a model.")
    latency_ms: float | None = Field(
        None, gt=0, le=_MOST_MS, description="A variant that answers within so many milliseconds."
    )
    min_accuracy: float | None = Field(
        None, ge=0, le=1, description="A variant whose accuracy's 95% interval begins there or higher."
    )
    max_cost_usd: float | None = Field(
        None, ge=0, le=_MOST_USD, description="A variant that costs at most so many dollars a query."
    )
    variant: str | None = Field(None, pattern=_NAME, description="The variant itself, by its name.")
    network: str | None = Field(None, pattern=_NAME, description="A variant of this network alone.")
    strict: bool = Field(default=False, description="Refuse with 422 rather than answer by the nearest variant.")

    @cached_property
    def objectives(self) -> Objectives:
        names = self.variant, self.network, self.strict
        given = Objectives(self.latency_ms, self.min_accuracy, self.max_cost_usd, *names)
        return _NONE if given == _NONE else given


def asked_of(service: Service, parameters: ObjectiveParameters, query: str) -> ApplicationQuery | None:
    """Return what a query asks of an application; None for a query of a model.

    A query that names neither is one of a model, where the service has any. Raises Problem 404 for an unknown
    application, 422 for both, and for objectives where there are no applications.
    """
    model, application, objectives = parameters.model, parameters.application, parameters.objectives
    applications = service.applications
    if application is None and objectives is _NONE and (model is not None or service.models):
        return None
    if model is not None:
        raise Problem(422, "give a model, or an application and objectives, not both")
    if applications is None:
        raise Problem(422, "this service has no applications to select variants of: it was started without --registry")
    name = application or next(iter(applications.names), "")
    if name not in applications.names:
        raise Problem(404, applications.releases.why_absent(name))
    return ApplicationQuery(name, objectives, query)


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
    choice: Choice | None = None
    if question.asked is None or service.applications is None:
        pipeline = service.pipelines[question.query.model]
        runs(pipeline.plan)
        data, names = [image.data for image in images], [image.name for image in images]
        answered = await service.predict(question.query, data, names, question.wanted)
    else:
        choice, answered, pipeline = await _run_selected(service, service.applications, question, images, runs)
    plan, chosen = answered.result.plan or pipeline.plan, _describe_choice(choice) if choice else None
    timeline = timeline_of(answered, plan, pipeline.facts) if question.explain else None
    report = ServedReport(**vars(answered.result.report), timeline=timeline, selected=chosen)
    if question.wanted.classes:
        return answered, report
    kept = answered.result.kept
    found = [image for image in report.images if isinstance(image, PredictedImage)]
    if kept is not None:
        place = f"{place_of(kept)}/zarr/"
        linked = [PredictedOutput(o.name, o.dtype, o.dims, href=f"{place}{n}") for n, o in enumerate(kept.outputs)]
        outputs = tuple(linked)
        found = [replace(image, outputs=outputs) for image in found]
    return answered, ServedPrediction(**{**vars(report), "images": tuple(found)}, kind=kind_of(plan))


async def _run_selected(
    service: Service,
    applications: Applications,
    question: Question,
    images: Sequence[Upload],
    runs: Callable[[Plan], None],
) -> tuple[Choice, ServiceResult, AsyncPipeline]:
    data, names = [image.data for image in images], [image.name for image in images]
    used: dict[str, AsyncPipeline] = {}  # a variant may be closed as soon as its query has ended
    query, asked = question.query, cast("ApplicationQuery", question.asked)

    async def run(chosen: Choice) -> ServiceResult:
        used[chosen.model] = service.pipelines[chosen.model]
        runs(used[chosen.model].plan)
        return await service.predict(replace(query, model=chosen.model), data, names, question.wanted)

    runs_on = Run(run, lambda: query.in_time(OPENING), is_cold, same_classes)
    choice, answered = await applications.answering.answer(asked, runs_on)
    return choice, answered, used[choice.model]


def _describe_choice(choice: Choice) -> SelectedVariant:
    variant, selection = choice.variant, choice.selection
    return SelectedVariant(
        application=choice.application,
        variant=variant.name,
        network=variant.network,
        version=variant.version,
        place=variant.place,
        release=choice.release,
        reason=selection.reason,
        missed={name: float(f"{value:.6g}") for name, value in selection.missed.items()},
        canary=choice.canary,
        failed=choice.failed,
    )


def is_cold(answered: ServiceResult) -> bool:
    return any(stage.cold for stage in answered.result.report.stages)


def same_classes(*answers: ServiceResult) -> bool:
    images = ([image for image in answer.result.report.images if image.predictions] for answer in answers)
    one, other = ([image.predictions[0].index for image in found] for found in images)
    return one == other
