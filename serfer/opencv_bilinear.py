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
    flat = pixels.reshape(pixels.shape[0], -1)
    across = _with_channels(_taps(columns, of[1], size[1]), pixels)
    result = np.empty((len(rows), len(columns) * pixels.shape[2]), dtype=np.uint8)
    strip = max(1, _STRIP // result.shape[1])
    for top in range(0, len(rows), strip):
        part = slice(top, top + strip)
        result[part] = _mixed(flat, _taps(rows[part], of[0], size[0]), across)
    return result.reshape(len(rows), len(columns), pixels.shape[2])


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


def _with_channels(taps: _Taps, pixels: _Bytes) -> tuple[_Indices, NDArray[np.int32]]:
    """Return where the first and the second of the two that mix are in a flat row, (2, N * C), and their weights."""
    (first, weights), (_, width, channels) = taps, pixels.shape
    both = np.stack([first, first + 1]).clip(0, width - 1)
    places = both[..., None] * channels + np.arange(channels)
    return places.reshape(2, -1), np.repeat(weights.T, channels, axis=1)


def _mixed(flat: _Bytes, down: _Taps, across: tuple[_Indices, NDArray[np.int32]]) -> NDArray[np.int32]:
    (upper, weights), (places, shares) = down, across
    rows, row_places = np.unique(np.stack([upper, upper + 1]).clip(0, len(flat) - 1), return_inverse=True)
    chosen = flat[rows]
    mixed, more = (np.multiply(chosen.take(places[tap], axis=1), shares[tap], dtype=np.int32) for tap in (0, 1))
    mixed += more
    mixed >>= 4  # products with 11 more bits then stay below 2^31
    total = _shares(mixed, row_places[0], weights[:, 0])
    total += _shares(mixed, row_places[1], weights[:, 1])
    total += 2
    total >>= 2
    return total


def _shares(mixed: NDArray[np.int32], rows: _Indices, weights: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the upper or the lower rows' shares, in quarters of a level, rounded down as OpenCV does."""
    shares: NDArray[np.int32] = mixed.take(rows, axis=0)
    shares *= weights[:, None]
    shares >>= 16
    return shares


def _halved(pixels: _Bytes, rows: _Indices, columns: _Indices) -> _Bytes:
    total = np.full((len(rows), len(columns), pixels.shape[2]), 2, dtype=np.uint16)
    for down, across in ((0, 0), (0, 1), (1, 0), (1, 1)):
        total += _picked(pixels, 2 * rows + down, 2 * columns + across)
    return (total >> 2).astype(np.uint8)
