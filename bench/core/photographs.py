"""JPEGs that compress as photographs do: smooth noise, the same for each seed."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def photograph(size: tuple[int, int], seed: int = 0, grain: int = 40) -> bytes:
    """Return one of (width, height) pixels whose noise has a value for each `grain` pixels of a side."""
    width, height = size
    shape = max(1, height // grain), max(1, width // grain), 3
    coarse = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()
