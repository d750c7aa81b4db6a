"""Histograms of burst lengths and inter-arrival times, long- and short-term (INFless, section 3.5)."""

from __future__ import annotations

from typing import Final

import numpy as np

from serfer.control.policies.capacity_levels import Floats

_LONG: Final = 0.998  # what is left of a length's weight after the next one
_SHORT: Final = 0.9
_SHARE: Final = 0.8  # of the long-term histogram
_SPREAD: Final = 2  # ticks to both sides over which a length counts
_NONE: Final = 1e-6


class LengthHistogram:
    """LengthHistogram in ticks, below `most`; longer ones only count as such."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._counts = np.zeros((2, end))  # long term, short term
        self._weights = np.zeros(2)

    def add(self, ticks: int) -> None:
        """Add a length."""
        kept = np.array([_LONG, _SHORT])
        self._counts *= kept[:, None]
        self._weights = self._weights * kept + 1.0
        if ticks < self._end:
            for offset in range(-_SPREAD, _SPREAD + 1):
                at = min(max(ticks + offset, 0), self._end - 1)
                self._counts[:, at] += (_SPREAD + 1 - abs(offset)) / (_SPREAD + 1) ** 2

    def shares(self) -> Floats:
        """Return the share of each length, (end,); the rest up to 1 are longer ones."""
        long, short = self._counts / np.maximum(self._weights, _NONE)[:, None]
        mixed: Floats = _SHARE * long + (1.0 - _SHARE) * short
        return mixed


def hazards(bursts: Floats, gaps: Floats) -> tuple[Floats, Floats]:
    """Return the hazards that a burst ends, and that the next one begins, at each tick since the burst began.

    `bursts` and `gaps` are the shares of lengths, from a burst's begin to its end and to the next one's begin. The
    first hazard holds while the burst lasts, the second one after it.
    """
    over, again = np.cumsum(bursts), np.cumsum(gaps)
    lasting = 1.0 - over + bursts
    ending = np.where(lasting > _NONE, bursts / np.maximum(lasting, _NONE), 0.0)
    quiet = np.maximum(np.minimum(over, 1.0) - again + gaps, 0.0)  # over, and not begun again
    beginning = np.where(gaps > _NONE, gaps / np.maximum(quiet, np.maximum(gaps, _NONE)), 0.0)
    return np.clip(ending, 0.0, 1.0), np.clip(beginning, 0.0, 1.0)
