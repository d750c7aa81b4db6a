"""What a request asks for in place of a model: an application, and objectives (docs/how-to/applications.md)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Query

from serfer.api.http.problems import Problem
from serfer.api.service import Service, ServiceResult
from serfer.applications.applications import ApplicationQuery, Choice
from serfer.core.http_messages import SelectedVariant
from serfer.core.variants import NAME, OBJECTIVES, Objectives

PARAMETERS: Final = ("application", *OBJECTIVES, "strict")
OPENING: Final = "the variant that was selected for it was opened"
"""What a query that is late was doing."""
_MOST_MS, _MOST_USD = 900_000.0, 1_000_000.0
_NAME: Final = rf"^{NAME.pattern}$"


def objectives_of(
    application: Annotated[
        str | None, Query(pattern=_NAME, description="One of GET /v1/applications, in place of a model.")
    ] = None,
    latency_ms: Annotated[
        float | None, Query(gt=0, le=_MOST_MS, description="A variant that answers within so many milliseconds.")
    ] = None,
    min_accuracy: Annotated[
        float | None, Query(ge=0, le=1, description="A variant whose accuracy's 95% interval begins there or higher.")
    ] = None,
    max_cost_usd: Annotated[
        float | None, Query(ge=0, le=_MOST_USD, description="A variant that costs at most so many dollars a query.")
    ] = None,
    variant: Annotated[str | None, Query(pattern=_NAME, description="The variant itself, by its name.")] = None,
    network: Annotated[str | None, Query(pattern=_NAME, description="A variant of this network alone.")] = None,
    strict: Annotated[bool, Query(description="Refuse with 422 rather than answer by the nearest variant.")] = False,  # noqa: FBT002 - a query parameter
) -> tuple[str | None, Objectives]:
    """Return the application that a request names, if it names one, and what it asks for: a dependency of routes."""
    return application, Objectives(latency_ms, min_accuracy, max_cost_usd, variant, network, strict)


def asked_of(
    service: Service, model: str | None, requested: tuple[str | None, Objectives], query: str
) -> ApplicationQuery | None:
    """Return what a query asks of an application; None for a query of a model.

    A query that names neither is one of a model, where the service has any. Raises Problem 404 for an unknown
    application, 422 for both, and for objectives where there are no applications.
    """
    application, objectives = requested
    applications = service.applications
    if application is None and objectives == Objectives() and (model is not None or service.models):
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
        raise Problem(HTTPStatus.NOT_FOUND, applications.absent(name))
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
    images = answered.predicted or answered.result.report.images
    return [image.predictions[0].index for image in images if image.predictions]
