"""The highest rate of each unit of time, of consecutive short samples."""

from __future__ import annotations

from typing import Final

_ROUNDING: Final = 1e-9
_MOST_UNITS: Final = 2 * 1440  # that one late observation counts for


class PeakSampler:
    """Samples the load in windows of `sample_s`, and keeps the highest mean of each `unit_s` (P_s and P_u)."""

    def __init__(self, unit_s: float, sample_s: float) -> None:
        self._unit_s = unit_s
        self._sample_s = sample_s
        self._sampled_s = self._queries = 0.0  # of the sample that has begun
        self._passed_s = self._peak = 0.0  # of the unit that has begun

    def add(self, elapsed_s: float, rate: float) -> list[float]:
        """Take in a load, and return the peaks of the units that are over with it; a late one may be several units."""
        self._sampled_s += elapsed_s
        self._queries += elapsed_s * rate
        self._passed_s += elapsed_s
        over = self._passed_s >= self._unit_s - _ROUNDING
        if over or self._sampled_s >= self._sample_s - _ROUNDING:
            mean = self._queries / self._sampled_s if self._sampled_s else 0.0
            self._peak = max(self._peak, mean)
            self._sampled_s = self._queries = 0.0
        if not over:
            return []
        units = min(int((self._passed_s + _ROUNDING) / self._unit_s), _MOST_UNITS)
        peak = self._peak
        self._passed_s = max(self._passed_s % self._unit_s, 0.0) if elapsed_s < self._unit_s else 0.0
        self._peak = 0.0
        return [peak] * units
