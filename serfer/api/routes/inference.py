"""The Open Inference Protocol, version 2, over HTTP: what KServe's and Triton's clients speak.

Every model has one version, "1". It takes exactly one of two tensors: "input", float32 as the network reads it, or,
where the plan says how an image becomes that, "image", the pixels of images of the network's size. It gives the outputs
that its network has; the only one of a network that classifies is found by "logits", too. A network that was read from
an ONNX file has its input in the file's form and name as well. Triton's extensions for binary data and classification
are there. Its statistics, settings, traces and shared memory are not: there are no such routes. Its repository
is in serfer/api/routes/repository.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from fastapi import APIRouter, Request, Response

from serfer import __version__
from serfer.api.admission import HeldBytes, Place
from serfer.api.http.body import CODINGS, MOST_RATIO, ApiLimits, accepted, coding_of, compress, decompress, read_body
from serfer.api.http.inference_models import (
    InferenceRequest,
    InferenceResponse,
    ModelMetadata,
    ModelReady,
    RequestParameters,
    ServerLive,
    ServerMetadata,
    ServerReady,
)
from serfer.api.http.problems import Problem
from serfer.api.http.tensors import Inference, Signature, TensorForm, decode_request, encode_answer
from serfer.api.kept_results import owner_id, place_of
from serfer.api.questions import OPENING, is_cold
from serfer.api.requests import client_of, query_of, unless_gone
from serfer.api.routes.kept import Keeping
from serfer.api.routes.openapi import BINARY, FILE, inference_errors, path_parameters, request_body
from serfer.api.service import Service, ServiceQuery, ServiceResult
from serfer.applications.answering import ApplicationQuery, Choice, Run
from serfer.core.errors import DeadlineError, UsageError
from serfer.core.inference_protocol import BY_DTYPE, HEADER, header_length
from serfer.core.plan import SCORES, AxisForm, FileTensors, InputSizes, OutputTensor, Plan, Shape
from serfer.core.plan.answers import as_answer, by_name
from serfer.core.plan.pixels import as_they_are
from serfer.core.variants import Objectives
from serfer.pipeline.pipeline import MAX_DEADLINE_S
from serfer.results import ResultManifest

PREFIX: Final = "/v2"
_MODELS: Final = ("/models/{model}", "/models/{model}/versions/{version}")
VERSION: Final = "1"
_LARGE = 256 * 1024  # bytes of JSON that take milliseconds to decode
_Run: TypeAlias = tuple[ServiceResult, ResultManifest | None]
_MS_PER_S, _US_PER_S = 1000, 1_000_000
_NOT_DECODED: Final = "no answer by the deadline: other large requests were decoded first; send less, or binary data"
_NOT_READY: Final = {"description": "Not ready."}
_INFER: Final = {"requestBody": request_body({"application/json": InferenceRequest, BINARY: FILE})}


@dataclass(frozen=True)
class Inferring:
    """Shared by the routes: the service, its limits, the default deadline, and what is kept."""

    service: Service
    limits: ApiLimits
    deadline_ms: int
    keeping: Keeping


def signature_of(plan: Plan, limits: ApiLimits) -> Signature:
    """Return what a plan's model takes and gives: as SerFer names it, or as the file that it was read from does."""
    shape, sizes = plan.input, plan.sizes.input if plan.sizes else None
    takes = [_of_sizes(TensorForm("input", "FP32", (shape.channels, shape.height, shape.width)), "CHW", sizes)]
    pixels = _of_sizes(TensorForm("image", "UINT8", (shape.height, shape.width, shape.channels)), "HWC", sizes)
    images = [pixels] if plan.preprocess is not None else []
    gives = [
        _output(each, plan.sizes.outputs[number] if plan.sizes else ())
        for number, each in enumerate(plan.output_tensors)
    ]
    most = limits.max_images, limits.max_answer_bytes, 0 if plan.sizes else limits.max_result_bytes
    if plan.file is None:
        return Signature([*takes, *images], gives, *most)
    scores = [replace(form, name=SCORES, tensor=form.name) for form in gives] if plan.classifies else []
    same = plan.preprocess is not None and as_they_are(plan.preprocess)
    return Signature([_own_input(plan.file, shape, sizes, pixels=same), *images], gives, *most, takes, scores)


