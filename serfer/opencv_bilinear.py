"""OpenCV's bilinear resize of bytes, bit for bit, without OpenCV: what detectors and OCR were trained and tested with.

Pillow's bilinear resize averages over all pixels that an output pixel covers; OpenCV's INTER_LINEAR mixes the four
nearest ones, whatever the scale. Weights are whole numbers of 11 bits, and a halving is the mean of four pixels
(`resizeGeneric_`, `VResizeLinear` and `resize` in OpenCV's modules/imgproc/src/resize.cpp; equal for 4.11 and 5.0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Indices = NDArray[np.intp]
_Taps = tuple[_Indices, NDArray[np.int32]]
_WHOLE = slice(None)
_ONE = 2048  # a weight of 1
_STRIP = 1 << 20  # values of the output that are computed at a time


def resize(
    pixels: _Bytes,
    size: tuple[int, int],
    *,
    of: tuple[int, int] | None = None,
    window: tuple[slice, slice] = (_WHOLE, _WHOLE),
) -> _Bytes:
    """Return (H, W, C) bytes as `cv2.resize(pixels, size[::-1])` does, (*size, C), or a `window` of that.

    `of` is the size that `pixels` are taken to have: their last row and column are repeated up to it.
    """
    of = of or (pixels.shape[0], pixels.shape[1])
    rows, columns = (_positions(side, part) for side, part in zip(size, window, strict=True))
    if of == size:
        return _picked(pixels, rows, columns)
    if of == (2 * size[0], 2 * size[1]):
        return _halved(pixels, rows, columns)
    result = np.empty((len(rows), len(columns), pixels.shape[2]), dtype=np.uint8)
    strip = max(1, _STRIP // (len(columns) * pixels.shape[2]))
    across = _taps(columns, of[1], size[1])
    for top in range(0, len(rows), strip):
        part = slice(top, top + strip)
        result[part] = _mixed(pixels, _taps(rows[part], of[0], size[0]), across)
    return result


def _positions(side: int, part: slice) -> _Indices:
    chosen = range(side)[part]
    return np.arange(chosen.start, chosen.stop)


def _picked(pixels: _Bytes, rows: _Indices, columns: _Indices) -> _Bytes:
    """Return the pixels at rows and columns, those of the edges for what lies outside."""
    picked: _Bytes = pixels[np.ix_(rows.clip(0, pixels.shape[0] - 1), columns.clip(0, pixels.shape[1] - 1))]
    return picked


def _taps(positions: _Indices, size: int, resized: int) -> _Taps:
    """Return for new positions the first of the two that they mix, -1 before the edge, and their weights, (N, 2)."""
    scale = 1.0 / (resized / size)  # as OpenCV computes it: another rounding than size / resized
    exact = ((positions + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(exact)
    second_weight = exact - first
    both = np.stack([np.float32(1) - second_weight, second_weight], axis=1) * np.float32(_ONE)
    return first.astype(np.intp), np.rint(both).astype(np.int32)


def _mixed(pixels: _Bytes, down: _Taps, across: _Taps) -> NDArray[np.int32]:
    """Return the rows and columns that have these taps."""
    (upper, weights), (left, shares) = down, across
    rows, places = np.unique(np.stack([upper, upper + 1]), return_inverse=True)
    mixed = _picked(pixels, rows, left) * shares[:, :1]
    mixed += _picked(pixels, rows, left + 1) * shares[:, 1:]
    mixed >>= 4  # products with 11 more bits then stay below 2^31
    high, low = (mixed[places[tap]] * weights[:, tap, None, None] >> 16 for tap in (0, 1))
    total: NDArray[np.int32] = high + low + 2
    return total >> 2


def _halved(pixels: _Bytes, rows: _Indices, columns: _Indices) -> _Bytes:
    """Return the means of 2 x 2 pixels at rows and columns of the half, rounded."""
    total = np.full((len(rows), len(columns), pixels.shape[2]), 2, dtype=np.uint16)
    for down, across in ((0, 0), (0, 1), (1, 0), (1, 1)):
        total += _picked(pixels, 2 * rows + down, 2 * columns + across)
    return (total >> 2).astype(np.uint8)
