"""The instances of one function as levels of concurrency, each with windows of its own.

Queries use the instance that was used last, as Lambda has it, so the k-th is busy while at least k queries run at once.
Its idle times are those in which fewer do: what repeats of a load, and what falls back, shows level by level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from serfer.control.windows.windows import WindowPolicy, Windows

MOST_LEVELS: Final = 128
"""Levels that have windows: those above come and go with the load."""


@dataclass(frozen=True, slots=True)
class IdlePeriod:
    """A level's idle time, from `since_s` to `until_s`, and the windows that it began with."""

    since_s: float
    until_s: float
    windows: Windows

    @property
    def cold(self) -> bool:
        return not self.windows.warm_at(self.until_s - self.since_s)

    @property
    def kept_s(self) -> float:
        """Seconds in which the level was warm and did nothing."""
        return self.windows.kept_s(self.until_s - self.since_s)


@dataclass(frozen=True)
class Change:
    """What a load has ended: idle times of levels, and how many levels were used for the first time ever."""

    ended: tuple[IdlePeriod, ...]
    first: int


@dataclass
class _Level:
    """A level: since when it is idle and with which windows, None while it is busy."""

    policy: WindowPolicy
    idle: tuple[float, Windows] | None = None


class WarmLevels:
    """The levels of one function; `make` makes the windows of each. Levels above MOST_LEVELS are passed over."""

    def __init__(self, make: Callable[[], WindowPolicy]) -> None:
        self.name = make().name
        self._make = make
        self._levels: list[_Level] = []
        self.busy = 0

    def observe(self, now_s: float, busy: int) -> Change:
        """Note that so many queries at once run from `now_s` on, or ran since the last observation."""
        busy = min(busy, MOST_LEVELS)
        ended = [idle for level in self._levels[self.busy : busy] if (idle := self._ended(level, now_s))]
        first = max(0, busy - len(self._levels))
        self._levels += [_Level(self._make()) for _ in range(first)]
        for level in self._levels[busy : self.busy]:
            level.idle = now_s, level.policy.windows(now_s)
        self.busy = busy
        return Change(tuple(ended), first)

    def wanted(self, now_s: float) -> int:
        idle = [level.idle for level in self._levels[self.busy :]]
        return self.busy + sum(windows.warm_at(now_s - since) for since, windows in (entry for entry in idle if entry))

    def idle(self, now_s: float) -> tuple[IdlePeriod, ...]:
        found = [level.idle for level in self._levels if level.idle is not None]
        return tuple(IdlePeriod(since, now_s, windows) for since, windows in found)

    def _ended(self, level: _Level, now_s: float) -> IdlePeriod | None:
        if level.idle is None:
            return None
        since_s, windows = level.idle
        level.idle = None
        level.policy.observe(now_s, max(0.0, now_s - since_s))
        return IdlePeriod(since_s, max(now_s, since_s), windows)
