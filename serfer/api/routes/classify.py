"""POST /v1/classify and /v1/predict, and the results that were asked for with `Prefer: respond-async`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from pydantic_core import to_json

from serfer.api.admission import HeldBytes
from serfer.api.http.body import ApiLimits, JsonBytes
from serfer.api.http.problems import Problem
from serfer.api.http.uploads import Upload, read_images
from serfer.api.http.validation import MAX_DEADLINE_MS
from serfer.api.idempotency import IdempotencyStore, Reply
from serfer.api.jobs.queries import AsyncQueries, AsyncQuery, Watch
from serfer.api.kept_results import owner_id
from serfer.api.observability.timeline import progress
from serfer.api.questions import ObjectiveParameters, Question, asked_of, run_question
from serfer.api.requests import (
    IDENTIFIER,
    IdempotencyKey,
    check_parameters,
    digest_of,
    idempotency_header,
    owner_of,
    query_of,
    unless_gone,
    wants_async,
)
from serfer.api.routes.kept import Keeping
from serfer.api.routes.openapi import images_in, problems
from serfer.api.service import Service, ServiceQuery
from serfer.applications.answering import ApplicationQuery
from serfer.core.detections import CocoDataset, coco
from serfer.core.http_messages import JobStatus, ServedPrediction, ServedReport, StageProgress
from serfer.core.keys import ResultPlace
from serfer.core.plan import Plan
from serfer.core.report import BOXES, CLASSES
from serfer.core.run_machine import StageRun
from serfer.pipeline.prediction import draws, kind_of
from serfer.pipeline.query import Wanted

_MS_PER_S = 1000
_ANSWERS: Any = {
    202: {"model": JobStatus, "description": "It was begun: Location says where its result will be."},
    **problems(400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504),
}
_encode = partial(to_json, inf_nan_mode="null")  # in a fifth of json's time; the pipeline refuses what is not finite


class ClassifyParameters(ObjectiveParameters):
    """The query parameters of /v1/classify."""

    deadline_ms: int | None = Field(None, ge=1, le=MAX_DEADLINE_MS, description="Give up then; waiting counts.")
    explain: bool = Field(default=False, description="Also say where the time went, task by task.")


class PredictParameters(ClassifyParameters):
    """The query parameters of /v1/predict."""

    min_score: float | None = Field(None, ge=0.0, le=1.0, description="Least score of a box, in place of the plan's.")
    form: Literal["json", "coco"] = Field(
        "json", alias="format", description="coco: boxes as a COCO data set, with scores."
    )


@dataclass(frozen=True)
class Classifying:
    """Shared by the routes: the service, its limits, what was answered before, the default deadline, what is kept."""

    service: Service
    limits: ApiLimits
    idempotency: IdempotencyStore
    queries: AsyncQueries
    deadline_ms: int
    keeping: Keeping


@dataclass(frozen=True)
class _ClassifyRequest:
    """One request, checked but for its images; `asked` is what it asks of an application.

    Boxes are wanted `as_coco`, or as others are.
    """

    request: Request
    query: ServiceQuery
    wanted: Wanted
    explain: bool
    key: str | None
    asked: ApplicationQuery | None
    as_coco: bool = False

    def idempotency_key(self, images: Sequence[Upload]) -> IdempotencyKey | None:
        if self.key is None:
            return None
        named = f"{self.asked.application} {self.asked.objectives}" if self.asked else self.query.model
        asked = f"{named} {self.wanted.top_k} {self.explain}"
        parameters = (asked if self.wanted.classes else f"{asked} {self.wanted.min_score} {self.as_coco}").encode()
        parts = [part for image in images for part in (image.name.encode(errors="surrogatepass"), image.data)]
        return IdempotencyKey(owner_of(self.request), self.key, digest_of([parameters, *parts]))


def classify_router(routes: Classifying, guards: Sequence[Any]) -> APIRouter:
    """Return the direct routes of queries, which requests reach by way of `guards`, dependencies of FastAPI's."""
    router = APIRouter(prefix="/v1", tags=["classify"], dependencies=guards)

    @router.post(
        "/classify",
        response_model=ServedReport,
        responses={200: {"description": "The best classes of each image, and what the query took."}, **_ANSWERS},
        openapi_extra=images_in(ClassifyParameters),
    )
    async def classify(request: Request) -> Response:
        """Classify the images of one request, as one query."""
        parameters = ClassifyParameters.of(request.scope["query_string"])
        return await _respond(routes, _parse(routes, request, parameters, Wanted(parameters.top_k, classes=True)))

    @router.post(
        "/predict",
        response_model=ServedPrediction | CocoDataset,
        responses={200: {"description": "What the network finds in each image, and what the query took."}, **_ANSWERS},
        openapi_extra=images_in(PredictParameters),
    )
    async def predict(request: Request) -> Response:
        """Say what any network finds in the images of one request: classes, boxes, a vector's values, or maps."""
        parameters = PredictParameters.of(request.scope["query_string"])
        parsed = _parse(routes, request, parameters, Wanted(parameters.top_k, parameters.min_score))
        plan: Plan | None = request.scope["state"].get("plan")
        if plan and kind_of(plan) != CLASSES and "top_k" in parameters.model_fields_set:
            raise Problem(422, f"top_k is for classes, and {parsed.query.model} gives other outputs: leave it out")
        if parameters.form == "coco":
            parsed = replace(parsed, as_coco=True)
            _check_coco(parsed)
        return await _respond(routes, parsed)

    return router


