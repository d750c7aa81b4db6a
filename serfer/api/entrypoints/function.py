"""The same application as a Lambda function behind API Gateway, instead of a driver that is always there.

The function's handler is `serfer.api.entrypoints.function.handler`. `serfer.settings.DriverSettings` say which plans it
serves, by what store, workers and engine; its package holds the plans, of which plan.json is enough. The other settings
are those of every driver.

It may serve applications. Between requests nothing looks at the registry, and nothing is told to other drivers: a
request looks again after five seconds (Applications.catch_up), states are those that this environment has seen, and
canaries, which all drivers would have to judge, are left to others. Releases are changed elsewhere.

One invocation is one request, so nothing waits here: Lambda starts as many environments as there are requests. Between
invocations an environment is frozen, so nothing can be promised for later: `Prefer: respond-async` is refused. What
API Gateway gives up after 29 seconds, we give up before.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from fastapi import FastAPI
from mangum import Mangum
from mangum.adapter import DEFAULT_TEXT_MIME_TYPES
from starlette.requests import Request

from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing
from serfer.api.entrypoints.aws_driver import applications_of, models_of, opening_of
from serfer.api.entrypoints.serving import applications_for, make_service, open_model
from serfer.api.http.problems import MEDIA_TYPE, Problem
from serfer.api.observability.logs import configure_logs
from serfer.api.requests import Check, wants_async
from serfer.applications.applications import Applications
from serfer.core.errors import UsageError
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.warm import Warmth, pinged
from serfer.settings import DriverSettings, Settings, load_settings

_log = logging.getLogger("serfer.api")
_LONGEST_MS = 28_000
_MOST_ANSWER_BYTES = 4_400_000  # a response has 6 MB, in base64
_THROTTLED_ATTEMPTS = 5  # in about half a second: a waiting driver takes the room that its own stages need
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN = ("/v1/", "/v2/", "/page/")
_TEXT = (*DEFAULT_TEXT_MIME_TYPES, MEDIA_TYPE, "application/openmetrics-text")


class Function:
    """A handler for Lambda that passes API Gateway's events, of both formats, to an application.

    A schedule's event has it warm the functions of its models up (serfer/pipeline/warm.py). Its event loop stands still
    between two calls; those of its pipelines do not, so that the remains of a query are deleted. `close` ends it.
    """

    def __init__(self, app: FastAPI) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)  # Mangum asks for the current one
        self._pipelines: Sequence[Pipeline] = app.state.pipelines
        self._adapter = Mangum(app, lifespan="off", text_mime_types=list(_TEXT))

    def __call__(self, event: dict[str, Any], context: Any) -> dict[str, Any]:  # noqa: ANN401 - awslambdaric's context
        if queries := pinged(event):
            return {"functions": [warmth.as_dict() for warmth in self._warm(queries)]}
        asyncio.set_event_loop(self._loop)
        return self._adapter(_without_prefix(event), context)

    def _warm(self, queries: int) -> Iterator[Warmth]:
        for pipeline in self._pipelines:
            with suppress(UsageError):
                for function in pipeline.warm(queries):
                    if function.problem:
                        _log.warning("%s is not warm: %s", function.function, function.problem)
                    yield function

    def close(self) -> None:
        asyncio.set_event_loop(None)
        self._loop.close()


def _without_prefix(event: dict[str, Any]) -> dict[str, Any]:
    context = event.get("requestContext", {})
    http = context.get("http", {})
    path = http.get("path") or event.get("path", "")
    route = event.get("resource") or event.get("routeKey", "").rpartition(" ")[2]
    rest = re.fullmatch(r"(/.*)\{(\w+)\+\}", route)
    if rest and rest[2] in (event.get("pathParameters") or {}):
        path = (rest[1] if rest[1].startswith(_OWN) else "/") + event["pathParameters"][rest[2]]
    elif route.startswith("/") and "{" not in route:
        path = route
    elif "version" in event and context.get("domainPrefix") == context.get("apiId"):  # a custom domain's has no stage
        path = re.sub(rf"^/{re.escape(context.get('stage', ''))}(?=/|$)", "", path)
    return {**event, "path": path, "requestContext": {**context, "http": {**http, "path": path}}}


def open_application(driver: DriverSettings, settings: Settings, opened: ExitStack) -> FastAPI:
    """Open the models that a function's settings name, in `opened`, and return their application.

    Raises UsageError that names the wrong variable, and what opening a plan raises.
    """
    opening = opening_of(driver)
    alone = {
        "api_in_flight": 1,
        "api_queue": 0,
        "api_decoders": 1,
        "api_max_answer_bytes": min(settings.api_max_answer_bytes, _MOST_ANSWER_BYTES),
        "api_deadline_ms": min(settings.api_deadline_ms, _LONGEST_MS),
        "throttled_attempts": min(settings.throttled_attempts, _THROTTLED_ATTEMPTS),
        "function_memory_mb": driver.lambda_memory_mb,
    }
    settings = settings.model_copy(update=alone)
    pipelines = {
        name: opened.enter_context(Pipeline(asyncio.run(open_model(directory, opening, settings, LoopThread()))))
        for name, directory in models_of(driver).items()
    }
    keys = KeyRing(settings.keys_file, time.monotonic) if settings.keys_file else None
    served = {name: pipeline.asynchronous for name, pipeline in pipelines.items()}
    service, telemetry = make_service(served, settings)
    opened.callback(service.decoders.end)
    app = make_app(service, settings, keys, telemetry, streams=False)
    app.state.pipelines = [*pipelines.values()]
    if (chosen := applications_of(driver, settings)) is not None:
        service.applications = applications_for(service, opening, chosen, settings, LoopThread, alone=True)
        opened.callback(lambda: asyncio.run(service.close_pipelines()))  # with those of variants, which come and go
        asyncio.run(service.applications.open(warm=False))
    app.checks.append(_function_check(service.applications))
    return app


def _function_check(applications: Applications | None) -> Check:
    """Return what refuses what a function cannot do, and has applications look at the registry again."""

    async def check(request: Request) -> None:
        if wants_async(request):
            raise Problem(
                422,
                "Prefer: respond-async is not for this service: a Lambda function stands still once it has answered",
            )
        if applications is not None:
            if request.method not in _READING and request.scope["path"].startswith("/v1/applications"):
                raise Problem(
                    422,
                    "a Lambda function may read the registry and nothing else: use serfer app promote, canary, "
                    "rollback or retire where the registry may be written",
                )
            await applications.catch_up()

    return check


def __getattr__(name: str) -> Any:  # noqa: ANN401 - of a module
    """Make the handler when Lambda's runtime first asks for it, which is in an environment's init."""
    if name != "handler":
        raise AttributeError(name)
    configure_logs("info", as_json=True)
    handler = Function(open_application(DriverSettings(), load_settings(), ExitStack()))
    globals()[name] = handler
    return handler