def _output(tensor: OutputTensor, forms: tuple[AxisForm, ...]) -> TensorForm:
    varies = (tensor.axis,) if tensor.sized_by else tuple(axis for axis, form in enumerate(forms) if form.varies)
    return TensorForm(tensor.name, BY_DTYPE[tensor.dtype], tensor.dims, varies=varies, axis_forms=forms)


def _of_sizes(form: TensorForm, axes: str, sizes: InputSizes | None) -> TensorForm:
    if sizes is None:
        return form
    sides = axes.index("H"), axes.index("W")
    both = zip(sides, (sizes.rows, sizes.columns), strict=True)
    return replace(form, sizes=sizes, sides=sides, varies=tuple(axis for axis, side in both if side.varies))


def _own_input(file: FileTensors, shape: Shape, many: InputSizes | None, *, pixels: bool) -> TensorForm:
    sides = {"C": shape.channels, "H": shape.height, "W": shape.width}
    axes = file.axes.removeprefix("N")
    form = TensorForm(file.input, BY_DTYPE[file.dtype], tuple(sides[axis] for axis in axes), axes)
    form = _of_sizes(form, axes, many)
    return replace(form, axes="") if pixels and (file.dtype, axes) == ("uint8", "HWC") else form


def protocol_health_router(service: Service) -> APIRouter:
    router = APIRouter(prefix=f"{PREFIX}/health", tags=["inference"])

    @router.get("/live", responses={200: {"description": "It is."}})
    async def live() -> ServerLive:
        """Return 200 while the process lives."""
        return ServerLive(live=True)

    @router.get("/ready", responses={200: {"description": "It is."}, 503: {"model": ServerReady} | _NOT_READY})
    async def ready(response: Response) -> ServerReady:
        """Return whether queries can be answered: 200, or 503."""
        is_ready = await service.ready()
        response.status_code = 200 if is_ready else 503
        return ServerReady(live=True, ready=is_ready)

    return router


def inference_router(routes: Inferring) -> APIRouter:
    router = APIRouter(prefix=PREFIX, tags=["inference"])
    service = routes.service

    @router.get("", responses={200: {"description": "The server."}, **inference_errors(401, 403)})
    async def server() -> ServerMetadata:
        """Return the server's name and version, and its extensions of the protocol."""
        extensions = ["binary_tensor_data", "classification", *(["result_links"] if routes.keeping.kept else [])]
        extensions += ["model_repository"] if service.repository else []
        return ServerMetadata(name="serfer", version=__version__, extensions=extensions)

    async def metadata(request: Request) -> ModelMetadata:
        """Return a model's inputs and outputs: one of its inputs, not all of them, makes a request."""
        named = await _find(request, service)
        signature = signature_of(named.plan, routes.limits)
        return ModelMetadata(
            name=named.name,
            versions=[VERSION],
            platform="serfer_plan",
            inputs=[form.metadata() for form in signature.takes],
            outputs=[form.metadata() for form in signature.gives],
        )

    async def model_ready(request: Request, response: Response) -> ModelReady:
        """Return whether a model can answer: 200, or 503."""
        name = (await _find(request, service)).name
        is_ready = await service.ready()
        if service.repository:
            is_ready = is_ready and not service.repository.states()[name].failure
        response.status_code = 200 if is_ready else 503
        return ModelReady(name=name, ready=is_ready)

    for at in _MODELS:
        parameters = {"parameters": path_parameters(at)}
        router.add_api_route(
            at,
            metadata,
            methods=["GET"],
            responses={200: {"description": "The model, and the inputs it takes."}, **inference_errors(401, 403, 404)},
            openapi_extra=parameters,
        )
        router.add_api_route(
            f"{at}/ready",
            model_ready,
            methods=["GET"],
            responses={
                200: {"description": "The model is ready."},
                **inference_errors(401, 403, 404),
                503: {"model": ModelReady, **_NOT_READY},
            },
            openapi_extra=parameters,
        )
    return router


