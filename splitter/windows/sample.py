"""Samples of the images that a network will map: parts of a file, or of an image that is generated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from serfer.splitter.network.source import Array


@dataclass(frozen=True)
class Sample:
    """A sample as the network's input (1, C, H, W), and what it is in words."""

    name: str
    values: Array


def generated(channels: int, height: int, width: int) -> Array:
    """Return an image (1, C, H, W), the same each time: a slope, waves of many lengths, and noise.

    Its parts have other averages than the whole, as those of photographs have.
    """
    rng = np.random.default_rng(0)
    rows, cols = np.indices((height, width), dtype=np.float32)
    image = np.empty((1, channels, height, width), dtype=np.float32)
    for channel in range(channels):
        values = rows / height - cols / width
        for length in (700, 150, 40, 12):
            down, across = rng.uniform(0.5, 1.5, 2) * 2 * np.pi / length
            values += np.sin(down * rows + channel) * np.cos(across * cols) / 2
        image[0, channel] = values + rng.normal(0, 0.2, values.shape)
    return image
