"""What a request says besides its images: query parameters, key, deadline and client; and its way to an endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serfer.api.http.body import EXCHANGE
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
    state, record, client = request.scope["state"], CURRENT.get(), client_of(request.scope)
    state["held"].client = client
    context = RequestContext(record.request_id, failed=record.failed) if record else RequestContext()
    deadline = state["deadline"] = state["arrived"] + allowed_s
    return ServiceQuery(model, deadline, allowed_s, context, client, held=state["held"])


def client_of(scope: Scope) -> str:
    """Return who shares the service with others: the owner of an API key, else an address, of IPv6 its network."""
    state, address = scope["state"], scope["client"]
    if "client" in state:
        return f"key {state['client'].name}"
    return network_of(address[0] if address else "")


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
    exchange = request.scope.get(EXCHANGE)
    doing = asyncio.current_task() if exchange is None else exchange.task
    assert doing is not None  # noqa: S101 - a coroutine that runs is in a task
    is_working, is_gone = True, False

    def end() -> None:
        nonlocal is_gone
        if is_working:
            is_gone = True
            doing.cancel()

    gone: asyncio.Task[None] | None = None
    if exchange is not None and exchange.gone:
        work.close()
        raise ClientDisconnect
    if exchange is not None:
        exchange.on_disconnect = end
    else:
        gone = asyncio.create_task(disconnected(request.receive))
        gone.add_done_callback(lambda gone: None if gone.cancelled() else end())
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and not doing.uncancel():  # nobody else has cancelled it
            raise ClientDisconnect from None
        raise
    finally:
        is_working = False  # what has ended by now may have its callback waiting
        if gone is not None:
            gone.cancel()


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


Check = Callable[[Request], Awaitable[None]]
"""Raises what the request is refused with."""


class Application(FastAPI):
    """An application whose requests pass `enter`, which awaits `answer`, and then `checks`.

    Endpoints of direct routes, and the dependencies of their router, are coroutines of the request alone. FastAPI
    documents them, and says which methods there are; a POST does not pass its layers.
    """

    enter: ASGIApp

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - FastAPI's
        super().__init__(**settings)
        self.checks: list[Check] = []
        self._direct: list[Any] = []

    def add_direct(self, router: APIRouter) -> None:
        """Add a router's routes as the application's own; one that is included is matched twice for each request."""
        self.router.routes.extend(router.routes)
        self._direct += router.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.enter if scope["type"] == "http" else super().__call__)(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        for check in self.checks:
            await check(request)
        if scope["method"] == "POST" and not scope.get("root_path"):
            for route in self._direct:
                if found := route.path_regex.match(scope["path"]):
                    scope["route"], scope["path_params"] = route, found.groupdict()
                    for guard in route.dependencies:
                        await guard.dependency(request)
                    response: Response = await route.endpoint(request)
                    await response(scope, receive, send)
                    return
        await super().__call__(scope, receive, send)
