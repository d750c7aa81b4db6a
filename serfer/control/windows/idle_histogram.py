"""Histograms of idle times that forget: minutes up to four hours, over the last hours or days."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from serfer.control.windows.windows import Windows

BIN_S: Final = 60.0
BINS: Final = 240
RANGE_S: Final = BIN_S * BINS
"""Idle times from here on are out of bounds: they are counted, and have no bin."""
SLOTS: Final = 24
"""Parts of the remembered time, of which the oldest is forgotten at once."""
HEAD, TAIL = 0.05, 0.99
_MARGIN: Final = 0.1
_MOST_SLOT: Final = 2**53
_MOST_COUNT: Final = 2**30


class IdleHistogram:
    """Counts of idle times by minutes over the last `span_s` seconds, to within a 24th of them.

    The settings are those of Shahrad et al. (section 4.2): bins of a minute, a range of four hours, the 5th and the
    99th percentile, margins of 10%.
    """

    def __init__(self, span_s: float) -> None:
        self._slot_s = span_s / SLOTS
        self._slot = 0
        self._slots = np.zeros((SLOTS, BINS + 1), np.int32)  # a row for each part of time; the last bin is the rest
        self._counts = np.zeros(BINS + 1, np.int64)

    def add(self, now_s: float, idle_s: float) -> None:
        """Count an idle time that ended at `now_s`."""
        self.pass_time(now_s)
        number = min(int(max(idle_s, 0.0) // BIN_S), BINS)
        self._slots[self._slot % SLOTS, number] += 1
        self._counts[number] += 1

    def pass_time(self, now_s: float) -> None:
        """Forget what is too old at `now_s`; a clock that goes back forgets nothing."""
        slot = min(math.floor(max(now_s, 0.0) / self._slot_s), _MOST_SLOT)
        if slot <= self._slot:
            return
        old = [number % SLOTS for number in range(self._slot + 1, min(slot, self._slot + SLOTS) + 1)]
        self._slot = slot
        self._slots[old] = 0
        self._counts = self._slots.sum(axis=0, dtype=np.int64)

    @property
    def count(self) -> int:
        """The number of idle times."""
        return int(self._counts.sum())

    @property
    def within(self) -> int:
        """The number of those that are within bounds."""
        return int(self._counts[:BINS].sum())

    @property
    def share_beyond(self) -> float:
        """The share of idle times that are out of bounds, 0 where there are none."""
        return float(self._counts[BINS]) / max(self.count, 1)

    @property
    def variation(self) -> float:
        """The coefficient of variation of the bins' counts: 0 where all are alike, 15.5 where one has everything."""
        counts = self._counts[:BINS]
        mean = float(counts.mean())
        return float(counts.std()) / mean if mean else 0.0

    def percentile(self, share: float) -> tuple[float, float]:
        """Return the begin and the end in seconds of the bin with a percentile of those within bounds.

        That is the first bin up to which at least a `share`, above 0, of them lie; at least one has to be there.
        """
        number = int(np.searchsorted(np.cumsum(self._counts[:BINS]), share * self.within))
        number = min(number, BINS - 1)
        return number * BIN_S, (number + 1) * BIN_S

    def windows(self) -> Windows:
        """Return the windows from head to tail, rounded to whole bins outwards, each with its margin."""
        prewarm_s = self.percentile(HEAD)[0] * (1 - _MARGIN)
        return Windows(prewarm_s, self.percentile(TAIL)[1] * (1 + _MARGIN) - prewarm_s)
