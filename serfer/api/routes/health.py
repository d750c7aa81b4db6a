"""Whether this driver lives, and whether queries should be sent to it: for balancers, Kubernetes and people."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from serfer.api.observability.logs import write
from serfer.api.service import Service

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
    """Return the routes of /healthz and /readyz."""
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
        body = Unready(**wrong).model_dump()
        return JSONResponse(body, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": _RETRY_S})

    return router


class _Watch:
    """Checks what is wrong, and logs it when that changes: not at every check, of which there are many."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._logged: dict[str, Any] | None = None

    async def wrong(self) -> dict[str, Any] | None:
        """Return what keeps queries from being answered here, None if nothing does."""
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
