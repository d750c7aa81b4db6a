"""Whether this driver lives, and whether queries should be sent to it, and its load: for balancers and offline work."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from serfer.api.observability.logs import write
from serfer.api.routes.openapi import problems
from serfer.api.service import Service
from serfer.control.throttle import WINDOW_S

_LONGEST = 300  # characters of what is wrong
_RETRY_S = "2"  # store and functions are looked at that often


class Liveness(BaseModel):
    """That the process lives."""

    live: bool = True


class Readiness(BaseModel):
    """That queries can be answered."""

    ready: bool = True


class Unready(BaseModel):
    """What keeps queries from being answered: each of store and functions is "ok" or what is wrong."""

    ready: bool = False
    store: str
    functions: str
    draining: bool


def health_router(service: Service) -> APIRouter:
    router = APIRouter(tags=["operation"])
    watch = _Watch(service)
    unready = {"model": Unready, "description": "No queries should be sent here now."}

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz")
    async def healthz() -> Liveness:
        """Answer 200 for as long as the process lives and its event loop turns."""
        return Liveness()

    @router.head("/readyz", include_in_schema=False, response_model=None)
    @router.get("/readyz", response_model=Readiness, responses={503: unready})
    async def readyz() -> Readiness | Response:
        """Answer 200 while queries can be answered here, else 503 and what is wrong with store and functions."""
        wrong = await watch.wrong()
        if wrong is None:
            return Readiness()
        return JSONResponse(Unready(**wrong).model_dump(), 503, {"Retry-After": _RETRY_S})

    return router


class _Watch:
    """Checks what is wrong, and logs it when that changes: not at every check, of which there are many."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._logged: dict[str, Any] | None = None

    async def wrong(self) -> dict[str, Any] | None:
        health, draining = await self._service.health(), self._service.draining
        wrong = None
        if draining or not health.ready:
            wrong = {"store": _line(health.store), "functions": _line(health.functions), "draining": draining}
        if wrong != self._logged:
            self._logged = wrong
            write(logging.WARNING if wrong else logging.INFO, "not ready" if wrong else "ready", wrong or {})
        return wrong


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST] or "ok"


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
