"""Parts of an image on which the whole network is run, and the pixels of the result that they determine.

image   ├──────────── part ────────────┤        Where a part ends inside the image, the network pads it: results
░░░░▒                      ▒░░░░        within the network's reach of that end (and a unit more) differ
result       ├──── compared ─────┤              from those of the whole image and are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Self

from serfer.core.geometry import Span
from serfer.core.plan.windows import AxisWindows


@dataclass(frozen=True)
class CropAxis:
    """An axis of an image; a pixel of its result covers `step` pixels of the image.

    The network shifts by `unit` pixels. It reads `reach` pixels before and after those of a window, all up to the ends
    of the image for None.
    """

    size: int
    result: int
    step: float
    unit: int
    reach: tuple[int, int] | None

    @classmethod
    def of(cls, axis: AxisWindows, unit: int) -> Self:
        return cls(axis.size, axis.result, axis.step, unit, axis.reach)

    def compared(self, part: Span, rows: int) -> Span:
        """Return the pixels of the result that the network makes of a part, too, among its `rows`; perhaps none."""
        if part == Span(0, self.size):
            return Span(0, self.result)
        if self.reach is None or part.start % self.unit:
            return Span(0, 0)
        before, behind = self.reach
        first = 0 if part.start == 0 else ceil((part.start + before + self.unit) / self.step)
        stop = self.made(part, rows).stop
        alike = part.stop == self.size and stop == self.result  # sizes of both may be rounded otherwise
        last = stop if alike else floor((part.stop - behind - self.unit) / self.step)
        return Span(first, max(first, min(last, self.result, stop)))

    def made(self, part: Span, rows: int) -> Span:
        """Return where the result of a part lies, of which there are `rows`."""
        first = round(part.start / self.step)
        return Span(first, first + rows)
