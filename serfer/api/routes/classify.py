"""POST /v1/classify, and the results that were asked for with `Prefer: respond-async`."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from serfer.api.admission import Held
from serfer.api.answering import Question, answer
from serfer.api.http.body import ApiLimits
from serfer.api.http.problems import Problem
from serfer.api.http.uploads import Upload, read_images
from serfer.api.http.validation import MAX_DEADLINE_MS
from serfer.api.idempotency import IdempotencyStore
from serfer.api.jobs.queries import AsyncQueries, AsyncQuery, Watch
from serfer.api.objectives import PARAMETERS, as_text, asked_of, objectives_of
from serfer.api.observability.timeline import progress
from serfer.api.requests import (
    IdempotencyKey,
    TimelyResponse,
    check_parameters,
    digest_of,
    idempotency_header,
    owner_of,
    query_of,
    unless_gone,
    wants_async,
)
from serfer.api.routes.openapi import CLASSIFY, problems
from serfer.api.service import Service, ServiceQuery
from serfer.applications.applications import ApplicationQuery
from serfer.core.http_messages import JobStatus, ServedReport, StageProgress
from serfer.core.run_machine import StageRun
from serfer.core.variants import Objectives

_MOST_CLASSES = 65_536
_PARAMETERS = ("top_k", "model", "deadline_ms", "explain", *PARAMETERS)
_RESULT_ID = re.compile(r"[0-9a-f]{32}")
_MS_PER_S = 1000


@dataclass(frozen=True)
class Classifying:
    """Shared by the routes: the service, its limits, what was answered before, and the default deadline."""

    service: Service
    limits: ApiLimits
    idempotency: IdempotencyStore
    queries: AsyncQueries
    deadline_ms: int


@dataclass(frozen=True)
class _ClassifyRequest:
    """One classify request, checked but for its images; `asked` is what it asks of an application."""

    request: Request
    query: ServiceQuery
    top_k: int
    explain: bool
    key: str | None
    asked: ApplicationQuery | None

    def idempotency_key(self, images: Sequence[Upload]) -> IdempotencyKey | None:
        """Return what makes this request the same as another one with its idempotency key."""
        if self.key is None:
            return None
        parameters = f"{as_text(self.asked) or self.query.model} {self.top_k} {self.explain}".encode()
        parts = [part for image in images for part in (image.name.encode(errors="surrogatepass"), image.data)]
        return IdempotencyKey(owner_of(self.request), self.key, digest_of([parameters, *parts]))


def classify_router(routes: Classifying) -> APIRouter:
    """Return the routes of `routes`."""
    router = APIRouter(prefix="/v1", tags=["classify"])
    service, queries = routes.service, routes.queries

    @router.post(
        "/classify",
        response_model=ServedReport,
        responses={
            200: {"description": "The best classes of each image, and what the query took."},
            202: {"model": JobStatus, "description": "It was begun: Location says where its result will be."},
            **problems(400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504),
        },
        openapi_extra=CLASSIFY,
    )
    async def classify(
        request: Request,
        top_k: Annotated[int, Query(ge=1, le=_MOST_CLASSES, description="How many classes at most, best first.")] = 5,
        model: Annotated[str | None, Query(max_length=80, description="One of GET /v1/models.")] = None,
        deadline_ms: Annotated[
            int | None, Query(ge=1, le=MAX_DEADLINE_MS, description="Give up then; waiting counts.")
        ] = None,
        explain: Annotated[bool, Query(description="Also say where the time went, task by task.")] = False,  # noqa: FBT002 - a query parameter
        *,
        requested: Annotated[tuple[str | None, Objectives], Depends(objectives_of)],
    ) -> Response:
        """Classify the images of one request, as one query."""
        check_parameters(request, _PARAMETERS)
        named = _Destination(model, requested)
        parsed = _parse(routes, request, named, top_k=top_k, deadline_ms=deadline_ms, explain=explain)
        service.check(parsed.query)  # before the body is read
        images = await read_images(request, routes.limits, parsed.query.left_s)
        if wants_async(request):
            return await _later(routes, parsed, images)
        return await unless_gone(request, _now(routes, parsed, images))

    @router.get(
        "/results/{result_id}",
        response_model=JobStatus,
        responses={
            200: {"description": "How far it is, stage by stage, and its result."},
            **problems(401, 403, 404, 422, 503),
        },
    )
    async def result(request: Request, result_id: str) -> Response:
        """Return the status of a query sent with `Prefer: respond-async`, and its result when it is done."""
        check_parameters(request, ())
        state = await queries.find(_checked(result_id), owner_of(request))
        waiting = state["status"] in ("queued", "running")
        return JSONResponse(state, headers={"Retry-After": "1"} if waiting else {})

    @router.delete(
        "/results/{result_id}", status_code=HTTPStatus.NO_CONTENT, responses=problems(401, 403, 404, 422, 503)
    )
    async def delete(request: Request, result_id: str) -> None:
        """Forget a result, and stop its query if it still runs."""
        check_parameters(request, ())
        await queries.cancel(_checked(result_id), owner_of(request))

    return router


@dataclass(frozen=True)
class _Destination:
    """What a request names: a model, or an application with objectives."""

    model: str | None
    requested: tuple[str | None, Objectives]


def _parse(
    routes: Classifying, request: Request, named: _Destination, *, top_k: int, deadline_ms: int | None, explain: bool
) -> _ClassifyRequest:
    allowed_s = (deadline_ms or routes.deadline_ms) / _MS_PER_S
    identifier = getattr(request.state, "request_id", "") or secrets.token_hex(8)
    asked = asked_of(routes.service, named.model, named.requested, identifier)
    if asked is None:
        name = routes.service.name(named.model)
        check_classifies(routes.service, name)
        request.state.plan = routes.service.pipelines[name].plan
    else:
        name = asked.application
    query = query_of(request, name, allowed_s)
    return _ClassifyRequest(request, query, top_k, explain, idempotency_header(request), asked)


def check_classifies(service: Service, name: str) -> None:
    """Refuse a model whose outputs are not classes, with what to use; raises Problem 422."""
    plan = service.pipelines[name].plan
    if not plan.classifies:
        outputs = ", ".join(f"{tensor.name} {list(tensor.dims)} {tensor.dtype}" for tensor in plan.output_tensors)
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{name} has no score for each class; an image's outputs are {outputs}: POST /v2/models/{name}/infer",
        )


async def _now(routes: Classifying, parsed: _ClassifyRequest, images: Sequence[Upload]) -> Response:
    idempotency_key, headers = parsed.idempotency_key(images), {}
    if idempotency_key is None:
        body = await _answer(routes, parsed, images)
    else:
        reply = await routes.idempotency.first_answer(
            idempotency_key, lambda _: _answer(routes, parsed, images), parsed.query.left_s
        )
        body, headers = reply.body, {"Idempotent-Replayed": "true"} if reply.replayed else {}
    return TimelyResponse(parsed.query, body, "application/json", headers)


async def _answer(
    routes: Classifying, parsed: _ClassifyRequest, images: Sequence[Upload], watch: Watch | None = None
) -> bytes:
    """Return the body of the answer, explained where `watch` follows the query."""
    query = replace(parsed.query, context=replace(parsed.query.context, watch=watch))
    question = Question(query, parsed.top_k, parsed.explain or watch is not None, parsed.asked)
    state = parsed.request.state
    state.answered, report = await answer(routes.service, question, images, lambda plan: setattr(state, "plan", plan))
    return json.dumps(report.as_dict(), allow_nan=False).encode()


async def _later(routes: Classifying, parsed: _ClassifyRequest, images: Sequence[Upload]) -> Response:
    query, idempotency_key = parsed.query, parsed.idempotency_key(images)
    if idempotency_key is not None:
        await routes.idempotency.check(idempotency_key)
    place = routes.service.admission.place(query.client, query.left_s, kept=True)
    promised = replace(parsed, query=replace(query, place=place))
    held: Held = parsed.request.state.held

    async def work(watch: Watch) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(await _answer_once(routes, promised, images, idempotency_key, watch))
        return report

    def ended() -> None:
        place.release()
        held.release()

    held.keep()
    try:
        state = await routes.queries.begin(
            AsyncQuery(
                owner_of(parsed.request),
                query.model,
                time.time() + query.left_s,
                idempotency_key,
                work,
                _progress_of(parsed.request),
                ended,
            )
        )
    except BaseException:
        ended()
        raise
    location = f"/v1/results/{state['id']}"
    headers = {"Location": location, "Retry-After": "1", "Preference-Applied": "respond-async"}
    return JSONResponse(state, HTTPStatus.ACCEPTED, headers)


async def _answer_once(
    routes: Classifying,
    parsed: _ClassifyRequest,
    images: Sequence[Upload],
    idempotency_key: IdempotencyKey | None,
    watch: Watch,
) -> bytes:
    """Return the answer's body, which a request that waits for it, with the same key, gets as well."""
    if idempotency_key is None:
        return await _answer(routes, parsed, images, watch)
    first = await routes.idempotency.first_answer(
        idempotency_key, lambda _: _answer(routes, parsed, images, watch), parsed.query.left_s
    )
    return first.body


def _progress_of(request: Request) -> Callable[[Sequence[StageRun]], Sequence[StageProgress]]:
    """Return what says how far a query is on the plan that it runs on; nothing before that is known."""
    zero = time.monotonic()

    def stages_of(stages: Sequence[StageRun]) -> Sequence[StageProgress]:
        plan = getattr(request.state, "plan", None)
        return progress(plan, stages, zero) if plan else ()

    return stages_of


def _checked(result_id: str) -> str:
    if not _RESULT_ID.fullmatch(result_id):
        raise Problem(HTTPStatus.NOT_FOUND, "no such result: its id is 32 hexadecimal digits")
    return result_id