def infer_router(routes: Inferring, guards: Sequence[Any]) -> APIRouter:
    """Return the direct routes of queries, which requests reach by way of `guards`, dependencies of FastAPI's."""
    router = APIRouter(prefix=PREFIX, tags=["inference"], dependencies=guards)

    async def infer(request: Request) -> Response:
        """Return what a model's network makes of a tensor."""
        return await _infer(routes, request)

    for at in _MODELS:
        router.add_api_route(
            f"{at}/infer",
            infer,
            methods=["POST"],
            response_model=InferenceResponse,
            responses={
                200: {"description": "The outputs, or the highest scores.", "content": {BINARY: {"schema": FILE}}},
                **inference_errors(400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504),
            },
            openapi_extra={"parameters": path_parameters(at)} | _INFER,
        )
    return router


def _check_version(request: Request, name: str) -> None:
    version = request.path_params.get("version", VERSION)
    if version != VERSION:
        raise Problem(404, f"{name[:80]} has no version {version[:40]!r}: there is {VERSION!r}")


@dataclass(frozen=True)
class _Destination:
    """What a path names: a model, or an application, or a network of it; and the plan whose tensors it takes."""

    name: str
    plan: Plan
    application: str | None = None
    network: str | None = None

    def asked(self, request: Request, parameters: RequestParameters) -> ApplicationQuery | None:
        """Return what a request asks of an application; raises Problem 400 for objectives of a model."""
        objectives = Objectives(
            parameters.latency_ms,
            parameters.min_accuracy,
            parameters.max_cost_usd,
            parameters.variant,
            self.network,
            parameters.strict,
        )
        if self.application is not None:
            return ApplicationQuery(self.application, objectives, request.scope["state"].get("request_id", ""))
        if objectives != Objectives():
            raise Problem(400, f"{self.name} is a model: objectives are asked of an application")
        return None


async def _find(request: Request, service: Service) -> _Destination:
    called, applications = request.path_params["model"], service.applications
    application, _, network = called.partition(":")
    if applications is None or called in service.models or application not in applications.names:
        name = service.name(called)
        _check_version(request, name)
        return _Destination(name, service.pipelines[name].plan)
    _check_version(request, called)
    try:
        pipeline = await applications.answering.reference(application, network or None)
    except UsageError as error:  # no such network
        raise Problem(404, str(error)) from None
    variants = applications.releases.find(application).table.live.variants
    own = (each.network for each in variants.values() if each.plan == pipeline.plan.digest)
    return _Destination(called, pipeline.plan, application, network or next(own, None))


async def _infer(routes: Inferring, request: Request) -> Response:
    service = routes.service
    service.admission.check(
        client_of(request.scope), MAX_DEADLINE_S
    )  # before the body is read: its deadline is in there
    named = await _find(request, service)
    inference = await _read(routes, request, signature_of(named.plan, routes.limits))
    query = query_of(request, named.name, _deadline_s(routes, inference.parameters))
    asked = named.asked(request, inference.parameters)

    async def run(model: str) -> _Run:
        own = replace(query, model=model)
        if inference.kept:
            return await service.keep(own, inference.array, owner_id(request))
        return await service.run(own, inference.array), None

    choice: Choice | None = None
    if asked is None or service.applications is None:
        answered, stored = await unless_gone(request, run(query.model))
    else:
        by_variant = Run(
            lambda chosen: run(chosen.model), lambda: query.in_time(OPENING), lambda ran: is_cold(ran[0]), _agree
        )
        choice, (answered, stored) = await unless_gone(
            request, service.applications.answering.answer(asked, by_variant)
        )
    if stored is not None:
        return await _reply_kept(routes.keeping, query, inference, stored)
    async with query.in_time("the answer was written"):
        return await asyncio.to_thread(_answer, request, query, inference, named.plan, answered, choice)


