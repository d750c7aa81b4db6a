"""What a request says besides its images: query parameters, idempotency key, deadline and client."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, TypeVar, cast

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serfer.api.http.problems import Problem
from serfer.api.http.validation import check_names
from serfer.api.observability.logs import CURRENT
from serfer.api.service import ServiceQuery
from serfer.drivers.driver import RequestContext

IDENTIFIER = re.compile(r"[0-9a-f]{32}")
"""The id of a result or a job."""
_KEY = re.compile(r"[!-~]{1,255}")
_NETWORK_BITS = 64  # of an IPv6 address: what one customer of a provider has
_NETWORKS = 1024  # addresses whose networks are known
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class IdempotencyKey:
    """An idempotency key of a client's, and the digest of what it asks for with it."""

    owner: str
    key: str
    digest: str

    @property
    def name(self) -> str:
        """Return 64 hex digits that are unique to this key and do not reveal it."""
        return hashlib.sha256(f"{len(self.owner)}:{self.owner}:{self.key}".encode()).hexdigest()


def query_of(request: Request, model: str, allowed_s: float) -> ServiceQuery:
    """Return what a request asks of a model, to be answered within so many seconds of its arrival."""
    state = request.state
    record = CURRENT.get()
    context = RequestContext(getattr(state, "request_id", ""), failed=record.failed if record else str)
    state.deadline = (getattr(state, "arrived", None) or time.monotonic()) + allowed_s
    return ServiceQuery(model, state.deadline, allowed_s, context, client_of(request))


def client_of(request: Request) -> str:
    """Return who shares the service with others: the owner of an API key, else an address, of IPv6 its network."""
    known = getattr(request.state, "client", None)
    if known is not None:
        return f"key {known.name}"
    return network_of(request.client.host if request.client else "")


@lru_cache(_NETWORKS)
def network_of(host: str) -> str:
    try:
        address = ip_address(host)
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        address = IPv6Address(int(address) >> _NETWORK_BITS << _NETWORK_BITS)
    return str(address)


def owner_of(request: Request) -> str:
    """Return who owns what a request leaves behind: the name of its API key, empty where none is needed.

    Behind API Gateway, which checks keys before a driver function sees a request, it is that key's id.
    """
    known = getattr(request.state, "client", None)
    if known is not None:
        return str(known.name)
    event = request.scope.get("aws.event")
    context = event.get("requestContext") if isinstance(event, dict) else None
    identity = context.get("identity") if isinstance(context, dict) else None
    key = identity.get("apiKeyId") if isinstance(identity, dict) else None
    return f"apigateway:{key}" if key else ""


def check_parameters(request: Request, known: Sequence[str]) -> None:
    """Refuse query parameters that are unknown or given twice, by name; raises Problem 422."""
    if request.scope["query_string"]:
        check_names(request.query_params, known)


def idempotency_header(request: Request) -> str | None:
    """Return the request's idempotency key, if it has one; raises Problem 422 for a malformed one."""
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or not _KEY.fullmatch(values[0]):
        raise Problem(422, "Idempotency-Key should be 1 to 255 visible ASCII characters, once")
    return values[0]


def wants_async(request: Request) -> bool:
    """Return whether the client prefers an asynchronous response (RFC 7240: Prefer: respond-async)."""
    words = ",".join(request.headers.getlist("prefer")).split(",")
    return any(word.partition(";")[0].strip().lower() == "respond-async" for word in words)


def digest_of(parts: Iterable[bytes]) -> str:
    """Return the SHA-256 of byte strings, none of which runs into the next."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


async def unless_gone(request: Request, work: Coroutine[Any, Any, _Value]) -> _Value:
    """Do the work in the task that calls, or cancel it when the client goes away; raises ClientDisconnect then."""
    doing, gone, working = asyncio.current_task(), asyncio.create_task(disconnected(request.receive)), True
    assert doing is not None  # noqa: S101 - a coroutine that runs is in a task

    def end(gone: asyncio.Task[None]) -> None:
        if working and not gone.cancelled():
            doing.cancel()

    gone.add_done_callback(end)
    try:
        return await work
    except asyncio.CancelledError:
        if gone.done() and not doing.uncancel():  # nobody else has cancelled it
            raise ClientDisconnect from None
        raise
    finally:
        working = False  # what has ended by now may have its callback waiting
        gone.cancel()


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_Endpoint = Callable[[Request], Awaitable[Response]]
_Dependency = Callable[[Request], Awaitable[None]]


class DirectRoute(APIRoute):
    """A route whose endpoint, like each dependency of its router, is a coroutine of the request alone.

    `add_direct` adds a router of them: dependencies that FastAPI's `include_router` adds would not be called.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; what is raised, by a dependency or the endpoint, the application's handlers answer."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # which says what there is
            return
        request = Request(scope, receive, send)
        for guard in self.dependencies:
            await cast("_Dependency", guard.dependency)(request)
        response = await cast("_Endpoint", self.endpoint)(request)
        await response(scope, receive, send)


def add_direct(app: FastAPI, router: APIRouter) -> None:
    """Add a router's routes as the application's own; one that is included is matched twice for each request."""
    app.router.routes.extend(router.routes)
