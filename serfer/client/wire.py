"""Conversations over httpx: one wire that blocks, and one for asyncio.

The coroutines of what stands on the wire that blocks never suspend: `run_now` runs them without an event loop.

A reply's body is kept, or, where its call has a sink, passed on as it comes: then it has no bound but the sink's own.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

import httpx

from serfer.client.conversation import Try
from serfer.client.messages import Call, Reply, unreadable
from serfer.core.errors import ServiceDeadlineError, ServiceError, ServiceUnavailableError, UsageError

R = TypeVar("R")
_KEY = re.compile(r"[!-~]{1,1024}")
MAX_REPLY_BYTES: Final = 16 * 1024 * 1024
_CONNECT_S = 5.0
_LOST = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class BlockingWire:
    """Sends tries over httpx, and waits in between; its coroutines never suspend."""

    def __init__(self, http: httpx.Client, sleep: Callable[[float], None], now: Callable[[], float]) -> None:
        self.http = http
        self._sleep = sleep
        self._now = now
        self._process = os.getpid()

    async def send(self, step: Try) -> Reply:
        """Wait as a try asks for, send it, and return the reply."""
        if os.getpid() != self._process:  # two processes on one connection read each other's replies
            raise UsageError(f"the client belongs to process {self._process}: make a client in this fork of it")
        if step.after_s:
            self._sleep(step.after_s)
        latest = self._now() + step.timeout_s
        response = self.http.send(_request(step, self.http), stream=True)
        try:
            body = _Body(step.call, response)
            for chunk in response.iter_bytes():
                body.extend(chunk)
                if self._now() > latest:
                    raise TimeoutError
            return body.reply()
        finally:
            response.close()

    async def aside(self, work: Callable[..., R], *arguments: Any) -> R:  # noqa: ANN401 - the work's
        return work(*arguments)

    async def close(self) -> None:
        self.http.close()


class AsyncWire:
    """Sends tries over httpx, and lets other tasks run meanwhile."""

    def __init__(self, http: httpx.AsyncClient, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.http = http
        self._sleep = sleep

    async def send(self, step: Try) -> Reply:
        if step.after_s:
            await self._sleep(step.after_s)
        async with asyncio.timeout(step.timeout_s):
            response = await self.http.send(_request(step, self.http), stream=True)
            try:
                body = await _aside(step.call, lambda: _Body(step.call, response))
                async for chunk in response.aiter_bytes():
                    await _aside(step.call, partial(body.extend, chunk))
                return await _aside(step.call, body.reply)
            finally:
                await response.aclose()

    async def aside(self, work: Callable[..., R], *arguments: Any) -> R:  # noqa: ANN401 - the work's
        return await asyncio.to_thread(work, *arguments)

    async def close(self) -> None:
        await self.http.aclose()


def run_now(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends, as over a wire that blocks, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine over a wire that blocks has suspended")


async def _aside(call: Call, work: Callable[[], R]) -> R:
    """Do what goes into a call's sink, if it has one, in a thread: that may be a file; a cancellation waits for it."""
    if call.sink is None:
        return work()
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait((doing,))
        doing.exception()  # it is told to nobody
        raise


def _request(step: Try, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
    """Return a try as a request; one to another server has no header of the client's, least of all its API key."""
    call = step.call
    timeout = httpx.Timeout(step.timeout_s, connect=min(step.timeout_s, _CONNECT_S))
    if call.elsewhere:
        extensions = {"timeout": timeout.as_dict()}
        return httpx.Request(call.method, call.path, headers=call.headers, extensions=extensions)
    return http.build_request(
        call.method,
        call.path,
        params=call.params or None,  # an empty mapping would take a link's own query away
        headers=call.headers,
        content=call.content,
        timeout=timeout,
    )


class _Body:
    """A reply's body as it comes: kept, within bounds, or passed on to its call's sink."""

    def __init__(self, call: Call, response: httpx.Response) -> None:
        self._response = response
        self._kept = bytearray()
        self._most = MAX_REPLY_BYTES if call.most_reply_bytes is None else call.most_reply_bytes
        wanted = response.status_code in call.expected and not response.has_redirect_location
        self._sink = call.sink if wanted else None
        if self._sink is not None:
            self._sink.start()

    def extend(self, chunk: bytes) -> None:
        if "Content-Encoding" in self._response.headers:
            raise unreadable("compressed", self.reply())
        if self._sink is not None:
            self._sink.write(chunk)
            return
        if len(self._kept) + len(chunk) > self._most:
            raise unreadable(f"more than {self._most} bytes", self._reply(b""))
        self._kept += chunk

    def reply(self) -> Reply:
        if self._sink is not None:
            self._sink.end()
        return self._reply(bytes(self._kept))

    def _reply(self, body: bytes) -> Reply:
        return Reply(self._response.status_code, self._response.headers, body)


def fault(error: Exception, step: Try, base_url: httpx.URL) -> ServiceError:
    """Return what it means that no reply came."""
    reason = str(error) or type(error).__name__
    place = httpx.URL(step.call.path).host if step.call.elsewhere else base_url
    if isinstance(error, _LOST):
        return ServiceUnavailableError(f"no service answers at {place}: {reason}; look at the client's base_url")
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return ServiceDeadlineError(f"no answer from {place} in time: allow more (timeout_s)")
    return ServiceError(f"no answer from {place} that can be read: {reason}")


def checked_url(base_url: str) -> str:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise UsageError("base_url is not a URL: give one such as http://localhost:8000") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError("base_url must begin with http:// or https:// and name a host, as in http://localhost:8000")
    if url.userinfo or url.query or url.fragment:
        raise UsageError("base_url takes no user, no query and no fragment: an API key goes into api_key")
    return str(url)


def headers(api_key: str | None) -> dict[str, str]:
    if api_key is not None and not _KEY.fullmatch(api_key):
        raise UsageError("api_key must be visible ASCII characters, 1 to 1024 of them and nothing around them")
    plain = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "serfer"}
    # X-API-Key and not a bearer token: API Gateway, which is in front of function drivers, reads no other header.
    return plain if api_key is None else {**plain, "X-API-Key": api_key}
