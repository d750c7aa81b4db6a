"""A bound on the memory of all bodies in flight together: many that are each small enough can be too large.

What a body becomes counts as well, unpacked and as an array, for as long as its request.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serfer.api.http.problems import OVERLOADED, Problem


class BodyReservation:
    """The bytes of one request's body, of `budget`; what needs them beyond its end calls `keep`, then `release`.

    For the event loop's thread alone.
    """

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._bytes = 0
        self.kept = False

    def acquire(self, size: int) -> None:
        """Reserve `size` bytes more; raises Problem 429 where all bodies would take too many."""
        if self._budget.reserved + size > self._budget.max_bytes:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "the requests that are here hold all the memory that there is for them: come again in 1 s",
                slug=OVERLOADED,
                headers={"Retry-After": "1"},
            )
        self._bytes += size
        self._budget.reserved += size

    def give_back(self, size: int) -> None:
        """Return `size` bytes of those that are reserved."""
        self._bytes -= size
        self._budget.reserved -= size

    def keep(self) -> None:
        """Keep the bytes reserved when the request has ended."""
        self.kept = True

    def release(self) -> None:
        """Return all bytes to the budget."""
        self.give_back(self._bytes)


class BodyBudget:
    """A middleware that refuses a body's next bytes with Problem 429 where all bodies would take more than `max_bytes`.

    A request's reservation is `request.state.body_reservation`.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self.max_bytes = max_bytes
        self.reserved = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, and count the request's body until it has ended."""
        reservation = BodyReservation(self)
        scope.setdefault("state", {})["body_reservation"] = reservation

        async def counted() -> Message:
            message = await receive()
            reservation.acquire(len(message.get("body", b"")))
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            if not reservation.kept:
                reservation.release()
