"""Maps that passes over an image keep for later ones, which read them in place of the image (ADR 64).

A window that reads kept maps has one input all the same, and one that keeps maps one output: values lie one behind the
other, in the form of the image or of the map (`partial_form`), with zeros behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan.statistics import partial_form


def packed(parts: Sequence[NDArray[np.float32]], channels: int) -> NDArray[np.float32]:
    """Return maps one behind the other, as a batch of one (1, channels, rows, cols)."""
    rows, cols = partial_form(sum(part.size for part in parts), channels)
    values = np.zeros(channels * rows * cols, np.float32)
    start = 0
    for part in parts:
        values[start : start + part.size] = part.reshape(-1)
        start += part.size
    return values.reshape(1, channels, rows, cols)


def unpacked(values: NDArray[np.float32], shapes: Sequence[tuple[int, int, int]]) -> Iterator[NDArray[np.float32]]:
    """Yield the maps (channels, rows, cols) that lie one behind the other in a vector."""
    start = 0
    for shape in shapes:
        yield values[start : start + prod(shape)].reshape(shape)
        start += prod(shape)