def results_router(queries: AsyncQueries) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["classify"])

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
        state = await queries.find(_check_id(result_id), owner_of(request))
        waiting = state["status"] in ("queued", "running")
        return JSONResponse(state, headers={"Retry-After": "1"} if waiting else {})

    @router.delete(
        "/results/{result_id}", status_code=204, response_model=None, responses=problems(401, 403, 404, 422, 503)
    )
    async def delete(request: Request, result_id: str) -> None:
        """Forget a result, and stop its query if it still runs."""
        check_parameters(request, ())
        await queries.cancel(_check_id(result_id), owner_of(request))

    return router


async def _respond(routes: Classifying, parsed: _ClassifyRequest) -> Response:
    left_s = routes.service.check(parsed.query)  # before the body is read
    images = await read_images(parsed.request, routes.limits, left_s)
    if b"prefer" in dict(parsed.request.scope["headers"]) and wants_async(parsed.request):
        return await _respond_later(routes, parsed, images)
    if parsed.key is None:
        reply = Reply(await unless_gone(parsed.request, _compute_body(routes, parsed, images)), replayed=False)
    else:
        reply = await unless_gone(parsed.request, _reply_once(routes, parsed, images))
    parsed.query.remaining_s("the answer was written")
    return JsonBytes(reply.body, ((b"idempotent-replayed", b"true"),) if reply.replayed else ())


def _parse(routes: Classifying, request: Request, parameters: ClassifyParameters, wanted: Wanted) -> _ClassifyRequest:
    allowed_s = (parameters.deadline_ms or routes.deadline_ms) / _MS_PER_S
    state = request.scope["state"]
    asked = asked_of(routes.service, parameters, state["request_id"])
    if asked is None:
        name = routes.service.name(parameters.model)
        plan = routes.service.pipelines[name].plan
        if wanted.classes:
            check_classifies(plan, name)
        state["plan"] = plan
    else:
        name = asked.application
    query = query_of(request, name, allowed_s)
    key = idempotency_header(request) if b"idempotency-key" in dict(request.scope["headers"]) else None
    return _ClassifyRequest(request, query, wanted, parameters.explain, key, asked)


def _check_coco(parsed: _ClassifyRequest) -> None:
    plan: Plan | None = parsed.request.scope["state"].get("plan")
    if plan is None or plan.detection is None:
        raise Problem(422, f"{parsed.query.model} gives no boxes, and format=coco is for boxes: leave it out")
    if wants_async(parsed.request):
        raise Problem(422, "format=coco is for answers at once: leave Prefer out")


def check_classifies(plan: Plan, name: str) -> None:
    """Refuse a model whose outputs are not classes, with what to use; raises Problem 422."""
    if not plan.classifies:
        raise Problem(
            422,
            f"{name} has no score for each class; an image's outputs are {_outputs(plan)}: POST /v1/predict, or "
            f"/v2/models/{name}/infer",
        )


