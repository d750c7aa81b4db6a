"""The parts of an image on which its map is compared: at its corners, where windows meet, and anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serfer.core.geometry import Rect, Span
from serfer.core.plan.windows import AxisWindows, ImageWindows

ROUNDS = 2
_SEED = 0


@dataclass(frozen=True)
class _Axis:
    """The windows along an axis, the pixels of a part, and the `unit` pixels of which parts start at multiples."""

    windows: AxisWindows
    length: int
    unit: int

    @property
    def ends(self) -> list[int]:
        """Where parts start that end with the image; the last one ends with it only if it starts at a unit."""
        last = self.windows.size - self.length
        return [0] if last == 0 or last % self.unit else [0, last]

    def anywhere(self, random: np.random.Generator) -> int:
        return self._within(int(random.integers(0, self.windows.size)))

    def meeting(self, random: np.random.Generator) -> int:
        """Return where a part starts in whose middle one window ends and another one begins, if there are two."""
        starts = [window.written.start for window in self.windows.windows[1:]]
        if not starts:
            return self.anywhere(random)
        return self._within(round(int(random.choice(starts)) * self.windows.step - self.length / 2))

    def _within(self, start: int) -> int:
        last = self.windows.size - self.length
        return max(0, min(start, last)) // self.unit * self.unit

    def span(self, start: int) -> Span:
        return Span(start, start + self.length)


def places_of(windows: ImageWindows, size: tuple[int, int], unit: int) -> Sequence[Rect]:
    """Return parts of a `size` of an image with such windows, the same whenever it is mapped.

    There are 4 at the image's corners, as far as these can be told, and ROUNDS at each of: a corner of four windows, an
    end of the image where two windows meet, along rows and along columns, and anywhere. The first few are of all kinds.
    None where a part is larger than the image.
    """
    if size[0] > windows.rows.size or size[1] > windows.cols.size:
        return []
    rows, cols = (_Axis(axis, side, unit) for axis, side in zip((windows.rows, windows.cols), size, strict=True))
    random = np.random.default_rng(_SEED)
    others = []
    for _ in range(ROUNDS):
        others += [
            (rows.meeting(random), cols.meeting(random)),
            (rows.anywhere(random), cols.anywhere(random)),
            (int(random.choice(rows.ends)), cols.meeting(random)),
            (rows.meeting(random), int(random.choice(cols.ends))),
        ]
    first, *corners, last = [(row, col) for row in rows.ends for col in cols.ends] * 2
    found = dict.fromkeys([first, others[0], last, *others, *corners])
    return [Rect(rows.span(row), cols.span(col)) for row, col in found]
