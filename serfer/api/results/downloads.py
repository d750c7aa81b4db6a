"""Downloads: responses that are produced while they are sent, so that none is ever in memory whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serfer.core.errors import SerferError


class ChunkedFile(Response):
    """Sends `length` bytes in chunks that are made in a thread, each when the client has taken the one before.

    Nothing is sent before the first chunk is there: what it raises is an answer. Where a later one cannot be made, the
    connection ends with less than Content-Length says, and the error is in the request's state; where the client goes
    away, no more are made. `place()` is held meanwhile; `sent` is called with the bytes of each chunk.
    """

    def __init__(
        self,
        chunks: Iterator[bytes],
        length: int,
        headers: Mapping[str, str],
        place: Callable[[], AbstractContextManager[object]],
        sent: Callable[[int], None],
    ) -> None:
        super().__init__(headers={**headers, "Content-Length": str(length)})
        self._chunks = chunks
        self._place = place
        self._sent = sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks."""
        with self._place():
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
