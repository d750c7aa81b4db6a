"""A client of one instance: `serfer instance`, Triton, KServe, or any server of the Open Inference Protocol.

It returns the whole network's answer, or one of five kinds of fault. A query is pure, so it may be sent elsewhere then.
"""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError
from serfer.core.inference_protocol import HEADER
from serfer.core.plan import Plan
from serfer.core.plan.pixels import normalise
from serfer.core.units import MS_PER_S
from serfer.drivers.instance.open_inference import (
    MOST_HEAD,
    Form,
    InferenceOutput,
    answer_bytes,
    decode_answer,
    encode_request,
    read_batching,
    read_form,
    read_index,
)

if TYPE_CHECKING:
    import aiohttp

_CONNECT_S = 2.0
_KEEP_ALIVE_S = 4.0  # less than servers keep connections for: uvicorn 5 s
_BATCHING = "batching"
_AT_ONCE = 1 << 20  # bytes; aiohttp sends more in pieces and warns of bytes objects that large
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_UNKNOWN = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)  # of what a server does not offer
_LATE = (HTTPStatus.GATEWAY_TIMEOUT, HTTPStatus.REQUEST_TIMEOUT)


class FaultKind(StrEnum):
    """Why an instance did not answer."""

    REFUSED = "refused"  # a response that it has no room now
    LATE = "late"  # a response that it was too slow
    NO_RESPONSE = "hung"  # no response in time
    UNREACHABLE = "unreachable"  # no connection, or it broke
    INVALID = "wrong"  # the response is not an answer


@dataclass(frozen=True)
class Fault:
    """Why there is no answer, with a line for people."""

    kind: FaultKind
    message: str


def open_http(key: str = "") -> aiohttp.ClientSession:
    import aiohttp  # noqa: PLC0415 - most services have no instances, and it takes 7 MB

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),  # admission bounds queries
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),  # each request has its own
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
        headers={"X-API-Key": key} if key else {},
    )


