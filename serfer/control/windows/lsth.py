"""The long-short term histogram policy, LSTH (Yang et al., INFless, ASPLOS 2022, section 3.5).

    pre-warm   = gamma * L_prewarm   + (1 - gamma) * S_prewarm
    keep-alive = gamma * L_keepalive + (1 - gamma) * S_keepalive

L is the histogram of the last day, S that of the last hour. The paper says nothing of an hour without idle times, of a
day without any, and of idle times beyond the histograms; then it is L alone, and what the hybrid histogram policy does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from serfer.control.windows.hybrid import STANDARD, LongForecast, beyond
from serfer.control.windows.idle_histogram import IdleHistogram
from serfer.control.windows.windows import Windows
from serfer.core.dataclass_codec import Bounds

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
        """Learn an idle time."""
        self._long.add(now_s, idle_s)
        self._short.add(now_s, idle_s)
        self._beyond.add(idle_s)

    def windows(self, now_s: float) -> Windows:
        """Return the windows of an idle time that begins now."""
        self._long.pass_time(now_s)
        self._short.pass_time(now_s)
        if beyond(self._long):
            return self._beyond.windows()
        if not self._long.within:
            return STANDARD
        long = self._long.windows()
        return mixed(long, self._short.windows(), self._gamma) if self._short.within else long


def mixed(long: Windows, short: Windows, gamma: float) -> Windows:
    """Return the weighted sum of two histograms' windows."""
    return Windows(
        gamma * long.prewarm_s + (1 - gamma) * short.prewarm_s,
        gamma * long.keepalive_s + (1 - gamma) * short.keepalive_s,
    )
