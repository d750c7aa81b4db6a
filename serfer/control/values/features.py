"""What a value is guessed from: lags, windows, the same windows some time ago, the clock, and a level's own bursts.

Rates are in instances, less the level's number: 0.4 is a load that fills the level to 40%, -2 one that is two levels
below it. So all levels are learnt together. `NAMES` are the columns, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.snapshots import SavedFields, Snapshot
from serfer.control.values.load_history import DAY, SLOT_S

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Slots = NDArray[np.int64]
Numbers = NDArray[Any]

_MINUTE: Final = 6  # slots
_LAGS: Final = (0, 1, 2, 3, 6, 12, 18, 30, 60, 90, 120)
_MEANS: Final = (6, 18, 30, 60, 180, 360, 1080)
_HIGHEST: Final = (18, 60, 180, 360, 1080)
_AGO: Final = (180, 360, 540, 720, DAY)
_LONG_AGO_WINDOW: Final = 60
_REPEATS: Final = ((180, (2, 8, 24, 48, 96)), (360, (4, 12, 24, 48, 96)))  # a period, and how many of the last ones
_AFTER: Final = ("in its boot", "in the minute after its boot", "in 4 minutes after its boot", "in 15 minutes")
_BUSY: Final = (360, 1080)
_CALM: Final = 12  # slots below the break-even load that end a burst
_NEVER: Final = -(10**9)
_MOST_SLOTS: Final = 2**40
_MOST_MINUTES: Final = 3000.0
_HALF_HOUR: Final = 30.0
LONGEST: Final = max(DAY, *(period * max(counts) for period, counts in _REPEATS)) + 1
"""Slots before the last one that any feature but those of bursts looks at."""
NAMES: Final = (
    *(f"rate {lag} ago" for lag in _LAGS),
    *(f"mean of {width}" for width in _MEANS),
    *(f"highest of {width}" for width in _HIGHEST),
    *(f"{what} {ago} ago" for ago in _AGO for what in ("boot's mean", "boot's highest", "mean", "highest")),
    *(f"mean {what}, of {count} times {period}" for period, counts in _REPEATS for count in counts for what in _AFTER),
    *("minute", "minute of half hour", "hour"),
    *("since busy", "since calm", "since begin", "since begin before", "phase of begin", "phase of begin before"),
    *(f"busy share of {width}" for width in _BUSY),
    "level",
)
_BLOCK: Final = 4096  # slots whose windows are gathered at once
_RELATIVE: Final = NAMES.index("minute")


@dataclass(frozen=True)
class LevelFacts:
    """What a level is: an instance's queries/s, Lambda's price over the instance's, and the boot in seconds."""

    qps: float
    price_ratio: float
    boot_s: float

    @property
    def boot_slots(self) -> int:
        """The boot in whole slots, rounded up, at least one."""
        return max(1, int(np.ceil(self.boot_s / SLOT_S)))

    @property
    def busy_above(self) -> float:
        """The share of a level from which on an instance is cheaper than Lambda."""
        return 1.0 / self.price_ratio

    def shares(self, rates: NDArray[Any]) -> Floats:
        """Return rates (queries/s) in instances."""
        return np.asarray(rates, np.float64) / self.qps


