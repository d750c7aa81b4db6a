"""Pixels as a network takes them: one formula for workers, references, calibration and instances, bit for bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan.preprocess import Preprocess


def normalise(pixels: NDArray[np.uint8], preprocess: Preprocess) -> NDArray[np.float32]:
    """Return pixels, (N, H, W, C) uint8, as a network's input, (N, C, H, W) float32: x * (scale / std) - mean / std."""
    mean, std = np.array(preprocess.mean, dtype=np.float32), np.array(preprocess.std, dtype=np.float32)
    factor = np.float32(preprocess.scale) / std
    planes = pixels.transpose(0, 3, 1, 2)
    values = np.empty(planes.shape, dtype=np.float32)
    np.multiply(planes, factor[:, None, None], out=values)
    values -= (mean / std)[:, None, None]
    return values
