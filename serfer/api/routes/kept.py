"""Results that are kept: what is said of one, its outputs as files and as zarr arrays, and its deletion."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.types import Receive, Scope, Send

from serfer.api.admission import Places
from serfer.api.http.inference_models import InferenceResponse
from serfer.api.http.problems import Problem
from serfer.api.kept_results import PREFIX, KeptResults, owner_id
from serfer.api.observability.metrics import Metrics
from serfer.api.requests import IDENTIFIER, check_parameters, client_of, disconnected
from serfer.api.routes.openapi import FILE, inference_errors
from serfer.core.errors import ResultGoneError, SerferError
from serfer.core.zarr import ChunkedArray
from serfer.results import ResultManifest, npy_bytes

NPY = "application/x-npy"  # not registered with IANA; SageMaker's clients and containers call it so
OCTETS = "application/octet-stream"
CHUNK_BYTES = 4 * 1024 * 1024
"""About how many bytes of an output are in memory, a few times, while it is sent."""
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 100
_NO_RESULT = "no such result: it was never made, has expired, was deleted, or is another key's"
_ANSWERS: Any = inference_errors(401, 403, 404, 422, 429, 503)
_FILE: Any = {200: {"description": "The output, a .npy file.", "content": {NPY: {"schema": FILE}}}}
_STORED: Any = {
    200: {"description": "A zarr.json, or the bytes of a chunk.", "content": {OCTETS: {"schema": FILE}}},
    307: {"description": "Where the chunk can be had without a key."},
}


@dataclass(frozen=True)
class Keeping:
    """Shared by the routes: the results, None where the service keeps none, downloads' places, and what counts them."""

    kept: KeptResults | None
    downloads: Places
    metrics: Metrics

    def said(self, manifest: ResultManifest, names: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return what is said of outputs of a result that was just made, and count it."""
        if self.kept is None:
            raise Problem(404, _NO_RESULT)
        self.metrics.result_kept(manifest.nbytes)
        return self.kept.document(manifest, names)

    async def find(self, request: Request, result_id: str) -> tuple[KeptResults, ResultManifest]:
        if self.kept is None or not IDENTIFIER.fullmatch(result_id):
            raise Problem(404, _NO_RESULT)
        try:
            return self.kept, await asyncio.to_thread(self.kept.results.read, owner_id(request), result_id)
        except ResultGoneError:
            raise Problem(404, _NO_RESULT) from None


class ChunkedFile(Response):
    """Sends `length` bytes in chunks that are made in a thread, each when the client has taken the one before.

    Nothing is sent before the first chunk is there: what it raises is an answer. Where a later one cannot be made, the
    connection ends with less than Content-Length says, and the error is in the request's state; where the client goes
    away, no more are made. `place()` is held meanwhile; `sent` is called with the bytes of each chunk.
    """

    def __init__(
        self,
        chunks: Iterator[bytes],
        length: int,
        headers: Mapping[str, str],
        place: Callable[[], AbstractContextManager[object]],
        sent: Callable[[int], None],
    ) -> None:
        super().__init__(headers={**headers, "Content-Length": str(length)})
        self._chunks = chunks
        self._place = place
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place():
            first = await self._next()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            gone = asyncio.ensure_future(disconnected(receive))
            try:
                await self._pass_on(first, gone, send)
            except SerferError as error:  # the server closes what has not come to its end
                scope.setdefault("state", {})["error"] = error
            finally:
                gone.cancel()

    async def _pass_on(self, chunk: bytes | None, gone: asyncio.Future[None], send: Send) -> None:
        while chunk is not None:
            if gone.done():
                return
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            self._sent(len(chunk))  # also where the client left meanwhile: with the last byte is when most leave
            chunk = await self._next()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes | None:
        return await asyncio.to_thread(next, self._chunks, None)


def kept_router(routes: Keeping) -> APIRouter:
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

    @router.delete("/{result_id}", status_code=204, response_model=None, responses=_ANSWERS)
    async def delete(request: Request, result_id: str) -> None:
        """Delete a result."""
        check_parameters(request, ())
        kept, manifest = await routes.find(request, result_id)
        await asyncio.to_thread(kept.results.delete, manifest)

    @router.get("/{result_id}/zarr/{path:path}", response_class=Response, responses=_STORED | _ANSWERS)
    async def stored(request: Request, result_id: str, path: str) -> Response:
        """Return what lies at a path of the result's zarr group, or where that is."""
        check_parameters(request, ())
        kept, manifest = await routes.find(request, result_id)
        if document := manifest.documents().get(path):
            return JSONResponse(document)
        return await _chunk(routes, kept, manifest, path, request)

    async def output(request: Request, result_id: str, name: str) -> Response:
        """Return an output as a .npy file, while it is produced."""
        check_parameters(request, ())
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


async def _chunk(routes: Keeping, kept: KeptResults, manifest: ResultManifest, path: str, request: Request) -> Response:
    lengths = {
        f"{number}/{chunk.path}": output.chunk_bytes
        for number, output in enumerate(manifest.outputs)
        for chunk in output.chunks
    }
    if path not in lengths:
        raise Problem(404, f"the result has nothing at {path[:80]!r}: look at its zarr.json")
    key, length = manifest.place.key(path), lengths[path]
    if (link := await asyncio.to_thread(kept.link, manifest, key, time.time())) is not None:
        return RedirectResponse(link, 307)
    ranges = kept.results.chunk_ranges(manifest, key, length, CHUNK_BYTES)
    return await _sent(routes, kept, ranges, length, {"Content-Type": OCTETS}, request)


async def _file(
    routes: Keeping, kept: KeptResults, manifest: ResultManifest, output: ChunkedArray, request: Request
) -> Response:
    size, plain = npy_bytes(output), _PLAIN.sub("_", output.name).strip(".")[:_MOST_NAME] or "output"
    headers = {
        "Content-Type": NPY,
        "Content-Disposition": f'attachment; filename="{manifest.id[:8]}-{plain}.npy"',
        "Accept-Ranges": "none",
    }
    if request.method == "HEAD" and kept.sends(size):
        return Response(headers={**headers, "Content-Length": str(size)})
    chunks = _with_values(kept.results.npy_chunks(manifest, output, CHUNK_BYTES))
    return await _sent(routes, kept, chunks, size, headers, request)


async def _sent(
    routes: Keeping, kept: KeptResults, chunks: Iterator[bytes], size: int, headers: dict[str, str], request: Request
) -> Response:
    if not kept.sends(size):
        raise Problem(
            422, f"that has {size:,} bytes, and at most {kept.most_bytes:,} are sent here: GET the chunks of its array"
        )
    place = partial(routes.downloads.take, client_of(request.scope))
    if kept.most_bytes is not None:  # nothing is streamed: it is whole, or an error
        with place():
            body = await asyncio.to_thread(b"".join, chunks)
        routes.metrics.result_sent(len(body))
        return Response(body, headers=headers)
    return ChunkedFile(chunks, size, headers, place, routes.metrics.result_sent)


def _with_values(chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield next(chunks) + next(chunks, b"")
    yield from chunks


def _output(manifest: ResultManifest, name: str) -> ChunkedArray:
    if found := manifest.output(name):
        return found
    known = ", ".join(repr(output.name) for output in manifest.outputs)
    raise Problem(404, f"the result has no output {name[:80]!r}: there is {known}")