def _outputs(plan: Plan) -> str:
    return ", ".join(f"{tensor.name} {list(tensor.dims)} {tensor.dtype}" for tensor in plan.output_tensors)


async def _reply_once(
    routes: Classifying, parsed: _ClassifyRequest, images: Sequence[Upload], watch: Watch | None = None
) -> Reply:
    key = parsed.idempotency_key(images) if parsed.key else None
    if key is None:
        return Reply(await _compute_body(routes, parsed, images, watch), replayed=False)
    return await routes.idempotency.first_answer(
        key, lambda _: _compute_body(routes, parsed, images, watch), parsed.query.left_s
    )


async def _compute_body(
    routes: Classifying, parsed: _ClassifyRequest, images: Sequence[Upload], watch: Watch | None = None
) -> bytes:
    query, state = parsed.query, parsed.request.scope["state"]
    classes = parsed.wanted.classes or parsed.asked is not None
    place = None if classes else _place_of_maps(routes, parsed, len(images))
    if watch or place:
        query = replace(query, context=replace(query.context, watch=watch, result=place))
    explain = parsed.explain or watch is not None
    question = Question(query, parsed.wanted, explain, parsed.asked)
    answered, report = await run_question(routes.service, question, images, partial(state.__setitem__, "plan"))
    if answered.result.kept is not None:
        routes.keeping.metrics.result_kept(answered.result.kept.nbytes)
    if parsed.as_coco and isinstance(report, ServedPrediction):
        return await asyncio.to_thread(_encode, coco(report.images, state["plan"].labels))
    if isinstance(report, ServedPrediction):  # it may have megabytes of values
        return await asyncio.to_thread(lambda: _encode(report.as_dict()))
    return _encode({name: value for name, value in vars(report).items() if value is not None})


def _place_of_maps(routes: Classifying, parsed: _ClassifyRequest, images: int) -> ResultPlace | None:
    """Return where maps are kept that an answer cannot have in it, None for other answers; raises Problem 422.

    An answer has vectors, masks and maps of one channel, as far as their arrays have no more bytes than an answer may.
    """
    pipeline = routes.service.pipelines[parsed.query.model]
    plan = pipeline.plan
    if kind_of(plan) in (CLASSES, BOXES):
        return None
    most = routes.limits.max_answer_bytes
    size = images * sum(prod(tensor.dims) * np.dtype(tensor.dtype).itemsize for tensor in plan.output_tensors)
    if draws(plan) and size <= most:
        return None
    if routes.keeping.kept is None or plan.sizes:
        kept = "those of many sizes are not kept" if plan.sizes else "this service keeps none (--results)"
        why = f"{size:,} bytes, of {most:,} at most" if draws(plan) else "with maps of several channels"
        raise Problem(
            422,
            f"an answer has no room for an image's outputs, {_outputs(plan)}, {why}: they are results, and {kept}. "
            f"POST /v2/models/{parsed.query.model}/infer, or split the network with --set reduce=argmax",
        )
    return pipeline.new_result(owner_id(parsed.request))


async def _respond_later(routes: Classifying, parsed: _ClassifyRequest, images: Sequence[Upload]) -> Response:
    query, idempotency_key = parsed.query, parsed.idempotency_key(images)
    if idempotency_key is not None:
        await routes.idempotency.check(idempotency_key)
    place = routes.service.admission.place(query.client, query.left_s, kept=True)
    promised = replace(parsed, query=replace(query, place=place))
    held: HeldBytes = parsed.request.scope["state"]["held"]

    async def work(watch: Watch) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((await _reply_once(routes, promised, images, watch)).body)
        return report

    def ended() -> None:
        place.release()
        held.release()

    held.kept = True
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
    return JSONResponse(state, 202, headers)


def _progress_of(request: Request) -> Callable[[Sequence[StageRun]], Sequence[StageProgress]]:
    zero = time.monotonic()

    def stages_of(stages: Sequence[StageRun]) -> Sequence[StageProgress]:
        plan = request.scope["state"].get("plan")
        return progress(plan, stages, zero) if plan else ()

    return stages_of


def _check_id(result_id: str) -> str:
    if not IDENTIFIER.fullmatch(result_id):
        raise Problem(404, "no such result: its id is 32 hexadecimal digits")
    return result_id
