"""Dollars of a map: spent, in flight, and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock


@dataclass
class Spending:
    """Counts dollars against a ceiling; what is in flight counts with what its window is predicted to cost, or more.

    Where windows have cost more than predicted, those in flight count with as many times their prediction.
    """

    ceiling: float | None = None
    spent: float = 0.0
    _settled: float = 0.0  # predicted dollars of what was measured
    _measured: float = 0.0
    _in_flight: float = 0.0
    _guard: Lock = field(default_factory=Lock)

    @property
    def measured(self) -> tuple[float, float]:
        """Dollars of what was measured so far, and what was predicted for that."""
        with self._guard:
            return self._measured, self._settled

    def reserve(self, predicted: float) -> bool:
        """Take a window's dollars, if what is spent and in flight stays below the ceiling with them."""
        with self._guard:
            factor = max(1.0, self._measured / self._settled) if self._settled else 1.0
            if self.ceiling is not None and self.spent + (self._in_flight + predicted) * factor > self.ceiling:
                return False
            self._in_flight += predicted
            return True

    def settle(self, predicted: float, measured: float | None) -> None:
        """Replace a window's dollars by the measured ones; a query that failed counts with its prediction."""
        with self._guard:
            self._in_flight -= predicted
            self.spent += predicted if measured is None else measured
            if measured is not None:
                self._settled += predicted
                self._measured += measured

    def release(self, predicted: float) -> None:
        """Give back what a window was to cost that nothing was computed for."""
        with self._guard:
            self._in_flight -= predicted