def _agree(one: _Run, other: _Run) -> bool:
    outputs = one[0].result.outputs, other[0].result.outputs
    return all(
        np.array_equal(mine.argmax(axis=-1), theirs.argmax(axis=-1))
        for mine, theirs in zip(outputs[0].values(), outputs[1].values(), strict=False)
    )


async def _reply_kept(keeping: Keeping, query: ServiceQuery, inference: Inference, stored: ResultManifest) -> Response:
    names = [(wanted.form.tensor or wanted.form.name, wanted.form.name) for wanted in inference.wanted]
    said = await asyncio.to_thread(keeping.said, stored, names)
    identifier = {} if inference.id is None else {"id": inference.id}
    body = json.dumps({**said, **identifier}, allow_nan=False).encode()
    query.remaining_s("the answer was written")
    return Response(body, headers={"Content-Location": place_of(stored)}, media_type="application/json")


async def _read(routes: Inferring, request: Request, signature: Signature) -> Inference:
    """Read and decode a request: a large one, which takes several times its bytes, in a thread and alone.

    It waits for that no longer than a query may take that names no deadline.
    """
    coding, most = coding_of(request.headers), routes.limits.max_body_bytes
    header = _header_length(request)
    body = await read_body(request, routes.limits, CODINGS)

    def decoded() -> Inference:
        return decode_request(decompress(body, coding, most) if coding else body, header, signature)

    held: HeldBytes = request.scope["state"]["held"]
    if coding is None and (len(body) if header is None else header) <= _LARGE:
        inference = decoded()
    else:
        unpacked = min(most, len(body) * MOST_RATIO) if coding else 0
        slot = routes.service.admission.parsing.hold(Place(client_of(request.scope)), routes.deadline_ms / _MS_PER_S)
        try:
            async with slot:
                held.add(unpacked)
                inference = await asyncio.to_thread(decoded)
                held.add(-unpacked)
        except DeadlineError:
            raise Problem(504, _NOT_DECODED) from None
    if not np.may_share_memory(inference.array, np.frombuffer(body, np.uint8)):  # which waits beside the body
        held.add(inference.array.nbytes)
    return inference


def _header_length(request: Request) -> int | None:
    values = request.headers.getlist(HEADER)
    if not values:
        return None
    length = header_length(values[0])
    if len(values) > 1 or length is None:
        raise Problem(400, f"{HEADER} is not a number of bytes")
    return length


def _deadline_s(routes: Inferring, parameters: RequestParameters) -> float:
    """Return the deadline of a request: `deadline_ms`, or Triton's `timeout` in microseconds, or the usual one.

    A timeout of 0 stands for the usual one, and one that is too long for the longest.
    """
    ms, us = parameters.deadline_ms, parameters.timeout
    limits = [limit for limit in (ms and ms / _MS_PER_S, us and us / _US_PER_S) if limit]
    return min([*limits, MAX_DEADLINE_S] if limits else [routes.deadline_ms / _MS_PER_S])


def _answer(
    request: Request,
    query: ServiceQuery,
    inference: Inference,
    plan: Plan,
    answered: ServiceResult,
    choice: Choice | None,
) -> Response:
    """Return the response to a request, compressed if the client wants that; what an instance answered says how."""
    parameters: dict[str, Any] = {}
    if served := answered.result.served:
        parameters |= {"batch": served.batch, "computed_ms": round(served.computed_ms, 3)}
    if choice is not None:
        parameters |= {"variant": choice.variant.name, "reason": choice.selection.reason.value}
    named = {"model_name": query.model, "model_version": VERSION, **({"parameters": parameters} if parameters else {})}
    outputs = by_name(plan, as_answer(answered.result.outputs))  # a release since may have another name
    body, header = encode_answer(inference, outputs, named, plan.labels)
    headers = {"Vary": "Accept-Encoding"}
    if header is not None:
        headers[HEADER] = str(header)
    if coding := accepted(request.headers, len(body)):
        body, headers["Content-Encoding"] = compress(body, coding), coding
    return Response(body, headers=headers, media_type="application/json" if header is None else BINARY)
