"""The passes over an image that add up statistics of the whole of it, before its map.

What they compute is kept until the result is written (kept_maps.py): a map that was stopped goes on in its pass, and
never with the statistics of another image, plan or option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Rect
from serfer.core.passes import StatisticsSum, unpacked
from serfer.core.plan.windows import ImageWindows, StatisticsPass
from serfer.mapping.engine import Engine, MapTask, Outcome
from serfer.mapping.kept_maps import KeptInput, PassFiles
from serfer.raster import ResultParts


@dataclass(frozen=True)
class PartialTarget:
    """Keeps what windows of a pass compute, whatever data their pixels have: partial results, and parts of kept maps.

    A partial result is one position of an array for each window, the values in its channels. Pixels without data are 0
    here as they are in the map: the network sees them so, and so do its statistics.
    """

    windows: ImageWindows
    known: StatisticsPass
    parts: ResultParts
    kept: Sequence[ResultParts]

    def covered(self, number: int, _size: tuple[int, int]) -> Rect:
        return self.windows[number].read

    def empty(self, _missing: NDArray[np.bool_], _read: Rect, _number: int) -> NDArray[np.bool_]:
        return np.zeros(1, np.bool_)

    def keep(self, number: int, outputs: Mapping[str, NDArray[Any]], _empty: NDArray[np.bool_] | None) -> None:
        """Keep a window's output, (1, channels, rows, cols): its partial result last, by which the window is done."""
        [values] = outputs.values()
        flat, size = np.ascontiguousarray(values.reshape(-1), np.float32), self.known.partial_size
        shapes = [keep.shape(rect) for keep, rect in zip(self.known.keeps, self.windows[number].keeps, strict=True)]
        for kept, part in zip(self.kept, unpacked(flat[size:], shapes), strict=True):
            kept.put(number, part)
        self.parts.put(number, flat[:size, None, None])

    def keep_empty(self, number: int) -> None:
        """Never called: `empty` says of every window that there is something in it."""
        raise AssertionError(number)


class ImagePasses:
    """The passes over an image before its map; none for a network that looks at neighbourhoods alone."""

    def __init__(self, files: PassFiles, stack: ExitStack) -> None:
        """Open, or make, what is kept of the passes, until `stack` is closed; raises as `PassFiles.opened`."""
        self._files = files
        self._partial, self._kept = files.opened(stack)
        self._there = {*range(len(self._kept))}

    def missing(self, *, mapped: bool) -> list[list[int]]:
        partial, kept = ([part.done() for part in parts] for parts in (self._partial, self._kept))
        return self._files.missing(partial, kept, mapped=mapped)

    def run(self, task: MapTask, missing: Sequence[int], watch: Callable[[Outcome], None]) -> Outcome:
        """Compute what is missing of each pass, and then the `missing` windows of the map, which is `task`.

        All ends with the pass in which windows fail, or the dollars are spent.
        """
        windows, statistics, outcome = self._files.windows, self._initial_statistics(), Outcome()
        for number, (known, left) in enumerate(zip(windows.passes, self.missing(mapped=False), strict=True)):
            self._delete_unread(number)
            one = self._task(task, known.reads, statistics)
            outcome += Engine(self._of(one, number), _behind(outcome, watch)).run(left)
            if outcome.failures or outcome.over_ceiling:
                return outcome
            self._add_up(number, statistics)
        self._delete_unread(len(windows.passes))
        one = self._task(task, windows.reads, statistics)
        return outcome + Engine(one, _behind(outcome, watch)).run(missing)

    def _task(self, task: MapTask, reads: tuple[int, ...], statistics: NDArray[np.float32]) -> MapTask:
        task = replace(task, statistics=statistics.tobytes())
        if not reads:
            return task
        kept = KeptInput(reads, dict(enumerate(self._kept)), len(task.input.bands))
        return replace(task, kept=kept, input=task.input.as_values())

    def _of(self, task: MapTask, number: int) -> MapTask:
        windows, known = self._files.of(number), self._files.windows.passes[number]
        kept = [self._kept[kept_number] for kept_number in self._files.windows.kept_by(number)]
        target = PartialTarget(windows, known, self._partial[number], kept)
        return replace(task, windows=windows, targets=[target], number=number)

    def _add_up(self, number: int, statistics: NDArray[np.float32]) -> None:
        maps, parts = self._files.windows.passes[number].maps, self._partial[number]
        total = StatisticsSum(maps)
        for window in range(parts.count):
            total.add(parts.values(window).reshape(-1))
        values, start = total.values(), maps[0].start
        statistics[start : start + values.size] = values

    def _delete_unread(self, number: int) -> None:
        """Delete the kept maps that no pass from `number` on reads; the map counts as one behind the passes."""
        for kept in [
            kept_number for kept_number in self._there if self._files.windows.last_reader(kept_number) < number
        ]:
            self._kept[kept].remove()
            self._there.remove(kept)

    def statistics(self) -> NDArray[np.float32] | None:
        """Return the statistics of the whole image, empty where the network takes none; None where some are missing."""
        if any(len(parts.done()) < parts.count for parts in self._partial):
            return None
        statistics = self._initial_statistics()
        for number in range(len(self._partial)):
            self._add_up(number, statistics)
        return statistics

    def _initial_statistics(self) -> NDArray[np.float32]:
        windows = self._files.windows
        return np.zeros(windows.statistics, np.float32)

    def remove(self) -> None:
        for parts in (*self._partial, *(self._kept[number] for number in self._there)):
            parts.remove()


def _behind(before: Outcome, watch: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
    return lambda now: watch(before + now)
