"""The share of the last seconds in which something was busy: utilisation, over a window that slides."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0
"""Seconds; INFaaS's workers report every two."""


class BusyWindow:
    """Busy times within the last `window_s` seconds; times are in seconds and never go back."""

    def __init__(self, opened: float, window_s: float = WINDOW_S) -> None:
        self._opened = opened
        self._window_s = window_s
        self._spans: deque[tuple[float, float]] = deque()  # [begin, end), one after the other

    def add(self, began: float, ended: float) -> None:
        """Note a busy time that has ended, and began after those before."""
        self._spans.append((began, ended))
        while self._spans[0][1] <= ended - self._window_s:
            self._spans.popleft()

    def share(self, now: float, running_since: float | None = None) -> float:
        """Return the share from 0 to 1, with the busy time that runs.

        Before a window has passed it is of the time until now. Another thread may call it while times are added.
        """
        begin = max(now - self._window_s, self._opened)
        if now <= begin:
            return 0.0
        spans = [*tuple(self._spans), *([(running_since, now)] if running_since is not None else [])]
        busy_s = sum(max(0.0, min(ended, now) - max(began, begin)) for began, ended in spans)
        return min(1.0, busy_s / (now - begin))
