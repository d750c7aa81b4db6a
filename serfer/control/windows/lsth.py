"""The long-short term histogram policy, LSTH (Yang et al., INFless, ASPLOS 2022, section 3.5).

    pre-warm   = gamma * L_prewarm   + (1 - gamma) * S_prewarm
    keep-alive = gamma * L_keepalive + (1 - gamma) * S_keepalive

L is the histogram of the last day, S that of the last hour. The paper says nothing of an hour without idle times, of a
day without any, and of idle times beyond the histograms; then it is L alone, and what the hybrid histogram policy does.
"""

from __future__ import annotations

from typing import Final

from serfer.control.snapshots import SavedFields, Snapshot
from serfer.control.windows.hybrid import STANDARD, LongForecast, beyond
from serfer.control.windows.idle_histogram import IdleHistogram
from serfer.control.windows.windows import Windows

GAMMA: Final = 0.5
LONG_S: Final = 86400.0
SHORT_S: Final = 3600.0


class LongShortHistogram:
    """Two histograms, of which the long-term one has the weight `gamma`, 0 to 1."""

    def __init__(self, gamma: float = GAMMA, name: str = "lsth") -> None:
        self.name = name
        self._gamma = gamma
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

    def snapshot(self) -> Snapshot:
        """Return both histograms and the forecast."""
        return {"long": self._long.snapshot(), "short": self._short.snapshot(), "beyond": self._beyond.snapshot()}

    def restore(self, saved: SavedFields) -> None:
        """Go on from a snapshot; raises InputError for what is none."""
        self._long.restore(saved.part("long"))
        self._short.restore(saved.part("short"))
        self._beyond.restore(saved.part("beyond"))


def mixed(long: Windows, short: Windows, gamma: float) -> Windows:
    """Return the weighted sum of two histograms' windows."""
    return Windows(
        gamma * long.prewarm_s + (1 - gamma) * short.prewarm_s,
        gamma * long.keepalive_s + (1 - gamma) * short.keepalive_s,
    )