class InstanceProbe:
    """Asks the instance at `url` whether it is up, over connections that others may share."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url.rstrip("/")
        self._http = http

    async def ready(self, patience_s: float) -> bool:
        import aiohttp  # noqa: PLC0415 - as in open_http

        try:
            async with asyncio.timeout(patience_s):
                await self.read("GET", "/v2/health/ready", MOST_HEAD)
        except (TimeoutError, aiohttp.ClientError, StatusError, InputError):
            return False
        return True

    async def read(
        self,
        method: str,
        path: str,
        most: int,
        data: bytes | io.BytesIO | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[bytes, str | None]:
        """Return a response's body, of at most `most` bytes, and how many of them are JSON.

        Raises StatusError for another status than 200, InputError for a longer body, and what aiohttp raises.
        """
        import aiohttp  # noqa: PLC0415 - as in open_http

        url = f"{self.url}{path}"
        if self._http.closed:
            raise aiohttp.ClientConnectionError("the connections to instances are closed")
        async with self._http.request(method, url, data=data, headers=headers, allow_redirects=False) as response:
            if response.status != HTTPStatus.OK:
                raise StatusError(response.status)
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > most:
                    raise InputError(f"it answered with more than {most:,} bytes")
            return bytes(body), response.headers.get(HEADER)


class InstanceClient(InstanceProbe):
    """Runs a plan's network on the instance at `url`, where it is called `model`, or is the only model.

    The model's metadata are read once, and again after an invalid answer.
    """

    def __init__(self, url: str, model: str, plan: Plan, http: aiohttp.ClientSession) -> None:
        super().__init__(url, http)
        self._plan = plan
        self._model = model
        self._form: Form | None = None
        self._learning = asyncio.Lock()

    async def infer(
        self, array: NDArray[Any], timeout_s: float, patience_s: float, request: str = ""
    ) -> InferenceOutput | Fault:
        """Ask for the logits of (N, C, H, W) float32, or of (N, H, W, C) uint8 pixels.

        The instance is to answer within `timeout_s` and is waited for `patience_s`; `request` is the query's id in its
        log.
        """
        import aiohttp  # noqa: PLC0415 - as in open_http

        try:
            async with asyncio.timeout(patience_s):
                form = await self._check_metadata()
                name, values = await self._prepare_input(form, array)
                try:
                    return await self._ask(form.output, name, values, timeout_s, request)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    # A kept connection may have been closed meanwhile; a new one shows whether the server is there.
                    return await self._ask(form.output, name, values, timeout_s, request)
        except TimeoutError:
            return Fault(FaultKind.NO_RESPONSE, f"{self.url} did not answer within {patience_s:.3g} s")
        except InputError as error:
            self._form = None
            return Fault(FaultKind.INVALID, f"{self.url}: {error}")
        except StatusError as error:
            return self._refusal(error)
        except aiohttp.ClientError as error:
            return Fault(FaultKind.UNREACHABLE, f"{self.url} does not answer: {str(error) or type(error).__name__}")

    async def set_batching(self, batch: int, window_s: float, patience_s: float) -> int | None:
        """Have the instance compute at most `batch` images at once, and wait so long for them; 0: as it was started.

        Returns what it does now, 0 where it does as it was started, as servers of other kinds always do; None where
        that is not known.
        """
        import aiohttp  # noqa: PLC0415 - as in open_http

        wanted = {"max_batch": batch, "window_ms": window_s * MS_PER_S} if batch else {}
        data, headers = json.dumps(wanted).encode(), {"Content-Type": "application/json"}
        path = f"/v2/repository/models/{quote(self._model, safe='')}/{_BATCHING}"
        try:
            async with asyncio.timeout(patience_s):
                await self._check_metadata()  # what the model is called here
                body, _ = await self.read("POST", path, MOST_HEAD, data, headers)
        except StatusError as error:
            return 0 if error.status in _UNKNOWN else None
        except (TimeoutError, aiohttp.ClientError, InputError):
            return None
        return read_batching(body) if batch else 0

    async def _check_metadata(self) -> Form:
        async with self._learning:
            if self._form is None:
                try:
                    body, _ = await self.read("GET", self._path, MOST_HEAD)
                except StatusError as error:
                    if error.status != HTTPStatus.NOT_FOUND:
                        raise
                    self._model = await self._only_model()
                    body, _ = await self.read("GET", self._path, MOST_HEAD)
                self._form = read_form(body, self._plan)
            return self._form

    async def _only_model(self) -> str:
        try:
            body, _ = await self.read("POST", "/v2/repository/index", MOST_HEAD)
        except StatusError:
            body = b""
        name = read_index(body)
        if name is None:
            raise InputError(f"it has no model {self._model!r}")
        return name

    async def _prepare_input(self, form: Form, array: NDArray[Any]) -> tuple[str, NDArray[Any]]:
        if array.dtype == np.uint8:
            described = self._plan.as_split is not None  # the instance's plan may have the description of the split
            if form.pixels is not None and not (described and form.floats is not None):
                return form.pixels, array
            preprocess = self._plan.preprocess
            if preprocess is not None and form.floats is not None:
                return form.floats, await asyncio.to_thread(normalise, array, preprocess)
        if form.floats is None:
            raise InputError("the model takes pixels alone, and this query has none")
        return form.floats, array

    async def _ask(
        self, output: str, name: str, values: NDArray[Any], timeout_s: float, request: str
    ) -> InferenceOutput:
        query = values, name, output, timeout_s
        large = values.nbytes > _AT_ONCE  # copying it would hold up the other queries
        content, length = await asyncio.to_thread(encode_request, *query) if large else encode_request(*query)
        shape = (len(values), self._plan.output.elements)
        data = content if len(content) <= _AT_ONCE else io.BytesIO(content)
        headers = {HEADER: str(length), "Content-Type": "application/octet-stream"}
        if request:
            headers["X-Request-Id"] = request
        body, header = await self.read("POST", f"{self._path}/infer", answer_bytes(*shape), data, headers)
        return decode_answer(body, header, output, shape)

    @property
    def _path(self) -> str:
        return f"/v2/models/{quote(self._model, safe='')}"

    def _refusal(self, error: StatusError) -> Fault:
        status = error.status
        if status in _BUSY:
            return Fault(FaultKind.REFUSED, f"{self.url} has no room: HTTP {status}")
        if status in _LATE:
            return Fault(FaultKind.LATE, f"{self.url} was too slow: HTTP {status}")
        self._form = None
        return Fault(FaultKind.INVALID, f"{self.url} answered HTTP {status}")


class StatusError(Exception):
    """A response with another status than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status
