"""The images of a request: a form, one raw image, or JSON with base64; bounded before anything is decoded.

Names of files go back to the client that sent them, and nowhere else.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import math
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import Field, ValidationError, field_validator
from starlette.requests import Request

from serfer.api.http.body import ApiLimits, read_body
from serfer.api.http.image_sniffing import check_format
from serfer.api.http.multipart import split_form
from serfer.api.http.problems import Problem
from serfer.api.http.validation import Body, first_fault, shown

__all__ = ["ACCEPTED", "ApiLimits", "Upload", "read_images"]

FORM, JSON = "multipart/form-data", "application/json"
RAW: Final = ("image/jpeg", "image/png", "image/gif", "image/webp", "image/bmp", "image/tiff")
ACCEPTED: Final = (FORM, JSON, *RAW)
_MOST_NAME = 255  # characters
_MOST_MARKS = 1024  # braces, brackets, commas per image, of each; base64 has none, names have few
_LARGE = 256 * 1024  # bytes of JSON that take milliseconds to decode
_PIECE = 64 * 1024  # characters of base64 that are decoded before another thread may go on; a multiple of 4


def _printable(name: str) -> str:
    return "".join(filter(str.isprintable, name[: 4 * _MOST_NAME]))[:_MOST_NAME]


class ImagePart(Body):
    """An image in base64 (RFC 4648, section 4), and what the answer calls it."""

    data: str = Field(json_schema_extra={"contentEncoding": "base64", "minLength": 1})
    name: str | None = None

    @field_validator("name", mode="before")
    @classmethod
    def _sendable(cls, name: object) -> object:
        """Leave out what cannot be printed: half a surrogate could not even be sent back."""
        return _printable(name) if isinstance(name, str) else name


class ImageRequest(Body):
    """A classify request in JSON."""

    images: list[ImagePart] = Field(fail_fast=True, json_schema_extra={"minItems": 1})


@dataclass(frozen=True)
class Upload:
    """One image as it was sent; `name` is the client's own, or "image N"."""

    name: str = field(repr=False)
    data: bytes = field(repr=False)


async def read_images(request: Request, limits: ApiLimits, left_s: float = math.inf) -> list[Upload]:
    """Return the 1 to `max_images` images of a request, each of an accepted format by its first bytes.

    Raises Problem: 400 for a body that is not what it says, 408, 413 and 504 as `read_body` does, 413 for too many
    images, 415 for other types, 422 for what the body or an image should not hold; starlette's ClientDisconnect.
    """
    content_type = _content_type(request)
    body = await read_body(request, limits, left_s=left_s)
    if _kind(content_type) == JSON and len(body) > _LARGE:
        images = await asyncio.to_thread(_images_in, content_type, body, limits)
    else:
        images = _images_in(content_type, body, limits)
    if not images:
        raise Problem(422, "the request has no images: send at least one")
    if len(images) > limits.max_images:
        raise _too_many(limits)
    for image in images:
        if not image.data:
            raise Problem(422, f"{image.name} is empty")
        check_format(image.name, image.data)
    return images


def _content_type(request: Request) -> str:
    values = request.headers.getlist("content-type")
    if len(values) > 1:
        raise Problem(400, "Content-Type is given more than once")
    if not values or _kind(values[0]) not in ACCEPTED:
        known = ", ".join(ACCEPTED)
        raise Problem(415, f"Content-Type should be one of {known}", headers={"Accept": known})
    return values[0]


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _images_in(content_type: str, body: bytes, limits: ApiLimits) -> list[Upload]:
    match _kind(content_type):
        case "multipart/form-data":
            return _images_in_form(content_type, body, limits)
        case "application/json":
            return _images_in_json(body, limits)
        case _:
            return [Upload("image 0", body)] if body else []


def _images_in_form(content_type: str, body: bytes, limits: ApiLimits) -> list[Upload]:
    parts = split_form(content_type, body, limits.max_images)
    for part in parts:
        if part.name != "image":
            raise Problem(422, f"the form has unknown {shown(part.name)}: images come in parts named 'image'")
    return [Upload(_clean(part.filename, number), part.data) for number, part in enumerate(parts)]


def _images_in_json(body: bytes, limits: ApiLimits) -> list[Upload]:
    try:
        request = ImageRequest.model_validate(_decoded(body, limits))
    except ValidationError as error:
        raise Problem(422, first_fault(error)) from None
    if len(request.images) > limits.max_images:
        raise _too_many(limits)
    return [_image_in_json(image, number) for number, image in enumerate(request.images)]


def _image_in_json(image: ImagePart, number: int) -> Upload:
    try:
        return Upload(_clean(image.name, number), _from_base64(image.data))
    except ValueError:  # binascii.Error, or characters beyond ASCII
        raise Problem(422, f"images[{number}].data: not base64 (RFC 4648, section 4, with its padding)") from None


def _from_base64(text: str) -> bytes:
    """Decode base64, a piece at a time; raises ValueError for anything that is not strictly that."""
    if len(text) % 4 or "=" in text[:-2]:  # strict_mode takes "iVBO=" for whole
        raise ValueError("padding is missing, or not at the end")
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)


def _decoded(body: bytes, limits: ApiLimits) -> object:
    """Decode JSON with no more values than images need: lists of nothing would take 20 times their bytes."""
    if any(_more_than(_MOST_MARKS * limits.max_images, mark, body) for mark in b"{[,"):
        raise Problem(422, 'the body has more values than {"images": [{"data": BASE64, "name": TEXT}, ...]} needs')
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=_unique)
    except RecursionError:
        raise Problem(400, "the body is nested too deeply") from None
    except UnicodeDecodeError:
        raise Problem(400, "the body is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise Problem(400, f"the body is not JSON: {error.msg} at character {error.pos:,}") from None
    except ValueError:
        raise Problem(400, "the body is not JSON that can be read: it has a number of too many digits") from None


def _more_than(most: int, mark: int, body: bytes) -> bool:
    """Return whether a byte occurs more often; where it is rare, finding is ten times faster than counting."""
    at = -1
    for _ in range(most + 1):
        at = body.find(mark, at + 1)
        if at < 0:
            return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; which of two values counts, readers of JSON disagree about."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise Problem(422, f"the body has {shown(name)} twice in one object")
        members[name] = value
    return members


def _clean(name: str | None, number: int) -> str:
    return _printable(name or "") or f"image {number}"


def _too_many(limits: ApiLimits) -> Problem:
    return Problem(413, f"the request has more than the {limits.max_images} images that are accepted")
