"""POST /v1/applications/NAME/registrations: a network is uploaded and registered, in the background."""

from __future__ import annotations

import asyncio
import re
import time
from http import HTTPStatus
from importlib import import_module
from typing import Final

from fastapi import APIRouter, Request, Response

from serfer.api.auth.clients import Scope
from serfer.api.auth.keys import KeyRing
from serfer.api.http.problems import Problem
from serfer.api.http.uploads import FORM
from serfer.api.jobs.registrations import Registrar, RegistrationForm, Submission
from serfer.api.jobs.runner import JobState
from serfer.api.requests import check_parameters, owner_of
from serfer.api.routes.openapi import problems, request_body
from serfer.api.routes.releases import allowed
from serfer.api.service import Service
from serfer.core.dataclass_codec import unstructure
from serfer.core.http_messages import ServedRegistration, ServedStep
from serfer.core.variants import NAME
from serfer.registry import Registration, Registrations, Registry
from serfer.registry.registration_record import SUBMISSIONS, document_name
from serfer.settings import Settings

_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_LOOK_AGAIN_S: Final = "2"


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
    async def begin(request: Request, response: Response, name: str) -> ServedRegistration:
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
    async def look(request: Request, name: str, registration: str) -> ServedRegistration:
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
        await registrar.cancel(registration)

    return router


async def _begun(request: Request, registrar: Registrar, name: str, settings: Settings) -> Submission:
    """Receive an upload, look at it, and begin its registration unless it waits or runs already."""
    await asyncio.to_thread(import_module, "serfer.api.jobs.registration_form")  # the first time it takes a second
    from serfer.api.jobs.registration_form import (  # noqa: PLC0415 - drivers in AWS have no splitter
        read_form,
        receive,
        unpack_images,
    )

    async with registrar.uploads.receiving() as folder:
        form = await receive(request, folder, settings)
        by = owner_of(request) or "http"
        identifier, network = await asyncio.to_thread(read_form, form, name, registrar.registry, by, folder, settings)
        begun = await registrar.find_open(identifier)
        return begun or await registrar.begin(identifier, await unpack_images(network, folder, settings), folder)


def _registrar(service: Service) -> Registrar:
    if service.registrar is None:
        raise Problem(HTTPStatus.NOT_FOUND, "this service registers no networks: it was started without --register")
    return service.registrar


def _found(registry: Registry, application: str, registration: str) -> Submission:
    key = document_name(registration, SUBMISSIONS) if _ID.fullmatch(registration) else ""
    entry = registry.documents.get(key) if key else None
    found = Submission.decode(key, entry.value).at(time.time()) if entry else None
    if found is None or found.application != application:
        raise _unknown()
    return found


def _record(registry: Registry, registration: str) -> Registration | None:
    return Registrations(registry, "").read(registration) if registration else None


def _status(found: Submission, record: Registration | None) -> ServedRegistration:
    plain, is_open = unstructure(found), found.state.is_open
    for name in ("updated", "driver", "registration", "format"):
        del plain[name]
    plain["progress"] = found.progress if is_open or found.state is JobState.SILENT else ""
    return ServedRegistration(
        **plain,
        resumable=not is_open and found.state is not JobState.DONE,
        steps=tuple(ServedStep(step.name, step.state.value) for step in record.steps) if record else (),
        variants=len(record.variants) if record else 0,
    )


def _unknown() -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND, "no such registration of this application: it never was, was cancelled, or collected"
    )
