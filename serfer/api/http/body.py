"""A request's body, bounded in bytes and in time while it arrives, and content codings: gzip and deflate.

They are bounded where they are undone, and used where a client asks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from serfer.api.http.problems import Problem

EXCHANGE: Final = "serfer.exchange"
"""What our own server puts into a request's scope (serfer/api/http/protocol.py): others are asked for each message."""
_NO_TIMER = contextlib.nullcontext()
_LENGTH = re.compile(rb"0*([0-9]{1,20})([0-9]*)")


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
    _check_headers(request, limits, codings)
    body, size = bytearray(), 0  # not a list of chunks: a client may send one byte at a time
    try:
        exchange = request.scope.get(EXCHANGE)
        is_whole = exchange is not None and exchange.is_whole
        async with _NO_TIMER if is_whole else asyncio.timeout(min(limits.body_timeout_s, left_s)):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size > limits.max_body_bytes:
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
            f"the body did not arrive within {limits.body_timeout_s:g} s (SERFER_API_BODY_TIMEOUT_S): send less, or "
            "over a faster connection",
            headers={"Connection": "close"},
        ) from None


def _check_headers(request: Request, limits: ApiLimits, accepted: Collection[str]) -> None:
    sent = dict(request.scope["headers"])
    if b"content-encoding" in sent and {*_codings(request.headers)} - {*accepted}:
        raise Problem(
            415, "Content-Encoding is not accepted: send the body as it is", headers={"Accept-Encoding": "identity"}
        )
    length = _LENGTH.fullmatch(sent.get(b"content-length", b"0"))
    if length is None:
        raise Problem(400, "Content-Length is not a number of bytes")
    if length[2] or int(length[1]) > limits.max_body_bytes:
        raise _too_large(limits)


def _too_large(limits: ApiLimits) -> Problem:
    return Problem(
        413, f"the body has more than the {limits.max_body_bytes:,} bytes that are accepted (SERFER_API_MAX_BODY_BYTES)"
    )


class JsonBytes(Response):
    """An answer of JSON in bytes; starlette's takes fifteen calls to make one."""

    def __init__(self, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.status_code, self.body, self.background = 200, body, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json"), *headers]


CODINGS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # RFC 9110: "deflate" is in zlib's format
MOST_RATIO: Final = 1032
"""Bytes that a byte of deflate's stands for at most."""
_WORTH = 1024  # bytes; less is sent as it is
_LEVEL = 1


def _codings(headers: Headers) -> list[str]:
    words = [word.strip().lower() for value in headers.getlist("content-encoding") for word in value.split(",")]
    return [word for word in words if word not in ("", "identity")]


def coding_of(headers: Headers) -> str | None:
    """Return the one coding of a request's body, None where there is none; raises Problem 415 for others."""
    codings = _codings(headers)
    if len(codings) > 1 or not set(codings) <= set(CODINGS):
        raise Problem(
            415,
            "Content-Encoding should be gzip or deflate, once, or be left out",
            headers={"Accept-Encoding": ", ".join([*CODINGS, "identity"])},
        )
    return codings[0] if codings else None


def decompress(body: bytes, coding: str, most: int) -> bytes:
    """Return what a body says, at most `most` bytes; raises Problem 413 for more, 400 for what is not so coded."""
    stream = zlib.decompressobj(CODINGS[coding])
    try:
        data = stream.decompress(body, most + 1)
    except zlib.error:
        raise Problem(400, f"the body is not {coding}, as Content-Encoding says") from None
    if len(data) > most:
        raise Problem(
            413, f"the body has more than the {most:,} bytes that are accepted, unpacked (SERFER_API_MAX_BODY_BYTES)"
        )
    if not stream.eof or stream.unused_data:
        raise Problem(400, f"the body is cut short, or goes on after its {coding} data")
    return data


def accepted(headers: Headers, size: int) -> str | None:
    """Return the coding in which an answer of `size` bytes should go back, None for none."""
    if size < _WORTH:
        return None
    words = [word.partition(";") for value in headers.getlist("accept-encoding") for word in value.split(",")]
    wanted = {name.strip().lower() for name, _, weight in words if not _is_zero(weight)}
    return next((coding for coding in CODINGS if coding in wanted), None)


def _is_zero(weight: str) -> bool:
    return weight.replace(" ", "").lower().rstrip("0").rstrip(".") in ("q=", "q=0")


def compress(body: bytes, coding: str) -> bytes:
    stream = zlib.compressobj(_LEVEL, wbits=CODINGS[coding])
    return stream.compress(body) + stream.flush()
