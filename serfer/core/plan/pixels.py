"""Pixels as a network takes them: one formula for workers, references, calibration and instances, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan.preprocess import Levels, Preprocess

_BYTE_SCALE = 255.0  # what the scale of a preprocessing is meant for


def full_scale(dtype: str) -> float:
    """Return the value of a type that counts as 255 does in a picture of 8 bits."""
    kind = np.dtype(dtype)
    return 1.0 if kind.kind == "f" else float(np.iinfo(kind).max)


def scaled_to(preprocess: Preprocess, full: float) -> Preprocess:
    """Return the preprocessing of pixels in which `full` counts as 255 does in a picture of 8 bits."""
    return replace(preprocess, scale=preprocess.scale * _BYTE_SCALE / full)


def normalise(pixels: NDArray[Any], preprocess: Preprocess | Levels) -> NDArray[np.float32]:
    """Return pixels, (N, H, W, C), as a network's input, (N, C, H, W) float32: x * (scale / std) - mean / std.

    Pixels are uint8, or of another type for which `scale` is meant.
    """
    mean, std = np.array(preprocess.mean, dtype=np.float32), np.array(preprocess.std, dtype=np.float32)
    factor = np.float32(preprocess.scale) / std
    planes = pixels.transpose(0, 3, 1, 2)
    values = np.empty(planes.shape, dtype=np.float32)
    np.multiply(planes, factor[:, None, None], out=values)
    values -= (mean / std)[:, None, None]
    return values


def normalised_crop(
    data: bytes | memoryview, shape: tuple[int, ...], levels: Preprocess | Levels
) -> NDArray[np.float32]:
    """Return a tile's input of `shape`, (N, C, rows, cols), from its crop's bytes: (N, rows, cols, C) uint8 pixels."""
    batch, channels, rows, cols = shape
    return normalise(np.frombuffer(data, dtype=np.uint8).reshape(batch, rows, cols, channels), levels)
