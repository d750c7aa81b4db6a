"""The sizes of images that a map plan is asked for: some, or any."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from serfer.core.errors import UsageError

MOST_PIXELS = 2_000_000
"""Pixels that a side of an image may have."""
MOST_MULTIPLE = 4_096
ANY = "any"
_ANY = re.compile(r"any(?:,multiple=([1-9]\d{0,3}))?")
Size = tuple[int, int]


@dataclass(frozen=True)
class AnySize:
    """All sizes whose heights and widths are multiples of a number of pixels."""

    multiple: int = 1

    @classmethod
    def of(cls, text: str) -> AnySize:
        match = _ANY.fullmatch(text)
        multiple = int(match[1] or 1) if match else 0
        if not 1 <= multiple <= MOST_MULTIPLE:
            raise UsageError(
                f"{text[:40]!r} is not sizes of images: write any, or any,multiple=8 with a number of 1 to "
                f"{MOST_MULTIPLE:,}"
            )
        return cls(multiple)


def checked_sizes(sizes: Sequence[Size] | str) -> list[Size] | AnySize:
    """Return the sizes of images, each once; raises UsageError for none, or for one that no image has."""
    if isinstance(sizes, str):
        return AnySize.of(sizes)
    if not sizes:
        raise UsageError("give the size of the images that the plan is for: --size HEIGHTxWIDTH, or --size any")
    for height, width in sizes:
        if not (1 <= height <= MOST_PIXELS and 1 <= width <= MOST_PIXELS):
            raise UsageError(f"an image has 1 to {MOST_PIXELS:,} pixels a side, not {height} x {width}")
    return [*dict.fromkeys(sizes)]
