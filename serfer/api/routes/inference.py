"""The Open Inference Protocol, version 2, over HTTP: what KServe's and Triton's clients speak.

Every model has one version, "1". It takes exactly one of two tensors: "input", float32 as the network reads it, or,
where the plan says how an image becomes that, "image", the pixels of images of the network's size. It gives "logits".
Triton's extensions for binary data and classification are there. Its statistics, settings, traces and shared memory are
not: there are no such routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import from_json

from serfer import __version__
from serfer.api.http.body import ApiLimits, read_body
from serfer.api.http.compression import CODINGS, accepted, coding_of, compress, decompress
from serfer.api.http.problems import Problem
from serfer.api.http.tensors import Inference, Signature, TensorForm, decode_request, encode_answer
from serfer.api.requests import TimelyResponse, question_of, unless_gone
from serfer.api.routes import inference_documents as documents
from serfer.api.service import Answered, Question, Service
from serfer.core.plan import Plan

PREFIX: Final = "/v2"
VERSION: Final = "1"
_HEADER: Final = "Inference-Header-Content-Length"
_MOST_DIGITS = 18  # of that header
_LARGE = 256 * 1024  # bytes of JSON that take milliseconds to decode
_MOST_INDEX_BYTES = 64 * 1024
_MS_PER_S, _US_PER_S = 1000, 1_000_000


@dataclass(frozen=True)
class Inferring:
    """What the routes share: the service, its limits, and deadlines, of which `longest_ms` is the bound.

    `decoding` is held while a large request is decoded: decoded, it takes several times its bytes.
    """

    service: Service
    limits: ApiLimits
    deadline_ms: int
    longest_ms: int
    decoding: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


def signature_of(plan: Plan, most: int) -> Signature:
    """Return what a plan's model takes and gives, `most` images at a time."""
    shape = plan.input
    takes = [TensorForm("input", "FP32", (shape.channels, shape.height, shape.width))]
    if plan.preprocess is not None:
        takes.append(TensorForm("image", "UINT8", (shape.height, shape.width, shape.channels)))
    return Signature(takes, TensorForm("logits", "FP32", (plan.output.elements,)), most)


def protocol_health_router(service: Service) -> APIRouter:
    """Return the protocol's routes that need no API key: whether the service lives and is ready."""
    router = APIRouter(prefix=f"{PREFIX}/health", tags=["inference"])

    @router.get("/live", **documents.HEALTH)
    async def live() -> Response:
        """Say that the process lives."""
        return JSONResponse({"live": True})

    @router.get("/ready", **documents.HEALTH)
    async def ready() -> Response:
        """Say whether queries can be answered: 200, or 503."""
        is_ready = await _ready(service)
        return JSONResponse({"live": True, "ready": is_ready}, _status(ready=is_ready))

    return router


def inference_router(routes: Inferring) -> APIRouter:
    """Return the protocol's other routes."""
    router = APIRouter(prefix=PREFIX, tags=["inference"])
    service = routes.service

    @router.get("", **documents.SERVER)
    async def server() -> Response:
        """Say which server this is, and what it knows beyond the protocol."""
        extensions = ["binary_tensor_data", "classification"]
        return JSONResponse({"name": "serfer", "version": __version__, "extensions": extensions})

    @router.post("/repository/index", **documents.INDEX)
    async def index(request: Request) -> Response:
        """List the models; with {"ready": true}, those that are ready."""
        only = await _only_ready(request, routes.limits)
        is_ready = await _ready(service)
        state = {"state": "READY", "reason": ""} if is_ready else {"state": "UNAVAILABLE", "reason": "not ready"}
        models = service.pipelines if is_ready or not only else ()
        return JSONResponse([{"name": name, "version": VERSION, **state} for name in models])

    async def metadata(request: Request) -> Response:
        """Say what a model takes and gives: one of its inputs, not all of them, makes a request."""
        name = _model(request, service)
        signature = signature_of(service.pipelines[name].plan, routes.limits.max_images)
        inputs, outputs = [form.metadata() for form in signature.takes], [signature.gives.metadata()]
        about = {"name": name, "versions": [VERSION], "platform": "serfer_plan"}
        return JSONResponse({**about, "inputs": inputs, "outputs": outputs})

    async def model_ready(request: Request) -> Response:
        """Say whether a model can answer: 200, or 503."""
        name = _model(request, service)
        is_ready = await _ready(service)
        return JSONResponse({"name": name, "ready": is_ready}, _status(ready=is_ready))

    async def infer(request: Request) -> Response:
        """Return what a model's network makes of a tensor."""
        return await _infer(routes, request)

    for at, names in (("/models/{model}", ("model",)), ("/models/{model}/versions/{version}", ("model", "version"))):
        router.add_api_route(at, metadata, methods=["GET"], **documents.metadata(names))
        router.add_api_route(f"{at}/ready", model_ready, methods=["GET"], **documents.ready(names))
        router.add_api_route(f"{at}/infer", infer, methods=["POST"], **documents.infer(names))
    return router


