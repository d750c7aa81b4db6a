"""Colours of masks and grey levels of depth: what PNG files of results hold. Needs no rasterio.

A mask's colours are those of the PASCAL VOC data set: bit k of a class's number goes to bit 7 - k // 3 of red, green or
blue, by k mod 3. So class 0 is black, 1 (128, 0, 0), 2 (0, 128, 0), 3 (128, 128, 0), 4 (0, 0, 128); 256 classes have
256 colours, always the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

CLASSES = 256
_BITS = 8
_TOP = 65535
_MIN, _MAX = "serfer:min", "serfer:max"


@cache
def palette() -> tuple[tuple[int, int, int], ...]:
    return tuple(_colour(number) for number in range(CLASSES))


def _colour(number: int) -> tuple[int, int, int]:
    channels = [0, 0, 0]
    for bit in range(_BITS):
        channels[bit % 3] |= (number >> bit & 1) << (7 - bit // 3)
    return channels[0], channels[1], channels[2]


def mask_image(mask: NDArray[np.uint8]) -> Image.Image:
    image = Image.fromarray(np.ascontiguousarray(mask, np.uint8))
    image.putpalette([level for colour in palette() for level in colour])
    return image


@dataclass(frozen=True)
class DepthScale:
    """How values become levels of 16 bits: `min` is 1, `max` 65535, in between linear; 0 means no value."""

    min: float
    max: float

    @classmethod
    def of(cls, values: NDArray[Any], nodata: float | None = None) -> DepthScale | None:
        valid = values[_valid(values, nodata)]
        return cls(float(valid.min()), float(valid.max())) if valid.size else None

    def joined(self, other: DepthScale | None) -> DepthScale:
        return DepthScale(min(self.min, other.min), max(self.max, other.max)) if other else self

    def levels(self, values: NDArray[Any], nodata: float | None = None) -> NDArray[np.uint16]:
        valid = _valid(values, nodata)
        span = (self.max - self.min) or 1.0
        scaled = 1 + (np.where(valid, values, self.min).astype(np.float64) - self.min) / span * (_TOP - 1)
        return np.where(valid, np.rint(scaled), 0).astype(np.uint16)

    def metadata(self) -> PngInfo:
        info = PngInfo()
        info.add_text(_MIN, repr(self.min))
        info.add_text(_MAX, repr(self.max))
        return info


def _valid(values: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    finite: NDArray[np.bool_] = np.isfinite(values)
    return finite if nodata is None else finite & (values != nodata)
