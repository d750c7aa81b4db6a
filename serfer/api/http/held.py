"""What all requests together hold in memory of their bodies, bounded: many that are each small enough are too large."""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serfer.api.http.problems import OVERLOADED, Problem


class Hold:
    """The bytes that one request holds, of `budget`; whoever needs them beyond its end calls `keep` and `give_back`."""

    def __init__(self, budget: HeldBytes) -> None:
        self._budget = budget
        self._bytes = 0
        self.kept = False

    def take(self, size: int) -> None:
        """Hold so many bytes more; raises Problem 429 where that is too much."""
        if self._budget.held + size > self._budget.most:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "the requests that are here hold all the memory that there is for them: come again in 1 s",
                slug=OVERLOADED,
                headers={"Retry-After": "1"},
            )
        self._bytes += size
        self._budget.held += size

    def keep(self) -> None:
        """Go on holding them when the request has ended."""
        self.kept = True

    def give_back(self) -> None:
        """Hold nothing any more."""
        self._budget.held -= self._bytes
        self._bytes = 0


class HeldBytes:
    """A middleware that refuses a body's next bytes where all requests hold `most` bytes, with Problem 429.

    A request's Hold is `request.state.hold`.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self.most = most
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count its body for as long as it runs."""
        hold = Hold(self)
        scope.setdefault("state", {})["hold"] = hold

        async def counted() -> Message:
            message = await receive()
            hold.take(len(message.get("body", b"")))
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            if not hold.kept:
                hold.give_back()
