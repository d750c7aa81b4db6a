"""A generated image of any size with a georeference, and the comparison of large results, both strip by strip."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.windows import Window

from serfer.core.errors import WrongAnswerError
from serfer.core.plan import Preprocess

_STRIP = 512
_SYSTEM = "EPSG:32633"
PREPROCESS = Preprocess(
    resize=None, interpolation="bilinear", channels="RGB", scale=1 / 255, mean=(0.5,) * 3, std=(0.33,) * 3
)
"""How networks normalise the image."""
_WHERE = rasterio.Affine(0.5, 0.0, 400_000.0, 0.0, -0.5, 5_800_000.0)


@dataclass(frozen=True)
class Comparison:
    """How far a map is from another: the largest difference relative to the other's range.

    `differs` is the share of pixels with another class, `clear` that of those whose two best scores differ by more than
    1e-5 of the range (None for maps that are classes, which have no scores).
    """

    error: float
    differs: float
    clear: float | None


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


def compare(one: Path, other: Path) -> Comparison:
    with rasterio.open(one) as left, rasterio.open(other) as right:
        for name in ("shape", "count", "dtypes", "crs", "transform"):
            if getattr(left, name) != getattr(right, name):
                raise WrongAnswerError(f"{one.name} and {other.name} have another {name}")
        low, high = np.inf, -np.inf
        for values in _strips(right):
            low, high = min(low, float(values.min())), max(high, float(values.max()))
        span, scores = (high - low) or 1.0, right.count > 1
        error, differing, ties = 0.0, 0, 0
        for mine, theirs in zip(_strips(left), _strips(right), strict=True):
            error = max(error, float(np.abs(np.subtract(mine, theirs, dtype=np.float32)).max()) / span)
            if scores:
                others = mine.argmax(axis=0) != theirs.argmax(axis=0)
                second, best = np.sort(theirs, axis=0)[-2:]
                ties += int((others & (best - second > 1e-5 * span)).sum())
            else:
                others = mine[0] != theirs[0]
            differing += int(others.sum())
        pixels = right.height * right.width
        return Comparison(error, differing / pixels, ties / pixels if scores else None)


def _strips(dataset: Any) -> Any:  # noqa: ANN401 - rasterio has no types
    for top in range(0, dataset.height, _STRIP):
        yield dataset.read(window=Window(0, top, dataset.width, min(_STRIP, dataset.height - top)))
