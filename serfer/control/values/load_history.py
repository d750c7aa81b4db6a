"""The rates of the last weeks, by slots of ten seconds."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.snapshots import SavedFields, Snapshot

SLOT_S: Final = 10.0
DAY: Final = 8640  # slots
MAX_SLOTS: Final = 36 * DAY
_DROPPED: Final = 6 * DAY  # at once, the oldest ones
_ROUNDING: Final = 1e-6
_MOST_SLOTS_EVER: Final = 2**40


class LoadHistory:
    """Mean rates (queries/s, float32) of whole slots; the oldest are dropped beyond MAX_SLOTS."""

    def __init__(self) -> None:
        self._rates = np.zeros(DAY, np.float32)
        self._count = 0
        self.ended = 0
        """The number of slots that ever ended."""
        self._seconds = self._queries = 0.0  # of the slot that has begun

    @property
    def rates(self) -> NDArray[np.float32]:
        """The rates of the slots that are kept, oldest first; a view that later slots may change."""
        return self._rates[: self._count]

    def add(self, elapsed_s: float, rate: float) -> int:
        """Add `elapsed_s` seconds at a rate, and return how many slots ended."""
        slots = 0
        if self._seconds + elapsed_s >= SLOT_S - _ROUNDING:
            first_s = SLOT_S - self._seconds
            self._append(np.float32((self._queries + first_s * rate) / SLOT_S), 1)
            elapsed_s = max(0.0, elapsed_s - first_s)
            whole = int((elapsed_s + _ROUNDING) // SLOT_S)
            self._append(np.float32(rate), whole)
            elapsed_s = max(0.0, elapsed_s - whole * SLOT_S)
            self._seconds = self._queries = 0.0
            slots = 1 + whole
        self._seconds += elapsed_s
        self._queries += elapsed_s * rate
        return slots

    def snapshot(self) -> Snapshot:
        """Return all rates, as hexadecimal digits of float32, and the slot that has begun."""
        return {
            "rates": self.rates.astype("<f4").tobytes().hex(),
            "ended": self.ended,
            "seconds": self._seconds,
            "queries": self._queries,
        }

    def restore(self, saved: SavedFields) -> None:
        """Go on from a snapshot; raises InputError for what is not one."""
        rates = saved.float32s("rates", MAX_SLOTS)
        self._count = len(rates)
        self._rates = np.zeros(max(DAY, 2 * self._count), np.float32)
        self._rates[: self._count] = rates
        self.ended = saved.whole("ended", self._count, _MOST_SLOTS_EVER)
        self._seconds = saved.number("seconds", 0.0, SLOT_S)
        self._queries = saved.number("queries", 0.0)

    def _append(self, rate: np.float32, slots: int) -> None:
        self.ended += slots
        slots = min(slots, MAX_SLOTS - _DROPPED)
        if self._count + slots > MAX_SLOTS:
            kept = min(self._count, MAX_SLOTS - _DROPPED) if slots == 1 else MAX_SLOTS - _DROPPED - slots
            self._rates[:kept] = self._rates[self._count - kept : self._count].copy()
            self._count = kept
        if self._count + slots > len(self._rates):
            more = np.zeros(min(max(2 * len(self._rates), self._count + slots), MAX_SLOTS), np.float32)
            more[: self._count] = self.rates
            self._rates = more
        self._rates[self._count : self._count + slots] = rate
        self._count += slots