def _model(request: Request, service: Service) -> str:
    """Return the model that a path names; raises Problem 404 for one that is not served, or for another version."""
    name = service.name(request.path_params["model"])
    version = request.path_params.get("version", VERSION)
    if version != VERSION:
        raise Problem(HTTPStatus.NOT_FOUND, f"{name} has no version {version[:40]!r}: there is {VERSION!r}")
    return name


async def _ready(service: Service) -> bool:
    return not service.draining and (await service.health()).ready


def _status(*, ready: bool) -> HTTPStatus:
    return HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE


async def _only_ready(request: Request, limits: ApiLimits) -> bool:
    """Read the body of a request for the index, which may be empty."""
    body = await read_body(request, ApiLimits(_MOST_INDEX_BYTES, body_timeout_s=limits.body_timeout_s))
    try:
        asked = from_json(body or b"{}")
    except ValueError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the request's JSON cannot be read: {error}") from None
    only = asked.get("ready", False) if isinstance(asked, dict) else None
    if not isinstance(only, bool):
        raise Problem(HTTPStatus.BAD_REQUEST, 'the request should be {"ready": true or false}, or empty')
    return only


async def _infer(routes: Inferring, request: Request) -> Response:
    service = routes.service
    name = _model(request, service)
    plan = service.pipelines[name].plan
    signature = signature_of(plan, routes.limits.max_images)
    service.admission.check(routes.longest_ms / _MS_PER_S)  # before the body is read: its deadline is in there
    inference = await _read(routes, request, signature)
    question = question_of(request, name, _deadline_s(routes, inference.parameters))
    answered = await unless_gone(request, service.run(question, inference.array))
    request.state.answered = answered
    async with question.in_time("the answer was written"):
        return await asyncio.to_thread(_answer, request, question, inference, plan, answered)


async def _read(routes: Inferring, request: Request, signature: Signature) -> Inference:
    """Read and decode a request, in a thread and alone if that takes long."""
    coding, most = coding_of(request.headers), routes.limits.max_body_bytes
    header = _header_length(request)
    body = await read_body(request, routes.limits, CODINGS)

    def decoded() -> Inference:
        return decode_request(decompress(body, coding, most) if coding else body, header, signature)

    if coding is None and (len(body) if header is None else header) <= _LARGE:
        return decoded()
    async with routes.decoding:
        return await asyncio.to_thread(decoded)


def _header_length(request: Request) -> int | None:
    """Return how many bytes of a request are JSON, None for all of them."""
    values = request.headers.getlist(_HEADER)
    if not values:
        return None
    if len(values) > 1 or not (values[0].isascii() and values[0].isdigit() and len(values[0]) <= _MOST_DIGITS):
        raise Problem(HTTPStatus.BAD_REQUEST, f"{_HEADER} is not a number of bytes")
    return int(values[0])


def _deadline_s(routes: Inferring, parameters: Mapping[str, Any]) -> float:
    """Return the deadline of a request: `deadline_ms`, or Triton's `timeout` in microseconds, or the usual one.

    A timeout of 0 stands for the usual one, and one that is too long for the longest.
    """
    longest, ms, us = routes.longest_ms, parameters.get("deadline_ms"), parameters.get("timeout")
    if ms is not None and (type(ms) is not int or not 1 <= ms <= longest):
        raise Problem(HTTPStatus.BAD_REQUEST, f"deadline_ms should be a whole number, 1 to {longest}")
    if us is not None and (type(us) is not int or us < 0):
        raise Problem(HTTPStatus.BAD_REQUEST, "timeout should be a whole number of microseconds")
    asked = [limit for limit in (ms and ms / _MS_PER_S, us and us / _US_PER_S) if limit]
    return min([*asked, longest / _MS_PER_S] if asked else [routes.deadline_ms / _MS_PER_S])


def _answer(request: Request, question: Question, inference: Inference, plan: Plan, answered: Answered) -> Response:
    """Return the response to a request, compressed if the client wants that; what an instance answered says how."""
    named: dict[str, Any] = {"model_name": question.model, "model_version": VERSION}
    if served := answered.result.served:
        named["parameters"] = {"batch": served.batch, "computed_ms": round(served.computed_ms, 3)}
    form = signature_of(plan, 1).gives
    body, header = encode_answer(inference, answered.result.logits, named, form, plan.labels)
    headers = {"Vary": "Accept-Encoding"}
    if header is not None:
        headers[_HEADER] = str(header)
    coding = accepted(request.headers, len(body))
    if coding:
        body, headers["Content-Encoding"] = compress(body, coding), coding
    return TimelyResponse(question, body, "application/json" if header is None else documents.BINARY, headers)
