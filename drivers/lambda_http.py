"""An invoker over Lambda's Invoke API: signed HTTP requests on pooled connections.

botocore has the credentials, serfer/core/sigv4.py signs, aiohttp sends: less than a third of the processor time of a
boto3 call, which matters because a query is ten of these. Everything that is not hot goes through boto3.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from botocore.credentials import Credentials, ReadOnlyCredentials, RefreshableCredentials
from botocore.exceptions import BotoCoreError
from yarl import URL

from serfer.core.errors import InputError
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.sigv4 import TIME, Access, sign
from serfer.core.wire import (
    Report,
    Task,
    WarmUp,
    WarmUpAnswer,
    decode_report,
    decode_reports,
    decode_warmed,
    encode_task,
    encode_tasks,
    encode_warm_up,
)
from serfer.drivers.invoker import to_failure
from serfer.system import raise_file_limit

_OTHER_FILES = 512  # of stores, images, and clients that wait
_MARGIN_S = 5.0  # for what happens around a task that uses all of its function's time
_AT_ONCE = 1 << 20  # bytes; aiohttp sends more in pieces and warns of bytes objects that large
_EVENT_S = 10.0  # for an event to be taken
_START_S = 120.0  # for environments to start, and the first sessions to be built
_THROTTLED, _OK, _ACCEPTED, _NO_CONTENT = 429, 200, 202, 204
_LOG = "X-Amz-Log-Result"
_UNUSED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
_KINDS = {"Sandbox.Timedout": FailureKind.TIMED_OUT, "Runtime.OutOfMemory": FailureKind.OUT_OF_MEMORY}
_Decoded = TypeVar("_Decoded")


class LambdaInvoker:
    """Invokes functions of the Lambda service at `endpoint`, as many at once as it is asked to.

    Its caller bounds those, to `at_once` at most, for which this process may have sockets: what waited behind another
    bound would wait out of turn. Functions that have other names there, perhaps with a qualifier (NAME:ALIAS), have
    them in `names`. `throttled` counts the invocations for which the service had no room.
    """

    def __init__(
        self, endpoint: str, region: str, credentials: Credentials, names: Mapping[str, str] | None = None
    ) -> None:
        files = raise_file_limit()
        self.at_once = max(1, files - min(_OTHER_FILES, files // 2))
        self.throttled = 0
        self._endpoint = endpoint.rstrip("/")
        self._credentials = credentials
        self._renewing = asyncio.Lock()
        self._region = region
        self._headers = {"host": URL(self._endpoint).authority}
        self._names = names or {}
        self._urls: dict[str, URL] = {}
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # each invocation has its own
            auto_decompress=False,
            skip_auto_headers=_UNUSED,
        )

    def called(self, function: str) -> str:
        return self._names.get(function, function)

    async def invoke(
        self, function: str, task: Task, timeout_s: float, on_log: Callable[[str], None] | None = None
    ) -> Report | Failure:
        """Invoke synchronously; `on_log` gets the end of the invocation's log, Lambda's lines included, if any came."""
        return await self._post(function, encode_task(task), timeout_s, decode_report, on_log=on_log)

    async def invoke_shared(self, function: str, tasks: Sequence[Task], timeout_s: float) -> list[Report | Failure]:
        """Invoke synchronously, once for all of the tasks; what the service refuses it refuses to all."""
        decode = functools.partial(decode_reports, count=len(tasks))
        results = await self._post(function, encode_tasks(tasks), timeout_s, decode)
        if isinstance(results, Failure):
            return [results] * len(tasks)
        return [to_failure(result) for result in results]

    async def start(self, function: str, task: Task) -> Failure | None:
        """Invoke asynchronously: the response says only that the event was accepted."""
        return await self._post(function, encode_task(task), _EVENT_S, lambda _: None, "Event")

    async def warm(self, function: str, request: WarmUp) -> WarmUpAnswer | Failure:
        return await self._post(function, encode_warm_up(request), request.hold_s + _START_S, decode_warmed)

    async def check(self, function: str) -> Failure | None:
        return await self._post(function, b"{}", _EVENT_S, lambda _: None, "DryRun")

    async def _post(
        self,
        function: str,
        body: bytes,
        timeout_s: float,
        decode: Callable[[Any], _Decoded],
        kind: str = "RequestResponse",
        on_log: Callable[[str], None] | None = None,
    ) -> _Decoded | Failure:
        function = self.called(function)
        url = self._urls.get(function)
        if url is None:
            # Quoted as botocore does: what is signed is the path as it was sent.
            path = f"/2015-03-31/functions/{quote(function, safe='')}/invocations"
            url = self._urls[function] = URL(f"{self._endpoint}{path}", encoded=True)
        headers = {**self._headers, "x-amz-invocation-type": kind}
        if on_log:
            headers["x-amz-log-type"] = "Tail"
        try:
            keys = await self._keys()
        except BotoCoreError as error:
            return Failure(FailureKind.UNREACHABLE, type(error).__name__, f"no AWS credentials: {error}")
        if keys.token:
            headers["x-amz-security-token"] = keys.token
        access, now = Access(keys.access_key or "", keys.secret_key or ""), time.strftime(TIME, time.gmtime())
        headers = sign(access, self._region, now, "POST", url.raw_path, headers, body)
        data = body if len(body) <= _AT_ONCE else io.BytesIO(body)
        try:
            async with (
                asyncio.timeout(timeout_s + _MARGIN_S),
                self._http.post(url, data=data, headers=headers) as response,
            ):
                answer = await response.read()
                self.throttled += response.status == _THROTTLED
                if on_log:
                    with contextlib.suppress(ValueError):
                        on_log(base64.b64decode(response.headers.get(_LOG, "")).decode(errors="replace"))
                return _result(function, response.status, response.headers, answer, decode)
        except TimeoutError:
            return Failure(FailureKind.TIMED_OUT, "TimeoutError", f"{function} did not answer within {timeout_s:g} s")
        except aiohttp.ClientError as error:
            reason = str(error) or type(error).__name__
            return Failure(FailureKind.UNREACHABLE, type(error).__name__, f"{self._endpoint} does not answer: {reason}")

    async def _keys(self) -> ReadOnlyCredentials:
        """Return the credentials as they are now; asking for new ones takes a thread, and holds up nobody's loop."""
        if self._ends_soon():
            async with self._renewing:
                if self._ends_soon():
                    return await asyncio.to_thread(self._credentials.get_frozen_credentials)
        return self._credentials.get_frozen_credentials()

    def _ends_soon(self) -> bool:
        return isinstance(self._credentials, RefreshableCredentials) and self._credentials.refresh_needed()

    async def close(self) -> None:
        await self._http.close()


def _result(
    function: str, status: int, headers: Mapping[str, str], body: bytes, decode: Callable[[Any], _Decoded]
) -> _Decoded | Failure:
    try:
        answer = json.loads(body.decode()) if body else {}
    except ValueError:
        answer = {}
    if status in (_OK, _ACCEPTED, _NO_CONTENT) and "X-Amz-Function-Error" not in headers:
        try:
            return decode(answer)
        except InputError as error:
            return Failure(FailureKind.FAILED_IN_CODE, "", f"{function}: {error}")  # of the answer, not of the task
    fields = answer if isinstance(answer, dict) else {}
    if status == _OK:
        name = str(fields.get("errorType", "Unhandled"))
        message = str(fields.get("errorMessage", "no message"))
        return Failure(_KINDS.get(name, FailureKind.FAILED_IN_CODE), name, message)
    kind = FailureKind.THROTTLED if status == _THROTTLED else FailureKind.UNREACHABLE
    name = headers.get("x-amzn-ErrorType", f"HTTP {status}")
    message = fields.get("message") or fields.get("Message") or f"HTTP {status}"
    return Failure(kind, str(name), f"{function}: {message}")
