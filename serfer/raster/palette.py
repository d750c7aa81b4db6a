"""Colours of masks and grey levels of depth: what PNG files of results hold. Needs no rasterio.

A mask's colours are those of the PASCAL VOC data set: bit k of a class's number goes to bit 7 - k // 3 of red, green or
blue, by k mod 3. So class 0 is black, 1 (128, 0, 0), 2 (0, 128, 0), 3 (128, 128, 0), 4 (0, 0, 128); 256 classes have
256 colours, always the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from serfer.core.errors import ImageError, UsageError

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


def colours(mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.array(palette(), np.uint8)[mask]


def mask_image(mask: NDArray[np.uint8]) -> Image.Image:
    """Return a mask (rows, cols) of classes 0 to 255 as an image of these indices with our palette."""
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

    def values(self, levels: NDArray[np.uint16]) -> NDArray[np.float32]:
        """Return the values that levels stand for, NaN for 0; they differ by at most (max - min) / 131068."""
        values = self.min + (levels.astype(np.float64) - 1) / (_TOP - 1) * (self.max - self.min)
        return np.where(levels == 0, np.nan, values).astype(np.float32)

    def metadata(self) -> PngInfo:
        """Return the PNG's texts `serfer:min` and `serfer:max`, from which `read_depth` finds the values again."""
        info = PngInfo()
        info.add_text(_MIN, repr(self.min))
        info.add_text(_MAX, repr(self.max))
        return info


def _valid(values: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    finite: NDArray[np.bool_] = np.isfinite(values)
    return finite if nodata is None else finite & (values != nodata)


def write_depth(path: Path, values: NDArray[Any], nodata: float | None = None) -> None:
    """Write values (rows, cols) as a PNG of 16 bits; raises UsageError where none is finite, OSError."""
    scale = DepthScale.of(values, nodata)
    if scale is None:
        raise UsageError(f"{path} cannot be written: none of the values is finite")
    Image.fromarray(scale.levels(values, nodata)).save(path, "PNG", pnginfo=scale.metadata())


def read_depth(path: Path) -> NDArray[np.float32]:
    """Return the values (rows, cols) of a PNG of `write_depth`; raises ImageError."""
    try:
        with Image.open(path, formats=["PNG"]) as image:
            levels = np.asarray(image, np.uint16)
            scale = DepthScale(float(image.info[_MIN]), float(image.info[_MAX]))
    except (OSError, KeyError, ValueError, SyntaxError) as error:
        raise ImageError(f"{path} is not a depth image of SerFer: {error}") from error
    if levels.ndim != 2 or not math.isfinite(scale.max - scale.min):  # noqa: PLR2004 - rows, cols
        raise ImageError(f"{path} is not a depth image of SerFer")
    return scale.values(levels)
