"""GET /v1/load: how much of what answers queries they have in use, for offline work that yields to them."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from serfer.api.routes.openapi import problems
from serfer.api.service import Service
from serfer.control.throttle import WINDOW_S


class Load(BaseModel):
    """A driver's load, as means and counts of the last seconds."""

    running: int = Field(ge=0, description="Queries that run now.")
    waiting: int = Field(ge=0, description="Queries that wait for their turn.")
    utilisation: float = Field(ge=0, description="Share in use of the slots of invocations, a mean of about 2 s.")
    of_account: bool = Field(description="Whether these slots are the AWS account's, which other drivers use too.")
    throttled: int = Field(ge=0, description="Invocations that were refused with 429 within `window_s`.")
    latency: float | None = Field(
        ge=0,
        description="Median of observed over profiled latency of the answers within `window_s`; null where too few "
        "say it. The profile is what queries alike took when they were disturbed least.",
    )
    window_s: float = Field(gt=0, description="The seconds that `throttled` and `latency` are of.")


def load_router(service: Service) -> APIRouter:
    """Return the route of /v1/load."""
    router = APIRouter(tags=["operation"])

    @router.get("/v1/load", responses=problems(401, 403, 429))
    async def load() -> Load:
        """Return this driver's load, which offline work such as `serfer map --yield-to` yields to."""
        now, turns = service.load.read(), service.admission.turns
        return Load(
            running=turns.running,
            waiting=turns.waiting,
            utilisation=now.utilisation,
            of_account=now.of_account,
            throttled=now.throttled,
            latency=now.latency,
            window_s=WINDOW_S,
        )

    return router
