"""A generated image of any size with a georeference, written strip by strip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from serfer.core.plan import Preprocess

_STRIP = 512
_SYSTEM = "EPSG:32633"
PREPROCESS = Preprocess(
    resize=None, interpolation="bilinear", channels="RGB", scale=1 / 255, mean=(0.5,) * 3, std=(0.33,) * 3
)
"""How networks normalise the image."""
_WHERE = rasterio.Affine(0.5, 0.0, 400_000.0, 0.0, -0.5, 5_800_000.0)


def strip(top: int, rows: int, cols: int) -> NDArray[np.uint8]:
    """Return rows of the generated image (3, rows, cols) from row `top` on: waves and noise, the same each time."""
    down, across = np.arange(top, top + rows, dtype=np.float32)[:, None], np.arange(cols, dtype=np.float32)
    waves = np.stack([np.sin(down / (37 + band)) * np.cos(across / (53 - band)) for band in (0, 5, 10)])
    waves += np.random.default_rng(top).normal(0, 0.2, waves.shape).astype(np.float32)
    return np.clip((waves + 1.5) * 85, 0, 255).astype(np.uint8)


def normalised(pixels: NDArray[np.uint8], preprocess: Preprocess = PREPROCESS) -> NDArray[np.float32]:
    values = np.empty((1, *pixels.shape), np.float32)
    for band, colour, mean, std in zip(values[0], preprocess.channels, preprocess.mean, preprocess.std, strict=True):
        np.multiply(pixels["RGB".index(colour)], np.float32(preprocess.scale), out=band)
        np.divide(np.subtract(band, np.float32(mean), out=band), np.float32(std), out=band)
    return values


def tiled(size: tuple[int, int]) -> dict[str, Any]:
    form = {"driver": "GTiff", "count": 3, "dtype": "uint8", "height": size[0], "width": size[1]}
    return {**form, "tiled": True, "blockxsize": 512, "blockysize": 512, "compress": "deflate", "zlevel": 1}


def write_image(path: Path, size: tuple[int, int]) -> None:
    height, width = size
    with rasterio.open(path, "w", **tiled(size), crs=_SYSTEM, transform=_WHERE) as dataset:
        for top in range(0, height, _STRIP):
            rows = min(_STRIP, height - top)
            dataset.write(strip(top, rows, width), window=Window(0, top, width, rows))
