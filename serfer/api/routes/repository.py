"""The Open Inference Protocol's model repository extension: an index; on an instance, loading and unloading.

The models are those that the service was started with: a request brings no files and no configuration. A model that is
unloaded is loaded again by the next query for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from fastapi import APIRouter, Request
from pydantic import ValidationError

from serfer.api.http.body import ApiLimits, read_body
from serfer.api.http.inference_models import BatchingRequest, BatchingState, IndexEntry, IndexRequest, RepositoryRequest
from serfer.api.http.problems import Problem
from serfer.api.http.validation import first_fault
from serfer.api.routes.inference import PREFIX, VERSION
from serfer.api.routes.openapi import inference_errors, request_body
from serfer.api.service import ModelRepository, Service

_AT = f"{PREFIX}/repository"
_MOST_BYTES = 64 * 1024
_MS_PER_S = 1000
_Body = TypeVar("_Body", IndexRequest, RepositoryRequest, BatchingRequest)


@dataclass(frozen=True)
class Holding:
    """Shared by the routes: the service, its limits, and how long a model may take to load."""

    service: Service
    limits: ApiLimits
    deadline_ms: int


def repository_router(routes: Holding) -> APIRouter:
    router = APIRouter(prefix=_AT, tags=["inference"])
    service = routes.service

    @router.post(
        "/index",
        responses={200: {"description": "The models."}, **inference_errors(400, 401, 403, 408, 413)},
        openapi_extra={"requestBody": request_body({"application/json": IndexRequest}, required=False)},
    )
    async def index(request: Request) -> list[IndexEntry]:
        """List the models, and whether each is in memory; with {"ready": true}, those that are ready."""
        only = (await _read(request, routes, IndexRequest)).ready
        entries = _entries(service, is_ready=await service.ready())
        return [entry for entry in entries if entry.state == "READY" or not only]

    return router


def changes_router(routes: Holding, repository: ModelRepository) -> APIRouter:
    router = APIRouter(prefix=_AT, tags=["inference"])
    body = {"requestBody": request_body({"application/json": RepositoryRequest}, required=False)}

    @router.post(
        "/models/{model}/load",
        responses={200: {"description": "It is loaded."}, **inference_errors(400, 401, 403, 404, 408, 413, 429, 503)},
        openapi_extra=body,
    )
    async def load(request: Request, model: str) -> IndexEntry:
        """Load a model, for which others that have nothing to do may be unloaded."""
        name = routes.service.name(model)
        await _read(request, routes, RepositoryRequest)
        await repository.load(name, routes.deadline_ms / _MS_PER_S)
        return IndexEntry(name=name, version=VERSION, state="READY", reason="")

    @router.post(
        "/models/{model}/unload",
        responses={200: {"description": "It is unloaded."}, **inference_errors(400, 401, 403, 404, 408, 409, 413)},
        openapi_extra=body,
    )
    async def unload(request: Request, model: str) -> IndexEntry:
        """Unload a model until a query needs it; 409 while it has queries to answer."""
        name = routes.service.name(model)
        await _read(request, routes, RepositoryRequest)
        if not await repository.unload(name):
            raise Problem(409, f"{name} has queries to answer, or is being loaded: try again later")
        return IndexEntry(name=name, version=VERSION, state="UNAVAILABLE", reason="unloaded")

    @router.post(
        "/models/{model}/batching",
        responses={200: {"description": "How it is batched now."}, **inference_errors(400, 401, 403, 404, 408, 413)},
        openapi_extra={"requestBody": request_body({"application/json": BatchingRequest}, required=False)},
    )
    async def batching(request: Request, model: str) -> BatchingState:
        """Set how many images of a model are computed at once, and how long a free engine waits for so many.

        It is an extension of SerFer's, for drivers that give each instance a batch size of its own.
        """
        name = routes.service.name(model)
        wanted = await _read(request, routes, BatchingRequest)
        now = await repository.set_batching(name, wanted.max_batch, wanted.window_ms / _MS_PER_S)
        return BatchingState(name=name, max_batch=now.max_batch, window_ms=now.window_s * _MS_PER_S)

    return router


def _entries(service: Service, *, is_ready: bool) -> Iterator[IndexEntry]:
    states = service.repository.states() if service.repository else {}
    for name in (*service.models, *(service.applications.names if service.applications else ())):
        state, reason = states.get(name), "" if is_ready else "not ready"
        if state is not None and state.status != "loaded":
            reason = state.failure or state.status
        yield IndexEntry(name=name, version=VERSION, state="UNAVAILABLE" if reason else "READY", reason=reason)


async def _read(request: Request, routes: Holding, kind: type[_Body]) -> _Body:
    body = await read_body(request, ApiLimits(_MOST_BYTES, body_timeout_s=routes.limits.body_timeout_s))
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise Problem(400, first_fault(error)) from None
