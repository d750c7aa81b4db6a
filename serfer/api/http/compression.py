"""Content codings of bodies, gzip and deflate: bounded where they are undone, and used where a client asks for them."""

from __future__ import annotations

import zlib
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers

from serfer.api.http.problems import Problem

CODINGS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # RFC 9110: "deflate" is in zlib's format
MOST_RATIO: Final = 1032
"""Bytes that a byte of deflate's stands for at most."""
_WORTH = 1024  # bytes; less is sent as it is
_LEVEL = 1


def coding_of(headers: Headers) -> str | None:
    """Return the one coding of a request's body, None where there is none; raises Problem 415 for others."""
    words = [word.strip().lower() for value in headers.getlist("content-encoding") for word in value.split(",")]
    codings = [word for word in words if word not in ("", "identity")]
    if len(codings) > 1 or not set(codings) <= set(CODINGS):
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
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
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body is not {coding}, as Content-Encoding says") from None
    if len(data) > most:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has more than the {most:,} bytes that are accepted, unpacked",
        )
    if not stream.eof or stream.unused_data:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body is cut short, or goes on after its {coding} data")
    return data


def accepted(headers: Headers, size: int) -> str | None:
    """Return the coding in which an answer of `size` bytes should go back, None for none."""
    if size < _WORTH:
        return None
    words = [word.partition(";") for value in headers.getlist("accept-encoding") for word in value.split(",")]
    wanted = {name.strip().lower() for name, _, weight in words if not _refused(weight)}
    return next((coding for coding in CODINGS if coding in wanted), None)


def _refused(weight: str) -> bool:
    return weight.replace(" ", "").lower().rstrip("0").rstrip(".") in ("q=", "q=0")


def compress(body: bytes, coding: str) -> bytes:
    """Return a body in a coding."""
    stream = zlib.compressobj(_LEVEL, wbits=CODINGS[coding])
    return stream.compress(body) + stream.flush()
