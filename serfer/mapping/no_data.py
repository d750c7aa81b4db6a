"""Pixels that hold no data: what the network sees of them, and which pixels of the result have none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect, Span


@dataclass(frozen=True)
class Sampling:
    """Where along an axis the pixels of a result lie: pixel r covers [start + r * step, start + (r + 1) * step)."""

    start: float
    step: float

    @classmethod
    def of(cls, size: int, result: int, step: float) -> Sampling:
        """Return the sampling of an axis of `size` pixels: from its start, or centred where a network reads borders."""
        left = size - result * step
        return cls(left / 2 if left >= max(step, 1.0) else 0.0, step)

    def covered(self, written: Span, read: Span) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the first pixel that each written one covers, counted within `read`, and the one after its last."""
        at = np.arange(written.start, written.stop)
        first = np.floor(self.start + at * self.step).astype(np.intp) - read.start
        last = np.ceil(self.start + (at + 1) * self.step).astype(np.intp) - read.start
        first = first.clip(0, read.size - 1)
        return first, last.clip(first + 1, read.size)


def missing_pixels(pixels: NDArray[Any], no_data: float | None) -> NDArray[np.bool_] | None:
    """Return which pixels (rows, cols) of (bands, rows, cols) hold no data in any band; None where all hold some."""
    if no_data is None:
        return None
    empty = np.isnan(pixels) if math.isnan(no_data) else pixels == no_data
    missing: NDArray[np.bool_] = empty.all(axis=0)
    return missing if missing.any() else None


def missing_written(
    missing: NDArray[np.bool_], read: Rect, written: Rect, rows: Sampling, cols: Sampling
) -> NDArray[np.bool_]:
    """Return which of a window's written pixels have none: those that cover missing pixels alone."""
    counts = np.zeros((missing.shape[0] + 1, missing.shape[1] + 1), np.int64)
    counts[1:, 1:] = missing.cumsum(0).cumsum(1)
    top, bottom = rows.covered(written.rows, read.rows)
    left, right = cols.covered(written.cols, read.cols)
    inside = counts[np.ix_(bottom, right)] - counts[np.ix_(top, right)]
    inside -= counts[np.ix_(bottom, left)] - counts[np.ix_(top, left)]
    empty: NDArray[np.bool_] = inside == np.outer(bottom - top, right - left)
    return empty
