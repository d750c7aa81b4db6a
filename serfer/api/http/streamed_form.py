"""A form (multipart/form-data, RFC 7578) that is too large for memory: files go to disk as they arrive.

Like serfer/api/http/multipart.py it cuts by `bytes.find` alone, so that no body keeps the driver busy byte by byte.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.requests import Request

from serfer.api.http.body import ApiLimits, check_headers
from serfer.api.http.multipart import boundary_of, part_of
from serfer.api.http.problems import Problem
from serfer.api.http.validation import shown

_END: Final = b"\r\n"
_MOST_HEAD: Final = 8 * 1024  # bytes of a part's own headers
_MOST_TEXT: Final = 1000  # bytes of a value
_MOST_PARTS: Final = 32  # each takes the event loop's time, however short it is
_WRITTEN_AT_ONCE: Final = 1 << 20
_SLOWEST: Final = 50_000  # bytes a second, on average: a body may not hold its place by a byte now and then


@dataclass(frozen=True)
class FormFile:
    """A file of a form, where it lies now, and its SHA-256; `filename` is what the client calls it."""

    path: Path
    filename: str
    sha256: str


@dataclass(frozen=True)
class ReceivedForm:
    """A form's values and files, by name."""

    values: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FormFile] = field(default_factory=dict)


async def receive_form(request: Request, folder: Path, files: Mapping[str, int], limits: ApiLimits) -> ReceivedForm:
    """Read a form, with its files into a folder: each is called as its part, which `files` names with its most bytes.

    Every part comes once. Raises Problem: 400 for what is not a form, 408 for a slow one, 413 for too many bytes or
    parts, 415 for another type, 422 for a file of another name; starlette's ClientDisconnect.
    """
    check_headers(request.headers, limits, ())
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type should be multipart/form-data")
    mark = _END + b"--" + boundary_of(content_type)
    values: dict[str, str] = {}
    kept: dict[str, FormFile] = {}
    async with aclosing(_chunks(request, limits)) as chunks:
        source = _Source(chunks)
        await source.pour(mark, _nothing)
        while not await source.ended():
            head = await source.until(_END + _END, _MOST_HEAD)
            if len(values) + len(kept) == _MOST_PARTS:
                raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the form has more than {_MOST_PARTS} parts")
            part = part_of(head, b"", len(values) + len(kept))
            if part.name in values or part.name in kept:
                raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"the form has {shown(part.name)} twice")
            if part.filename is None:
                values[part.name] = (await source.until(mark, _MOST_TEXT)).decode("utf-8", errors="replace")
            elif part.name in files:
                kept[part.name] = await _to_file(source, mark, folder / part.name, part.filename, files[part.name])
            else:
                known = ", ".join(files)
                raise Problem(
                    HTTPStatus.UNPROCESSABLE_ENTITY, f"the form has the file {shown(part.name)}: there is {known}"
                )
    return ReceivedForm(values, kept)


async def _chunks(request: Request, limits: ApiLimits) -> AsyncGenerator[bytes]:
    """Yield a body as it arrives, its memory given back with each chunk; raises Problem 408 and 413."""
    begun, received = time.monotonic(), 0
    held = getattr(request.state, "held", None)
    async with aclosing(request.stream()) as stream:
        while True:
            left_s = begun + limits.body_timeout_s * 2 + received / _SLOWEST - time.monotonic()
            try:
                async with asyncio.timeout(min(limits.body_timeout_s, left_s)):
                    chunk = await anext(stream, None)
            except TimeoutError:
                raise Problem(
                    HTTPStatus.REQUEST_TIMEOUT,
                    f"the body did not arrive in time: send at least {_SLOWEST:,} bytes a second",
                    headers={"Connection": "close"},
                ) from None
            if chunk is None:
                return
            received += len(chunk)
            if received > limits.max_body_bytes:
                raise Problem(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"the body has more than the {limits.max_body_bytes:,} bytes that are accepted",
                )
            yield chunk
            if held is not None:
                held.release()


class _Source:
    """A body of which the beginning is cut off, piece by piece."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._buffer = bytearray(_END)  # before the first boundary, as before every other one

    async def until(self, mark: bytes, most: int) -> bytes:
        """Return what comes before a mark, and pass over both; raises Problem for more than `most` bytes."""
        kept = bytearray()

        async def keep(data: bytes) -> None:
            if len(kept) + len(data) > most:
                raise Problem(
                    HTTPStatus.UNPROCESSABLE_ENTITY, f"a value or a part's headers have more than {most:,} bytes"
                )
            kept.extend(data)

        await self.pour(mark, keep)
        return bytes(kept)

    async def pour(self, mark: bytes, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass on what comes before a mark, and pass over it; raises Problem 400 where it does not come."""
        while (at := self._buffer.find(mark)) < 0:
            sure = len(self._buffer) - len(mark) + 1
            if sure > 0:
                await write(bytes(self._buffer[:sure]))
                del self._buffer[:sure]
            await self._more()
        await write(bytes(self._buffer[:at]))
        del self._buffer[: at + len(mark)]

    async def ended(self) -> bool:
        """Whether the last boundary was the form's end; raises Problem 400 for what is neither."""
        while len(self._buffer) < len(_END):
            await self._more()
        after = bytes(self._buffer[: len(_END)])
        if after not in (b"--", _END):
            raise Problem(HTTPStatus.BAD_REQUEST, "the form has a boundary that is not followed by a line's end")
        return after == b"--"

    async def _more(self) -> None:
        chunk = await anext(self._chunks, None)
        if chunk is None:
            raise Problem(HTTPStatus.BAD_REQUEST, "the form is cut short: a boundary is missing")
        self._buffer += chunk


async def _nothing(_: bytes) -> None:
    """Drop what comes before the first boundary."""


async def _to_file(source: _Source, mark: bytes, path: Path, filename: str, most_bytes: int) -> FormFile:
    """Write a part into a file, a piece at a time and in a thread."""
    digest, size, waiting = hashlib.sha256(), 0, bytearray()
    with path.open("xb") as file:

        def flush() -> None:
            digest.update(waiting)
            file.write(waiting)
            waiting.clear()

        async def write(data: bytes) -> None:
            nonlocal size
            size += len(data)
            if size > most_bytes:
                raise Problem(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{path.name} has more than the {most_bytes:,} bytes of one"
                )
            waiting.extend(data)
            if len(waiting) >= _WRITTEN_AT_ONCE:
                await asyncio.to_thread(flush)

        await source.pour(mark, write)
        await asyncio.to_thread(flush)
    return FormFile(path, filename, digest.hexdigest())
