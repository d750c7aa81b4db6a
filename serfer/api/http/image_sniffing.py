"""An image file's format by its first bytes, and its number of pieces, before a decoder sees it.

A decoder takes time for every piece, however small. Each scan of a progressive JPEG goes over all pixels once more, and
an empty one has 61 bytes: 100 kB can keep it busy for a minute and a half at 40 megapixels. A file of nothing but empty
segments, chunks or blocks takes it a microsecond a byte.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from serfer.api.http.problems import Problem

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
    pieces = Counter(islice(_pieces(name, data), MOST_PIECES + 1))
    if pieces.total() > MOST_PIECES or pieces["scan"] > MOST_SCANS:
        raise Problem(
            422, f"{name} has more than {MOST_SCANS} scans, or {MOST_PIECES:,} segments, chunks or blocks: resave it"
        )


def _pieces(name: str, data: bytes) -> _Pieces:
    if data.startswith(_JPEG):
        return _jpeg_pieces(data)
    if data.startswith(_PNG):
        return _png_pieces(data)
    if data.startswith(_GIF):
        return _gif_pieces(data)
    if data.startswith(_OTHERS) or (data.startswith(b"RIFF") and data[8:12] == b"WEBP"):
        return iter(())
    raise Problem(415, f"{name} is not an image of a known format: {FORMATS} are accepted")


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
