"""Sums over the last hour."""

from __future__ import annotations

from collections import deque

from serfer.control.scenario import S_PER_HOUR

_SLICE_S = 60.0


class RollingSum:
    """A sum over the last hour, in slices of a minute; times are in seconds and never go back."""

    def __init__(self) -> None:
        self._slices: deque[list[float]] = deque()  # [begin, sum]

    def add(self, now: float, value: float) -> None:
        """Add a value as of now."""
        begin = now - now % _SLICE_S
        if not self._slices or self._slices[-1][0] < begin:
            self._slices.append([begin, 0.0])
        self._slices[-1][1] += value

    def total(self, now: float) -> float:
        """Return the sum of the last hour."""
        while self._slices and self._slices[0][0] + S_PER_HOUR <= now:
            self._slices.popleft()
        return sum(value for _, value in self._slices)
