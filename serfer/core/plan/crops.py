"""Parts of an image on which the whole network is run: which pixels of the image's result these tell.

image   ├──────────── part ────────────┤        An end of a part that is not the image's has padding where the
░░░░▒                      ▒░░░░        image has pixels: what lies within the network's reach of it (and
result       ├──── compared ─────┤              a unit more) is another image's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Self

from serfer.core.geometry import Span
from serfer.core.plan.windows import AxisWindows


@dataclass(frozen=True)
class CropAxis:
    """An axis of an image: its pixels and those of its result, each of which lies on `step` of the image's.

    The network shifts by `unit` pixels, and reads `reach` pixels before and behind those of a window, or up to an end
    of the image where that is None.
    """

    size: int
    result: int
    step: float
    unit: int
    reach: tuple[int, int] | None

    @classmethod
    def of(cls, axis: AxisWindows, unit: int) -> Self:
        """Return the axis of an image with such windows."""
        return cls(axis.size, axis.result, axis.step, unit, axis.reach)

    def compared(self, part: Span, rows: int) -> Span:
        """Return the pixels of the result that the network makes of a part, too, among its `rows`; perhaps none."""
        if part == Span(0, self.size):
            return Span(0, self.result)
        if self.reach is None or part.start % self.unit:
            return Span(0, 0)
        before, behind = self.reach
        first = 0 if part.start == 0 else ceil((part.start + before + self.unit) / self.step)
        last = self.result if part.stop == self.size else floor((part.stop - behind - self.unit) / self.step)
        return Span(first, max(first, min(last, self.result, self.made(part, rows).stop)))

    def made(self, part: Span, rows: int) -> Span:
        """Return where the result of a part lies, of which there are `rows`."""
        first = round(part.start / self.step)
        return Span(first, first + rows)
