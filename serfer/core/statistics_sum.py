"""What windows have computed of statistics over the whole image, put together (serfer/core/plan/statistics.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan.statistics import MAX, MEAN, SUM, VARIANCE, MapStatistics
from serfer.core.plan.windows import ImageWindow

Partial = NDArray[np.float32]


def told(statistics: bytes, window: ImageWindow) -> bytes:
    """Return the vector of statistics, float32, as a window of a pass has it: it ends in what windows before it own."""
    skipped = np.array(window.skipped, "<f4").tobytes()
    return statistics[: -len(skipped)] + skipped if any(window.skipped) else statistics


class StatisticsSum:
    """Adds up the partial results of a pass, in float64, by Chan, Golub and LeVeque (1979) for variances.

    The sum depends on the order of `add` in its last digits: windows are added in their own order.
    """

    def __init__(self, maps: Sequence[MapStatistics]) -> None:
        self._maps = maps
        self._counts = [0.0] * len(maps)
        self._sums: list[dict[str, NDArray[np.float64]]] = [{} for _ in maps]

    def add(self, partial: Partial) -> None:
        """Add a window's partial result, flat; what lies behind its values is ignored."""
        end = 0
        for number, map_ in enumerate(self._maps):
            start, end = end, end + map_.partial_size
            count, values = float(partial[start]), partial[start + 1 : end].astype(np.float64)
            parts = dict(zip(map_.kinds, values.reshape(len(map_.kinds), map_.channels), strict=True))
            self._sums[number] = _merged(self._counts[number], self._sums[number], count, parts)
            self._counts[number] += count

    def values(self) -> NDArray[np.float32]:
        """Return the statistics of the pass, one vector; there is at least one partial result."""
        found = []
        for map_, count, sums in zip(self._maps, self._counts, self._sums, strict=True):
            found += [sums[kind] / count if kind == VARIANCE else sums[kind] for kind in map_.kinds]
        return np.concatenate(found).astype(np.float32)


def _merged(
    count: float, sums: dict[str, NDArray[np.float64]], more: float, parts: dict[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    if not sums:
        return parts
    merged = {}
    total = count + more
    for kind, part in parts.items():
        before = sums[kind]
        if kind == MEAN:
            merged[kind] = before + (part - before) * (more / total)
        elif kind == VARIANCE:
            merged[kind] = before + part + (parts[MEAN] - sums[MEAN]) ** 2 * (count * more / total)
        elif kind == SUM:
            merged[kind] = before + part
        else:
            merged[kind] = np.maximum(before, part) if kind == MAX else np.minimum(before, part)
    return merged
