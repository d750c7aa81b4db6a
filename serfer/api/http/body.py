"""A request's body, bounded in bytes and in time while it arrives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from serfer.api.http.problems import Problem


@dataclass(frozen=True)
class ApiLimits:
    """Limits of one request: bytes of its body, images in it, seconds until all of it has arrived, bytes of an answer.

    `max_result_bytes` are those of an answer that is kept instead, 0 where none are.
    How many pixels an image may have is checked where it is decoded (`serfer.images.ImageLimits`).
    """

    max_body_bytes: int = 20 * 1024 * 1024
    max_images: int = 16
    body_timeout_s: float = 10.0
    max_answer_bytes: int = 64 * 1024 * 1024
    max_result_bytes: int = 0


async def read_body(
    request: Request, limits: ApiLimits, codings: Collection[str] = (), left_s: float = math.inf
) -> bytes:
    """Return the whole body, still in its coding if that is one of `codings`.

    Raises Problem: 400 for an odd Content-Length, 408 for a slow body, 413 for a large one, 415 for a coded one, 504
    where it has not arrived when the `left_s` seconds until the deadline have passed; starlette's ClientDisconnect
    where the client goes away.
    """
    _check_headers(request.headers, limits, codings)
    body = bytearray()  # not a list of chunks: a client may send one byte at a time
    try:
        async with asyncio.timeout(min(limits.body_timeout_s, left_s)):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk: bytes = message.get("body", b"")
                if len(body) + len(chunk) > limits.max_body_bytes:
                    raise _too_large(limits)
                is_last = not message.get("more_body", False)
                if is_last and not body:  # a small body comes at once
                    return chunk
                body += chunk
                if is_last:
                    return bytes(body)
    except TimeoutError:
        if left_s < limits.body_timeout_s:
            raise Problem(
                504, "no answer by the deadline: the body had not arrived; allow more", headers={"Connection": "close"}
            ) from None
        raise Problem(
            408,
            f"the body did not arrive within {limits.body_timeout_s:g} s: send less, or over a faster connection",
            headers={"Connection": "close"},
        ) from None


def _check_headers(headers: Headers, limits: ApiLimits, accepted: Collection[str]) -> None:
    """Refuse what the headers alone show to be too large or coded, before anything is read; raises Problem."""
    codings = {word.strip().lower() for value in headers.getlist("content-encoding") for word in value.split(",")}
    if codings - {"identity", "", *accepted}:
        raise Problem(
            415, "Content-Encoding is not accepted: send the body as it is", headers={"Accept-Encoding": "identity"}
        )
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Problem(400, "Content-Length is not a number of bytes")
    if len(length.lstrip("0")) > len(str(limits.max_body_bytes)) or int(length) > limits.max_body_bytes:
        raise _too_large(limits)


def _too_large(limits: ApiLimits) -> Problem:
    return Problem(413, f"the body has more than the {limits.max_body_bytes:,} bytes that are accepted")
