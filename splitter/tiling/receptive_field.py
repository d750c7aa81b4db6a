"""Receptive fields, the rule that makes tiles exact: the input rows that an operator's output rows depend on.

For output rows [a, b) of a sliding window with kernel k, dilation d, stride s and leading padding p, they are

    [a*s - p,  (b - 1)*s - p + d*(k - 1) + 1)

clipped to the map; what was clipped is padding of that side, and only there. (SerFer's Appendix A adds (k - 1) / 2 on
every side instead, which is wrong for strides and for several layers in a row.) Ceil mode needs no case of its own:
its last window simply leaves the map.

Rows and columns never mix, so each axis is computed by itself, for all tiles at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Span
from serfer.splitter.network.sliding_window import Window

Spans = NDArray[np.int64]
"""Rows (or columns) of several tiles: shape (2, tiles), each tile's first row and its last row plus one."""
ReceptiveField = Callable[[Spans], Spans]
"""From rows of an operator's output to the rows of one of its inputs that they depend on, not clipped to the map."""


def spans_of(parts: Sequence[Span]) -> Spans:
    return np.array([[part.start for part in parts], [part.stop for part in parts]])


def hull(one: Spans, other: Spans) -> Spans:
    result: Spans = np.minimum(one, other)
    np.maximum(one[1], other[1], out=result[1])
    return result


def clipped(spans: Spans, size: int) -> Spans:
    """Return the part of each span that lies in a map of `size` rows, or the row nearest to it where there is none."""
    low, high = _bounds(size)
    inside: Spans = np.minimum(np.maximum(spans, low), high)
    return inside


@lru_cache
def _bounds(size: int) -> tuple[Spans, Spans]:
    return np.array([[0], [1]]), np.array([[size - 1], [size]])


def same_rows(out: Spans) -> Spans:
    return out


@lru_cache
def all_rows(size: int) -> ReceptiveField:
    whole = np.array([[0], [size]])
    return lambda out: np.repeat(whole, out.shape[1], axis=1)


def tabulated(first: NDArray[Any], stop: NDArray[Any]) -> ReceptiveField:
    """Return the receptive field of an operator whose output row r reads the rows [first[r], stop[r]).

    A row with first[r] >= stop[r] reads nothing; a tensor cannot be empty, so what reads nothing gets the first row.
    Output rows beyond the table are the padding of a later operator.
    """

    def rows(out: Spans) -> Spans:
        parts = [slice(*span) for span in clipped(out, len(first)).T.tolist()]
        spans = np.array([[first[part].min() for part in parts], [stop[part].max() for part in parts]], dtype=np.int64)
        spans[:, spans[0] >= spans[1]] = [[0], [1]]
        return spans

    return rows


@lru_cache(maxsize=1 << 12)
def under(window: Window) -> ReceptiveField:
    """Return the receptive field of a sliding window; equal windows have the same."""
    offsets = np.array([[-window.pad_before], [window.reach - window.stride - window.pad_before]])

    def rows(out: Spans) -> Spans:
        read: Spans = out * window.stride + offsets
        return read

    return rows
