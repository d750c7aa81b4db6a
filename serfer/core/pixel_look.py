"""Parts of an image that say how it looks (serfer/core/plan/sample_difference.py), and what they say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect, Span
from serfer.core.plan.sample_difference import LAGS, PixelLook

SIDE = 256
"""Pixels of a side of a part."""


def places_of_parts(size: tuple[int, int], part: tuple[int, int]) -> list[Rect]:
    """Return up to four places of parts in an image, apart from one another, in the middle of its quarters.

    There is none in an image that is smaller than a part.
    """
    spans = []
    for length, side in zip(size, part, strict=True):
        if length < side:
            return []
        starts = [length // 2 - side // 2]
        if length >= 2 * side:
            starts = [length // 4 - side // 2, length - length // 4 - (side - side // 2)]
        spans.append([Span(start, start + side) for start in starts])
    return [Rect(rows, cols) for rows in spans[0] for cols in spans[1]]


def look_of(parts: Sequence[NDArray[np.float32]]) -> PixelLook:
    """Return how parts (channels, rows, cols) look together, each with more rows and columns than the largest lag."""
    every = np.stack([part.astype(np.float64) for part in parts])
    texture = []
    for lag in LAGS:
        down, across = every[..., lag:, :] - every[..., :-lag, :], every[..., lag:] - every[..., :-lag]
        texture.append(tuple(((_mean(np.abs(down)) + _mean(np.abs(across))) / 2).tolist()))
    deviation = np.sqrt(_mean((every - _mean(every)[:, None, None]) ** 2))
    return PixelLook(tuple(_mean(every).tolist()), tuple(deviation.tolist()), tuple(texture))


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    means: NDArray[np.float64] = values.mean(axis=(0, 2, 3))
    return means
