"""The hybrid histogram policy (Shahrad et al., Serverless in the wild, ATC 2020, section 4.2).

    most idle times out of bounds ──> a forecast of the next one, with margins of 15%
    the histogram is representative ──> its head and tail
    else ──> the standard keep-alive: loaded for as long as the histogram's range

The paper forecasts by ARIMA. Here it is ARIMA(0, 1, 1) with a fixed coefficient, which is exponential smoothing: an
idle time of more than four hours comes at most six times a day, too seldom to fit anything to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from serfer.control.windows.idle_histogram import RANGE_S, IdleHistogram
from serfer.control.windows.windows import MOST_S, Windows
from serfer.core.dataclass_codec import Bounds

STANDARD: Final = Windows(0.0, RANGE_S)
"""The windows of a function of which too little is known."""
_S_PER_HOUR: Final = 3600.0
_VARIATION: Final = 2.0
_BEYOND: Final = 0.5
_MARGIN: Final = 0.15
_LATEST: Final = 0.5  # the weight of the latest idle time in the forecast


class LongForecast:
    """Forecasts the next idle time from those that were out of bounds."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def add(self, idle_s: float) -> None:
        """Learn an idle time in seconds."""
        if idle_s >= RANGE_S:
            idle_s = min(idle_s, MOST_S)
            self._next_s = _LATEST * idle_s + (1 - _LATEST) * self._next_s if self._next_s else idle_s

    def windows(self) -> Windows:
        """Return the windows around the forecast."""
        return Windows((1 - _MARGIN) * self._next_s, 2 * _MARGIN * self._next_s)


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
        """Learn an idle time."""
        self._idle.add(now_s, idle_s)
        self._long.add(idle_s)

    def windows(self, now_s: float) -> Windows:
        """Return the windows of an idle time that begins now."""
        self._idle.pass_time(now_s)
        if beyond(self._idle):
            return self._long.windows()
        return self._idle.windows() if self._idle.within and self._idle.variation >= _VARIATION else STANDARD
