"""POST /v1/applications/NAME/registrations: a network is uploaded and registered, in the background."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from http import HTTPStatus
from importlib import import_module
from typing import Final

from fastapi import APIRouter, Request, Response

from serfer.api.auth.clients import Scope
from serfer.api.auth.keys import KeyRing
from serfer.api.http.problems import Problem
from serfer.api.http.uploads import FORM
from serfer.api.registering.options import RegistrationForm
from serfer.api.registering.registrar import Registrar
from serfer.api.requests import check_parameters, owner_of
from serfer.api.routes.openapi import problems, request_body
from serfer.api.routes.releases import allowed
from serfer.api.service import Service
from serfer.core.variants import NAME
from serfer.registry import Registration, Registrations, Registry, submission
from serfer.registry.submission import Submission
from serfer.settings import Settings

_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_LOOK_AGAIN_S: Final = "2"


@dataclass(frozen=True)
class ListedStep:
    """A step of a registration; `state` is "running" or "done"."""

    name: str
    state: str


@dataclass(frozen=True)
class RegistrationStatus:
    """How far a registration is.

    `state` is "queued", "running", "done", "failed", "interrupted" (its driver was stopped) or "silent" (its driver has
    not written for 40 s); `resumable` says that the same upload, sent again, goes on where it was. `detail` says why it
    failed. `variants` were made so far. `version` is the network's once it is done, `live` whether that answers
    queries.
    """

    id: str
    application: str
    network: str
    state: str
    resumable: bool
    progress: str
    detail: str
    created: str
    by: str
    steps: tuple[ListedStep, ...]
    variants: int
    version: int
    live: bool


def registrations_router(service: Service, keys: KeyRing | None, settings: Settings) -> APIRouter:
    """Return the routes by which networks are registered; `service.registrar` is None where that is off."""
    router = APIRouter(prefix="/v1/applications/{name}/registrations", tags=["applications"])
    guarded = allowed(keys, Scope.REGISTER, is_open=settings.open_registry)
    looked = problems(401, 403, 404, 422, 429, 503)

    @router.post(
        "",
        status_code=HTTPStatus.ACCEPTED,
        responses=problems(400, 401, 403, 404, 408, 413, 415, 422, 429, 503),
        dependencies=guarded,
        openapi_extra={"requestBody": request_body({FORM: RegistrationForm})},
    )
    async def begin(request: Request, response: Response, name: str) -> RegistrationStatus:
        """Register a network that is uploaded: 202 at once, and Location says where its progress is found."""
        check_parameters(request, ())
        registrar = _registrar(service)
        if not NAME.fullmatch(name):
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "an application's name has 1 to 64 letters, digits and ._-")
        begun = await _begun(request, registrar, name, settings)
        response.headers["Location"] = f"/v1/applications/{name}/registrations/{begun.id}"
        response.headers["Retry-After"] = _LOOK_AGAIN_S
        return _status(begun, None)

    @router.get("/{registration}", responses=looked, dependencies=guarded)
    async def look(request: Request, name: str, registration: str) -> RegistrationStatus:
        """Return how far a registration is, whichever driver runs it."""
        check_parameters(request, ())
        if service.applications is None:
            raise _unknown()
        registry = service.applications.registry
        found = await asyncio.to_thread(_found, registry, name, registration)
        return _status(found, await asyncio.to_thread(_record, registry, found.registration))

    @router.delete("/{registration}", status_code=HTTPStatus.NO_CONTENT, responses=looked, dependencies=guarded)
    async def cancel(request: Request, name: str, registration: str) -> None:
        """Stop a registration wherever it runs, and forget what was handed in; a network that is registered stays."""
        check_parameters(request, ())
        registrar = _registrar(service)
        await asyncio.to_thread(_found, registrar.registry, name, registration)
        await registrar.forget(registration)

    return router


async def _begun(request: Request, registrar: Registrar, name: str, settings: Settings) -> Submission:
    """Receive an upload, look at it, and begin its registration unless it waits or runs already."""
    await asyncio.to_thread(import_module, "serfer.api.registering.upload")  # the first time it takes a second
    from serfer.api.registering.upload import (  # noqa: PLC0415 - drivers in AWS have no splitter
        handed_in,
        receive,
        unpacked,
    )

    async with registrar.receiving() as folder:
        form = await receive(request, folder, settings)
        by = owner_of(request) or "http"
        handed = await asyncio.to_thread(handed_in, form, name, registrar.registry, by, folder, settings)
        known = await registrar.known(handed.id)
        return known or await registrar.begin(await unpacked(handed, settings))


def _registrar(service: Service) -> Registrar:
    if service.registrar is None:
        raise Problem(HTTPStatus.NOT_FOUND, "this service registers no networks: it was started without --register")
    return service.registrar


def _found(registry: Registry, application: str, registration: str) -> Submission:
    held = submission.read(registry.store, registration) if _ID.fullmatch(registration) else None
    if held is None or held.submission.application != application:
        raise _unknown()
    return held.submission


def _record(registry: Registry, registration: str) -> Registration | None:
    return Registrations(registry, "").read(registration) if registration else None


def _status(found: Submission, record: Registration | None) -> RegistrationStatus:
    is_silent = found.is_silent(time.time())
    steps = record.steps if record else ()
    return RegistrationStatus(
        id=found.id,
        application=found.application,
        network=found.network,
        state="silent" if is_silent else found.state.value,
        resumable=is_silent or found.is_resumable,
        progress=found.progress,
        detail=found.detail,
        created=found.created,
        by=found.by,
        steps=tuple(ListedStep(step.name, step.state.value) for step in steps),
        variants=len(record.variants) if record else 0,
        version=found.version,
        live=found.live,
    )


def _unknown() -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND, "no such registration of this application: it never was, was cancelled, or collected"
    )
