"""What all requests together hold in memory of their bodies, bounded: many that are each small enough are too large."""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serfer.api.problems import Problem


class HeldBytes:
    """A middleware that refuses a body's next bytes where all requests hold `most` bytes, with Problem 429."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count its body for as long as it runs."""
        mine = 0

        async def counted() -> Message:
            nonlocal mine
            message = await receive()
            size = len(message.get("body", b""))
            if self._held + size > self._most:
                raise Problem(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "the requests that are here hold all the memory that there is for them: come again in 1 s",
                    slug="overloaded",
                    headers={"Retry-After": "1"},
                )
            mine += size
            self._held += size
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held -= mine
