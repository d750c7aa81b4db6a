"""Results that are kept: what is said of one, its outputs as files or as lists of parts, and its deletion."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from serfer.api.admission import Places
from serfer.api.auth.clients import Scope, require_scope
from serfer.api.auth.keys import KeyRing, authorise
from serfer.api.http.inference_models import InferenceResponse, ListedParts
from serfer.api.http.problems import Problem
from serfer.api.observability.metrics import Metrics
from serfer.api.requests import check_parameters, client_of
from serfer.api.results.document import PREFIX, KeptResults, owner_id, place_of
from serfer.api.results.downloads import ChunkedFile
from serfer.api.results.links import PARAMETERS
from serfer.api.routes.openapi import FILE, inference_errors
from serfer.core.errors import ResultGoneError
from serfer.results import ResultManifest, ResultOutput
from serfer.results.results import npy_bytes

NPY = "application/x-npy"  # not registered with IANA; SageMaker's clients and containers call it so
CHUNK_BYTES = 4 * 1024 * 1024
"""About how many bytes of an output are in memory, a few times, while it is sent."""
_ID = re.compile(r"[0-9a-f]{32}")
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 100
_NO_RESULT = "no such result: it was never made, has expired, was deleted, or is another key's"
_ANSWERS: Any = inference_errors(401, 403, 404, 422, 429, 503)
_FILE: Any = {200: {"description": "The output, a .npy file.", "content": {NPY: {"schema": FILE}}}}
_Signed = Annotated[str | None, Query(description="Of a signed link.")]


@dataclass(frozen=True)
class Keeping:
    """Shared by the routes: the results, None where the service keeps none, downloads' places, and what counts them."""

    kept: KeptResults | None
    downloads: Places
    metrics: Metrics

    def said(self, manifest: ResultManifest, names: Sequence[str]) -> dict[str, Any]:
        """Return what is said of outputs of a result that was just made, and count it."""
        if self.kept is None:
            raise Problem(HTTPStatus.NOT_FOUND, _NO_RESULT)
        self.metrics.result_kept(manifest.nbytes)
        return self.kept.document(manifest, names)

    async def find(self, request: Request, result_id: str) -> tuple[KeptResults, ResultManifest]:
        """Return a result of the request's owner; raises Problem 404 where there is none."""
        if self.kept is None or not _ID.fullmatch(result_id):
            raise Problem(HTTPStatus.NOT_FOUND, _NO_RESULT)
        grant = getattr(request.state, "grant", None)
        owner = grant.owner if grant is not None else owner_id(request)
        try:
            return self.kept, await asyncio.to_thread(self.kept.results.read, owner, result_id)
        except ResultGoneError:
            raise Problem(HTTPStatus.NOT_FOUND, _NO_RESULT) from None


def kept_router(routes: Keeping) -> APIRouter:
    """Return the routes that owners alone use."""
    router = APIRouter(prefix=PREFIX, tags=["inference"])

    @router.get(
        "/{result_id}",
        response_model=InferenceResponse,
        responses={200: {"description": "Its outputs, with links."}, **_ANSWERS},
    )
    async def result(request: Request, result_id: str) -> Response:
        """Return what is said of a result: its outputs and where they can be had."""
        check_parameters(request, ())
        kept, manifest = await routes.find(request, result_id)
        return JSONResponse(await asyncio.to_thread(kept.document, manifest))

    @router.delete("/{result_id}", status_code=HTTPStatus.NO_CONTENT, responses=_ANSWERS)
    async def delete(request: Request, result_id: str) -> None:
        """Delete a result, and with it all links to it."""
        check_parameters(request, ())
        kept, manifest = await routes.find(request, result_id)
        await asyncio.to_thread(kept.results.delete, manifest)

    @router.get("/{result_id}/parts/{name:path}", responses={200: {"description": "Its parts."}, **_ANSWERS})
    async def parts(request: Request, result_id: str, name: str) -> ListedParts:
        """Return the parts of an output and where they lie, with links that need no key."""
        check_parameters(request, ())
        kept, manifest = await routes.find(request, result_id)
        output = _output(manifest, name)
        listed = await asyncio.to_thread(kept.listed, manifest, output, time.time())
        if listed is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"parts have no links in this store: GET {place_of(manifest)}/outputs")
        return ListedParts.model_validate(listed)

    return router


