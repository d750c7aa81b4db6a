"""POST /v1/applications/NAME/...: promote, try out, roll back, retire, and delete it, by keys that may."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from serfer.api.auth.keys import KeyRing, Scope, authorise, require
from serfer.api.http.problems import Problem
from serfer.api.requests import check_parameters, owner_of
from serfer.api.routes.applications import ApplicationDetail, detail_of, serving
from serfer.api.routes.openapi import problems
from serfer.api.service import Service
from serfer.core.variants import MAX_NETWORKS, NAME, Application, Canary, CanaryLimits

_Name = Annotated[str, Field(pattern=rf"^{NAME.pattern}$")]
_Version = Annotated[int, Field(ge=1, le=1_000_000_000)]
_Networks = Annotated[dict[_Name, _Version], Field(max_length=MAX_NETWORKS)]
_Why = Annotated[str, Field(max_length=300)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Promotion(_Body):
    """The versions of a new live release, by default the canary's; other networks stay as they are, unless `only`."""

    networks: _Networks = Field(default_factory=dict)
    only: bool = False
    why: _Why = "promoted over HTTP"


class Limits(_Body):
    """When a canary is taken back (serfer/core/variants/application.py: CanaryLimits)."""

    window_s: float = Field(default=600.0, ge=1, le=604_800)
    queries: int = Field(default=50, ge=1, le=1_000_000)
    max_error_rate: float = Field(default=0.02, ge=0, le=1)
    max_latency_ratio: float = Field(default=1.5, ge=1, le=100)


class Trial(_Body):
    """Versions that answer a share of the queries instead; a shadow answers copies."""

    networks: _Networks = Field(min_length=1)
    share: float = Field(default=0.1, gt=0, le=1)
    shadow: bool = False
    limits: Limits = Limits()


class Rollback(_Body):
    """Why it is rolled back."""

    why: _Why = "rolled back over HTTP"


class Retirement(_Body):
    """The version that ends."""

    network: _Name
    version: _Version


def releases_router(service: Service, keys: KeyRing | None, *, is_open: bool) -> APIRouter:
    """Return the routes that change a served application's record; without keys nobody may unless it `is_open`."""
    router = APIRouter(prefix="/v1/applications/{name}", tags=["applications"])
    responses = problems(400, 401, 403, 404, 413, 422, 429, 503)
    promoting, deleting = (allowed(keys, scope, is_open=is_open) for scope in (Scope.PROMOTE, Scope.DELETE))

    async def changed(request: Request, name: str, step: Callable[[Application], Application]) -> ApplicationDetail:
        check_parameters(request, ())
        applications = serving(service.applications, name)
        await applications.releases.change(name, step)
        return detail_of(applications, name)

    @router.post("/promote", responses=responses, dependencies=promoting)
    async def promote(request: Request, name: str, body: Promotion) -> ApplicationDetail:
        """Make a release with these versions, or with those of the canary; a canary ends."""

        def step(record: Application) -> Application:
            networks = record.networks_with(body.networks, only=body.only)
            return record.promoted(networks, _now(), _who(request), body.why)

        return await changed(request, name, step)

    @router.post("/canary", responses=responses, dependencies=promoting)
    async def canary(request: Request, name: str, body: Trial) -> ApplicationDetail:
        """Let the live release with these versions in it answer a share of queries; it is taken back if it is worse."""

        def step(record: Application) -> Application:
            limits = CanaryLimits(**body.limits.model_dump())
            networks = record.networks_with(body.networks)
            return record.with_canary(Canary(networks, body.share, _now(), _who(request), limits, body.shadow))

        return await changed(request, name, step)

    @router.post("/rollback", responses=responses, dependencies=promoting)
    async def rollback(request: Request, name: str, body: Rollback) -> ApplicationDetail:
        """Take the canary back or, where there is none, return to the versions of the release before."""
        return await changed(request, name, lambda record: record.rolled_back(_now(), _who(request), body.why))

    @router.post("/retire", responses=responses, dependencies=deleting)
    async def retire(request: Request, name: str, body: Retirement) -> ApplicationDetail:
        """End a network version that answers no queries."""
        return await changed(request, name, lambda record: record.retired(body.network, body.version))

    @router.delete("", status_code=204, response_model=None, responses=responses, dependencies=deleting)
    async def delete(request: Request, name: str) -> None:
        """Delete an application from the registry: queries that name it get 404 until it is restored."""
        check_parameters(request, ())
        await serving(service.applications, name).releases.delete(name)

    return router


def allowed(keys: KeyRing | None, scope: Scope, *, is_open: bool) -> list[Any]:
    """Return the dependency of a route that only keys with a scope may use.

    Without keys, which would name the caller, a registry is read and not changed unless it `is_open`: others share it.
    """

    async def guard(request: Request, name: str) -> None:
        if keys is not None:
            request.state.client = client = authorise(request, keys)
            require(client, scope, name)
        elif not is_open and request.method != "GET":
            raise Problem(
                403,
                "this service has no API keys, so nobody may change the applications of its registry over HTTP: start "
                "it with --keys FILE, or with --set open_registry=true (SERFER_OPEN_REGISTRY) where anyone may",
                slug="scope",
            )

    return [Depends(guard)]


def _who(request: Request) -> str:
    return owner_of(request) or "http"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
