"""Routes that FastAPI matches and documents, and whose endpoints are called with nothing between.

An endpoint that takes the request alone, and returns its response, needs neither parameters nor a body nor a model of
its response from FastAPI. Those, and two stacks of contexts for what might have to be closed, are some 150 calls of
Python's functions for each request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

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