def outputs_router(routes: Keeping) -> APIRouter:
    """Return the route of outputs' files, which signed links lead to as well."""
    router = APIRouter(prefix=PREFIX, tags=["inference"])

    async def output(
        request: Request,
        result_id: str,
        name: str,
        owner: _Signed = None,
        expires: _Signed = None,
        signature: _Signed = None,
    ) -> Response:
        """Return an output as a .npy file, while it is produced."""
        del owner, expires, signature  # which the guard has checked
        check_parameters(request, PARAMETERS)
        kept, manifest = await routes.find(request, result_id)
        return await _file(routes, kept, manifest, _output(manifest, name), request)

    for method in ("GET", "HEAD"):
        router.add_api_route(
            "/{result_id}/outputs/{name:path}",
            output,
            methods=[method],
            operation_id=f"{method.lower()}_output",
            response_class=Response,
            responses=_FILE | _ANSWERS,
        )
    return router


def outputs_guard(keys: KeyRing | None, kept: KeptResults | None) -> Any:  # noqa: ANN401 - a dependency of FastAPI's
    """Return what lets a request for an output through: with a signed link, or with a key where keys are configured."""

    async def guard(request: Request) -> None:
        if kept is not None and kept.signer is not None and "signature" in request.query_params:
            path = request.path_params
            request.state.grant = kept.signer.check(request.query_params, path["result_id"], path["name"])
        elif keys is not None:
            request.state.client = authorise(request, keys)
            require_scope(request.state.client, Scope.CLASSIFY)

    return guard


async def _file(
    routes: Keeping, kept: KeptResults, manifest: ResultManifest, output: ResultOutput, request: Request
) -> Response:
    size = npy_bytes(manifest, output)
    if kept.most_bytes is not None and size > kept.most_bytes:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"output {output.name!r} has {size:,} bytes, and at most {kept.most_bytes:,} are sent here: GET "
            f"{place_of(manifest)}/parts/NAME lists its parts, which lie elsewhere",
        )
    headers = {
        "Content-Type": NPY,
        "Content-Disposition": f'attachment; filename="{_file_name(manifest, output)}"',
        "Accept-Ranges": "none",
    }
    if request.method == "HEAD":
        return Response(headers={**headers, "Content-Length": str(size)})
    place = partial(routes.downloads.take, client_of(request))
    chunks = _with_values(kept.results.npy_chunks(manifest, output, CHUNK_BYTES))
    if kept.most_bytes is not None:  # nothing is streamed: it is whole, or an error
        with place():
            body = await asyncio.to_thread(b"".join, chunks)
        routes.metrics.result_sent(len(body))
        return Response(body, headers=headers)
    return ChunkedFile(chunks, size, headers, place, routes.metrics.result_sent)


def _with_values(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Join the first two chunks: a file's head alone could be sent where its values are gone."""
    yield next(chunks) + next(chunks, b"")
    yield from chunks


def _output(manifest: ResultManifest, name: str) -> ResultOutput:
    if found := manifest.output(name):
        return found
    known = ", ".join(repr(output.name) for output in manifest.outputs)
    raise Problem(HTTPStatus.NOT_FOUND, f"the result has no output {name[:80]!r}: there is {known}")


def _file_name(manifest: ResultManifest, output: ResultOutput) -> str:
    """Return a name that every file system and header takes."""
    plain = _PLAIN.sub("_", output.name).strip(".")[:_MOST_NAME] or "output"
    return f"{manifest.id[:8]}-{plain}.npy"
