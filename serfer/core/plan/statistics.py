"""Statistics over the whole image, such as a channel's mean, which windows add up in passes before the map itself.

pass 0: windows of the image ──▶ partial results ──▶ merged in order ──┐
pass 1: windows, with the statistics of pass 0 ──▶ ... ────────────────┤
map:    windows, with the statistics of all passes  ◀──────────────────┘

A network with squeeze-and-excite or instance norm is local once these are known: windows have them as a second input,
one vector. A partial result is of the elements that its window owns; each element of a map has one owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt

MEAN, VARIANCE, SUM, MAX, MIN = KINDS = ("mean", "variance", "sum", "max", "min")
"""What is known of each channel; a variance is the mean of squares of differences from the mean, which comes before."""

SKIPPED = 2
"""Values behind those of the statistics in the vector of a plan for images of any size: how many units of rows and of
columns at the beginning of a pass's window are owned by windows before it. For the map they are 0."""
POSITION = 2
"""Values behind the statistics in windows of networks whose weights depend on the place: the first row and column."""


@dataclass(frozen=True, slots=True)
class MapStatistics:
    """The statistics of a map's `channels`: of each of `kinds` a value for each channel, from `start` in the vector on.

    A window's partial result is the number of elements of a channel that it owns, and `channels` values of each kind;
    for a variance these are the sums of squares of differences from the window's own mean.
    """

    start: int
    channels: int
    kinds: tuple[str, ...]

    @property
    def stop(self) -> int:
        return self.start + self.channels * len(self.kinds)

    @property
    def partial_size(self) -> int:
        return 1 + self.channels * len(self.kinds)


def partial_form(size: int, channels: int) -> tuple[int, int]:
    """Return the rows and columns of a map of `channels` that hold a partial result of `size` values."""
    positions = -(-size // channels)
    cols = isqrt(positions - 1) + 1
    return -(-positions // cols), cols


def check_statistics(maps: Sequence[MapStatistics]) -> bool:
    """Return whether statistics, in the order of passes, have known kinds and make one vector without a gap."""
    ends = [0, *(map_.stop for map_ in maps)]
    return all(
        map_.start == before and map_.channels > 0 and _sound(map_.kinds)
        for before, map_ in zip(ends, maps, strict=False)
    )


def _sound(kinds: Sequence[str]) -> bool:
    after_mean = VARIANCE not in kinds or (MEAN, VARIANCE) in pairwise(kinds)
    return 0 < len(kinds) == len({*kinds}) and {*kinds} <= {*KINDS} and after_mean
