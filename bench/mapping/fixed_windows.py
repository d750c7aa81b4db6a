"""Windows of a fixed size and overlap, taken for images of their own, as SAHI's and MONAI's defaults have them.

The loops are small ones of our own; sizes, overlaps, weights and merging are those of sahi 0.12.8
(`get_sliced_prediction`, without its prediction of the whole image at a smaller size) and monai 1.6.1
(`sliding_window_inference`). Images are (3, H, W) uint8, maps (H, W) float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from serfer_bench.mapping.text_boxes import Boxes, merged, text_boxes

SAHI_OVERLAP, MONAI_OVERLAP = 0.2, 0.25
_MONAI_SIGMA, _MONAI_LEAST = 0.125, 1e-3

Image = NDArray[np.uint8]
Map = NDArray[np.float32]
Network = Callable[[Image], Map]
Blending = Literal["constant", "gaussian"]


def starts(size: int, side: int, step: int) -> list[int]:
    """Return where windows start along an axis; the last one is moved inward, to end with the image."""
    last = max(0, size - side)
    return [*range(0, last, step), last]


def windows(size: tuple[int, int], side: int, step: int) -> Iterator[tuple[slice, slice]]:
    for top in starts(size[0], side, step):
        for left in starts(size[1], side, step):
            yield slice(top, min(top + side, size[0])), slice(left, min(left + side, size[1]))


def sliced(network: Network, image: Image, side: int) -> Boxes:
    found = []
    for rows, cols in windows(image.shape[1:], side, side - int(SAHI_OVERLAP * side)):
        boxes = text_boxes(network(image[:, rows, cols]))
        boxes[:, :4] += np.array([rows.start, cols.start] * 2, np.float32)
        found.append(boxes)
    return merged(np.concatenate(found))


def blended(network: Network, image: Image, side: int, blendings: Sequence[Blending]) -> list[Map]:
    """Return a map for each blending of the same windows, as MONAI does: the weighted mean of a pixel's windows."""
    size = image.shape[1:]
    totals = [np.zeros(size, np.float32) for _ in blendings]
    weights = [np.zeros(size, np.float32) for _ in blendings]
    for rows, cols in windows(size, side, int(side * (1 - MONAI_OVERLAP))):
        values = network(image[:, rows, cols])
        for blending, total, weight in zip(blendings, totals, weights, strict=True):
            share = importance(values.shape, blending)
            total[rows, cols] += values * share
            weight[rows, cols] += share
    return [np.divide(total, weight, out=total) for total, weight in zip(totals, weights, strict=True)]


def importance(size: tuple[int, ...], blending: Blending) -> Map:
    """Return the weights of a window's pixels (rows, cols): equal, or a bell of an eighth of each side."""
    if blending == "constant":
        return np.ones(size, np.float32)
    rows, cols = (np.exp(-0.5 * ((np.arange(side) - (side - 1) / 2) / (_MONAI_SIGMA * side)) ** 2) for side in size)
    bell = np.outer(rows, cols).astype(np.float32)
    return np.maximum(bell, max(bell.min(), _MONAI_LEAST))
