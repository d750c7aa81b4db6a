"""Pixels as a network takes them: one formula for workers, references, calibration and instances, bit for bit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import PlanError
from serfer.core.plan.image_normalisation import ImageNormalisation, ImageStatistics
from serfer.core.plan.preprocess import MAX_CHANNELS, Levels, Preprocess

_BYTE_SCALE = 255.0  # what the scale of a preprocessing is meant for
_LARGEST = 2**24
"""Whole numbers up to which float32 has every one."""
_SMALL_TYPES = ("uint8", "int8", "uint16", "int16", "float32")  # float32 has their values


def scaled_to(preprocess: Preprocess, full: float) -> Preprocess:
    """Return the preprocessing of pixels in which `full` counts as 255 does in a picture of 8 bits.

    It is the same where values are taken as they are stored.
    """
    return preprocess if preprocess.stored else replace(preprocess, scale=preprocess.scale * _BYTE_SCALE / full)


def normalise(pixels: NDArray[Any], preprocess: Preprocess | Levels) -> NDArray[np.float32]:
    """Return pixels, (N, H, W, C), as a network's input, (N, C, H, W) float32: x * (scale / std) - mean / std.

    Pixels are uint8, or of another type for which `scale` is meant. Raises PlanError for a preprocessing that needs the
    whole image.
    """
    if isinstance(preprocess, Preprocess) and preprocess.by_image is not None:
        raise PlanError("pixels that are normalised by the whole image are for serfer map, which measures it first")
    mean, std = np.array(preprocess.mean, dtype=np.float32), np.array(preprocess.std, dtype=np.float32)
    factor = np.float32(preprocess.scale) / std
    planes = pixels.transpose(0, 3, 1, 2)
    values = np.empty(planes.shape, dtype=np.float32)
    np.multiply(planes, factor[:, None, None], out=values)
    values -= (mean / std)[:, None, None]
    return values


def normalise_by_image(
    planes: NDArray[Any], known: ImageStatistics, how: ImageNormalisation, levels: Levels
) -> NDArray[np.float32]:
    """Return pixels (C, rows, cols) as a network's input of that shape; what they are normalised to has `levels`."""
    kind = np.float32 if planes.dtype.name in _SMALL_TYPES else np.float64
    offset, span, mean, std = (
        np.array(numbers)[:, None, None] for numbers in (known.offset, known.span, levels.mean, levels.std)
    )
    # Subtracted before it is divided, and in two parts: of values that are large beside their range little is left.
    most = offset.astype(kind)
    values = np.subtract(planes, most, dtype=kind)
    values -= (offset - most).astype(kind)
    values /= span.astype(kind)
    if how.clip:
        np.clip(values, 0, 1, out=values)
    if levels.scale != 1:
        values *= kind(levels.scale)
    if mean.any():
        values -= mean.astype(kind)
    if (std != 1).any():
        values /= std.astype(kind)
    return np.asarray(values, np.float32)


def levels_by_image(known: ImageStatistics, how: ImageNormalisation, levels: Levels) -> Levels | None:
    """Return the levels that do the same to pixels of bytes; None where no levels do, or the numbers are out of range.

    There are as many as channels.
    """
    channels = len(levels.mean)
    if how.clip or channels > MAX_CHANNELS:
        return None
    offset, span = (np.broadcast_to(numbers, channels) for numbers in (known.offset, known.span))
    mean, std = offset * levels.scale + levels.mean * span, span * levels.std
    with suppress(PlanError):
        return Levels(levels.scale, tuple(mean.tolist()), tuple(std.tolist()))
    return None


def normalised_crop(
    data: bytes | memoryview, shape: tuple[int, ...], levels: Preprocess | Levels
) -> NDArray[np.float32]:
    """Return a tile's input of `shape`, (N, C, rows, cols), from its crop's bytes: (N, rows, cols, C) uint8 pixels."""
    batch, channels, rows, cols = shape
    return normalise(np.frombuffer(data, dtype=np.uint8).reshape(batch, rows, cols, channels), levels)


def whole_numbers(dtype: str) -> range | None:
    """Return the whole numbers of a numpy type, as far as float32 has them; None for a type of other numbers."""
    if dtype.startswith("float"):
        return None
    if dtype == "bool":
        return range(2)
    limits = np.iinfo(dtype)
    return range(max(int(limits.min), -_LARGEST), min(int(limits.max), _LARGEST) + 1)


def as_they_are(preprocess: Preprocess) -> bool:
    return (preprocess.scale, {*preprocess.mean}, {*preprocess.std}) == (1, {0}, {1})


def check_numbers(preprocess: Preprocess, name: str, dtype: str) -> None:
    """Raise PlanError where pixels become numbers that an input of a file, called `name`, does not have."""
    numbers = whole_numbers(dtype)
    if numbers is None:
        return
    if preprocess.by_image is not None:
        raise PlanError(f"the model's input {name!r} is {dtype}, and normalised pixels are not whole numbers")
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 256, 1, 1).repeat(len(preprocess.channels), axis=3)
    values = normalise(pixels, preprocess)
    if not np.array_equal(values, np.clip(np.rint(values), numbers[0], numbers[-1])):
        mean = 128 if dtype == "int8" else 0
        raise PlanError(
            f"the model's input {name!r} is {dtype}, and the preprocessing gives it other numbers: pixels need scale "
            f"1, mean {mean} and std 1"
        )
