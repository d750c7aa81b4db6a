"""Whether this driver lives, and whether queries should be sent to it: for balancers, Kubernetes and people."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from serfer.api.service import Service

_LONGEST = 300  # characters of what is wrong
_RETRY_S = "2"  # store and functions are looked at that often


def health_router(service: Service) -> APIRouter:
    """Return the routes of /healthz and /readyz."""
    router = APIRouter(tags=["operation"])

    @router.get("/healthz")
    async def healthz() -> JSONResponse:
        """Answer 200 for as long as the process lives and its event loop turns."""
        return JSONResponse({"live": True})

    @router.get("/readyz", responses={503: {"description": "No queries should be sent here now."}})
    async def readyz() -> JSONResponse:
        """Answer 200 while queries can be answered here, else 503 and what is wrong with store and functions."""
        health = await service.health()
        if health.ready and not service.draining:
            return JSONResponse({"ready": True})
        wrong = {
            "ready": False,
            "store": _line(health.store),
            "functions": _line(health.functions),
            "draining": service.draining,
        }
        return JSONResponse(wrong, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": _RETRY_S})

    return router


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST] or "ok"
