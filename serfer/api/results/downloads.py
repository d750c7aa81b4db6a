"""Downloads: responses that are produced while they are sent, so that none is ever in memory whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serfer.api.http.problems import OVERLOADED, Problem
from serfer.core.errors import SerferError

_AGAIN_S = "1"


class Downloads:
    """Places for `most` downloads at once, of which one client has half at most; for the event loop's thread alone.

    Each holds some chunks in memory for as long as its client reads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._each = max(1, most // 2)
        self._running: Counter[str] = Counter()
        self.refused = 0

    @property
    def running(self) -> int:
        """Downloads that run now."""
        return self._running.total()

    @contextmanager
    def place(self, client: str) -> Iterator[None]:
        """Hold a place; raises Problem 429 where there is none."""
        if self.running >= self._most or self._running[client] >= self._each:
            self.refused += 1
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "as many downloads run as may at once, of this client or of all: come again when one has ended",
                slug=OVERLOADED,
                headers={"Retry-After": _AGAIN_S},
            )
        self._running[client] += 1
        try:
            yield
        finally:
            self._running[client] -= 1
            if not self._running[client]:
                del self._running[client]


class ChunkedFile(Response):
    """Sends `length` bytes in chunks that are made in a thread, each when the client has taken the one before.

    Nothing is sent before the first chunk is there: what it raises is an answer. Where a later one cannot be made, the
    connection ends with less than Content-Length says, and the error is in the request's state; where the client goes
    away, no more are made. `place` is held meanwhile; `sent` is called with the bytes of each chunk.
    """

    def __init__(
        self,
        chunks: Iterator[bytes],
        length: int,
        headers: Mapping[str, str],
        place: AbstractContextManager[None],
        sent: Callable[[int], None],
    ) -> None:
        super().__init__(headers={**headers, "Content-Length": str(length)})
        self._chunks = chunks
        self._place = place
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks."""
        with self._place:
            first = await self._next()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            gone = asyncio.ensure_future(_disconnected(receive))
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


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
