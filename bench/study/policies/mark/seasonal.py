"""Exponential smoothing with an additive season of a day, by hours.

Source: Winters, *Forecasting sales by exponentially weighted moving averages* (Management Science 1960), in the error
correction form of Hyndman and Athanasopoulos, *Forecasting: principles and practice*, chapter 8, without a trend:
ETS(A, N, A).

    error = seen - (level + season[hour])        level += alpha * error        season[hour] += gamma * error

The season has a value for each hour: one for each minute would carry the spikes of one day into the next, as a trend
would those of a minute into the next hour.
"""

from __future__ import annotations

from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DAY: Final = 1440  # minutes
_PART: Final = 60
_MINUTE_S: Final = 60.0
_ALPHA, _GAMMA = 0.9, 0.005


class SeasonalSmoothing:
    """Forecasts from level and season; the season is that of the first day, and nothing before that is over.

    The units that it is told of are minutes; `season` of them make a season, and `part` of them one value of it.
    """

    def __init__(self, season: int = DAY, part: int = _PART) -> None:
        self._count = 0
        self._level = 0.0
        self._units = season
        self._part = part
        self._season: Floats = np.zeros(-(-season // part))
        self._first: list[float] | None = []  # the peaks of the first season, until that is over

    @classmethod
    def of_units(cls, unit_s: float) -> Self:
        """Return one with a season of a day by hours, told of units of so many seconds."""
        return cls(round(DAY * _MINUTE_S / unit_s), max(1, round(_PART * _MINUTE_S / unit_s)))

    def observe(self, peak: float) -> None:
        place = self._count % self._units // self._part
        self._count += 1
        if self._first is not None:
            self._level = peak if self._count == 1 else self._level + _ALPHA * (peak - self._level)
            self._learn(self._first, peak)
            return
        error = peak - self._level - float(self._season[place])
        self._level += _ALPHA * error
        self._season[place] += _GAMMA * error

    def forecast(self, units: int) -> Floats:
        places = (self._count + np.arange(units)) % self._units // self._part
        rates: Floats = np.maximum(self._level + self._season[places], 0.0)
        return rates

    def _learn(self, first: list[float], peak: float) -> None:
        """Take in a unit of the first season, whose means by parts are the season at its end."""
        first.append(peak)
        if len(first) < self._units:
            return
        parts = [np.mean(first[begin : begin + self._part]) for begin in range(0, self._units, self._part)]
        self._season = np.array(parts) - np.mean(first)
        self._level -= float(self._season[-1])
        self._first = None
