"""The images of a request: a form, one raw image, or JSON with base64; bounded before anything is decoded.

Names of files go back to the client that sent them, and nowhere else.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from itertools import islice
from typing import Any, Final

from multipart import MultipartError, MultipartSegment, PushMultipartParser
from pydantic import Field, ValidationError, field_validator
from starlette.requests import Request

from serfer.api.http.body import ApiLimits, read_body
from serfer.api.http.problems import Problem
from serfer.api.http.validation import Body, first_fault, shown
from serfer.images import heif_advice

FORM, JSON = "multipart/form-data", "application/json"
RAW: Final = ("image/jpeg", "image/png", "image/gif", "image/webp", "image/bmp", "image/tiff")
ACCEPTED: Final = (FORM, JSON, *RAW)
_MOST_NAME = 255  # characters
_MOST_BOUNDARY = 70  # characters (RFC 2046, section 5.1.1)
_MOST_PADDING = 255  # blanks behind a boundary
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
    types = [str(value, "latin-1") for name, value in request.scope["headers"] if name == b"content-type"] or [""]
    content_type = types[0]
    kind = content_type if content_type in ACCEPTED else content_type.partition(";")[0].strip().lower()
    if len(types) > 1:
        raise Problem(400, "Content-Type is given more than once")
    if kind not in ACCEPTED:
        known = ", ".join(ACCEPTED)
        raise Problem(415, f"Content-Type should be one of {known}", headers={"Accept": known})
    body = await read_body(request, limits, left_s=left_s)
    if kind == FORM:
        images = _images_in_form(content_type, body, limits.max_images)
    elif kind != JSON:
        images = [Upload("image 0", body)] if body else []
    elif len(body) > _LARGE:
        images = await asyncio.to_thread(_images_in_json, body, limits)
    else:
        images = _images_in_json(body, limits)
    if not 0 < len(images) <= limits.max_images:
        raise _too_many(limits) if images else Problem(422, "the request has no images: send at least one")
    for image in images:
        if not image.data:
            raise Problem(422, f"{image.name} is empty")
        check_format(image.name, image.data)
    return images


def _images_in_form(content_type: str, body: bytes, most: int) -> list[Upload]:
    """Return the images of a form's parts (multipart/form-data, RFC 7578), in order.

    What is quoted in headers is read by the standard library's email package, as clients of all kinds write it. Raises
    Problem, 400 for what is not a form, 413 for more than `most` parts, 422 for one of another name than "image".
    """
    boundary = _options(content_type)[1].get("boundary", "")
    line = f"--{boundary}".encode()
    if not 1 <= len(boundary) <= _MOST_BOUNDARY or line not in body:
        raise Problem(400, f"Content-Type: {FORM} needs the form's boundary, 1 to {_MOST_BOUNDARY} long: boundary=...")
    if line + b" " in body or line + b"\t" in body:
        body = _unpadded(body, line, most)
    images, fields = list[Upload](), list[str]()
    try:
        with PushMultipartParser(boundary, header_charset="latin-1", strict=True) as parser:
            for event in parser.parse(body):
                if isinstance(event, MultipartSegment):
                    if len(images) == most:
                        raise Problem(
                            413,
                            f"the form has more than the {most} parts that a request may have (SERFER_API_MAX_IMAGES)",
                        )
                    segment, chunks = event, list[bytes]()
                elif event is not None:
                    chunks.append(bytes(event))
                else:
                    values = [value for name, value in segment.headerlist if name == "Content-Disposition"]
                    kind, options = _options(values[0]) if len(values) == 1 else ("", {})
                    if kind != "form-data" or "name" not in options:
                        needed = 'its header Content-Disposition: form-data; name="..."'
                        raise Problem(400, f"part {len(images)} of the form lacks {needed}")
                    fields.append(options["name"])
                    name = _printable(options.get("filename", "")) or f"image {len(images)}"
                    images.append(Upload(name, b"".join(chunks)))
    except MultipartError as error:
        raise Problem(400, f"the form cannot be read: {error}, in part {len(images)} or before it") from None
    if unknown := [part for part in fields if part != "image"]:
        raise Problem(422, f"the form has unknown {shown(unknown[0])}: images come in parts named 'image'")
    return images


def _unpadded(body: bytes, line: bytes, most: int) -> bytes:
    padded = rb"(\r\n%b)[ \t]{1,%d}+(?=\r\n)" % (re.escape(line), _MOST_PADDING)
    return re.sub(padded, rb"\1", b"\r\n" + body, count=most + 1)


def _options(header: str) -> tuple[str, dict[str, str]]:
    message = Message()
    message["Content-Type"] = header
    (kind, _), *options = message.get_params([("", "")])
    values = ((name, value[-1] if isinstance(value, tuple) else value) for name, value in options)
    return kind.lower(), {name: value.encode("latin-1", "replace").decode(errors="replace") for name, value in values}


def _images_in_json(body: bytes, limits: ApiLimits) -> list[Upload]:
    try:
        request = ImageRequest.model_validate(_parse_json(body, limits))
    except ValidationError as error:
        raise Problem(422, first_fault(error)) from None
    if len(request.images) > limits.max_images:
        raise _too_many(limits)
    images = []
    for number, image in enumerate(request.images):
        try:
            images.append(Upload(image.name or f"image {number}", _from_base64(image.data)))
        except ValueError:  # binascii.Error, or characters beyond ASCII
            raise Problem(422, f"images[{number}].data: not base64 (RFC 4648, section 4, with its padding)") from None
    return images


def _from_base64(text: str) -> bytes:
    if len(text) % 4 or "=" in text[:-2]:  # strict_mode takes "iVBO=" for whole
        raise ValueError("padding is missing, or not at the end")
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)


def _parse_json(body: bytes, limits: ApiLimits) -> object:
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


def _too_many(limits: ApiLimits) -> Problem:
    return Problem(
        413, f"the request has more than the {limits.max_images} images that are accepted (SERFER_API_MAX_IMAGES)"
    )


FORMATS = "JPEG, PNG, GIF, WEBP, BMP and TIFF"
MOST_SCANS = 50  # what encoders write has a dozen
MOST_PIECES = 10_000  # 20 MiB of PNG in the usual chunks of 8 KiB has a quarter of that

_JPEG, _PNG, _GIF = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a")
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the latter two have 64-bit offsets
_OTHERS = (b"BM", *_TIFF)
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # what can stand in a scan is not a marker
_SCAN = b"\xff\xda"
_SMALL = 2 * MOST_PIECES  # bytes, of which a piece takes two at least
_EOI, _SOS = 0xD9, 0xDA
_BARE = (0x01, 0xD8)  # markers without a length
_GIF_HEAD = 13  # bytes before the table of colours
_GIF_TABLE, _GIF_TABLE_SIZE = 0x80, 0x07
_EXTENSION, _FRAME, _END = b"!,;"
_Pieces = Iterator[str]


def check_format(name: str, data: bytes) -> None:
    """Raise Problem, 415 where a file is not an image of an accepted format, 422 where it is in too many pieces."""
    if len(data) <= _SMALL and data.startswith(_JPEG) and data.count(_SCAN) <= MOST_SCANS:
        return  # with no more scans and, at a marker and a length each, no more pieces
    if data.startswith(_JPEG):
        read = _jpeg_pieces(data)
    elif data.startswith(_PNG):
        read = _png_pieces(data)
    elif data.startswith(_GIF):
        read = _gif_pieces(data)
    elif data.startswith(_OTHERS) or (data.startswith(b"RIFF") and data[8:12] == b"WEBP"):
        return
    else:
        raise Problem(415, f"{name} is not an image of a known format: {FORMATS} are accepted{heif_advice(data)}")
    pieces = Counter(islice(read, MOST_PIECES + 1))
    if pieces.total() > MOST_PIECES or pieces["scan"] > MOST_SCANS:
        raise Problem(
            422, f"{name} has more than {MOST_SCANS} scans, or {MOST_PIECES:,} segments, chunks or blocks: resave it"
        )


def _jpeg_pieces(data: bytes) -> _Pieces:
    """Yield what each segment is, up to the image's end (what follows it, as in a motion photo, is not read)."""
    at = 2
    while marker := _MARKER.search(data, at):
        code, at = data[marker.end() - 1], marker.end()
        if code == _EOI:
            return
        yield "scan" if code == _SOS else "segment"
        if code not in _BARE:
            at += int.from_bytes(data[at : at + 2], "big")


def _png_pieces(data: bytes) -> _Pieces:
    at = len(_PNG)
    while at < len(data):
        yield "chunk"
        at += 12 + int.from_bytes(data[at : at + 4], "big")  # length, name and checksum take 12


def _gif_pieces(data: bytes) -> _Pieces:
    flags = data[10] if len(data) >= _GIF_HEAD else 0
    at = _GIF_HEAD + (6 << (flags & _GIF_TABLE_SIZE) if flags & _GIF_TABLE else 0)
    while at < len(data) and data[at] not in (_FRAME, _END):
        yield "block"
        if data[at] == _EXTENSION:
            at += 2
            while at < len(data) and data[at]:
                yield "block"
                at += 1 + data[at]
        at += 1
