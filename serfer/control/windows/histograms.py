"""Histograms of idle times that forget: minutes up to four hours, over the last hours or days."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np

from serfer.control.windows.windows import MOST_S, Windows
from serfer.core.dataclass_codec import Bounds

BIN_S: Final = 60.0
BINS: Final = 240
RANGE_S: Final = BIN_S * BINS
"""Idle times from here on are out of bounds: they are counted, and have no bin."""
SLOTS: Final = 24
"""Parts of the remembered time, of which the oldest is forgotten at once."""
HEAD, TAIL = 0.05, 0.99
_MARGIN: Final = 0.1
_MOST_SLOT: Final = 2**53


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
        return int(self._counts.sum())

    @property
    def within(self) -> int:
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


# The hybrid histogram policy (Shahrad et al., Serverless in the wild, ATC 2020, section 4.2).
#
#     most idle times out of bounds ──> a forecast of the next one, with margins of 15%
#     the histogram is representative ──> its head and tail
#     else ──> the standard keep-alive: loaded for as long as the histogram's range
#
# The paper forecasts by ARIMA. Here it is ARIMA(0, 1, 1) with a fixed coefficient, which is exponential smoothing: an
# idle time of more than four hours comes at most six times a day, too seldom to fit anything to.

STANDARD: Final = Windows(0.0, RANGE_S)
"""The windows of a function of which too little is known."""
_S_PER_HOUR: Final = 3600.0
_VARIATION: Final = 2.0
_BEYOND: Final = 0.5
_FORECAST_MARGIN: Final = 0.15
_LATEST: Final = 0.5  # the weight of the latest idle time in the forecast


class LongForecast:
    """Forecasts the next idle time from those that were out of bounds."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def add(self, idle_s: float) -> None:
        if idle_s >= RANGE_S:
            idle_s = min(idle_s, MOST_S)
            self._next_s = _LATEST * idle_s + (1 - _LATEST) * self._next_s if self._next_s else idle_s

    def windows(self) -> Windows:
        return Windows((1 - _FORECAST_MARGIN) * self._next_s, 2 * _FORECAST_MARGIN * self._next_s)


def beyond(idle: IdleHistogram) -> bool:
    """Return whether most idle times are out of bounds."""
    return idle.share_beyond > _BEYOND


@dataclass(frozen=True)
class HybridOptions:
    """The hours that are remembered: two weeks, as its authors have it; INFless describes four hours (section 3.5)."""

    hours: Annotated[float, Bounds(1.0, MOST_S / _S_PER_HOUR)] = 14 * 24.0


class HybridHistogram:
    """One histogram over the last hours."""

    name = "hybrid"
    options = HybridOptions()

    def __init__(self, options: HybridOptions = options) -> None:
        self._idle = IdleHistogram(options.hours * _S_PER_HOUR)
        self._long = LongForecast()

    def observe(self, now_s: float, idle_s: float) -> None:
        self._idle.add(now_s, idle_s)
        self._long.add(idle_s)

    def windows(self, now_s: float) -> Windows:
        self._idle.pass_time(now_s)
        if beyond(self._idle):
            return self._long.windows()
        return self._idle.windows() if self._idle.within and self._idle.variation >= _VARIATION else STANDARD


# The long-short term histogram policy, LSTH (Yang et al., INFless, ASPLOS 2022, section 3.5).
#
#     pre-warm   = gamma * L_prewarm   + (1 - gamma) * S_prewarm
#     keep-alive = gamma * L_keepalive + (1 - gamma) * S_keepalive
#
# L is the histogram of the last day, S that of the last hour. The paper says nothing of an hour without idle times, of
# a day without any, and of idle times beyond the histograms; then it is L alone, and what the hybrid histogram policy
# does.

LONG_S: Final = 86400.0
SHORT_S: Final = 3600.0


@dataclass(frozen=True)
class LsthOptions:
    """The weight of the long-term histogram."""

    gamma: Annotated[float, Bounds(0.0, 1.0)] = 0.5


class LongShortHistogram:
    """Two histograms, of which the long-term one has a weight."""

    name = "lsth"
    options = LsthOptions()

    def __init__(self, options: LsthOptions = options) -> None:
        self._gamma = options.gamma
        self._long, self._short = IdleHistogram(LONG_S), IdleHistogram(SHORT_S)
        self._beyond = LongForecast()

    def observe(self, now_s: float, idle_s: float) -> None:
        self._long.add(now_s, idle_s)
        self._short.add(now_s, idle_s)
        self._beyond.add(idle_s)

    def windows(self, now_s: float) -> Windows:
        self._long.pass_time(now_s)
        self._short.pass_time(now_s)
        if beyond(self._long):
            return self._beyond.windows()
        if not self._long.within:
            return STANDARD
        long = self._long.windows()
        return mixed(long, self._short.windows(), self._gamma) if self._short.within else long


def mixed(long: Windows, short: Windows, gamma: float) -> Windows:
    return Windows(
        gamma * long.prewarm_s + (1 - gamma) * short.prewarm_s,
        gamma * long.keepalive_s + (1 - gamma) * short.keepalive_s,
    )
