"""Which files may be decoded in the service's own process: small JPEG and PNG files that their heads bound.

A decoder's process has limits of memory and processor time; here nothing ends what takes long. So a file is plain only
where its pixels, bytes, scans and segments bound the work, and where Pillow, which reads a head first, and libjpeg,
which reads it again, must see the same: every segment follows the one before, and is of a kind that is listed here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from itertools import islice

from serfer.images import PlainHead, Recipe

_SEGMENTS, _CHUNKS = 32, 256
_SIZE, _CHUNK, _HEADER = (struct.Struct(code) for code in (">HH", ">I4s", ">IIBBBBB"))
_JPEG, _PNG = b"\xff\xd8", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_BYTES, _PIXELS, _SIDE = {_JPEG: 1 << 18, _PNG: 160 << 10}, {_JPEG: 1 << 19, _PNG: 1 << 18}, 1 << 12
_SCANS = {0xFFC0: 3, 0xFFC1: 3, 0xFFC2: 10}  # of a baseline, extended and progressive frame: what libjpeg writes
_NEXT_SCAN = re.compile(b"\xff\xda")  # twice as quick as bytes.count
_SCAN, _TABLES_AND_COMMENT = 0xFFDA, (0xFFC4, 0xFFDB, 0xFFDD, 0xFFFE)
_METADATA = {0xFFE0: (b"JFIF", 14), 0xFFE2: (b"ICC_PROFILE\0", 14), 0xFFEC: (b"Ducky", 5), 0xFFEE: (b"Adobe", 12)}
"""What a segment of metadata begins with, and its least length: Pillow refuses a file where it is shorter."""
_FRAME = re.compile(rb"\x08(....)(?:(\x01).[\x11\x12\x21\x22].|\x03.[\x11\x12\x21\x22]..\x11..\x11.)", re.DOTALL)
"""8 bits, rows and columns, one component or three, of which the first may have up to 2 x 2 samples for the others'."""
_BITS, _CHECKSUM = 8, 4
_COLOURS = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}
_LONGEST = {b"PLTE": 768, b"tRNS": 256, **dict.fromkeys((b"IDAT", b"tEXt"), _BYTES[_PNG])} | dict.fromkeys(
    (b"gAMA", b"cHRM", b"sRGB", b"sBIT", b"bKGD", b"pHYs", b"tIME"), 32
)
_TEXTS = (b"Software", b"Comment", b"date:create", b"date:modify", b"date:timestamp")
"""Keywords that say nothing about the pixels; Pillow takes orientation and transparency from others."""


def plain_heads(
    images: Sequence[bytes], recipe: Recipe, most_bytes: int, most_pixels: int = _PIXELS[_JPEG]
) -> list[PlainHead] | None:
    """Return the heads of a request's images that may be decoded in this process; None where that may not be.

    They are bounded together, also by `most_bytes` of the files and `most_pixels` of the images. Give each to
    `decode_image`, which raises what it always does: a file that its head bounds may still be broken.
    """
    limits, heads = recipe.limits, list[PlainHead]()
    bytes_left, pixels_left = min(most_bytes, _BYTES[_JPEG]), min(most_pixels, _PIXELS[_JPEG])
    for data in images:
        size, kind = len(data), _JPEG if data[: len(_JPEG)] == _JPEG else data[: len(_PNG)]
        bytes_left -= size
        if kind not in _BYTES or bytes_left < 0 or size > _BYTES[kind] or size > limits.max_bytes:
            return None
        head = _jpeg(data, size) if kind == _JPEG else _png(data)
        if head is None:
            return None
        width, height = head.size
        pixels = width * height
        pixels_left -= pixels
        if pixels_left < 0 or not 0 < pixels <= _PIXELS[kind] or pixels > limits.max_pixels or max(head.size) > _SIDE:
            return None
        heads.append(head)
    return heads


def _jpeg(data: bytes, size: int) -> PlainHead | None:
    scans, head, end = 0, None, len(_JPEG)
    for _ in range(_SEGMENTS):  # written out: each has a marker of two bytes, a length of two, and a body
        body = end + 4
        if body > size:
            return None
        marker, end = data[end] << 8 | data[end + 1], end + 2 + (data[end + 2] << 8 | data[end + 3])
        if not body <= end <= size:
            return None
        if marker == _SCAN:  # these two bytes may be less than a scan, but no scan is without them
            return head if len([*islice(_NEXT_SCAN.finditer(data, body), scans)]) < scans else None
        if marker in _SCANS and head is None and (frame := _FRAME.fullmatch(data, body, end)):
            rows, columns = _SIZE.unpack(frame[1])
            scans, head = _SCANS[marker], PlainHead("L" if frame[2] else "RGB", (columns, rows), jpeg=True)
        elif marker in _METADATA:
            start, least = _METADATA[marker]
            if not data.startswith(start, body) or end - body < least:
                return None
        elif marker not in _TABLES_AND_COMMENT:
            return None
    return None


def _png(data: bytes) -> PlainHead | None:
    width, height, bits, colour, *methods = _HEADER.unpack_from(data.ljust(len(_PNG) + _HEADER.size), len(_PNG))
    if bits != _BITS or colour not in _COLOURS or any(methods):  # interlaced
        return None
    for kind, body, end in islice(_chunks(data), _CHUNKS):
        if kind == b"IEND":
            return PlainHead(_COLOURS[colour], (width, height), jpeg=False)
        says_more = kind == b"tEXt" and data[body:end].partition(b"\0")[0] not in _TEXTS
        if says_more or end - body > _LONGEST.get(kind, -1):
            return None
    return None


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    at = len(_PNG) + _HEADER.size + _CHECKSUM
    while (body := at + _CHUNK.size) <= len(data):
        length, kind = _CHUNK.unpack_from(data, at)
        at = body + length + _CHECKSUM
        if at > len(data):
            return
        yield kind, body, body + length
