"""What a driver's queries took since the last observation, for policies that watch the objective."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from serfer.control.policy import NO_QUERIES, LatencyWindow

_KEPT = 10_000  # of which the 99th percentile is taken: the latest


class Latencies:
    """Counts answered queries, and those later than `slo_ms`."""

    def __init__(self, slo_ms: float) -> None:
        self._slo_ms = slo_ms
        self._answered = self._late = 0
        self._latest: deque[float] = deque(maxlen=_KEPT)

    def add(self, latency_ms: float) -> None:
        """Count a query that was answered after so many milliseconds."""
        self._answered += 1
        self._late += latency_ms > self._slo_ms
        self._latest.append(latency_ms)

    def take(self) -> LatencyWindow:
        """Return the queries that were answered since the last call."""
        if not self._answered:
            return NO_QUERIES
        ordered = sorted(self._latest)
        window = LatencyWindow(self._answered, self._late, ordered[(99 * len(ordered) - 1) // 100])
        self._answered = self._late = 0
        self._latest.clear()
        return window


def of_all(windows: Iterable[LatencyWindow]) -> LatencyWindow:
    """Return the window of several drivers; its 99th percentile is the largest of theirs, which bounds that of all."""
    listed = list(windows)
    answered, late = sum(one.answered for one in listed), sum(one.late for one in listed)
    return LatencyWindow(answered, late, max((one.p99_ms for one in listed), default=0.0))
