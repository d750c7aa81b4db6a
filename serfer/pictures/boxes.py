"""A picture of an image with the boxes that were found in it."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from serfer.core.report import DetectedObject

_PER_LINE, _PER_TEXT = 400, 45  # pixels of the shorter side for a pixel of lines, and of text
_LEAST_TEXT = 10
_MOST_LABEL = 40  # characters
_COLOURS = (
    *("#e6194b", "#0072b2", "#2e8b57", "#b8860b", "#7b3fa0"),
    *("#c0562b", "#00808a", "#d0308f", "#5a6b00", "#4a4aff"),
)
_SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
PICTURES = tuple(_SUFFIXES)
"""Suffixes of the files that `drawn` makes."""


def drawn(image: Image.Image, boxes: Sequence[DetectedObject], suffix: str) -> bytes:
    """Return an RGB image with its boxes, the best on top, as a file of one of `PICTURES`; the image is drawn on."""
    side, draw = min(image.size), ImageDraw.Draw(image)
    line, font = max(1, round(side / _PER_LINE)), ImageFont.load_default(max(_LEAST_TEXT, side / _PER_TEXT))
    for box in reversed(boxes):
        colour = _COLOURS[box.index % len(_COLOURS)]
        draw.rectangle(box.box, outline=colour, width=line)
        text = f"{box.label[:_MOST_LABEL]} {box.score:.0%}"
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
        high, wide = bottom - top + 2 * line, right - left + 2 * line
        x, y = min(box.box[0], image.width - wide), box.box[1] - high
        y = y if y >= 0 else box.box[1]
        draw.rectangle((x, y, x + wide, y + high), fill=colour)
        draw.text((x + line - left, y + line - top), text, fill="white", font=font)
    file = io.BytesIO()
    image.save(file, _SUFFIXES[suffix])
    return file.getvalue()
