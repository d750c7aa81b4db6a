"""Parts of an image on which the whole network is run, and the pixels of the result that they determine.

image   ├──────────── part ────────────┤        Where a part ends inside the image, the network pads it: results
░░░░▒                      ▒░░░░        within the network's reach of that end (and a unit more) differ
result       ├──── compared ─────┤              from those of the whole image and are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect, Span
from serfer.core.plan.windows import AxisWindows, ImageWindows

_ROUNDS = 2
_Starts = NDArray[np.int64]


def compared_part(windows: ImageWindows, place: Rect, made: Sequence[int], unit: int) -> tuple[Rect, Rect]:
    """Return the pixels of an output that a part tells, perhaps none, and where in its `made` (rows, columns) they are.

    The network shifts by `unit` pixels.
    """
    axes = zip((windows.rows, windows.cols), (place.rows, place.cols), made, strict=True)
    (rows, down), (cols, across) = (compared_span(axis, side, count, unit) for axis, side, count in axes)
    told = Rect(rows, cols)
    return told, told.within(Rect(down, across))


def compared_span(axis: AxisWindows, part: Span, rows: int, unit: int) -> tuple[Span, Span]:
    """Return the same along an axis, and where the `rows` that the network makes of a part lie in the result."""
    first = round(part.start / axis.step)
    made = Span(first, first + rows)
    if part == Span(0, axis.size):
        return Span(0, axis.result), made
    if axis.reach is None or part.start % unit:
        return Span(0, 0), made
    before, behind = axis.reach
    start = 0 if part.start == 0 else ceil((part.start + before + unit) / axis.step)
    alike = part.stop == axis.size and made.stop == axis.result  # sizes of both may be rounded otherwise
    stop = made.stop if alike else floor((part.stop - behind - unit) / axis.step)
    return Span(start, max(start, min(stop, axis.result, made.stop))), made


def places_of(windows: ImageWindows, size: tuple[int, int], unit: int) -> Sequence[Rect]:
    """Return parts of a `size` of an image with such windows, which start at multiples of `unit`; always the same.

    There are 4 at the image's corners, as far as these can be told, and _ROUNDS at each of: a corner of four windows,
    anywhere, and an end of the image where two windows meet, along rows and along columns. The first few are of all
    kinds. None where a part is larger than the image.
    """
    if size[0] > windows.rows.size or size[1] > windows.cols.size:
        return []
    random = np.random.default_rng(0)
    high, down = _starts(windows.rows, size[0], unit, random)
    wide, across = _starts(windows.cols, size[1], unit, random)
    others = [*zip(down[[0, 1, 3, 2]].T.ravel().tolist(), across.T.ravel().tolist(), strict=True)]
    first, *corners, last = [*product(high, wide)] * 2
    found = dict.fromkeys([first, others[0], last, *others, *corners])
    return [Rect(Span(row, row + size[0]), Span(col, col + size[1])) for row, col in found]


def _starts(axis: AxisWindows, length: int, unit: int, random: np.random.Generator) -> tuple[list[int], _Starts]:
    last = axis.size - length
    ends = [0] if last == 0 or last % unit else [0, last]
    anywhere = random.integers(0, axis.size, _ROUNDS)
    meeting = [window.written.start * axis.step - length / 2 for window in axis.windows[1:]] or anywhere
    first, second = random.choice(meeting, (2, _ROUNDS))
    near = np.array([first, anywhere, second]).clip(0, last) // unit * unit
    return ends, np.vstack([near, random.choice(ends, _ROUNDS)]).astype(np.int64)
