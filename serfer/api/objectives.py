"""What a request asks for in place of a model: an application, and objectives (docs/how-to/applications.md)."""

from __future__ import annotations

from functools import cached_property
from http import HTTPStatus
from typing import Final

from pydantic import Field

from serfer.api.http.problems import Problem
from serfer.api.http.query_parameters import QueryParameters
from serfer.api.service import Service, ServiceResult
from serfer.applications.answering import ApplicationQuery, Choice
from serfer.core.http_messages import SelectedVariant
from serfer.core.variants import NAME, Objectives

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
    application: str | None = Field(
        None, pattern=_NAME, description="One of GET /v1/applications, in place of a model."
    )
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
        """What an application should satisfy."""
        return Objectives(
            self.latency_ms, self.min_accuracy, self.max_cost_usd, self.variant, self.network, self.strict
        )


def asked_of(service: Service, parameters: ObjectiveParameters, query: str) -> ApplicationQuery | None:
    """Return what a query asks of an application; None for a query of a model.

    A query that names neither is one of a model, where the service has any. Raises Problem 404 for an unknown
    application, 422 for both, and for objectives where there are no applications.
    """
    model, application, objectives = parameters.model, parameters.application, parameters.objectives
    applications = service.applications
    if application is None and objectives == _NONE and (model is not None or service.models):
        return None
    if model is not None:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "give a model, or an application and objectives, not both")
    if applications is None:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "this service has no applications to select variants of: it was started without --registry",
        )
    name = application or next(iter(applications.names), "")
    if name not in applications.names:
        raise Problem(HTTPStatus.NOT_FOUND, applications.releases.why_absent(name))
    return ApplicationQuery(name, objectives, query)


def selected(choice: Choice) -> SelectedVariant:
    """Return what an answer says of the variant that was selected for it."""
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


def as_text(asked: ApplicationQuery | None) -> str:
    """Return what makes one query's objectives differ from another's."""
    return "" if asked is None else f"{asked.application} {asked.objectives}"


def is_cold(answered: ServiceResult) -> bool:
    """Whether a query waited for an environment."""
    return any(stage.cold for stage in answered.result.report.stages)


def same_classes(one: ServiceResult, other: ServiceResult) -> bool:
    """Whether two answers have the same best class for each image."""
    return _best(one) == _best(other)


def _best(answered: ServiceResult) -> list[int]:
    return [image.predictions[0].index for image in answered.result.report.images if image.predictions]
