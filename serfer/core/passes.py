"""What windows of passes over an image compute for later ones: statistics (plan/statistics.py), and maps (ADR 64).

A window that reads maps in place of the image has one input all the same, and one that keeps maps one output: values
lie one behind the other, in the form of the image or of the map (`partial_form`), with zeros behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from serfer.core.plan.statistics import MAX, MEAN, SUM, VARIANCE, MapStatistics, partial_form
from serfer.core.plan.windows import ImageWindow

Partial = NDArray[np.float32]


def window_statistics(statistics: bytes, window: ImageWindow) -> bytes:
    skipped = np.array(window.skipped, "<f4").tobytes()
    return statistics[: -len(skipped)] + skipped if any(window.skipped) else statistics


class StatisticsSum:
    """Adds up partial results in float64, variances by Chan, Golub and LeVeque (1979); digits depend on the order."""

    def __init__(self, maps: Sequence[MapStatistics]) -> None:
        self._maps = maps
        self._counts = [0.0] * len(maps)
        self._sums: list[dict[str, NDArray[np.float64]]] = [{} for _ in maps]

    def add(self, partial: Partial) -> None:
        end = 0
        for number, map_ in enumerate(self._maps):
            start, end = end, end + map_.partial_size
            count, values = float(partial[start]), partial[start + 1 : end].astype(np.float64)
            parts = dict(zip(map_.kinds, values.reshape(len(map_.kinds), map_.channels), strict=True))
            self._sums[number] = _merge(self._counts[number], self._sums[number], count, parts)
            self._counts[number] += count

    def values(self) -> NDArray[np.float32]:
        found = []
        for map_, count, sums in zip(self._maps, self._counts, self._sums, strict=True):
            found += [sums[kind] / count if kind == VARIANCE else sums[kind] for kind in map_.kinds]
        return np.concatenate(found).astype(np.float32)


def add_up(maps: Sequence[MapStatistics], partials: Iterable[Partial], statistics: Partial) -> None:
    """Add up the partial results of all windows of a pass, in their order, into the vector of statistics."""
    total = StatisticsSum(maps)
    for partial in partials:
        total.add(partial)
    statistics[maps[0].start : maps[-1].stop] = total.values()


def _merge(
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


def packed(parts: Sequence[NDArray[np.float32]], channels: int) -> NDArray[np.float32]:
    rows, cols = partial_form(sum(part.size for part in parts), channels)
    values = np.zeros(channels * rows * cols, np.float32)
    start = 0
    for part in parts:
        values[start : start + part.size] = part.reshape(-1)
        start += part.size
    return values.reshape(1, channels, rows, cols)


def unpacked(values: NDArray[np.float32], shapes: Sequence[tuple[int, int, int]]) -> Iterator[NDArray[np.float32]]:
    start = 0
    for shape in shapes:
        yield values[start : start + prod(shape)].reshape(shape)
        start += prod(shape)
