"""Random images of many grains and contrasts, for networks without calibration images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_GRAINS = (1, 2, 4, 8, 16, 32)
_CONTRASTS = (0.3, 0.6, 1.0, 1.5)


def noise(shape: Sequence[int], count: int, seed: int) -> NDArray[np.float32]:
    """Return `count` images (count, C, H, W) of normal noise, about as large as images normalised to deviation 1.

    Each sums fine and coarse grains, as photographs do, around a colour of its own.
    """
    random = np.random.default_rng(seed)
    images = np.empty((count, *shape), dtype=np.float32)
    for index in range(count):
        image = random.standard_normal((shape[0], 1, 1), dtype=np.float32) / 2
        shares = random.dirichlet(np.ones(len(_GRAINS))) ** 0.5
        for grain, share in zip(_GRAINS, shares, strict=True):
            image = image + np.float32(share) * _grains(shape, grain, random)
        images[index] = random.choice(_CONTRASTS) * image
    return images


def _grains(shape: Sequence[int], grain: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Return smooth noise (C, H, W): values a grid of `grain` apart, linear between."""
    channels, height, width = shape
    coarse = random.standard_normal((channels, height // grain + 2, width // grain + 2), dtype=np.float32)
    for axis, size in ((1, height), (2, width)):
        position = np.arange(size) / grain + random.random() * (grain > 1)
        first = np.minimum(position.astype(np.int64), coarse.shape[axis] - 2)
        part = np.expand_dims((position - first).astype(np.float32), (0, 3 - axis))
        coarse = np.take(coarse, first, axis) * (1 - part) + np.take(coarse, first + 1, axis) * part
    return coarse