class _Windows:
    """Means and highest rates of windows that end with given slots, these included: (slots,)."""

    def __init__(self, shares: Floats, slots: Slots) -> None:
        self._shares, self.ends = shares, slots + 1
        self._sums = np.concatenate(([0.0], np.cumsum(shares)))

    def mean(self, width: int, ago: int = 0) -> Floats:
        """Return means of the window that ended `ago` slots earlier, of what of it is known; 0 where nothing is."""
        ends = np.maximum(self.ends - ago, 0)
        begins = np.maximum(ends - width, 0)
        means: Floats = (self._sums[ends] - self._sums[begins]) / np.maximum(ends - begins, 1)
        return means

    def highest(self, width: int, ago: int = 0) -> Floats:
        """Return the highest rates of the same window."""
        ends = np.maximum(self.ends - ago, 0)
        if len(ends) == 1:
            return np.array([self._shares[max(int(ends[0]) - width, 0) : int(ends[0])].max(initial=0.0)])
        running = np.concatenate(([0.0], self._running(width)))
        highest: Floats = running[ends]
        return highest

    def repeated(self, period: int, counts: Sequence[int], spans: Sequence[tuple[int, int]]) -> Floats:
        """Return the load that followed the same moment one period ago, two and so on, from begin to end of each span.

        (slots, counts times spans): means over so many of these windows, of those that are known; 0 where none is.
        """
        last = period * max(counts)
        begins, ends = (np.array(each) for each in zip(*spans, strict=True))
        ends = np.minimum(ends, period)  # what is not over is not known
        begins = np.minimum(begins, ends - 1)
        chosen = np.array(counts) - 1
        means = []
        for now in np.array_split(self.ends, len(self.ends) // _BLOCK + 1):
            moments = now[:, None] - np.arange(period, last + 1, period)
            known = (moments >= 0)[:, :, None]
            moments = np.maximum(moments, 0)[:, :, None]
            load = self._sums[moments + ends * known] - self._sums[moments + begins * known]
            many = np.maximum(np.cumsum(known, axis=1), 1) * (ends - begins)
            means.append((np.cumsum(load, axis=1) / many)[:, chosen].reshape(len(now), -1))
        return np.concatenate(means)

    def _running(self, width: int) -> Floats:
        """Return the highest rate of each slot and those before it, by windows of doubled widths."""
        highest, reached = self._shares.copy(), 1
        while reached < width:
            step = min(reached, width - reached)
            highest[step:] = np.maximum(highest[step:], highest[:-step].copy())
            reached += step
        return highest


def load_features(facts: LevelFacts, shares: Floats, slots: Slots, now_s: Floats) -> Floats:
    """Return the features that all levels have, (slots, features), for level 0.

    `shares` is the load by slots in instances; a row knows the load up to the end of its slot, at `now_s`.
    """
    windows = _Windows(shares, slots)
    boot = facts.boot_slots
    columns = [np.where(slots >= lag, shares[np.maximum(slots - lag, 0)], 0.0) for lag in _LAGS]
    columns += [windows.mean(width) for width in _MEANS]
    columns += [windows.highest(width) for width in _HIGHEST]
    for ago in _AGO:
        for width in (min(boot, ago), _LONG_AGO_WINDOW):  # what followed the moment so long ago
            columns += [windows.mean(width, ago - width), windows.highest(width, ago - width)]
    spans = ((0, boot), (boot, boot + _MINUTE), (boot, boot + 4 * _MINUTE), (0, 15 * _MINUTE))  # as _AFTER says
    columns += [windows.repeated(period, counts, spans) for period, counts in _REPEATS]
    columns += [now_s % 3600.0 / 60.0, now_s % 1800.0 / 60.0, now_s % 86_400.0 / 3600.0]
    return np.column_stack(columns)


def level_features(load: Numbers, bursts: Numbers, level: float | Numbers) -> Numbers:
    """Return all features in the order of NAMES: of one level (slots, ...), or of several at one time (levels, ...)."""
    rows = np.broadcast_to(load, (len(bursts), load.shape[1])).copy()
    rows[:, :_RELATIVE] -= np.reshape(level, (-1, 1))
    return np.column_stack([rows, bursts, np.broadcast_to(level, len(bursts))])


def burst_features(facts: LevelFacts, shares: Floats, level: int, slots: Slots) -> Floats:
    """Return the features of a level's own bursts at the end of each of `slots`: (slots, features)."""
    at = np.arange(len(shares))
    busy = shares - level > facts.busy_above
    last_busy = np.maximum.accumulate(np.where(busy, at, _NEVER))
    last_calm = np.maximum.accumulate(np.where(busy, _NEVER, at))
    before = np.concatenate(([_NEVER], last_busy[:-1]))
    begins = busy & (at - before > _CALM)
    begun = np.maximum.accumulate(np.where(begins, at, _NEVER))
    places = np.concatenate(([_NEVER, _NEVER], np.flatnonzero(begins)))
    begun_before = places[np.cumsum(begins)]
    counts = np.concatenate(([0], np.cumsum(busy)))
    known = [counts[slots + 1] - counts[np.maximum(slots + 1 - width, 0)] for width in _BUSY]
    return _burst_columns(slots, [each[slots] for each in (last_busy, last_calm, begun, begun_before)], known)


class Bursts:
    """The same features of all levels at one time, slot by slot."""

    def __init__(self, facts: LevelFacts) -> None:
        self._facts = facts
        self._slot = -1
        self._busy, self._calm, self._begun, self._before = (np.zeros(0, np.int64) for _ in range(4))

    def grow(self, levels: int) -> None:
        """Append levels that were never busy, up to so many."""
        more = levels - len(self._busy)
        if more > 0:
            self._busy, self._begun, self._before = (
                np.append(each, np.full(more, _NEVER)) for each in (self._busy, self._begun, self._before)
            )
            self._calm = np.append(self._calm, np.full(more, self._slot if self._slot >= 0 else _NEVER))

    def add(self, share: float) -> None:
        """Add a slot's load, in instances."""
        self._slot += 1
        busy = share - np.arange(len(self._busy)) > self._facts.busy_above
        begins = busy & (self._slot - self._busy > _CALM)
        self._before = np.where(begins, self._begun, self._before)
        self._begun = np.where(begins, self._slot, self._begun)
        self._busy = np.where(busy, self._slot, self._busy)
        self._calm = np.where(busy, self._calm, self._slot)

    def snapshot(self) -> Snapshot:
        """Return the slots of all levels' bursts, as plain JSON values."""
        since = {"busy": self._busy, "calm": self._calm, "begun": self._begun, "before": self._before}
        return {"slot": self._slot, **{key: each.tolist() for key, each in since.items()}}

    def restore(self, saved: SavedFields, levels: int) -> None:
        """Go on from the snapshot of so many levels; raises InputError for another one."""
        self._slot = saved.whole("slot", -1, _MOST_SLOTS)
        self._busy, self._calm, self._begun, self._before = (
            saved.wholes(key, levels, _NEVER, max(self._slot, _NEVER)) for key in ("busy", "calm", "begun", "before")
        )

    def features(self, shares: Floats) -> Floats:
        """Return the features now, (levels, features); `shares` are the last slots, an hour and more where known."""
        levels = np.arange(len(self._busy))[:, None]
        known = [np.count_nonzero(shares[-width:] - levels > self._facts.busy_above, axis=1) for width in _BUSY]
        slots = np.full(len(levels), self._slot)
        return _burst_columns(slots, (self._busy, self._calm, self._begun, self._before), known)


def _burst_columns(slots: Slots, since: Sequence[Slots], busy: Sequence[Slots]) -> Floats:
    minutes = [(slots - each) / _MINUTE for each in since]
    phases = [each % _HALF_HOUR for each in minutes[2:]]
    capped = [np.minimum(each, _MOST_MINUTES) for each in minutes]
    shares = [each / np.clip(slots + 1, 1, width) for each, width in zip(busy, _BUSY, strict=True)]
    return np.column_stack([*capped, *phases, *shares])
