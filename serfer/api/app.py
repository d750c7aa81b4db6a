"""The application: routes, who may use them, and what becomes of errors."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from serfer import __version__
from serfer.api.admission import Admission
from serfer.api.auth.hosts import HostCheck
from serfer.api.auth.keys import KeyRing, Scope, authorise, require, require_application, require_scope
from serfer.api.http.body import ApiLimits
from serfer.api.http.problems import OVERLOADED, Problem, problem_of, problem_response
from serfer.api.http.request_middleware import RequestMiddleware, Respond
from serfer.api.http.server import FINISH_S
from serfer.api.http.validation import fault
from serfer.api.idempotency import IdempotencyStore
from serfer.api.jobs.queries import AsyncQueries
from serfer.api.kept_results import KeptResults
from serfer.api.observability.logs import note_retry
from serfer.api.observability.metrics import metrics_router
from serfer.api.observability.telemetry import Telemetry, open_telemetry
from serfer.api.requests import Application
from serfer.api.routes.applications import applications_router
from serfer.api.routes.classify import Classifying, classify_router, results_router
from serfer.api.routes.health import health_router, load_router
from serfer.api.routes.inference import Inferring, infer_router, inference_router, protocol_health_router
from serfer.api.routes.jobs import jobs_router
from serfer.api.routes.kept import Keeping, kept_router
from serfer.api.routes.models import models_router
from serfer.api.routes.page import page_router
from serfer.api.routes.releases import releases_router
from serfer.api.routes.repository import Holding, changes_router, repository_router
from serfer.api.service import Service
from serfer.core.errors import SerferError
from serfer.core.retry import observe_retries
from serfer.settings import Settings

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig  # new in FastAPI 0.16x; earlier ones have no telemetry to turn off

_APPLICATIONS = "/v1/applications"
_OF_ALL = ("/metrics", "/v1/models/", "/v2/models/")  # names what a key for some applications may not use
_log = logging.getLogger(__name__)
_NO_OPERATOR = (
    "the API key %r was refused: loading, unloading and batching need the scope 'operate', which keys made before it "
    "lack (serfer keys add NAME --scope classify --scope operate, then SERFER_INSTANCE_KEY of the drivers)"
)
_MOST_PATH = 200  # characters that an answer repeats
_CLIENT_CLOSED = 499  # for logs and metrics: no client reads it
_OURS_ALONE = cast(  # FastAPI's own would record the words of errors, which may quote a client
    "TelemetryConfig", dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
)


def make_app(
    service: Service,
    settings: Settings,
    keys: KeyRing | None = None,
    telemetry: Telemetry | None = None,
    hosts: Iterable[str] | None = None,
    *,
    streams: bool = True,
) -> Application:
    """Return the application that answers for `service`; with `keys`, to those who have one.

    `hosts` are the names and addresses that it answers to; without them, to any (serfer/api/auth/hosts.py).
    `telemetry` are the service's metrics of its queries: without it, only requests are counted. Where it `streams`, no
    output of a result is too large to be sent.
    """
    telemetry = telemetry or open_telemetry(service.pipelines)
    most = None if streams else settings.api_max_answer_bytes
    kept = KeptResults(service.results, most) if service.results is not None else None
    limits = ApiLimits(
        settings.api_max_body_bytes,
        settings.api_max_images,
        settings.api_body_timeout_s,
        settings.api_max_answer_bytes,
        settings.api_max_result_bytes if kept else 0,
    )
    coordination = service.store.coordination()
    queries = AsyncQueries(coordination, settings.api_result_ttl_s)
    idempotency = IdempotencyStore(coordination, settings.api_result_ttl_s)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with observe_retries(telemetry.metrics.retried), observe_retries(note_retry):
            if service.applications is not None:
                service.applications.start()
            yield
            await queries.runner.close(FINISH_S)
            await service.close()
        await asyncio.to_thread(telemetry.close)

    app = Application(
        title="SerFer",
        version=__version__,
        summary="Answers to images by split convolutional networks.",
        openapi_url=None,  # FastAPI's encodes it for each request (routes/page.py)
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name whatever host the client has named
        telemetry=_OURS_ALONE,
        lifespan=lifespan,
    )
    guarded: Sequence[Any] = [Depends(_guard(keys, service))] if keys else []
    operated: Sequence[Any] = [Depends(_guard(keys, service, Scope.OPERATE))] if keys else []
    holding = Holding(service, limits, settings.api_deadline_ms)
    keeping = Keeping(kept, service.admission.downloads, telemetry.metrics)
    classifying = Classifying(service, limits, idempotency, queries, settings.api_deadline_ms, keeping)
    inferring = Inferring(service, limits, settings.api_deadline_ms, keeping)
    app.add_direct(classify_router(classifying, guarded))
    app.add_direct(infer_router(inferring, guarded))
    for router in (
        results_router(queries),
        models_router(service),
        applications_router(service),
        inference_router(inferring),
        repository_router(holding),
        kept_router(keeping),
        metrics_router(telemetry.metrics, service),
        load_router(service),
        jobs_router(service, settings.api_max_body_bytes),
    ):
        app.include_router(router, dependencies=guarded)
    if service.repository is not None:
        app.include_router(changes_router(holding, service.repository), dependencies=operated)
    app.include_router(releases_router(service, keys, is_open=settings.open_registry))
    for router in (health_router(service), protocol_health_router(service), page_router()):  # open
        app.include_router(router)
    respond = _responder(service.admission)
    for kind in (Problem, SerferError, HTTPException, RequestValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, respond)
    if hosts is not None:
        app.checks.append(HostCheck(hosts, settings.allow_hosts))
    app.enter = RequestMiddleware(app.answer, telemetry, service.admission.bytes, respond)
    return app


def _guard(keys: KeyRing, service: Service, posts: Scope = Scope.CLASSIFY) -> Any:  # noqa: ANN401 - a dependency of FastAPI's
    refused: set[str] = set()

    async def guard(request: Request) -> None:
        request.state.client = client = authorise(request, keys)
        application = _application(request, service)
        if request.method == "POST":  # a query; other requests are for what its answer has left, or what there is
            if posts is Scope.OPERATE and posts not in client.scopes and client.name not in refused:
                refused.add(client.name)
                _log.warning(_NO_OPERATOR, client.name)
            require(client, posts, application)
            return
        if not request.url.path.startswith(_APPLICATIONS):  # keys that promote or delete look at these, too
            require_scope(client, Scope.CLASSIFY)
        if application is not None or request.url.path.startswith(_OF_ALL):
            require_application(client, application)

    return guard


def _application(request: Request, service: Service) -> str | None:
    """Return the application that a query is about, None for a model: where the path names one, that alone counts."""
    called = request.path_params.get("model") or request.path_params.get("name")
    if called is None or "result_id" in request.path_params:  # whose name is an output's
        return request.query_params.get("application")
    is_model = called in service.models and not request.url.path.startswith(_APPLICATIONS)
    if service.applications is None or is_model:
        return None
    return str(called).partition(":")[0]


def _responder(admission: Admission) -> Respond:

    def problem(request: Request, error: Exception) -> Problem:
        if isinstance(error, RequestValidationError):
            first = error.errors()[0]
            return Problem(422, fault(first["loc"][1:], first["msg"]))
        if not isinstance(error, HTTPException):
            return problem_of(error)
        unknown: dict[int, str] = {
            404: f"there is nothing at {request.url.path[:_MOST_PATH]}: /docs lists what there is",
            405: f"{request.url.path[:_MOST_PATH]} does not take {request.method}: see /docs",
        }
        detail = unknown.get(error.status_code, str(error.detail))
        return Problem(error.status_code, detail, headers=error.headers)

    async def respond(request: Request, error: Exception) -> Response:
        request.state.error = error
        if isinstance(error, ClientDisconnect):
            return Response(status_code=_CLIENT_CLOSED)
        said = problem(request, error)
        if said.slug == OVERLOADED:
            await admission.pace(getattr(request.state, "deadline", math.inf) - time.monotonic())
        return problem_response(said, request)

    return respond
